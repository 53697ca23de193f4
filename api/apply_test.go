package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/catalog"
)

// applied is the answer of an apply.
type applied struct {
	Automations []catalog.AppliedAutomation
	DryRun      bool `json:"dry_run"`
	Hint        *catalog.Hint
}

func (w *world) apply(body string) applied {
	w.t.Helper()
	a := w.do("POST", "/v1/apply", body)
	var result applied
	if err := json.Unmarshal(a.body, &result); err != nil || a.status != 200 {
		w.t.Fatalf("%d %s: %v", a.status, a.body, err)
	}
	return result
}

// actions writes what became of each definition.
func (a applied) actions() string {
	var all []string
	for _, one := range a.Automations {
		all = append(all, strings.TrimSpace(one.Name+" "+one.Action+" "+strings.Join(one.Changes, ",")))
	}
	return strings.Join(all, "; ")
}

const (
	twoDefinitions = `{"automations":[
		{"name":"one","workflow":{"script":"do one","compiled":{"version":2,"steps":[{"id":"a","kind":"command","command":"echo","args":["x","y"]}]}}},
		{"name":"two","enabled":false}]%s}`
	twoChanged = `{"automations":[
		{"name":"one","workflow":{"compiled":{"version":2,"steps":[{"id":"a","kind":"command","command":"echo","args":["x","z","q"],"env":{"C":"2"}},
			{"id":"b","kind":"command","command":"true"}]}}},
		{"name":"two","enabled":false},{"name":"three","description":"new"}]%s}`
)

func TestApply(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if a := w.do("POST", "/v1/apply", fmt.Sprintf(twoDefinitions, `,"dry_run":true`)); a.status != 200 ||
		strings.Contains(string(a.body), "automation_id") {
		t.Errorf("%d %s", a.status, a.body)
	}
	if listed := w.do("GET", "/v1/automations", "").json(t)["automations"].([]any); len(listed) != 0 {
		t.Fatalf("a dry run created %v", listed)
	}
	if got := w.apply(fmt.Sprintf(twoDefinitions, "")).actions(); got != "one created; two created" {
		t.Error(got)
	}
	again := w.apply(fmt.Sprintf(twoDefinitions, ""))
	if got := again.actions(); got != "one unchanged; two unchanged" || again.Hint != nil {
		t.Error(got, again.Hint)
	}

	want := "one updated workflow.compiled.steps[0].args[1],workflow.compiled.steps[0].args[2],workflow.compiled.steps[0].env," +
		"workflow.compiled.steps[1],workflow.script; two unchanged; three created"
	dry := w.apply(fmt.Sprintf(twoChanged, `,"dry_run":true`))
	if got := dry.actions(); got != want || !dry.DryRun || dry.Hint == nil || dry.Hint.Command != "apply" {
		t.Errorf("%s\nwant %s, %+v", got, want, dry.Hint)
	}
	if one := w.do("GET", "/v1/automations/"+dry.Automations[0].AutomationID, "").json(t); one["version"] != 1.0 {
		t.Errorf("a dry run changed %v", one)
	}
	done := w.apply(fmt.Sprintf(twoChanged, ""))
	if got := done.actions(); got != want {
		t.Error(got)
	}
	one := w.do("GET", "/v1/automations/"+done.Automations[0].AutomationID, "").json(t)
	if one["version"] != 2.0 || done.Automations[0].AutomationID != dry.Automations[0].AutomationID {
		t.Errorf("%v", one)
	}
	if two := w.do("GET", "/v1/automations/"+done.Automations[1].AutomationID, "").json(t); two["version"] != 1.0 || two["enabled"] != false {
		t.Errorf("what is equal was touched: %v", two)
	}
	if got := w.apply(fmt.Sprintf(twoChanged, "")).actions(); got != "one unchanged; two unchanged; three unchanged" {
		t.Error(got)
	}
}

func TestApplyRefusesAsAWhole(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	twice := []any{
		w.do("POST", "/v1/automations", `{"name":"twice"}`).json(t)["id"],
		w.do("POST", "/v1/automations", `{"name":"twice"}`).json(t)["id"],
	}
	good := `{"name":"good"},`
	tests := map[string]struct{ body, place, says string }{
		"nothing":              {`{}`, "automations", "required"},
		"no definition":        {`{"automations":[]}`, "automations", "1 to 200"},
		"too many":             {`{"automations":[` + strings.TrimSuffix(strings.Repeat(good, 201), ",") + `]}`, "automations", "1 to 200"},
		"a bad definition":     {`{"automations":[` + good + `{"name":"x","workflow":{"compiled":{"version":2,"steps":[]}}}]}`, "automations[1].workflow.compiled.steps", ""},
		"an unknown member":    {`{"automations":[` + good + `{"name":"x","nmae":"x"}]}`, "automations[1].nmae", "name"},
		"an idempotency key":   {`{"automations":[` + good + `{"name":"x","idempotency_key":"k"}]}`, "automations[1].idempotency_key", ""},
		"one name twice":       {`{"automations":[` + good + `{"name":"good"}]}`, "automations[1].name", "automations[0]"},
		"a name of two":        {`{"automations":[` + good + `{"name":"twice"}]}`, "automations[1].name", twice[0].(string)},
		"a machine of nobody":  {`{"automations":[` + good + `{"name":"x","machineId":"` + newID() + `"}]}`, "automations[1].machineId", "no machine of yours"},
		"a dry run of another": {`{"automations":[{"name":"good"}],"dry_run":1}`, "dry_run", ""},
	}
	for name, test := range tests {
		a := w.do("POST", "/v1/apply", test.body)
		if a.status != 400 || a.code(t) != "validation_failed" || !strings.Contains(string(a.body), `"path":"`+test.place+`"`) || !strings.Contains(string(a.body), test.says) {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	if listed := w.do("GET", "/v1/automations", "").json(t)["automations"].([]any); len(listed) != 2 {
		t.Errorf("a refused apply created something: %v", listed)
	}
}

// TestApplyKeepsTheMachine: a definition without a machine leaves the automation where it is, also when a new one
// would need to say.
func TestApplyKeepsTheMachine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(`{"automations":[{"name":"here"}]}`)
	second, err := w.ledger.EnrollMachine(t.Context(), automation.NewMachine{OwnerID: w.owner, Name: "server", Platform: "linux/amd64", PublicKey: `{"kty":"other"}`})
	if err != nil {
		t.Fatal(err)
	}
	if got := w.apply(`{"automations":[{"name":"here","description":"d"}]}`).actions(); got != "here updated description" {
		t.Error(got)
	}
	if a := w.do("POST", "/v1/apply", `{"automations":[{"name":"here"},{"name":"new"}]}`); a.status != 400 || !strings.Contains(string(a.body), `automations[1].machineId`) {
		t.Errorf("%d %s", a.status, a.body)
	}
	if got := w.apply(`{"automations":[{"name":"here","description":"d","machineId":"` + second.ID + `"}]}`).actions(); got != "here updated machineId" {
		t.Error(got)
	}
}

// TestAPageOfExportFitsIntoApply: large automations make short pages, and no page leaves one out.
func TestAPageOfExportFitsIntoApply(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var steps []string
	for i := range 10 {
		steps = append(steps, fmt.Sprintf(`{"id":"s%d","kind":"script","runtime":"shell","source":"%s"}`, i, strings.Repeat("x", 90<<10)))
	}
	var want []string
	for i := range 8 {
		name := fmt.Sprint("large ", i)
		want = append([]string{name}, want...)
		if a := w.do("POST", "/v1/automations", `{"name":"`+name+`","workflow":{"compiled":{"version":2,"steps":[`+strings.Join(steps, ",")+`]}}}`); a.status != 201 {
			t.Fatalf("%d %.300s", a.status, a.body)
		}
	}
	var got []string
	for pages, cursor := 0, ""; ; pages++ {
		page := w.do("GET", "/v1/export?cursor="+cursor, "")
		if page.status != 200 || len(page.body) > 7<<20 || pages > 2 {
			t.Fatalf("page %d: %d with %d bytes", pages, page.status, len(page.body))
		}
		document := page.json(t)
		for _, each := range document["automations"].([]any) {
			got = append(got, each.(map[string]any)["name"].(string))
		}
		if document["next_cursor"] == nil {
			break
		}
		cursor = document["next_cursor"].(string)
	}
	if !slices.Equal(got, want) {
		t.Errorf("exported %v, want %v", got, want)
	}
}

// TestExportedIsAccepted: what export returns, apply takes as it stands and changes nothing by.
func TestExportedIsAccepted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, definition := range []string{
		`{"name":"draft"}`,
		`{"name":"disabled","enabled":false,"description":"d <&>"}`,
		`{"name":"v1","workflow":{"script":"s","compiled":{"version":1,"steps":[{"id":"n","actionId":"channels.notify_user","input":{"b":1.0,"a":[1e3,"\u00e9"]}}]}}}`,
		`{"name":"v2","workflow":{"compiled":{"version":2,"steps":[` +
			`{"id":"a","kind":"action","actionId":"http.request","input":{"$runInput":true},"credential":"home","timeoutMs":5},` +
			`{"id":"b","kind":"command","command":"cat","args":[],"env":{},"stdin":{"$runInput":true},"cwd":"/","maxOutputBytes":7,"leftovers":"keep"},` +
			`{"id":"c","kind":"script","runtime":"python","source":"print(1)\n","args":["x"],"env":{"A":"b\nc"},"stdin":null}]}}}`,
	} {
		if a := w.do("POST", "/v1/automations", definition); a.status != 201 {
			t.Fatalf("%d %s", a.status, a.body)
		}
	}
	exported := w.do("GET", "/v1/export", "")
	if exported.status != 200 {
		t.Fatalf("%d %s", exported.status, exported.body)
	}
	result := w.apply(string(exported.body))
	if got := result.actions(); got != "v2 unchanged; v1 unchanged; disabled unchanged; draft unchanged" {
		t.Error(got)
	}
	for _, one := range result.Automations {
		alone := w.do("GET", "/v1/export?automation_id="+one.AutomationID, "")
		if got := w.apply(string(alone.body)).actions(); got != one.Name+" unchanged" {
			t.Error(got)
		}
	}
	page := w.do("GET", "/v1/export?limit=3&query=D", "").json(t)
	if len(page["automations"].([]any)) != 2 || page["next_cursor"] != nil {
		t.Errorf("%v", page)
	}
	if a := w.do("GET", "/v1/export?automation_id="+newID(), ""); a.status != 404 {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := w.do("GET", "/v1/export?limit=3&automation_id="+newID(), ""); a.status != 400 {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// TestAppliesOfOneNameCreateOne: two at the same time do not both find the name missing.
func TestAppliesOfOneNameCreateOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var together sync.WaitGroup
	for range 8 {
		together.Go(func() { w.do("POST", "/v1/apply", `{"automations":[{"name":"only"}]}`) })
	}
	together.Wait()
	if listed := w.do("GET", "/v1/automations", "").json(t)["automations"].([]any); len(listed) != 1 {
		t.Errorf("%d automations", len(listed))
	}
}

func TestVersionsInHeaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	created := w.do("POST", "/v1/automations", `{"name":"x"}`)
	id := created.json(t)["id"].(string)
	path := "/v1/automations/" + id
	if tag := created.header.Get("ETag"); tag != `"1"` {
		t.Errorf("ETag %s", tag)
	}
	match := func(tag string) func(r *http.Request) { return header("If-Match", tag) }
	changed := w.do("PATCH", path, `{"name":"y"}`, match(`"1"`))
	if changed.status != 200 || changed.header.Get("ETag") != `"2"` || w.do("GET", path, "").header.Get("ETag") != `"2"` {
		t.Errorf("%d %v", changed.status, changed.header)
	}
	if a := w.do("PATCH", path, `{"name":"z"}`, match(`"1"`)); a.code(t) != "version_conflict" {
		t.Errorf("%s", a.body)
	}
	if a := w.do("PATCH", path, `{"name":"y2","expected_version":2}`, match(`"2"`)); a.status != 200 {
		t.Errorf("both and equal: %s", a.body)
	}
	refused := map[string]answer{
		"both and different":      w.do("PATCH", path, `{"name":"z","expected_version":3}`, match(`"2"`)),
		"different in the query":  w.do("DELETE", path+"?expected_version=3", "", match(`"2"`)),
		"no quotes":               w.do("PATCH", path, `{"name":"z"}`, match(`3`)),
		"any":                     w.do("PATCH", path, `{"name":"z"}`, match(`*`)),
		"a weak one":              w.do("PATCH", path, `{"name":"z"}`, match(`W/"3"`)),
		"two":                     w.do("PATCH", path, `{"name":"z"}`, match(`"2", "3"`)),
		"two headers":             w.do("PATCH", path, `{"name":"z"}`, match(`"3"`), func(r *http.Request) { r.Header.Add("If-Match", `"3"`) }),
		"of what has no versions": w.do("POST", path+"/runs", `{}`, match(`"3"`)),
	}
	for name, a := range refused {
		if a.status != 400 || !strings.Contains(string(a.body), `"path":"expected_version"`) {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	if a := w.do("DELETE", path, "", match(`"2"`)); a.code(t) != "version_conflict" {
		t.Errorf("%s", a.body)
	}
	if a := w.do("DELETE", path, "", match(`"3"`)); a.status != 200 {
		t.Errorf("%s", a.body)
	}
}

// TestHintsLeadSomewhere follows the hints of the main path: each names a command and, where it has an input, one
// that passes that command's rules.
func TestHintsLeadSomewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	hint := func(a answer) string {
		t.Helper()
		var result struct{ Hint *catalog.Hint }
		if err := json.Unmarshal(a.body, &result); err != nil || a.status/100 != 2 {
			t.Fatalf("%d %s: %v", a.status, a.body, err)
		}
		if result.Hint == nil {
			return ""
		}
		command, found := catalog.Find(result.Hint.Command)
		if !found || result.Hint.About == "" {
			t.Errorf("%+v", result.Hint)
		}
		if result.Hint.Input != nil {
			if err := command.Check(result.Hint.Input); err != nil {
				t.Errorf("%s %s: %v", command.Name, result.Hint.Input, err)
			}
		}
		return command.Name
	}
	draft := w.do("POST", "/v1/automations", `{"name":"draft"}`)
	disabled := w.do("POST", "/v1/automations", `{"name":"off","enabled":false,"workflow":{"compiled":{"version":2,"steps":[{"id":"a","kind":"command","command":"true"}]}}}`)
	id := disabled.json(t)["id"].(string)
	enabled := w.do("PATCH", "/v1/automations/"+id, `{"enabled":true}`)
	admitted := w.do("POST", "/v1/automations/"+id+"/runs", ``)
	runID := admitted.json(t)["id"].(string)
	w.do("POST", "/v1/machine/steps/begin", fmt.Sprintf(`{"runId":%q,"stepId":"a","generation":1,"requestId":"r"}`, runID), asMachine)
	running := w.do("GET", "/v1/runs/"+runID, "")
	w.do("POST", "/v1/machine/steps/finish", fmt.Sprintf(`{"runId":%q,"stepId":"a","execution":1,"outcome":"failed","error":{"code":"nonzero_exit","message":"exit status 3"}}`, runID), asMachine)
	failed := w.do("GET", "/v1/runs/"+runID, "")
	got := []string{hint(draft), hint(disabled), hint(enabled), hint(admitted), hint(running), hint(failed)}
	if diff := cmp.Diff([]string{"update", "update", "run-now", "run", "machines", "retry-run"}, got); diff != "" {
		t.Errorf("%s\n%s\n%s", diff, running.body, failed.body)
	}
	if hint(w.do("DELETE", "/v1/automations/"+id, "")) != "" {
		t.Error("a deleted automation leads nowhere")
	}
}

// TestApplyKeepsSecrets: webhooks go by name and scheme, their secrets neither out nor, for one that exists, in.
func TestApplyKeepsSecrets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const secret, other = "a secret of more than 24 bytes, one", "a secret of more than 24 bytes, two"
	definition := func(webhooks string) string {
		return `{"automations":[{"name":"hooked","workflow":{"compiled":{"version":2,"steps":[{"id":"a","kind":"command","command":"true"}]}},"webhooks":[` + webhooks + `]}]}`
	}
	forge := `{"name":"forge","scheme":"github","secret":"` + secret + `"}`
	if a := w.do("POST", "/v1/apply", definition(`{"name":"forge","scheme":"github"}`)); a.status != 400 || !strings.Contains(string(a.body), `"path":"automations[0].webhooks[0].secret"`) {
		t.Errorf("a new one without a secret: %d %s", a.status, a.body)
	}
	for _, twice := range []string{forge + "," + forge, `{"name":"forge","scheme":"github","secret":"short"}`} {
		if a := w.do("POST", "/v1/apply", definition(twice)); a.status != 400 || strings.Contains(string(a.body), secret) {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	first := w.apply(definition(forge))
	path := "/v1/automations/" + first.Automations[0].AutomationID
	id := func() any { return w.do("GET", path, "").json(t)["webhooks"].([]any)[0].(map[string]any)["id"] }
	kept := id()

	exported := w.do("GET", "/v1/export", "")
	if strings.Contains(string(exported.body), secret) || !strings.Contains(string(exported.body), `"forge"`) {
		t.Errorf("%s", exported.body)
	}
	if got := w.apply(string(exported.body)).actions(); got != "hooked unchanged" {
		t.Error(got)
	}
	a := w.do("POST", "/v1/apply", definition(strings.Replace(forge, secret, other, 1)))
	if !strings.Contains(string(a.body), "unchanged") || !strings.Contains(string(a.body), "changes nothing") || strings.Contains(string(a.body), other) {
		t.Errorf("another secret of one that exists: %d %s", a.status, a.body)
	}
	changed := `{"name":"new","scheme":"github","secret":"` + other + `"},{"name":"forge","scheme":"github","enabled":false,"headers":["X-Kind"]}`
	if got := w.apply(definition(changed)).actions(); got != "hooked updated webhooks[0].enabled,webhooks[0].headers,webhooks[1]" {
		t.Error(got)
	}
	if id() != kept {
		t.Error("a webhook that was changed became another one")
	}
	if got := w.apply(definition(changed)).actions(); got != "hooked unchanged" {
		t.Error(got)
	}
	if got := w.apply(definition(``)).actions(); got != "hooked updated webhooks" {
		t.Error(got)
	}
}
