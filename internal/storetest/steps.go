package storetest

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
)

var stepTests = []test{
	{"WholeRun", testWholeRun},
	{"ConcreteStep", testConcreteStep},
	{"InvalidTemplate", testInvalidTemplate},
	{"BeginRepeated", testBeginRepeated},
	{"BeginRefused", testBeginRefused},
	{"BeginHeld", testBeginHeld},
	{"FinishRepeated", testFinishRepeated},
	{"FinishFailed", testFinishFailed},
	{"Transient", testTransient},
	{"StrangeReports", testStrangeReports},
	{"LargeResult", testLargeResult},
}

func testWholeRun(t *testing.T, f *fixture) {
	run := f.newRun(t, "one", "two")
	f.clock.Advance(time.Second)
	begun := f.clock.Now()
	execution := f.mustBegin(t, run, "one")
	if execution != 1 {
		t.Errorf("the first execution has number %d", execution)
	}
	wantStatuses(t, f.read(t, run), "running: running pending")
	f.clock.Advance(time.Second)
	done := f.clock.Now()
	answer := f.finish(t, run, automation.FinishRequest{
		StepRef: ref(run, "one"), Execution: 1, Outcome: automation.OutcomeCompleted, Result: json.RawMessage(`{"exitCode":0,"z":1.0}`),
	})
	wantEqual(t, "the answer to finish", answer, automation.FinishAnswer{Accepted: true, Outcome: automation.OutcomeCompleted})
	wantStatuses(t, f.read(t, run), "running: completed pending")
	f.complete(t, run, "two", `"last"`)

	want := run
	want.Status, want.StartedAt, want.FinishedAt = automation.RunCompleted, &begun, &done
	want.Steps = []automation.StepRecord{
		{
			ID: "one", Kind: automation.KindCommand, Status: automation.StepCompleted, Attempt: 1, StartedAt: &begun,
			FinishedAt: &done, Output: json.RawMessage(`{"exitCode":0,"z":1.0}`),
		},
		{
			ID: "two", Kind: automation.KindCommand, Status: automation.StepCompleted, Attempt: 1, StartedAt: &done,
			FinishedAt: &done, Output: json.RawMessage(`"last"`),
		},
	}
	want.Revision = 5
	got := f.read(t, run)
	for i := range got.Steps {
		if got.Steps[i].BeginID == "" {
			t.Errorf("step %d has lost the id of its begin", i)
		}
		got.Steps[i].BeginID = ""
	}
	wantEqual(t, "the completed run", got, want)
	if n := f.changes.count(run); n != 5 {
		t.Errorf("the run was told %d times, want once for the admission and each begin and finish", n)
	}
	state, err := f.RunState(t.Context(), f.owner, run.ID)
	if err != nil || state.Steps[0].Output != nil {
		t.Errorf("RunState has the output %s, error %v", state.Steps[0].Output, err)
	}
}

func testConcreteStep(t *testing.T, f *fixture) {
	d := f.definition("job")
	d.Workflow.Compiled.Steps = []automation.Step{{
		ID: "act", ActionID: "channels.notify_user", Input: json.RawMessage(`{"to":{"$runInput":true},"n":1.0}`),
	}}
	admission := manual(f.create(t, d))
	admission.Input = json.RawMessage(`{"b":[1.50],"a":{"$runInput":true}}`)
	run := f.admitWith(t, admission)
	answer := f.begin(t, run, "act")
	if answer.Step == nil {
		t.Fatalf("Begin = %+v, without a step", answer)
	}
	want, stepErr := automation.Concrete(run.ID, d.Workflow.Compiled.Steps[0], admission.Input)
	if stepErr != nil {
		t.Fatalf("Concrete: %v", stepErr)
	}
	wantEqual(t, "the concrete step", *answer.Step, want)
	if got := string(answer.Step.Input); got != `{"to":{"b":[1.50],"a":{"$runInput":true}},"n":1.0}` {
		t.Errorf("the input of the step is %s", got)
	}
}

func testInvalidTemplate(t *testing.T, f *fixture) {
	d := f.definition("job", "big", "next")
	d.Workflow.Compiled.Steps[0] = automation.Step{
		ID: "big", ActionID: "a.b", Input: json.RawMessage(`[` + strings.Repeat(`{"$runInput":true},`, 5) + `0]`),
	}
	admission := manual(f.create(t, d))
	admission.Input = json.RawMessage(`"` + strings.Repeat("x", 1_000_000) + `"`)
	run := f.admitWith(t, admission)
	for range 2 {
		answer := f.begin(t, run, "big")
		if answer.Decision != automation.BeginDone || answer.Outcome != automation.OutcomeFailed || answer.Error == nil ||
			answer.Error.Code != automation.StepErrInvalidTemplate || answer.Step != nil {
			t.Fatalf("Begin = %+v, want done and failed with invalid_template", answer)
		}
	}
	got := f.read(t, run)
	wantStatuses(t, got, "failed: failed skipped")
	if got.Error == nil || got.Error.Code != string(automation.StepErrInvalidTemplate) || got.Error.StepID != "big" {
		t.Errorf("the run failed with %+v", got.Error)
	}
}

func testBeginRepeated(t *testing.T, f *fixture) {
	run := f.newRun(t, "one")
	request := automation.BeginRequest{StepRef: ref(run, "one"), Generation: 1, RequestID: NewID()}
	first, err := f.Begin(t.Context(), run.MachineID, request)
	if err != nil {
		t.Fatalf("Begin: %v", err)
	}
	before := f.read(t, run)
	again, err := f.another(t).Begin(t.Context(), run.MachineID, request)
	if err != nil {
		t.Fatalf("a repeated Begin: %v", err)
	}
	wantEqual(t, "the answer to a repeated begin", again, first)
	wantEqual(t, "the run after a repeated begin", f.read(t, run), before)
	if n := f.mustBegin(t, run, "one"); n != 2 {
		t.Errorf("another begin got the number %d, want 2", n)
	}
}

func testBeginRefused(t *testing.T, f *fixture) {
	other := f.enroll(t, f.owner, "other")
	run := f.newRun(t, "one", "two")
	for name, tc := range map[string]struct {
		machine string
		request automation.BeginRequest
		want    automation.Code
	}{
		"machine of the same owner": {other.ID, automation.BeginRequest{StepRef: ref(run, "one"), Generation: 1}, automation.CodeNotFound},
		"unknown machine":           {"x", automation.BeginRequest{StepRef: ref(run, "one"), Generation: 1}, automation.CodeNotFound},
		"unknown run":               {run.MachineID, automation.BeginRequest{StepRef: automation.StepRef{RunID: NewID(), StepID: "one"}}, automation.CodeNotFound},
		"unknown step":              {run.MachineID, automation.BeginRequest{StepRef: ref(run, "three"), Generation: 1}, automation.CodeNotFound},
		"not its turn":              {run.MachineID, automation.BeginRequest{StepRef: ref(run, "two"), Generation: 1}, automation.CodeValidationFailed},
	} {
		_, err := f.Begin(t.Context(), tc.machine, tc.request)
		wantCode(t, name, err, tc.want)
	}
	_, err := f.Finish(t.Context(), other.ID, automation.FinishRequest{
		StepRef: ref(run, "one"), Execution: 1, Outcome: automation.OutcomeCompleted,
	})
	wantCode(t, "Finish by another machine", err, automation.CodeNotFound)

	superseded, err := f.Begin(t.Context(), run.MachineID, automation.BeginRequest{StepRef: ref(run, "one"), Generation: 0})
	if err != nil || superseded.Stop != automation.StopSuperseded {
		t.Errorf("a begin of another generation = %+v, %v", superseded, err)
	}
	wantEqual(t, "the run after what was refused", f.read(t, run), run)
	f.db.Revoke(t, run.MachineID)
	if answer := f.begin(t, run, "one"); answer.Stop != automation.StopRevoked {
		t.Errorf("a begin of a revoked machine = %+v", answer)
	}
}

func testBeginHeld(t *testing.T, f *fixture) {
	run := f.newRun(t, "one")
	answer, err := f.Begin(t.Context(), run.MachineID, automation.BeginRequest{
		StepRef: ref(run, "one"), Generation: 1, RequestID: NewID(),
		Held: &automation.Held{StepRef: ref(run, "one"), Execution: 7, State: automation.HeldRunning},
	})
	if err != nil || answer.Decision != automation.BeginAttach || answer.Execution != 7 || answer.Step != nil {
		t.Fatalf("Begin of a held step = %+v, %v, want attach 7", answer, err)
	}
	got := f.read(t, run)
	wantStatuses(t, got, "running: running")
	if got.Steps[0].Attempt != 7 {
		t.Errorf("the number that the machine holds was not adopted: %d", got.Steps[0].Attempt)
	}
}

func testFinishRepeated(t *testing.T, f *fixture) {
	run := f.newRun(t, "one", "two")
	f.mustBegin(t, run, "one")
	execution := f.mustBegin(t, run, "one")
	stale := f.finish(t, run, automation.FinishRequest{
		StepRef: ref(run, "one"), Execution: execution - 1, Outcome: automation.OutcomeCompleted, Result: json.RawMessage(`"stale"`),
	})
	if stale.Accepted {
		t.Error("the end of an earlier execution was accepted")
	}
	first := automation.FinishRequest{
		StepRef: ref(run, "one"), Execution: execution, Outcome: automation.OutcomeCompleted, Result: json.RawMessage(`"first"`),
	}
	want := f.finish(t, run, first)
	before := f.read(t, run)
	f.clock.Advance(time.Minute)
	second := first
	second.Outcome, second.Result, second.Error = automation.OutcomeFailed, json.RawMessage(`"second"`), &automation.StepError{Code: "x"}
	wantEqual(t, "the answer to a repeated finish", f.finish(t, run, second), want)
	wantEqual(t, "the run after a repeated finish", f.read(t, run), before)
	if string(before.Steps[0].Output) != `"first"` {
		t.Errorf("the output is %s", before.Steps[0].Output)
	}
	if done := f.begin(t, run, "one"); done.Decision != automation.BeginDone || done.Outcome != automation.OutcomeCompleted {
		t.Errorf("a begin of a completed step = %+v", done)
	}
}

func testFinishFailed(t *testing.T, f *fixture) {
	run := f.newRun(t, "one", "two", "three")
	f.complete(t, run, "one", `1`)
	cause := &automation.StepError{Code: automation.StepErrNonzeroExit, Message: "exit status 3"}
	f.finish(t, run, automation.FinishRequest{
		StepRef: ref(run, "two"), Execution: f.mustBegin(t, run, "two"), Outcome: automation.OutcomeFailed,
		Error: cause, Result: json.RawMessage(`{"exitCode":3}`),
	})
	got := f.read(t, run)
	wantStatuses(t, got, "failed: completed failed skipped")
	wantEqual(t, "the error of the step", got.Steps[1].Error, cause)
	wantEqual(t, "the error of the run", got.Error, &automation.RunError{Code: "nonzero_exit", Message: "exit status 3", StepID: "two"})
	if string(got.Steps[1].Output) != `{"exitCode":3}` {
		t.Errorf("the output beside the error is %s", got.Steps[1].Output)
	}
	if stop := f.begin(t, run, "three"); stop.Decision != automation.BeginStop || stop.Stop != automation.StopFinished {
		t.Errorf("a begin after the end of the run = %+v", stop)
	}
}

func testTransient(t *testing.T, f *fixture) {
	run := f.newRun(t, "one")
	report := automation.FinishRequest{
		StepRef: ref(run, "one"), Execution: f.mustBegin(t, run, "one"), Outcome: automation.OutcomeTransient,
		Error: &automation.StepError{Code: automation.StepErrTransportUnavailable, Message: "no route"},
	}
	answer := f.finish(t, run, report)
	if !answer.Accepted || answer.RetryAfterMs != automation.RetryFirstDelay.Milliseconds() {
		t.Errorf("the answer to a transient end = %+v", answer)
	}
	got := f.read(t, run)
	wantStatuses(t, got, "running: running")
	due, began := f.clock.Now().Add(automation.RetryFirstDelay), f.clock.Now()
	wantEqual(t, "when the retry is due", got.Steps[0].RetryAt, &due)
	wantEqual(t, "when the trouble began", got.Steps[0].FirstTransientAt, &began)
	if load := f.load(t, f.machine.ID); load.RunningSteps != 0 {
		t.Errorf("a step that waits for its retry counts as running: %+v", load)
	}

	f.clock.Advance(automation.TransientAtMost)
	report.Execution = f.mustBegin(t, run, "one")
	if report.Execution != 2 {
		t.Errorf("the retry has number %d", report.Execution)
	}
	if load := f.load(t, f.machine.ID); load.RunningSteps != 1 {
		t.Errorf("a step that is tried again does not count as running: %+v", load)
	}
	f.finish(t, run, report)
	wantStatuses(t, f.read(t, run), "failed: failed")
}

func (f *fixture) load(t *testing.T, machineID string) automation.MachineLoad {
	t.Helper()
	loads, err := f.MachineLoads(t.Context(), []string{machineID})
	if err != nil {
		t.Fatalf("MachineLoads: %v", err)
	}
	return loads[machineID]
}

// testStrangeReports sends ends as no machine should: what happened is recorded all the same.
func testStrangeReports(t *testing.T, f *fixture) {
	for name, result := range map[string]string{
		"NUL": "\"a\x00b\"", "escaped NUL": `"a\u0000b"`, "invalid UTF-8": "\"\xff\xfe\"", "no JSON": "exit 3", "lone surrogate": `"\ud800"`,
		"none": "", "deep": strings.Repeat("[", 1000) + strings.Repeat("]", 1000),
	} {
		run := f.newRun(t, "one")
		answer := f.finish(t, run, automation.FinishRequest{
			StepRef: ref(run, "one"), Execution: f.mustBegin(t, run, "one"), Outcome: automation.OutcomeFailed,
			Result: json.RawMessage(result),
			Error:  &automation.StepError{Code: "", Message: "bad \x00 \xff " + strings.Repeat("é", automation.MaxMessageBytes)},
		})
		if !answer.Accepted {
			t.Errorf("%s: not accepted", name)
		}
		got := f.read(t, run)
		wantStatuses(t, got, "failed: failed")
		if len(result) > 0 && !json.Valid(got.Steps[0].Output) {
			t.Errorf("%s: the output is %q, which is not JSON", name, got.Steps[0].Output)
		}
		wantEqual(t, name+": the answered error", answer.Error, got.Steps[0].Error)
		message := got.Steps[0].Error.Message
		if got.Steps[0].Error.Code != automation.StepErrActionFailed || !strings.HasPrefix(message, "bad \u2400 \uFFFD é") ||
			len(message) > automation.MaxMessageBytes {
			t.Errorf("%s: the error reads %q, %.30q…", name, got.Steps[0].Error.Code, message)
		}
	}
	run := f.newRun(t, "one")
	_, err := f.Finish(t.Context(), run.MachineID, automation.FinishRequest{
		StepRef: ref(run, "one"), Execution: f.mustBegin(t, run, "one"), Outcome: "done",
	})
	wantCode(t, "an unknown outcome", err, automation.CodeValidationFailed)
	wantStatuses(t, f.read(t, run), "running: running")
}

func testLargeResult(t *testing.T, f *fixture) {
	run := f.newRun(t, "one")
	f.complete(t, run, "one", `{"stdout":"`+strings.Repeat("x", 3<<20)+`"}`)
	got := f.read(t, run)
	wantStatuses(t, got, "completed: completed")
	output := got.Steps[0].Output
	if len(output) > automation.MaxResultBytes || !json.Valid(output) {
		t.Errorf("the output has %d bytes, valid %v", len(output), json.Valid(output))
	}
}
