package storetest

import (
	"slices"
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
)

var reconcileTests = []test{
	{"OpenRuns", testOpenRuns},
	{"RunMarks", testRunMarks},
	{"Restart", testReconcileRestart},
	{"Cancel", testReconcileCancel},
	{"RestartRace", testReconcileRace},
	{"WaitingQueues", testWaitingQueues},
	{"Stall", testStall},
}

func (f *fixture) reconcile(t *testing.T, w automation.ClosedWorkflow) automation.Repair {
	t.Helper()
	repair, err := f.ReconcileRun(t.Context(), w)
	if err != nil {
		t.Fatalf("ReconcileRun: %v", err)
	}
	return repair
}

func testOpenRuns(t *testing.T, f *fixture) {
	a := f.create(t, f.definition("job", "one"))
	var want []string
	for i, engineID := range []string{"engine", "", "engine", "other", "engine", "engine"} {
		run := f.admit(t, a)
		if i%2 == 1 {
			f.clock.Advance(time.Second) // two runs of one time
		}
		if engineID != "" {
			f.markStarted(t, run, 1, engineID)
		}
		if i == 2 {
			f.cancel(t, run, false)
		} else if engineID == "engine" {
			want = append(want, run.ID)
		}
	}
	before := f.clock.Now()
	f.markStarted(t, f.admit(t, a), 1, "engine") // too young
	var got []string
	for after := (automation.OpenRun{}); ; {
		page, err := f.OpenRuns(t.Context(), "engine", before, after, 2)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		for _, run := range page {
			got = append(got, run.ID)
			if run.Generation != 1 {
				t.Errorf("generation %d", run.Generation)
			}
		}
		after = page[len(page)-1]
	}
	wantEqual(t, "the unfinished runs of the engine", got, want)
}

func testRunMarks(t *testing.T, f *fixture) {
	a := f.create(t, f.definition("job", "one"))
	ids := []string{"not an id", NewID()}
	want := map[string]automation.RunMark{}
	for i := range 130 { // more than one statement asks for
		run := f.admit(t, a)
		ids = append(ids, run.ID)
		mark := automation.RunMark{Generation: 1}
		if i%40 == 0 {
			f.cancel(t, run, false)
			now := f.clock.Now()
			mark.FinishedAt = &now
		}
		want[run.ID] = mark
	}
	got, err := f.RunMarks(t.Context(), ids)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "the marks", got, want)
}

func testReconcileRestart(t *testing.T, f *fixture) {
	run := f.newRun(t, "one", "two")
	f.markStarted(t, run, 1, "engine")
	f.complete(t, run, "one", `1`)
	f.mustBegin(t, run, "two")
	f.clock.Advance(time.Minute)
	gone := automation.ClosedWorkflow{RunID: run.ID, Generation: 1, End: automation.WorkflowGone}
	for i, want := range []automation.Repair{automation.RepairRestarted, automation.RepairNone} {
		if got := f.reconcile(t, gone); got != want {
			t.Errorf("repair %d is %q, want %q", i, got, want)
		}
	}
	got := f.read(t, run)
	if got.Generation != 2 || got.EngineID != "" || got.Restarted == nil || got.Restarted.Count != 1 || !got.Restarted.At.Equal(f.clock.Now()) {
		t.Errorf("generation %d in %q, restarted %+v", got.Generation, got.EngineID, got.Restarted)
	}
	wantEqual(t, "the runs to start", startableIDs(f.startable(t, "engine", 10)), []string{run.ID})
	f.markStarted(t, got, 2, "engine")
	if stop := f.begin(t, run, "two"); stop.Stop != automation.StopSuperseded {
		t.Errorf("a begin of the lost workflow = %+v", stop)
	}
	if done := f.begin(t, got, "one"); done.Decision != automation.BeginDone {
		t.Errorf("a begin of the completed step = %+v", done)
	}
	f.finish(t, got, automation.FinishRequest{StepRef: ref(run, "two"), Execution: 1, Outcome: automation.OutcomeCompleted})
	wantStatuses(t, f.read(t, run), "completed: completed completed")
	_, err := f.ReconcileRun(t.Context(), automation.ClosedWorkflow{RunID: NewID(), Generation: 1, End: automation.WorkflowGone})
	wantCode(t, "an unknown run", err, automation.CodeNotFound)
}

func testReconcileCancel(t *testing.T, f *fixture) {
	run := f.newRun(t, "one", "two")
	f.markStarted(t, run, 1, "engine")
	f.mustBegin(t, run, "one")
	repair := f.reconcile(t, automation.ClosedWorkflow{
		RunID: run.ID, Generation: 1, End: automation.WorkflowTerminated, By: "ann\x00", Reason: "no\xff",
	})
	got := f.read(t, run)
	if repair != automation.RepairCancelled || got.CancelReason != "terminated in Temporal by ann\u2400: no\uFFFD" || got.Generation != 1 {
		t.Errorf("repair %q of generation %d, because %q", repair, got.Generation, got.CancelReason)
	}
	wantStatuses(t, got, "running: running skipped")
	if ends := f.openEnds(t, run.MachineID)[run.MachineID]; len(ends) != 1 {
		t.Errorf("the machine is told to end %v", ends)
	}
	f.finish(t, run, automation.FinishRequest{StepRef: ref(run, "one"), Execution: 1, Outcome: automation.OutcomeCancelled})
	wantStatuses(t, f.read(t, run), "cancelled: cancelled skipped")
}

// testReconcileRace lets several servers find the same lost workflow while its run goes on: it is restarted once.
func testReconcileRace(t *testing.T, f *fixture) {
	at := f.servers(t)
	a := f.create(t, f.definition("job", "one"))
	for range 4 {
		run := f.admit(t, a)
		f.markStarted(t, run, 1, "engine")
		repairs, errs := together(callers, func(i int) (string, error) {
			if i == callers-1 {
				_, err := at(i).Begin(t.Context(), run.MachineID, automation.BeginRequest{StepRef: ref(run, "one"), Generation: 1, RequestID: NewID()})
				return "", err
			}
			repair, err := at(i).ReconcileRun(t.Context(), automation.ClosedWorkflow{RunID: run.ID, Generation: 1, End: automation.WorkflowGone})
			return string(repair), err
		})
		wantNoErrors(t, errs)
		if restarted := slices.DeleteFunc(repairs, func(r string) bool { return r == "" }); len(restarted) != 1 {
			t.Errorf("the run was restarted %d times", len(restarted))
		}
		if got := f.read(t, run); got.Generation != 2 {
			t.Errorf("the generation is %d, want 2", got.Generation)
		}
	}
}

func testWaitingQueues(t *testing.T, f *fixture) {
	seen, away, idle := f.machine, f.enroll(t, f.owner, "away"), f.enroll(t, f.owner, "idle")
	since := f.clock.Now()
	f.clock.Advance(time.Second)
	for _, machine := range []automation.Machine{seen, idle} {
		if err := f.TouchMachine(t.Context(), machine.ID, f.clock.Now()); err != nil {
			t.Fatal(err)
		}
	}
	on := func(machine automation.Machine) automation.Automation {
		d := f.definition("job", "one", "two")
		d.MachineID = machine.ID
		return f.create(t, d)
	}
	started := func(a automation.Automation) automation.Run {
		run := f.admit(t, a)
		f.markStarted(t, run, 1, "engine")
		f.clock.Advance(time.Second)
		return run
	}
	here, there := on(seen), on(away)
	waiting, executing, between, cancelled := started(here), started(here), started(here), started(here)
	started(there)
	f.admit(t, on(idle)) // not started
	f.mustBegin(t, executing, "one")
	f.complete(t, between, "one", `1`)
	f.cancel(t, cancelled, false)
	looks, err := f.WaitingQueues(t.Context(), "engine", since)
	if err != nil || len(looks) != 1 || looks[0].Machine.ID != seen.ID || looks[0].Machine.RunningSteps != 1 {
		t.Fatalf("WaitingQueues = %+v, %v", looks, err)
	}
	var ids []string
	for _, run := range looks[0].Waiting {
		ids = append(ids, run.ID+" "+statuses(run))
	}
	wantEqual(t, "the runs that wait", ids, []string{waiting.ID + " pending: pending pending", between.ID + " running: completed pending"})
	if looks, err := f.WaitingQueues(t.Context(), "other", since); err != nil || len(looks) != 0 {
		t.Errorf("of another engine: %+v, %v", looks, err)
	}
}

func testStall(t *testing.T, f *fixture) {
	run := f.newRun(t, "one", "two")
	f.markStarted(t, run, 1, "engine")
	lost := automation.StalledStep{StepRef: ref(run, "one"), Generation: 1}
	for i, want := range []bool{true, false} {
		if got, err := f.StallRun(t.Context(), lost); err != nil || got != want {
			t.Errorf("StallRun %d = %v, %v", i, got, err)
		}
	}
	if got := f.read(t, run); got.StalledAt == nil || !got.StalledAt.Equal(f.clock.Now()) {
		t.Errorf("stalled at %v", got.StalledAt)
	}
	f.mustBegin(t, run, "one")
	if got := f.read(t, run); got.StalledAt != nil {
		t.Error("a begin must clear the mark")
	}
	f.clock.Advance(time.Hour)
	if got, err := f.StallRun(t.Context(), lost); err != nil || got {
		t.Errorf("StallRun of a step that has begun = %v, %v", got, err)
	}
}
