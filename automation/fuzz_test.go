package automation_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/strictjson"
)

// freeValues compares free JSON values in their compact form.
var freeValues = cmp.Transformer("compact", func(raw json.RawMessage) string {
	compact, violations := strictjson.Compact(raw)
	if violations != nil {
		return string(raw)
	}
	return string(compact)
})

func seedPlans(f *testing.F) []string {
	f.Helper()
	plans := []string{
		plan1(`{"id":"notify","actionId":"channels.notify_user","input":{"title":"Reminder","message":"Call Mom"}}`),
		plan2(actionStep(`,"kind":"action","timeoutMs":1,"credential":"k"`) + `,` +
			commandStep(`,"args":["-c","x=1"],"cwd":"/","env":{"A":"b\nc"},"stdin":{"$runInput":true},"maxOutputBytes":9,"leftovers":"keep"`) + `,` +
			scriptStep(`,"args":[],"env":{},"stdin":null`)),
		plan2(`{"id":"s","kind":"script","runtime":"python","source":"print(1)","cwd":"C:\\x","stdin":[{"$runInput":1}]}`),
		plan2(actionStep(`,"command":"x"`) + `,` + actionStep(`,"nope":1`)),
		`{"version":3,"steps":[{"parallel":[]}]}`,
		`{"steps":[{"id":"c","kind":"command","command":"a/b","args":[1,"\u0000"],"env":{"ERRAND_X":"","A B":""}}]}`,
	}
	return plans
}

// FuzzDecodePlan holds the decoder to its promises: it never panics; it refuses with a validation_failed that
// names places, or accepts a plan that encoding/json reads the same and that is accepted again, unchanged.
func FuzzDecodePlan(f *testing.F) {
	for _, plan := range seedPlans(f) {
		f.Add([]byte(plan))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		plan, _, err := automation.DecodePlan(data)
		if err != nil {
			refused(t, err)
			return
		}
		var plain automation.Plan
		if err := json.Unmarshal(data, &plain); err != nil {
			t.Fatalf("accepted what encoding/json refuses: %v", err)
		}
		if diff := cmp.Diff(plain, plan, freeValues); diff != "" {
			t.Errorf("read otherwise than encoding/json (-json +ours):\n%s", diff)
		}
		checkPlan(t, plan)
		encoded, err := json.Marshal(plan)
		if err != nil {
			t.Fatal(err)
		}
		again, _, err := automation.DecodePlan(encoded)
		if err != nil {
			t.Fatalf("what was read is refused when it comes back: %v\n%s", err, encoded)
		}
		if diff := cmp.Diff(plan, again); diff != "" {
			t.Errorf("changed on the way (-first +second):\n%s", diff)
		}
	})
}

// checkPlan checks what the executing side relies on.
func checkPlan(t *testing.T, plan automation.Plan) {
	t.Helper()
	if !automation.SupportsPlanVersion(plan.Version) || len(plan.Steps) < 1 || len(plan.Steps) > automation.MaxSteps {
		t.Errorf("accepted version %d with %d steps", plan.Version, len(plan.Steps))
	}
	ids := map[string]bool{}
	for _, s := range plan.Steps {
		if ids[s.ID] || s.ID == "" || s.Program() == "" {
			t.Errorf("accepted a step with id %q that executes %q", s.ID, s.Program())
		}
		ids[s.ID] = true
		isAction := s.Lane() == automation.KindAction
		if isAction != (s.ActionID != "") || isAction != (len(s.Input) > 0) ||
			(s.Lane() == automation.KindCommand) != (s.Command != "") || (s.Lane() == automation.KindScript) != (s.Source != "") {
			t.Errorf("accepted a step of mixed lanes: %+v", s)
		}
		for _, text := range append([]string{s.Command, s.Cwd, s.Source}, s.Args...) {
			if strings.Contains(text, "\x00") {
				t.Errorf("accepted a NUL in %q", text)
			}
		}
		concrete, stepErr := automation.Concrete("run", s, json.RawMessage(`{"a":[1.0]}`))
		if stepErr != nil {
			continue
		}
		if isAction && !json.Valid(concrete.Input) {
			t.Errorf("expanded to %s", concrete.Input)
		}
	}
}

// FuzzDecodeDefinition is [FuzzDecodePlan] for whole definitions.
func FuzzDecodeDefinition(f *testing.F) {
	f.Add([]byte(`{"name":"A","description":"d","enabled":false,"machineId":"` + someMachine + `","schedules":[],"webhooks":null}`))
	f.Add([]byte(`{"name":"A","schedules":[{"cron":"0 9 * * MON#1","timezone":"Europe/Berlin","overlap":"skip","maxOccurrences":3,"input":{"a":1}},` +
		`{"every":"90m","anchor":"2026-01-01T00:00:00Z","jitterMs":5},{"at":"2030-01-01T07:00","timezone":"UTC","enabled":false}]}`))
	f.Add([]byte(`{"name":"","description":null,"enabled":1,"machineId":"x","workflow":{"script":1},"schedules":[{}],"id":1}`))
	for _, plan := range seedPlans(f) {
		f.Add([]byte(`{"name":"A","workflow":{"script":"s","compiled":` + plan + `}}`))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		definition, _, err := automation.DecodeDefinition(data)
		if err != nil {
			refused(t, err)
			return
		}
		var plain automation.DefinitionInput
		if err := json.Unmarshal(data, &plain); err != nil {
			t.Fatalf("accepted what encoding/json refuses: %v", err)
		}
		same := plain.Definition()
		same.MachineID = strings.ToLower(same.MachineID)
		if diff := cmp.Diff(same, definition, freeValues); diff != "" {
			t.Errorf("read otherwise than encoding/json (-json +ours):\n%s", diff)
		}
		if strings.TrimSpace(definition.Name) == "" || strings.Contains(definition.Name+definition.Description+definition.Workflow.Script, "\x00") {
			t.Errorf("accepted %+v", definition)
		}
		encoded, err := json.Marshal(map[string]any{
			"name": definition.Name, "description": definition.Description, "enabled": definition.Enabled, "workflow": definition.Workflow,
			"schedules": plain.Schedules,
		})
		if err != nil {
			t.Fatal(err)
		}
		again, _, err := automation.DecodeDefinition(encoded)
		if err != nil {
			t.Fatalf("what was read is refused when it comes back: %v\n%s", err, encoded)
		}
		again.MachineID = definition.MachineID
		if diff := cmp.Diff(definition, again); diff != "" {
			t.Errorf("changed on the way (-first +second):\n%s", diff)
		}
	})
}

// FuzzBoundResult checks that any bytes become a result that the journal can hold.
func FuzzBoundResult(f *testing.F) {
	f.Add([]byte(`{"a":[1.0,{"b":null}],"c":"\u003c"}`), uint16(0))
	f.Add([]byte(`{"exitCode":0,"signal":null,"stdout":"a\u0001","stderr":"","stdoutBytes":2,"stderrBytes":0,`+
		`"stdoutTruncated":false,"stderrTruncated":false,"durationMs":41,"leftovers":0}`), uint16(9))
	f.Add([]byte("{\"a\":1,\"a\":\"\xff\"}"), uint16(3))
	f.Add([]byte(strings.Repeat("[", 70)+strings.Repeat("]", 70)), uint16(1))
	f.Add([]byte("not JSON"), uint16(0))
	f.Fuzz(func(t *testing.T, data []byte, grow uint16) {
		// The first x grows, so that large results of every structure come up.
		result := []byte(strings.Replace(string(data), "x", strings.Repeat(`x\u0001`, int(grow)*16), 1))
		for _, kind := range []automation.StepKind{automation.KindAction, automation.KindCommand} {
			got := automation.BoundResult(kind, result)
			if len(result) == 0 {
				if got != nil {
					t.Errorf("no result became %s", got)
				}
				continue
			}
			journalled(t, got)
			if again := automation.BoundResult(kind, got); string(again) != string(got) {
				t.Errorf("a bounded result is bounded again: %.200s became %.200s", got, again)
			}
		}
	})
}
