package storetest

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
)

var admissionTests = []test{
	{"Admit", testAdmit},
	{"Input", testAdmitInput},
	{"Refusals", testAdmitRefusals},
	{"Idempotent", testAdmitIdempotent},
	{"Triggers", testAdmitTriggers},
}

func manual(a automation.Automation) automation.Admission {
	return automation.Admission{
		OwnerID: a.OwnerID, AutomationID: a.ID, Trigger: automation.Trigger{Kind: automation.TriggerManual},
	}
}

func testAdmit(t *testing.T, f *fixture) {
	d := f.definition("job", "one", "two")
	d.Workflow.Compiled.Steps[1] = automation.Step{ID: "two", ActionID: "channels.notify_user", Input: json.RawMessage(`{}`)}
	a := f.create(t, d)
	f.clock.Advance(time.Minute)
	run := f.admit(t, a)
	installation, err := f.Installation(t.Context())
	if err != nil {
		t.Fatalf("Installation: %v", err)
	}
	want := automation.Run{
		ID: run.ID, OwnerID: f.owner, AutomationID: a.ID, AutomationName: "job", AutomationVersion: 1, MachineID: f.machine.ID,
		Trigger: automation.Trigger{Kind: automation.TriggerManual}, Status: automation.RunPending,
		Input: json.RawMessage("null"), Plan: d.Workflow.Compiled,
		Steps: []automation.StepRecord{
			{ID: "one", Kind: automation.KindCommand, Status: automation.StepPending},
			{ID: "two", Kind: automation.KindAction, Status: automation.StepPending},
		},
		CreatedAt: f.clock.Now(), WorkflowID: fmt.Sprintf("%s/run/%s/1", installation.ID, run.ID), Generation: 1, Revision: 1,
	}
	wantEqual(t, "the admitted run", run, want)
	wantEqual(t, "the run read back", f.read(t, run), want)
	if n := f.changes.count(run); n != 1 {
		t.Errorf("the admission was told %d times, want once", n)
	}
	state, err := f.RunState(t.Context(), f.owner, run.ID)
	if err != nil {
		t.Fatalf("RunState: %v", err)
	}
	want.Plan, want.Input = nil, nil
	wantEqual(t, "the state of the run", state, want)
}

func testAdmitInput(t *testing.T, f *fixture) {
	a := f.create(t, f.definition("job", "one"))
	for _, input := range []string{
		`null`, `"text"`, `{"z":1.50,"a":1e400,"n":123456789012345678901234567890}`, `"\u0000"`, `"\ud800"`,
		`"` + strings.Repeat("x", automation.MaxInputBytes-2) + `"`, `"<&>😀"`,
	} {
		admission := manual(a)
		admission.Input = json.RawMessage(input)
		run := f.read(t, f.admitWith(t, admission))
		if string(run.Input) != input {
			t.Errorf("the input %.40q reads back as %.40q", input, run.Input)
		}
	}
	for name, input := range map[string]string{
		"no JSON": `{`, "invalid UTF-8": "\"\xff\"", "NUL": "\"\x00\"", "two values": `1 2`,
		"too large": `"` + strings.Repeat("x", automation.MaxInputBytes-1) + `"`,
	} {
		admission := manual(a)
		admission.Input = json.RawMessage(input)
		_, err := f.Admit(t.Context(), admission)
		wantCode(t, name, err, automation.CodeValidationFailed)
		wantEqual(t, name+": the place", paths(err), []string{"input"})
	}
}

func testAdmitRefusals(t *testing.T, f *fixture) {
	disabled := f.definition("disabled", "one")
	disabled.Enabled = false
	draft := f.definition("draft")
	draft.Workflow.Compiled = nil
	future := f.definition("future", "one")
	future.Workflow.Compiled.Version = 3
	old := f.enroll(t, f.owner, "old")
	orphan := f.definition("orphan", "one")
	orphan.MachineID = old.ID
	for name, tc := range map[string]struct {
		automationID string
		want         automation.Code
	}{
		"unknown":             {NewID(), automation.CodeNotFound},
		"not an id":           {"x", automation.CodeNotFound},
		"disabled":            {f.create(t, disabled).ID, automation.CodeAutomationDisabled},
		"draft":               {f.create(t, draft).ID, automation.CodeNotExecutable},
		"unsupported version": {f.create(t, future).ID, automation.CodeUnsupportedPlanVersion},
		"revoked machine":     {f.create(t, orphan).ID, automation.CodeMachineRevoked},
	} {
		if tc.want == automation.CodeMachineRevoked {
			f.db.Revoke(t, old.ID)
		}
		_, err := f.Admit(t.Context(), automation.Admission{
			OwnerID: f.owner, AutomationID: tc.automationID, Trigger: automation.Trigger{Kind: automation.TriggerManual},
			Key: automation.Idempotency{Operation: "run-now", Key: name, RequestHash: "h"},
		})
		wantCode(t, name, err, tc.want)
	}
	runs, _, err := f.ListRuns(t.Context(), f.owner, automation.RunFilter{})
	if err != nil || len(runs) != 0 {
		t.Errorf("refused runs were stored: %v, %v", runs, err)
	}
	_, err = f.Admit(t.Context(), automation.Admission{OwnerID: f.owner, AutomationID: NewID()})
	wantCode(t, "no trigger", err, automation.CodeValidationFailed)
}

func testAdmitIdempotent(t *testing.T, f *fixture) {
	a := f.create(t, f.definition("job", "one"))
	admission := manual(a)
	admission.Key = automation.Idempotency{Operation: "run-now", Key: "k", RequestHash: "h1"}
	first := f.admitWith(t, admission)
	f.complete(t, first, "one", `1`)
	f.db.Revoke(t, f.machine.ID)
	f.clock.Advance(10 * automation.IdempotencyFor)
	again := f.admitWith(t, admission)
	wantEqual(t, "the run of a repeated key, which lives as long as its run", again, f.read(t, first))

	admission.Key.RequestHash = "h2"
	_, err := f.Admit(t.Context(), admission)
	wantCode(t, "another request under the key", err, automation.CodeIdempotencyConflict)
	admission.Key = automation.Idempotency{}
	_, err = f.Admit(t.Context(), admission)
	wantCode(t, "no key", err, automation.CodeMachineRevoked)
}

func testAdmitTriggers(t *testing.T, f *fixture) {
	a := f.create(t, f.definition("job", "one"))
	instant := f.clock.Now()
	scheduled := manual(a)
	scheduled.Trigger = automation.Trigger{Kind: automation.TriggerSchedule, ID: NewID(), ScheduledAt: &instant}
	_, err := f.Admit(t.Context(), scheduled)
	wantCode(t, "an instant that no decision has claimed", err, automation.CodeValidationFailed)
}
