package api_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// scheduleWorld is a world whose clock stands until it is moved.
func scheduleWorld(t *testing.T) (*world, func(time.Duration)) {
	t.Helper()
	var nanos atomic.Int64
	nanos.Store(time.Date(2026, time.December, 1, 8, 0, 0, 0, time.UTC).UnixNano())
	w := newWorldAt(t, func() time.Time { return time.Unix(0, nanos.Load()).UTC() })
	return w, func(d time.Duration) { nanos.Add(int64(d)) }
}

// withSchedules creates an automation with schedules and returns the answer.
func (w *world) withSchedules(schedules string) map[string]any {
	w.t.Helper()
	a := w.do("POST", "/v1/automations", strings.TrimSuffix(strings.TrimSpace(definition), "}")+`,"schedules":`+schedules+`}`)
	if a.status != 201 {
		w.t.Fatalf("create: %d %s", a.status, a.body)
	}
	return a.json(w.t)
}

// change sends an update and returns the answer.
func (w *world) change(id, body string) map[string]any {
	w.t.Helper()
	a := w.do("PATCH", "/v1/automations/"+id, body)
	if a.status != 200 {
		w.t.Fatalf("update %s: %d %s", body, a.status, a.body)
	}
	return a.json(w.t)
}

// fire decides everything that is due.
func (w *world) fire() {
	w.t.Helper()
	due, err := w.ledger.DueSchedules(w.t.Context(), 100)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, id := range due {
		if _, err := w.ledger.DecideSchedule(w.t.Context(), id); err != nil {
			w.t.Fatal(err)
		}
	}
}

func wantJSON(t *testing.T, what string, got any, want string) {
	t.Helper()
	var expected any
	if err := json.Unmarshal([]byte(want), &expected); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(expected, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// schedule returns a schedule of an automation.
func scheduleOf(t *testing.T, a map[string]any, i int) map[string]any {
	t.Helper()
	all := a["schedules"].([]any)
	if i >= len(all) {
		t.Fatalf("there are %d schedules", len(all))
	}
	return all[i].(map[string]any)
}

func TestSchedulesAsTheyAreShown(t *testing.T) {
	t.Parallel()
	w, _ := scheduleWorld(t)
	created := w.withSchedules(`[{"cron":"0 9 * * MON-FRI","timezone":"Europe/Berlin","maxOccurrences":10,"overlap":"skip","input":{"n":1}},
		{"every":"90m","enabled":false},{"at":"2027-03-28T02:30","timezone":"Europe/Berlin"}]`)
	first := scheduleOf(t, created, 0)
	id := first["id"]
	wantJSON(t, "the first schedule", first, fmt.Sprintf(`{"id":%q,"cron":"0 9 * * MON-FRI","timezone":"Europe/Berlin","maxOccurrences":10,
		"overlap":"skip","catchUp":"latest","catchUpWindowMs":86400000,"jitterMs":0,"input":{"n":1},"enabled":true,"occurrences":0,
		"status":"active","statusReason":null,"nextRunAt":"2026-12-02T08:00:00Z","lastRunAt":null,
		"description":"every weekday at 09:00 in Europe/Berlin"}`, id))
	if second := scheduleOf(t, created, 1); second["nextRunAt"] != nil || second["input"] != nil || second["maxOccurrences"] != nil ||
		second["status"] != "paused" || second["statusReason"] != "the schedule is disabled" {
		t.Errorf("the second schedule is %v", second)
	}
	wantJSON(t, "the warnings", created["warnings"], `[{"path":"schedules[2].at",
		"message":"28 March 2027 at 02:30 does not exist in Europe/Berlin; it fires at 03:00 (2027-03-28T01:00:00Z)"}]`)
	automationID := created["id"].(string)
	shown := w.do("GET", "/v1/automations/"+automationID, "").json(t)
	wantJSON(t, "the next instants", scheduleOf(t, shown, 0)["next"], `["2026-12-02T08:00:00Z","2026-12-03T08:00:00Z",
		"2026-12-04T08:00:00Z","2026-12-07T08:00:00Z","2026-12-08T08:00:00Z"]`)
	wantJSON(t, "the drops", shown["drops"], `[]`)
	if scheduleOf(t, shown, 1)["next"] != nil {
		t.Error("a schedule that does not fire has next instants")
	}
	listed := w.do("GET", "/v1/automations", "").json(t)["automations"].([]any)[0].(map[string]any)
	if diff := cmp.Diff(created["schedules"], listed["schedules"]); diff != "" || listed["drops"] != nil {
		t.Errorf("the listing differs: %s", diff)
	}
	off := w.change(automationID, `{"enabled":false}`)
	for i := range 3 {
		if s := scheduleOf(t, off, i); s["status"] != "paused" || s["statusReason"] != "the automation is disabled" || s["nextRunAt"] != nil {
			t.Errorf("schedule %d of a disabled automation is %v", i, s)
		}
	}
	on := w.change(automationID, `{"enabled":true}`)
	if diff := cmp.Diff(created["schedules"], on["schedules"]); diff != "" {
		t.Errorf("an automation that is enabled again: %s", diff)
	}
	repeat := `{"name":"k","idempotency_key":"k","schedules":[{"at":"2026-12-01T08:00:01Z"}]}`
	if a := w.do("POST", "/v1/automations", repeat); a.status != 201 {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestARepeatedCreateMayNameAPastInstant(t *testing.T) {
	t.Parallel()
	w, pass := scheduleWorld(t)
	const body = `{"name":"k","idempotency_key":"k","schedules":[{"at":"2026-12-01T08:00:01Z"}]}`
	first := w.do("POST", "/v1/automations", body)
	pass(time.Minute)
	again := w.do("POST", "/v1/automations", body)
	if first.status != 201 || again.status != 201 || first.json(t)["id"] != again.json(t)["id"] {
		t.Errorf("%d %s, then %d %s", first.status, first.body, again.status, again.body)
	}
	if late := w.do("POST", "/v1/automations", strings.ReplaceAll(body, `"idempotency_key":"k",`, "")); late.status != 400 ||
		!strings.Contains(string(late.body), `"path":"schedules[0].at"`) {
		t.Errorf("a past instant: %d %s", late.status, late.body)
	}
}

func TestChangingSchedules(t *testing.T) {
	t.Parallel()
	w, pass := scheduleWorld(t)
	created := w.withSchedules(`[{"cron":"0 9 * * *","timezone":"UTC","jitterMs":5000},{"every":"1h","maxOccurrences":2}]`)
	id := created["id"].(string)
	cron, hourly := scheduleOf(t, created, 0)["id"].(string), scheduleOf(t, created, 1)["id"].(string)

	changed := w.change(id, fmt.Sprintf(`{"schedules":{"update":[{"id":%q,"cron":"30 10 * * *","jitterMs":null,"input":[1]}],
		"remove":[%q],"add":[{"every":"20m"}]}}`, cron, hourly))
	if changed["version"] != 2.0 || len(changed["schedules"].([]any)) != 2 {
		t.Errorf("%v", changed)
	}
	first := scheduleOf(t, changed, 0)
	if first["id"] != cron || first["cron"] != "30 10 * * *" || first["timezone"] != "UTC" || first["jitterMs"] != 0.0 ||
		first["nextRunAt"] != "2026-12-01T10:30:00Z" || fmt.Sprint(first["input"]) != "[1]" {
		t.Errorf("the changed schedule is %v", first)
	}
	second := scheduleOf(t, changed, 1)
	if second["every"] != "20m" || second["id"] == hourly {
		t.Errorf("the added schedule is %v", second)
	}
	other := w.change(id, fmt.Sprintf(`{"schedules":{"update":[{"id":%q,"every":"5m"}]}}`, cron))
	if s := scheduleOf(t, other, 0); s["every"] != "5m" || s["cron"] != nil || s["timezone"] != nil {
		t.Errorf("a schedule of another kind is %v", s)
	}
	same := w.change(id, fmt.Sprintf(`{"schedules":{"update":[{"id":%q,"enabled":true,"every":"5m"}]}}`, cron))
	if same["version"] != other["version"] {
		t.Errorf("a change of nothing raised the version to %v", same["version"])
	}
	pass(5 * time.Minute)
	w.fire()
	limited := w.change(id, fmt.Sprintf(`{"schedules":{"update":[{"id":%q,"maxOccurrences":1}]}}`, cron))
	if s := scheduleOf(t, limited, 0); s["status"] != "finished" || s["occurrences"] != 1.0 || s["nextRunAt"] != nil ||
		s["statusReason"] != "its one occurrence has been admitted" {
		t.Errorf("a schedule at its limit is %v", s)
	}
	raised := w.change(id, fmt.Sprintf(`{"schedules":{"update":[{"id":%q,"maxOccurrences":3}]}}`, cron))
	if s := scheduleOf(t, raised, 0); s["status"] != "active" || s["nextRunAt"] != "2026-12-01T08:10:00Z" {
		t.Errorf("a schedule whose limit was raised is %v", s)
	}
	for name, tc := range map[string]struct{ body, place string }{
		"named twice":        {`{"schedules":{"update":[{"id":"CRON"}],"remove":["CRON"]}}`, "schedules.remove[0]"},
		"named never":        {`{"schedules":{"update":[{"id":"x","cron":"* * * * *"}]}}`, "schedules.update[0].id"},
		"no id":              {`{"schedules":{"update":[{"cron":"* * * * *"}]}}`, "schedules.update[0].id"},
		"as for create":      {`{"schedules":[{"cron":"* * * * *"}]}`, `schedules","message":"must be an object {\"add\": […], \"update\": […], \"remove\": […]}, not the list that create takes`},
		"webhooks likewise":  {`{"webhooks":[]}`, `webhooks","message":"must be an object {\"add\": […], \"update\": […], \"remove\": […]}, not the list that create takes`},
		"half a change":      {`{"schedules":{"update":[{"id":"CRON","cron":"0 9 * * *"}]}}`, "schedules.update[0].timezone"},
		"a past instant":     {`{"schedules":{"add":[{"at":"2026-12-01T08:00:00Z"}]}}`, "schedules.add[0].at"},
		"nothing is left":    {`{"schedules":{"update":[{"id":"CRON","every":null}]}}`, "schedules.update[0]"},
		"an unknown overlap": {`{"schedules":{"update":[{"id":"CRON","overlap":"x"}]}}`, "schedules.update[0].overlap"},
	} {
		a := w.do("PATCH", "/v1/automations/"+id, strings.ReplaceAll(tc.body, "CRON", cron))
		if a.status != 400 || !strings.Contains(string(a.body), `"path":"`+tc.place+`"`) {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	if now := w.do("GET", "/v1/automations/"+id, "").json(t); now["version"] != raised["version"] {
		t.Errorf("a refused change raised the version to %v", now["version"])
	}
}

func TestRunsAndDropsOfASchedule(t *testing.T) {
	t.Parallel()
	w, pass := scheduleWorld(t)
	created := w.withSchedules(`[{"every":"1m","overlap":"skip"},{"every":"1m","enabled":false}]`)
	id := created["id"].(string)
	for range 3 {
		pass(time.Minute)
		w.fire()
	}
	listed := w.do("GET", "/v1/runs?trigger=schedule", "").json(t)["runs"].([]any)
	if len(listed) != 1 {
		t.Fatalf("%d runs, want 1", len(listed))
	}
	run := listed[0].(map[string]any)
	wantJSON(t, "the trigger", run["trigger"], fmt.Sprintf(`{"kind":"schedule","id":%q,"scheduledAt":"2026-12-01T08:01:00Z"}`,
		scheduleOf(t, created, 0)["id"]))
	shown := w.do("GET", "/v1/automations/"+id, "").json(t)
	wantJSON(t, "the drops", shown["drops"], fmt.Sprintf(`[{"scheduleId":%q,"from":"2026-12-01T08:02:00Z","to":"2026-12-01T08:03:00Z",
		"count":2,"reason":"overlap","recordedAt":"2026-12-01T08:03:00Z"}]`, scheduleOf(t, created, 0)["id"]))
	w.change(id, fmt.Sprintf(`{"schedules":{"update":[{"id":%q,"overlap":"queue"}]}}`, scheduleOf(t, created, 0)["id"]))
	pass(time.Minute)
	w.fire()
	second := w.do("GET", "/v1/runs?limit=1", "").json(t)["runs"].([]any)[0].(map[string]any)
	wantJSON(t, "what the second run waits for", second["waitingFor"], fmt.Sprintf(`{"reason":"previous_run",
		"since":"2026-12-01T08:04:00Z","detail":"run %s of the same schedule has not ended"}`, run["id"]))
}

func TestPreviewSchedule(t *testing.T) {
	t.Parallel()
	w, _ := scheduleWorld(t)
	for name, tc := range map[string]struct{ body, want string }{
		"first Mondays": {
			`{"cron":"0 9 * * MON#1","timezone":"Europe/Berlin","count":2,"overlap":"skip","input":1,"enabled":false}`,
			`{"instants":["2026-12-07T08:00:00Z","2027-01-04T08:00:00Z"],
				"description":"on the first Monday of each month at 09:00 in Europe/Berlin","warnings":[]}`,
		},
		"from, and a limit of its own": {
			`{"every":"90m","from":"2026-12-03T00:00:00+01:00","maxOccurrences":2}`,
			`{"instants":["2026-12-03T00:30:00Z","2026-12-03T02:00:00Z"],"description":"every 90 minutes","warnings":[]}`,
		},
		"a warning": {
			`{"cron":"*/45 * * * *","timezone":"UTC","count":1}`,
			`{"instants":["2026-12-01T08:45:00Z"],"description":"at minutes 0 and 45 of every hour in UTC","warnings":[
				{"path":"cron","message":"WARNING"}]}`,
		},
	} {
		a := w.do("POST", "/v1/schedules/preview", tc.body)
		if a.status != 200 {
			t.Errorf("%s: %d %s", name, a.status, a.body)
			continue
		}
		got := a.json(t)
		for _, warning := range got["warnings"].([]any) {
			warning.(map[string]any)["message"] = "WARNING" // the core tests the words
		}
		wantJSON(t, name, got, tc.want)
	}
	for body, place := range map[string]string{
		`{}`: "", `{"cron":"61 * * * *","timezone":"UTC"}`: "cron", `{"cron":"0 0 30 2 *","timezone":"UTC"}`: "cron",
		`{"at":"2026-11-30T00:00:00Z"}`: "at", `{"every":"1m","count":0}`: "count", `{"every":"1m","count":101}`: "count",
		`{"every":"1m","from":"yesterday"}`: "from", `{"every":"1m","name":"x"}`: "name",
	} {
		if a := w.do("POST", "/v1/schedules/preview", body); a.status != 400 || !strings.Contains(string(a.body), `"path":"`+place+`"`) {
			t.Errorf("%s: %d %s", body, a.status, a.body)
		}
	}
}

// TestApplyKnowsSchedulesByTheirTimes exports an automation with schedules, and applies it changed.
func TestApplyKnowsSchedulesByTheirTimes(t *testing.T) {
	t.Parallel()
	w, pass := scheduleWorld(t)
	created := w.withSchedules(`[{"every":"1m","maxOccurrences":5,"input":{"a":1}},{"cron":"0 9 * * *","timezone":"UTC","enabled":false}]`)
	id := created["id"].(string)
	pass(time.Minute)
	w.fire()
	exported := string(w.do("GET", "/v1/export?automation_id="+id, "").body)
	if got := w.apply(exported).actions(); got != "Hello unchanged" {
		t.Errorf("an exported automation: %s", got)
	}
	turned := strings.Replace(exported, `"schedules":[`, `"schedules":[{"every":"2m"},`, 1)
	turned = strings.Replace(turned, `"enabled":false}`, `"enabled":true}`, 1)
	if got := w.apply(turned).actions(); got != "Hello updated schedules[1].enabled,schedules[2]" {
		t.Errorf("a changed automation: %s", got)
	}
	now := w.do("GET", "/v1/automations/"+id, "").json(t)
	for i, every := range []any{"1m", nil, "2m"} {
		if s := scheduleOf(t, now, i); s["every"] != every || i < 2 && s["id"] != scheduleOf(t, created, i)["id"] {
			t.Errorf("schedule %d is %v", i, s)
		}
	}
	if n := scheduleOf(t, now, 0)["occurrences"]; n != 1.0 {
		t.Errorf("the first schedule has counted %v runs, want 1", n)
	}
	a := w.do("POST", "/v1/apply", `{"automations":[{"name":"new","schedules":[{"every":"1h"},{"at":"2026-12-01T08:00:00Z"}]}]}`)
	if a.status != 400 || !strings.Contains(string(a.body), `"path":"automations[0].schedules[1].at"`) {
		t.Errorf("a past instant: %d %s", a.status, a.body)
	}
}
