package storetest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/automation/schedule"
)

var scheduleTests = []test{
	{"Create", testCreateSchedules},
	{"CreateRefusals", testCreateScheduleRefusals},
	{"Fire", testFire},
	{"Overlap", testOverlap},
	{"OverlapWhileRunning", testOverlapWhileRunning},
	{"CatchUp", testCatchUp},
	{"MaxOccurrences", testMaxOccurrences},
	{"Blocked", testBlocked},
	{"Order", testOrder},
	{"OrderAfterCancel", testOrderAfterCancel},
	{"ClockBack", testClockBack},
	{"ClockFarBack", testClockFarBack},
	{"Drops", testDrops},
	{"DropsAreBounded", testDropsAreBounded},
	{"Backlog", testBacklog},
	{"Outage", testOutage},
	{"Unknown", testUnknownSchedules},
}

// every returns a schedule of an interval with the default policy, changed by the given functions.
func every(interval string, change ...func(*automation.ScheduleDefinition)) automation.ScheduleDefinition {
	d := automation.ScheduleDefinition{
		Spec: schedule.Spec{Every: interval}, Policy: schedule.DefaultPolicy(), Enabled: true, Input: json.RawMessage("null"),
	}
	for _, fn := range change {
		fn(&d)
	}
	return d
}

func overlap(o schedule.Overlap) func(*automation.ScheduleDefinition) {
	return func(d *automation.ScheduleDefinition) { d.Policy.Overlap = o }
}

func catchUp(c schedule.CatchUp) func(*automation.ScheduleDefinition) {
	return func(d *automation.ScheduleDefinition) { d.Policy.CatchUp = c }
}

func atMost(n int64) func(*automation.ScheduleDefinition) {
	return func(d *automation.ScheduleDefinition) { d.Policy.MaxOccurrences = n }
}

func jitter(j time.Duration) func(*automation.ScheduleDefinition) {
	return func(d *automation.ScheduleDefinition) { d.Policy.Jitter = j }
}

func spec(s schedule.Spec) func(*automation.ScheduleDefinition) {
	return func(d *automation.ScheduleDefinition) { d.Spec = s }
}

// scheduled creates an automation of one step with schedules.
func (f *fixture) scheduled(t *testing.T, schedules ...automation.ScheduleDefinition) automation.Automation {
	t.Helper()
	d := f.definition("job", "one")
	d.Schedules = schedules
	return f.create(t, d)
}

// automation reads an automation again.
func (f *fixture) automation(t *testing.T, a automation.Automation) automation.Automation {
	t.Helper()
	read, err := f.Automation(t.Context(), a.OwnerID, a.ID)
	if err != nil {
		t.Fatalf("Automation: %v", err)
	}
	return read
}

// only returns the one schedule of an automation as it is now.
func (f *fixture) only(t *testing.T, a automation.Automation) automation.Schedule {
	t.Helper()
	read := f.automation(t, a)
	if len(read.Schedules) != 1 {
		t.Fatalf("the automation has %d schedules, want 1", len(read.Schedules))
	}
	return read.Schedules[0]
}

func (f *fixture) decide(t *testing.T, id string) automation.ScheduleDecision {
	t.Helper()
	d, err := f.DecideSchedule(t.Context(), id)
	if err != nil {
		t.Fatalf("DecideSchedule: %v", err)
	}
	return d
}

// due decides everything that is due, as the ticker does, and returns the ids of the runs that may start.
func (f *fixture) due(t *testing.T) []string {
	t.Helper()
	var admitted []string
	for {
		ids, err := f.DueSchedules(t.Context(), 1000)
		if err != nil {
			t.Fatalf("DueSchedules: %v", err)
		}
		if len(ids) == 0 {
			return admitted
		}
		for _, id := range ids {
			admitted = append(admitted, f.decide(t, id).Admitted...)
		}
	}
}

// runsOf returns the runs of an automation in the order of their admission.
func (f *fixture) runsOf(t *testing.T, a automation.Automation) []automation.Run {
	t.Helper()
	var all []automation.Run
	cursor := ""
	for {
		page, next, err := f.ListRuns(t.Context(), a.OwnerID, automation.RunFilter{AutomationID: a.ID, Limit: 200, Cursor: cursor})
		if err != nil {
			t.Fatalf("ListRuns: %v", err)
		}
		all = append(all, page...)
		if cursor = next; next == "" {
			slices.Reverse(all)
			return all
		}
	}
}

// instants lists the instants of runs as times of day.
func instants(runs []automation.Run) string {
	var words []string
	for _, r := range runs {
		words = append(words, r.Trigger.ScheduledAt.Format(time.TimeOnly))
	}
	return strings.Join(words, " ")
}

// drops lists what an automation's schedules have dropped, oldest first.
func (f *fixture) drops(t *testing.T, a automation.Automation) string {
	t.Helper()
	all, err := f.ScheduleDrops(t.Context(), a.OwnerID, a.ID, 100)
	if err != nil {
		t.Fatalf("ScheduleDrops: %v", err)
	}
	var words []string
	for _, d := range all {
		word := fmt.Sprintf("%s-%s %d %s", d.From.Format(time.TimeOnly), d.To.Format(time.TimeOnly), d.Count, d.Reason)
		words = append([]string{word}, words...)
	}
	return strings.Join(words, ", ")
}

func testCreateSchedules(t *testing.T, f *fixture) {
	cron := every("", spec(schedule.Spec{Cron: "0 9 * * MON-FRI", Timezone: "Europe/Berlin"}), overlap(schedule.OverlapSkip),
		catchUp(schedule.CatchUpAll), atMost(10), jitter(90*time.Second))
	cron.Policy.CatchUpWindow = time.Hour
	cron.Input = json.RawMessage(`{"n":1.50}`)
	disabled := every("90m")
	disabled.Enabled, disabled.Input = false, nil
	created := f.scheduled(t, cron, disabled, every("", spec(schedule.Spec{At: "2026-01-06T07:00", Timezone: "America/Los_Angeles"})))
	wantEqual(t, "the automation read back", f.automation(t, created), created)
	if len(created.Schedules) != 3 {
		t.Fatalf("%d schedules were stored, want 3", len(created.Schedules))
	}
	next := time.Date(2026, 1, 6, 8, 0, 0, 0, time.UTC)
	cron.ID, cron.Enabled = created.Schedules[0].ID, true
	wantEqual(t, "the first schedule", created.Schedules[0], automation.Schedule{
		ScheduleDefinition: cron, CreatedAt: f.clock.Now(), Status: schedule.StatusActive, NextRunAt: &next,
	})
	if second := created.Schedules[1]; second.NextRunAt != nil || string(second.Input) != "null" || second.Status != schedule.StatusActive {
		t.Errorf("the disabled schedule reads back as %+v", second)
	}
	if third := created.Schedules[2].NextRunAt; !third.Equal(time.Date(2026, 1, 6, 15, 0, 0, 0, time.UTC)) {
		t.Errorf("the one instant is %v", third)
	}
	page, _, err := f.ListAutomations(t.Context(), f.owner, automation.AutomationFilter{})
	if err != nil || len(page) != 1 {
		t.Fatalf("ListAutomations: %v, %v", page, err)
	}
	wantEqual(t, "the listed schedules", page[0].Schedules, created.Schedules)

	d := f.definition("stays off", "one")
	d.Enabled, d.Schedules = false, []automation.ScheduleDefinition{every("1m")}
	if off := f.create(t, d); off.Schedules[0].NextRunAt != nil {
		t.Errorf("a schedule of a disabled automation has the next run %v", off.Schedules[0].NextRunAt)
	}
}

func testCreateScheduleRefusals(t *testing.T, f *fixture) {
	strange := every("1m", overlap("sometimes"), catchUp("maybe"))
	strange.Input = json.RawMessage(`{`)
	for name, tc := range map[string]struct {
		schedules []automation.ScheduleDefinition
		want      []string
	}{
		"timings": {
			[]automation.ScheduleDefinition{
				every("1m"), every("", spec(schedule.Spec{Cron: "61 * * * *"})), every("", spec(schedule.Spec{At: "2026-01-05T09:00:00Z"})),
				every("", spec(schedule.Spec{Cron: "0 0 30 2 *", Timezone: "UTC"})), every("", spec(schedule.Spec{})),
			},
			[]string{"schedules[1].timezone", "schedules[1].cron", "schedules[2].at", "schedules[3].cron", "schedules[4]"},
		},
		"the rest": {
			[]automation.ScheduleDefinition{strange},
			[]string{"schedules[0].input", "schedules[0].overlap", "schedules[0].catchUp"},
		},
		"too many": {make([]automation.ScheduleDefinition, automation.MaxSchedules+1), nil},
	} {
		d := f.definition("job", "one")
		d.Schedules = tc.schedules
		_, err := f.CreateAutomation(t.Context(), f.owner, d, automation.Idempotency{})
		wantCode(t, name, err, automation.CodeValidationFailed)
		if tc.want != nil {
			wantEqual(t, name+": the places", paths(err), tc.want)
		}
	}
	if all, _, err := f.ListAutomations(t.Context(), f.owner, automation.AutomationFilter{}); err != nil || len(all) != 0 {
		t.Errorf("refused automations were stored: %v, %v", all, err)
	}
	wake, err := f.NextScheduleWake(t.Context())
	if err != nil || !wake.IsZero() {
		t.Errorf("NextScheduleWake without schedules = %v, %v", wake, err)
	}
}

// testFire fires one schedule and looks at all that this leaves.
func testFire(t *testing.T, f *fixture) {
	d := every("1m")
	d.Input = json.RawMessage(`{"who":"Mom"}`)
	a := f.scheduled(t, d)
	id := a.Schedules[0].ID
	wake, err := f.NextScheduleWake(t.Context())
	if err != nil || !wake.Equal(*a.Schedules[0].NextRunAt) {
		t.Errorf("NextScheduleWake = %v, %v, want %v", wake, err, a.Schedules[0].NextRunAt)
	}
	early := f.decide(t, id)
	if len(early.Admitted) != 0 || !early.NextWake.Equal(wake) {
		t.Errorf("an early wake-up did %+v", early)
	}
	f.clock.Advance(time.Minute)
	if due, err := f.DueSchedules(t.Context(), 10); err != nil || len(due) != 1 || due[0] != id {
		t.Errorf("DueSchedules = %v, %v", due, err)
	}
	decision := f.decide(t, id)
	again := f.decide(t, id)
	if len(decision.Admitted) != 1 || len(again.Admitted) != 0 || !again.NextWake.Equal(wake.Add(time.Minute)) {
		t.Fatalf("the wake-up did %+v, its repeat %+v", decision, again)
	}
	run, err := f.Run(t.Context(), f.owner, decision.Admitted[0])
	if err != nil {
		t.Fatalf("Run: %v", err)
	}
	wantEqual(t, "the trigger", run.Trigger, automation.Trigger{Kind: automation.TriggerSchedule, ID: id, ScheduledAt: &wake})
	if string(run.Input) != `{"who":"Mom"}` || run.Status != automation.RunPending || run.AutomationVersion != 1 || run.WaitsFor != "" {
		t.Errorf("the run is %+v", run)
	}
	if n := f.changes.count(run); n != 1 {
		t.Errorf("the admission was told %d times, want once", n)
	}
	got := f.only(t, a)
	if got.Occurrences != 1 || !got.LastRunAt.Equal(wake) || !got.NextRunAt.Equal(wake.Add(time.Minute)) {
		t.Errorf("the schedule stands at %+v", got)
	}
	if version := f.automation(t, a).Version; version != 1 {
		t.Errorf("a firing raised the version to %d", version)
	}
}

// testOverlap fires a schedule three times while no run begins.
func testOverlap(t *testing.T, f *fixture) {
	for _, tc := range []struct {
		overlap schedule.Overlap
		runs    string // their instants
		ready   int    // how many may start
		drops   string
		status  string // of the first run
	}{
		{schedule.OverlapQueue, "09:01:00 09:02:00 09:03:00", 1, "", "pending: pending"},
		{schedule.OverlapParallel, "09:01:00 09:02:00 09:03:00", 3, "", "pending: pending"},
		{schedule.OverlapSkip, "09:01:00", 1, "09:02:00-09:03:00 2 overlap", "pending: pending"},
		{schedule.OverlapQueueOne, "09:01:00", 1, "09:02:00-09:03:00 2 overlap", "pending: pending"},
		{schedule.OverlapCancelRunning, "09:01:00 09:02:00 09:03:00", 1, "", "cancelled: skipped"},
	} {
		t.Run(string(tc.overlap), func(t *testing.T) {
			a := f.scheduled(t, every("1m", overlap(tc.overlap)))
			start := f.clock.Now()
			defer func() { f.clock.Advance(start.Sub(f.clock.Now())) }()
			for range 3 {
				f.clock.Advance(time.Minute)
				f.decide(t, a.Schedules[0].ID)
			}
			runs := f.runsOf(t, a)
			wantEqual(t, "the instants", instants(runs), tc.runs)
			wantEqual(t, "the drops", f.drops(t, a), tc.drops)
			wantStatuses(t, runs[0], tc.status)
			ready := 0
			for _, r := range f.startable(t, "engine", 100) {
				if r.AutomationID == a.ID {
					ready++
				}
			}
			if ready != tc.ready {
				t.Errorf("%d runs may start, want %d", ready, tc.ready)
			}
		})
	}
}

// testOverlapWhileRunning fires while the step of an earlier run executes.
func testOverlapWhileRunning(t *testing.T, f *fixture) {
	t.Run("queue_one", func(t *testing.T) {
		a := f.scheduled(t, every("1m", overlap(schedule.OverlapQueueOne)))
		id := a.Schedules[0].ID
		f.clock.Advance(time.Minute)
		f.decide(t, id)
		f.mustBegin(t, f.runsOf(t, a)[0], "one")
		for range 2 {
			f.clock.Advance(time.Minute)
			if d := f.decide(t, id); len(d.Admitted) != 0 {
				t.Errorf("a run beside the one that executes may start: %v", d.Admitted)
			}
		}
		wantEqual(t, "the instants", instants(f.runsOf(t, a)), "09:01:00 09:02:00")
		wantEqual(t, "the drops", f.drops(t, a), "09:03:00-09:03:00 1 overlap")
	})
	t.Run("cancel_running", func(t *testing.T) {
		a := f.scheduled(t, every("1m", overlap(schedule.OverlapCancelRunning)))
		id := a.Schedules[0].ID
		f.clock.Advance(time.Minute)
		f.decide(t, id)
		first := f.runsOf(t, a)[0]
		f.mustBegin(t, first, "one")
		f.clock.Advance(time.Minute)
		d := f.decide(t, id)
		if len(d.Cancelled) != 1 || d.Cancelled[0].Run.ID != first.ID || d.Cancelled[0].Begun != "one" || len(d.Admitted) != 0 {
			t.Fatalf("the second firing did %+v", d)
		}
		first = f.read(t, first)
		second := f.runsOf(t, a)[1]
		if first.CancelRequestedAt == nil || !strings.Contains(first.CancelReason, "later run") || second.WaitsFor != first.ID {
			t.Errorf("the first run stands at %+v, the second waits for %q", first, second.WaitsFor)
		}
		if ends := f.openEnds(t, f.machine.ID); len(ends[f.machine.ID]) != 1 || ends[f.machine.ID][0].RunID != first.ID {
			t.Errorf("the open ends are %v", ends)
		}
		f.clock.Advance(time.Minute)
		d = f.decide(t, id) // the second is given up; the cancel of the first is recorded already
		if len(d.Cancelled) != 1 || d.Cancelled[0].Run.ID != second.ID || len(d.Admitted) != 0 {
			t.Errorf("the third firing did %+v", d)
		}
		f.ready.take()
		f.finish(t, first, automation.FinishRequest{StepRef: ref(first, "one"), Execution: 1, Outcome: automation.OutcomeCancelled})
		third := f.runsOf(t, a)[2]
		wantStatuses(t, f.read(t, second), "cancelled: skipped")
		wantEqual(t, "what may start when the first has ended", f.ready.take(), []string{third.ID})
	})
}

func testCatchUp(t *testing.T, f *fixture) {
	daily := every("", spec(schedule.Spec{Cron: "0 3 * * *", Timezone: "UTC"}))
	window := every("1h", catchUp(schedule.CatchUpAll), spec(schedule.Spec{Every: "1h", Anchor: "2026-01-05T09:00:00Z"}))
	window.Policy.CatchUpWindow = 150 * time.Minute
	minutely := spec(schedule.Spec{Every: "1m", Anchor: "2026-01-05T09:00:00Z"})
	for name, tc := range map[string]struct {
		schedule automation.ScheduleDefinition
		outage   time.Duration
		runs     string
		drops    string
	}{
		// The clock of the suite stands a fraction after 09:00:00.
		"every minute, back after 8 h": {
			every("", minutely), 8 * time.Hour, "17:00:00", "09:01:00-16:59:00 479 missed",
		},
		"every minute, none": {
			every("", minutely, catchUp(schedule.CatchUpNone)), time.Hour, "10:00:00", "09:01:00-09:59:00 59 missed",
		},
		"every minute, all": {
			every("", minutely, catchUp(schedule.CatchUpAll)), 3 * time.Minute, "09:01:00 09:02:00 09:03:00", "",
		},
		"daily at 03:00, back at 09:00":       {daily, 24 * time.Hour, "03:00:00", ""},
		"daily at 03:00, back after two days": {daily, 48 * time.Hour, "03:00:00", "03:00:00-03:00:00 1 outside_window"},
		"all within a window": {
			window, 8*time.Hour + 30*time.Minute, "16:00:00 17:00:00", "10:00:00-15:00:00 6 outside_window",
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := f.scheduled(t, tc.schedule)
			start := f.clock.Now()
			f.clock.Advance(tc.outage)
			defer func() { f.clock.Advance(start.Sub(f.clock.Now())) }()
			f.decide(t, a.Schedules[0].ID)
			runs := f.runsOf(t, a)
			wantEqual(t, "the instants", instants(runs), tc.runs)
			wantEqual(t, "the drops", f.drops(t, a), tc.drops)
			for _, run := range runs {
				if late := f.clock.Now().Sub(*run.Trigger.ScheduledAt) > schedule.OnTime; run.Trigger.Late != late {
					t.Errorf("the run for %v is marked late: %v, want %v", run.Trigger.ScheduledAt, run.Trigger.Late, late)
				}
			}
		})
	}
}

func testMaxOccurrences(t *testing.T, f *fixture) {
	a := f.scheduled(t, every("1s", atMost(3), catchUp(schedule.CatchUpAll)))
	f.clock.Advance(10 * time.Second)
	f.due(t)
	got := f.only(t, a)
	if n := len(f.runsOf(t, a)); n != 3 || got.Occurrences != 3 {
		t.Errorf("%d runs were admitted, %d counted, want 3", n, got.Occurrences)
	}
	if got.Status != schedule.StatusFinished || got.StatusReason != "all 3 occurrences have been admitted" || got.NextRunAt != nil {
		t.Errorf("the schedule stands at %+v", got)
	}
	wantEqual(t, "the drops", f.drops(t, a), "09:00:04-09:00:10 7 max_occurrences")
	f.clock.Advance(time.Hour)
	if due := f.due(t); len(due) != 0 {
		t.Errorf("a finished schedule fired: %v", due)
	}
	once := f.scheduled(t, every("", spec(schedule.Spec{At: "2026-01-05T12:00:00Z"})))
	f.clock.Advance(3 * time.Hour)
	f.due(t)
	if got := f.only(t, once); got.Status != schedule.StatusFinished || got.Occurrences != 1 {
		t.Errorf("the schedule of one instant stands at %+v", got)
	}
}

func testBlocked(t *testing.T, f *fixture) {
	draft := f.definition("draft")
	draft.Workflow.Compiled = nil
	old := f.enroll(t, f.owner, "old")
	orphan := f.definition("orphan", "one")
	orphan.MachineID = old.ID
	off := f.definition("off", "one")
	off.Enabled = false
	for name, tc := range map[string]struct {
		definition automation.Definition
		want       string
	}{
		"draft":           {draft, "09:01:00-09:02:00 2 not_executable"},
		"revoked machine": {orphan, "09:01:00-09:02:00 2 machine_revoked"},
		"disabled":        {off, ""},
	} {
		tc.definition.Schedules = []automation.ScheduleDefinition{every("1m")}
		a := f.create(t, tc.definition)
		if name == "revoked machine" {
			f.db.Revoke(t, old.ID)
		}
		for range 2 {
			f.clock.Advance(time.Minute)
			f.decide(t, a.Schedules[0].ID)
		}
		f.clock.Advance(-2 * time.Minute)
		if runs := f.runsOf(t, a); len(runs) != 0 {
			t.Errorf("%s: %d runs were admitted", name, len(runs))
		}
		wantEqual(t, name+": the drops", f.drops(t, a), tc.want)
		if n := f.only(t, a).Occurrences; n != 0 {
			t.Errorf("%s: %d occurrences were counted", name, n)
		}
	}
}

// testOrder executes the runs of a schedule one after another, whatever the order in which the engine asks.
func testOrder(t *testing.T, f *fixture) {
	a := f.scheduled(t, every("1m"))
	id := a.Schedules[0].ID
	for range 3 {
		f.clock.Advance(time.Minute)
		f.decide(t, id)
	}
	runs := f.runsOf(t, a)
	for i, want := range []string{"", runs[0].ID, runs[1].ID} {
		if got := f.read(t, runs[i]); got.WaitsFor != want {
			t.Errorf("run %d waits for %q, want %q", i, got.WaitsFor, want)
		}
	}
	f.ready.take()
	for i, run := range runs {
		all := f.startable(t, "engine", 100)
		if len(all) != 1 || all[0].RunID != run.ID {
			t.Fatalf("before run %d: %d runs may start, want this one", i, len(all))
		}
		for j, other := range runs {
			if _, ok, err := f.StartableRun(t.Context(), "engine", other.ID); err != nil || ok != (i == j) {
				t.Errorf("before run %d: StartableRun of %d = %v, %v", i, j, ok, err)
			}
		}
		f.markStarted(t, run, 1, "engine")
		f.complete(t, f.read(t, run), "one", `1`)
		var want []string
		if i+1 < len(runs) {
			want = []string{runs[i+1].ID}
		}
		wantEqual(t, fmt.Sprintf("what may start after run %d", i), f.ready.take(), want)
	}
	f.clock.Advance(time.Minute)
	if d := f.decide(t, id); len(d.Admitted) != 1 {
		t.Errorf("a run with no earlier one may not start: %+v", d)
	}
}

// testOrderAfterCancel cancels runs that wait and the one that they wait for.
func testOrderAfterCancel(t *testing.T, f *fixture) {
	a := f.scheduled(t, every("1m"))
	for range 4 {
		f.clock.Advance(time.Minute)
		f.decide(t, a.Schedules[0].ID)
	}
	runs := f.runsOf(t, a)
	f.mustBegin(t, runs[0], "one")
	f.cancel(t, runs[1], false)
	wantStatuses(t, f.read(t, runs[1]), "cancelled: skipped")
	if got := f.read(t, runs[2]).WaitsFor; got != runs[0].ID {
		t.Errorf("the third run waits for %q, want the first", got)
	}
	f.cancel(t, runs[0], false)
	if all := f.startable(t, "engine", 100); len(all) != 1 || all[0].RunID != runs[0].ID {
		t.Errorf("a run may start while the step of an earlier one executes: %v", all)
	}
	f.ready.take()
	f.finish(t, runs[0], automation.FinishRequest{StepRef: ref(runs[0], "one"), Execution: 1, Outcome: automation.OutcomeFailed})
	wantEqual(t, "what may start after a cancelled run", f.ready.take(), []string{runs[2].ID})
	f.cancel(t, runs[2], false)
	wantEqual(t, "what may start after a run that never began", f.ready.take(), []string{runs[3].ID})
}

// testClockBack sets the clock back a little across a firing.
func testClockBack(t *testing.T, f *fixture) {
	a := f.scheduled(t, every("1m"))
	id := a.Schedules[0].ID
	f.clock.Advance(time.Minute)
	f.decide(t, id)
	f.clock.Advance(-5 * time.Second)
	f.decide(t, id)
	f.clock.Advance(5 * time.Second)
	f.decide(t, id)
	wantEqual(t, "the instants", instants(f.runsOf(t, a)), "09:01:00")
}

// testClockFarBack corrects a clock that was hours ahead: the schedule goes on, and no instant fires twice.
func testClockFarBack(t *testing.T, f *fixture) {
	a := f.scheduled(t, every("30m"))
	f.clock.Advance(2 * time.Hour)
	f.due(t)
	wantEqual(t, "the instants of the wrong clock", instants(f.runsOf(t, a)), "11:00:00")
	f.clock.Advance(-2 * time.Hour)
	f.due(t)
	if next := f.only(t, a).NextRunAt; !next.Equal(time.Date(2026, 1, 5, 9, 30, 0, 0, time.UTC)) {
		t.Errorf("the next run is at %v, want 09:30", next)
	}
	for range 5 {
		f.clock.Advance(30 * time.Minute)
		f.due(t)
	}
	wantEqual(t, "the instants", f.sortedInstants(t, a), "09:30:00 10:00:00 10:30:00 11:00:00 11:30:00")
}

// sortedInstants lists the instants of an automation's runs in their own order.
func (f *fixture) sortedInstants(t *testing.T, a automation.Automation) string {
	t.Helper()
	return strings.Join(distinct(strings.Fields(instants(f.runsOf(t, a)))), " ")
}

// testDrops keeps what is dropped in ranges: what goes on is one, what is interrupted or has another reason is not.
func testDrops(t *testing.T, f *fixture) {
	a := f.scheduled(t, every("1m", overlap(schedule.OverlapSkip)))
	id := a.Schedules[0].ID
	tick := func(n int) {
		for range n {
			f.clock.Advance(time.Minute)
			f.decide(t, id)
		}
	}
	tick(4)
	f.complete(t, f.runsOf(t, a)[0], "one", `1`)
	tick(3)
	f.clock.Advance(5 * time.Minute)
	f.decide(t, id)
	wantEqual(t, "the drops", f.drops(t, a),
		"09:02:00-09:04:00 3 overlap, 09:06:00-09:07:00 2 overlap, 09:08:00-09:11:00 4 missed, 09:12:00-09:12:00 1 overlap")
	newest, err := f.ScheduleDrops(t.Context(), f.owner, a.ID, 1)
	if err != nil || len(newest) != 1 || newest[0].ScheduleID != id || !newest[0].RecordedAt.Equal(f.clock.Now()) {
		t.Errorf("the newest drop is %+v, %v", newest, err)
	}
	other, _ := f.addOwner(t)
	for what, ids := range map[string][2]string{
		"another owner": {other, a.ID}, "an unknown automation": {f.owner, NewID()}, "no id": {f.owner, "x"},
	} {
		if found, err := f.ScheduleDrops(t.Context(), ids[0], ids[1], 10); err != nil || len(found) != 0 {
			t.Errorf("the drops of %s: %v, %v", what, found, err)
		}
	}
}

func testDropsAreBounded(t *testing.T, f *fixture) {
	a := f.scheduled(t, every("1m", overlap(schedule.OverlapSkip)))
	id := a.Schedules[0].ID
	const ranges = automation.MaxScheduleDrops + 5
	for range ranges { // a run, and a firing that it drops
		f.clock.Advance(time.Minute)
		admitted := f.decide(t, id).Admitted
		f.clock.Advance(time.Minute)
		f.decide(t, id)
		run, err := f.RunState(t.Context(), f.owner, admitted[0])
		if err != nil {
			t.Fatal(err)
		}
		f.cancel(t, run, false)
	}
	all, err := f.ScheduleDrops(t.Context(), f.owner, a.ID, 2*ranges)
	if err != nil || len(all) != automation.MaxScheduleDrops || !all[0].To.Equal(f.clock.Now().Truncate(time.Minute)) {
		t.Errorf("%d ranges are kept, the newest %+v, %v", len(all), all[0], err)
	}
}

// testBacklog settles more than one decision admits.
func testBacklog(t *testing.T, f *fixture) {
	a := f.scheduled(t, every("1s", catchUp(schedule.CatchUpAll)))
	f.clock.Advance(250 * time.Second)
	first := f.decide(t, a.Schedules[0].ID)
	if !first.NextWake.Equal(f.clock.Now()) {
		t.Errorf("the next wake-up is at %v, want now", first.NextWake)
	}
	f.due(t)
	if n := len(f.runsOf(t, a)); n != 250 || f.only(t, a).Occurrences != 250 {
		t.Errorf("%d runs were admitted, want 250", n)
	}
}

// testOutage stops the control plane for eight hours with many schedules.
func testOutage(t *testing.T, f *fixture) {
	const schedules = 200
	for range schedules / automation.MaxSchedules {
		var list []automation.ScheduleDefinition
		for range automation.MaxSchedules {
			list = append(list, every("1m"))
		}
		f.scheduled(t, list...)
	}
	f.clock.Advance(8 * time.Hour)
	if admitted := f.due(t); len(admitted) != schedules || len(distinct(admitted)) != schedules {
		t.Errorf("%d runs were admitted, want %d, one each", len(admitted), schedules)
	}
	if again := f.due(t); len(again) != 0 {
		t.Errorf("%d runs were admitted by another look", len(again))
	}
	automations, _, err := f.ListAutomations(t.Context(), f.owner, automation.AutomationFilter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range automations {
		for _, s := range a.Schedules {
			if s.Occurrences != 1 || !s.LastRunAt.Equal(f.clock.Now().Truncate(time.Minute)) {
				t.Fatalf("a schedule stands at %+v", s)
			}
		}
		drops, err := f.ScheduleDrops(t.Context(), f.owner, a.ID, 2*schedules)
		if err != nil || len(drops) != automation.MaxSchedules || drops[0].Count != 479 {
			t.Errorf("%d ranges of drops, %v", len(drops), err)
		}
	}
}

func testUnknownSchedules(t *testing.T, f *fixture) {
	for _, id := range []string{"", "x", NewID()} {
		if d := f.decide(t, id); len(d.Admitted) != 0 || !d.NextWake.IsZero() {
			t.Errorf("DecideSchedule(%q) = %+v", id, d)
		}
		if _, found, err := f.ScheduleSync(t.Context(), id); err != nil || found {
			t.Errorf("ScheduleSync(%q) = %v, %v", id, found, err)
		}
		if err := f.MarkScheduleSynced(t.Context(), id, 1, "engine"); err != nil {
			t.Errorf("MarkScheduleSynced(%q): %v", id, err)
		}
		if err := f.PauseSchedule(t.Context(), id, 1, true, ""); err != nil {
			t.Errorf("PauseSchedule(%q): %v", id, err)
		}
	}
}
