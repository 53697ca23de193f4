package storetest

import (
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
)

var engineTests = []test{
	{"Startable", testStartable},
	{"ForeignEngine", testForeignEngine},
	{"ManyEngines", testManyEngines},
	{"MarkStarted", testMarkStarted},
	{"Finalize", testFinalize},
	{"CancelRun", testCancelRun},
}

func (f *fixture) startable(t *testing.T, engineID string, limit int) []automation.Startable {
	t.Helper()
	found, err := f.StartableRuns(t.Context(), engineID, limit)
	if err != nil {
		t.Fatalf("StartableRuns: %v", err)
	}
	return found
}

func startableIDs(found []automation.Startable) []string {
	var ids []string
	for _, s := range found {
		ids = append(ids, s.RunID)
	}
	return ids
}

func (f *fixture) markStarted(t *testing.T, r automation.Run, generation int64, engineID string) {
	t.Helper()
	if err := f.MarkStarted(t.Context(), r.ID, generation, engineID); err != nil {
		t.Fatalf("MarkStarted: %v", err)
	}
}

func testStartable(t *testing.T, f *fixture) {
	d := f.definition("job", "one", "two")
	d.Workflow.Compiled.Steps[0].Args = []string{"hidden"}
	d.Workflow.Compiled.Steps[1] = automation.Step{ID: "two", Kind: automation.KindScript, Runtime: automation.RuntimeNode, Source: "1", TimeoutMs: 1500}
	a := f.create(t, d)
	var runs []automation.Run
	for range 5 {
		runs = append(runs, f.admit(t, a))
		f.clock.Advance(time.Second)
	}
	f.cancel(t, runs[1], false)
	f.mustBegin(t, runs[2], "one") // begun, though nobody recorded that its workflow was started
	f.markStarted(t, runs[3], 1, "engine")
	f.mustBegin(t, runs[3], "one")

	wantEqual(t, "the runs to start, oldest first", startableIDs(f.startable(t, "engine", 10)), []string{runs[0].ID, runs[2].ID, runs[4].ID})
	wantEqual(t, "the first two", startableIDs(f.startable(t, "engine", 2)), []string{runs[0].ID, runs[2].ID})
	one, found, err := f.StartableRun(t.Context(), "engine", runs[4].ID)
	if err != nil || !found {
		t.Fatalf("StartableRun = %v, %v", found, err)
	}
	wantEqual(t, "a run to start", one, automation.Startable{
		RunID: runs[4].ID, AutomationID: a.ID, AutomationName: "job", MachineID: f.machine.ID, Trigger: automation.TriggerManual, Generation: 1,
		Steps: []automation.StepOutline{
			{ID: "one", Kind: automation.KindCommand, Summary: "one · tar", TimeoutMs: automation.DefaultTimeout.Milliseconds()},
			{ID: "two", Kind: automation.KindScript, Summary: "two · node script", TimeoutMs: 1500},
		},
	})
	for name, id := range map[string]string{"finished": runs[1].ID, "started": runs[3].ID, "unknown": NewID(), "not an id": "x"} {
		if _, found, err := f.StartableRun(t.Context(), "engine", id); err != nil || found {
			t.Errorf("StartableRun of a run that is %s = %v, %v", name, found, err)
		}
	}
}

func testForeignEngine(t *testing.T, f *fixture) {
	run := f.newRun(t, "one", "two")
	f.markStarted(t, run, 1, "lost engine")
	f.complete(t, run, "one", `1`)
	if found := f.startable(t, "lost engine", 10); len(found) != 0 {
		t.Errorf("runs to start in the engine that holds them: %v", found)
	}
	for range 2 { // the generation is raised once
		found := f.startable(t, "engine", 10)
		if len(found) != 1 || found[0].RunID != run.ID || found[0].Generation != 2 || len(found[0].Steps) != 2 {
			t.Fatalf("StartableRuns of a new engine = %+v, want the run with generation 2", found)
		}
	}
	got := f.read(t, run)
	if got.Generation != 2 || got.EngineID != "" || got.WorkflowID != run.WorkflowID[:len(run.WorkflowID)-1]+"2" {
		t.Errorf("the run has generation %d, engine %q, workflow %s", got.Generation, got.EngineID, got.WorkflowID)
	}
	if stop := f.begin(t, run, "two"); stop.Stop != automation.StopSuperseded {
		t.Errorf("a begin of the lost workflow = %+v", stop)
	}
	if done := f.begin(t, got, "one"); done.Decision != automation.BeginDone {
		t.Errorf("a begin of the completed step by the new workflow = %+v", done)
	}
	f.markStarted(t, got, 2, "engine")
	f.complete(t, got, "two", `2`)
	wantStatuses(t, f.read(t, run), "completed: completed completed")
	if found := f.startable(t, "third engine", 10); len(found) != 0 {
		t.Errorf("a finished run is to be started: %v", found)
	}
}

// testManyEngines has runs of engines whose ids sort before and after that of the present one.
func testManyEngines(t *testing.T, f *fixture) {
	a := f.create(t, f.definition("job", "one"))
	var want []string
	for _, engineID := range []string{"z lost", "", "m present", "a lost", "", "M lost", "m", "m present", "ä lost"} {
		run := f.admit(t, a)
		f.clock.Advance(time.Second)
		if engineID != "" {
			f.markStarted(t, run, 1, engineID)
		}
		if engineID != "m present" {
			want = append(want, run.ID)
		}
	}
	wantEqual(t, "the oldest three", startableIDs(f.startable(t, "m present", 3)), want[:3])
	wantEqual(t, "all, oldest first", startableIDs(f.startable(t, "m present", 100)), want)
}

func testMarkStarted(t *testing.T, f *fixture) {
	run := f.newRun(t, "one")
	f.markStarted(t, run, 2, "engine")
	f.markStarted(t, run, 0, "engine")
	wantEqual(t, "the run after marks of other generations", f.read(t, run), run)
	f.markStarted(t, run, 1, "engine")
	marked := f.read(t, run)
	if marked.EngineID != "engine" {
		t.Errorf("the engine is %q", marked.EngineID)
	}
	f.markStarted(t, run, 1, "engine")
	wantEqual(t, "the run after a second mark", f.read(t, run), marked)
	if n := f.changes.count(run); n != 2 {
		t.Errorf("the run was told %d times, want for its admission and the first mark", n)
	}
	f.cancel(t, run, false)
	f.markStarted(t, run, 1, "other")
	if got := f.read(t, run); got.EngineID != "engine" {
		t.Errorf("a finished run was marked as started in %q", got.EngineID)
	}
	wantCode(t, "a run that is not an id", f.MarkStarted(t.Context(), "x", 1, "engine"), automation.CodeNotFound)
}

func testFinalize(t *testing.T, f *fixture) {
	finalize := func(in automation.FinalizeInput) automation.FinalizeVerdict {
		t.Helper()
		verdict, err := f.FinalizeRun(t.Context(), in)
		if err != nil {
			t.Fatalf("FinalizeRun: %v", err)
		}
		return verdict
	}
	run := f.newRun(t, "one", "two")
	f.mustBegin(t, run, "one")
	wantEqual(t, "the verdict on a run that goes on", finalize(automation.FinalizeInput{RunID: run.ID, Generation: 1}),
		automation.FinalizeVerdict{Status: automation.RunRunning})
	wantEqual(t, "the verdict for another generation", finalize(automation.FinalizeInput{RunID: run.ID, Generation: 2}),
		automation.FinalizeVerdict{Status: automation.RunRunning, Superseded: true})
	failure := &automation.RunError{
		Code: "internal", Message: "gave up\x00", StepID: "one", Details: []automation.Violation{{Path: "p", Message: "m"}},
	}
	wantEqual(t, "the verdict on a failure", finalize(automation.FinalizeInput{RunID: run.ID, Generation: 1, Failure: failure}),
		automation.FinalizeVerdict{Status: automation.RunFailed, Code: "internal", StepID: "one"})
	got := f.read(t, run)
	wantStatuses(t, got, "failed: failed skipped")
	wantEqual(t, "the error of the run", got.Error, &automation.RunError{
		Code: "internal", Message: "gave up\u2400", StepID: "one", Details: failure.Details,
	})
	if ends := f.openEnds(t, run.MachineID)[run.MachineID]; len(ends) != 1 {
		t.Errorf("the open ends of the step that was given up: %v", ends)
	}
	wantEqual(t, "the verdict on a finished run", finalize(automation.FinalizeInput{RunID: run.ID, Generation: 1}),
		automation.FinalizeVerdict{Status: automation.RunFailed, Code: "internal", StepID: "one"})
	_, err := f.FinalizeRun(t.Context(), automation.FinalizeInput{RunID: NewID(), Generation: 1})
	wantCode(t, "an unknown run", err, automation.CodeNotFound)
}

func testCancelRun(t *testing.T, f *fixture) {
	run := f.newRun(t, "one", "two")
	f.mustBegin(t, run, "one")
	for range 2 {
		verdict, err := f.CancelRun(t.Context(), automation.CancelInput{RunID: run.ID, Reason: "terminated \x00\xff"})
		if err != nil || verdict.Begun != "one" {
			t.Fatalf("CancelRun = %+v, %v", verdict, err)
		}
	}
	got := f.read(t, run)
	wantStatuses(t, got, "running: running skipped")
	if got.CancelReason != "terminated \u2400\uFFFD" {
		t.Errorf("the reason is %q", got.CancelReason)
	}
	f.finish(t, run, automation.FinishRequest{StepRef: ref(run, "one"), Execution: 1, Outcome: automation.OutcomeCancelled})
	verdict, err := f.CancelRun(t.Context(), automation.CancelInput{RunID: run.ID})
	if err != nil || verdict.Begun != "" {
		t.Errorf("CancelRun of a finished run = %+v, %v, want nothing to wait for", verdict, err)
	}
	_, err = f.CancelRun(t.Context(), automation.CancelInput{RunID: NewID()})
	wantCode(t, "an unknown run", err, automation.CodeNotFound)
}
