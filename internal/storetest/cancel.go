package storetest

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
)

var cancelTests = []test{
	{"Pending", testCancelPending},
	{"DuringStep", testCancelDuringStep},
	{"Forced", testCancelForced},
	{"Finished", testCancelFinished},
	{"Reason", testCancelReason},
	{"ManyOpenEnds", testManyOpenEnds},
}

func (f *fixture) cancel(t *testing.T, r automation.Run, force bool) automation.Cancellation {
	t.Helper()
	c, err := f.RequestCancel(t.Context(), r.OwnerID, r.ID, "changed my mind", force)
	if err != nil {
		t.Fatalf("RequestCancel: %v", err)
	}
	return c
}

func (f *fixture) openEnds(t *testing.T, machineIDs ...string) map[string][]automation.Event {
	t.Helper()
	ends, err := f.OpenEnds(t.Context(), machineIDs)
	if err != nil {
		t.Fatalf("OpenEnds: %v", err)
	}
	return ends
}

func testCancelPending(t *testing.T, f *fixture) {
	run := f.newRun(t, "one", "two")
	c := f.cancel(t, run, false)
	if c.Begun != "" {
		t.Errorf("the cancel of a pending run names the step %q", c.Begun)
	}
	wantStatuses(t, c.Run, "cancelled: skipped skipped")
	wantStatuses(t, f.read(t, run), "cancelled: skipped skipped")
	if answer := f.begin(t, run, "one"); answer.Decision != automation.BeginStop || answer.Stop != automation.StopCancelled {
		t.Errorf("a begin after the cancel = %+v", answer)
	}
	if ends := f.openEnds(t, run.MachineID); len(ends) != 0 {
		t.Errorf("ends of a run that never began: %v", ends)
	}
}

func testCancelDuringStep(t *testing.T, f *fixture) {
	run := f.newRun(t, "one", "two")
	execution := f.mustBegin(t, run, "one")
	f.clock.Advance(time.Second)
	asked := f.clock.Now()
	c := f.cancel(t, run, false)
	if c.Begun != "one" {
		t.Errorf("the cancel names the step %q", c.Begun)
	}
	got := f.read(t, run)
	wantStatuses(t, got, "running: running skipped")
	wantEqual(t, "the time of the cancel", got.CancelRequestedAt, &asked)
	if got.CancelReason != "changed my mind" {
		t.Errorf("the reason is %q", got.CancelReason)
	}
	event := automation.Event{Kind: automation.EventEnd, StepRef: ref(run, "one"), Execution: execution}
	wantEqual(t, "the open ends", f.openEnds(t, NewID(), run.MachineID, "x"), map[string][]automation.Event{run.MachineID: {event}})

	f.clock.Advance(time.Second)
	if again := f.cancel(t, run, false); again.Begun != "one" || !again.Run.CancelRequestedAt.Equal(asked) {
		t.Errorf("a second cancel: begun %q at %v", again.Begun, again.Run.CancelRequestedAt)
	}
	f.finish(t, run, automation.FinishRequest{
		StepRef: ref(run, "one"), Execution: execution, Outcome: automation.OutcomeCancelled, Result: json.RawMessage(`{"signal":"SIGTERM"}`),
	})
	got = f.read(t, run)
	wantStatuses(t, got, "cancelled: cancelled skipped")
	if string(got.Steps[0].Output) != `{"signal":"SIGTERM"}` {
		t.Errorf("the output of the cancelled step is %s", got.Steps[0].Output)
	}
	if ends := f.openEnds(t, run.MachineID); len(ends) != 0 {
		t.Errorf("ends after the machine confirmed: %v", ends)
	}
}

func testCancelForced(t *testing.T, f *fixture) {
	run := f.newRun(t, "one", "two")
	execution := f.mustBegin(t, run, "one")
	f.cancel(t, run, true)
	got := f.read(t, run)
	wantStatuses(t, got, "cancelled: cancelled skipped")
	if !got.Steps[0].Unconfirmed {
		t.Error("a step that was given up by force is not marked unconfirmed")
	}
	event := automation.Event{Kind: automation.EventEnd, StepRef: ref(run, "one"), Execution: execution}
	wantEqual(t, "the open ends", f.openEnds(t, run.MachineID), map[string][]automation.Event{run.MachineID: {event}})
	finished := got.FinishedAt

	f.clock.Advance(time.Minute)
	for _, result := range []string{`"confirmed"`, `"repeated"`} {
		f.finish(t, run, automation.FinishRequest{
			StepRef: ref(run, "one"), Execution: execution, Outcome: automation.OutcomeCompleted, Result: json.RawMessage(result),
		})
	}
	got = f.read(t, run)
	wantStatuses(t, got, "cancelled: cancelled skipped")
	if string(got.Steps[0].Output) != `"confirmed"` {
		t.Errorf("the output of the confirmed step is %s", got.Steps[0].Output)
	}
	if got.Steps[0].Unconfirmed || !got.FinishedAt.Equal(*finished) {
		t.Errorf("after the confirmation: unconfirmed %v, finished %v, want false and %v", got.Steps[0].Unconfirmed, got.FinishedAt, finished)
	}
	if ends := f.openEnds(t, run.MachineID); len(ends) != 0 {
		t.Errorf("ends after the machine confirmed: %v", ends)
	}
}

func testCancelFinished(t *testing.T, f *fixture) {
	run := f.newRun(t, "one")
	f.complete(t, run, "one", `1`)
	before := f.read(t, run)
	for _, force := range []bool{false, true} {
		_, err := f.RequestCancel(t.Context(), f.owner, run.ID, "", force)
		wantCode(t, "the cancel of a finished run", err, automation.CodeAlreadyFinished)
	}
	wantEqual(t, "the run after refused cancels", f.read(t, run), before)
}

func testCancelReason(t *testing.T, f *fixture) {
	run := f.newRun(t, "one")
	for name, reason := range map[string]string{"NUL": "a\x00", "invalid UTF-8": "\xff", "very long": strings.Repeat("x", 1<<20)} {
		_, err := f.RequestCancel(t.Context(), f.owner, run.ID, reason, false)
		wantCode(t, name, err, automation.CodeValidationFailed)
		wantEqual(t, name+": the place", paths(err), []string{"reason"})
	}
	wantStatuses(t, f.read(t, run), "pending: pending")
}

func testManyOpenEnds(t *testing.T, f *fixture) {
	const runs = 120 // more than one statement reads
	a := f.create(t, f.definition("job", "one"))
	for range runs {
		run := f.admit(t, a)
		f.mustBegin(t, run, "one")
		f.cancel(t, run, false)
	}
	if load := f.load(t, f.machine.ID); load.RunningSteps != runs {
		t.Errorf("%d steps run, want %d", load.RunningSteps, runs)
	}
	ends := f.openEnds(t, f.machine.ID)[f.machine.ID]
	seen := map[automation.StepRef]bool{}
	for _, end := range ends {
		seen[end.StepRef] = true
	}
	if len(ends) != runs || len(seen) != runs {
		t.Errorf("%d ends of %d steps are open, want %d", len(ends), len(seen), runs)
	}
}
