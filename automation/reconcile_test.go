package automation_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/automation"
)

func TestReconcile(t *testing.T) {
	t.Parallel()
	closed := func(end automation.WorkflowEnd) automation.ClosedWorkflow {
		return automation.ClosedWorkflow{RunID: "run", Generation: 1, End: end}
	}
	terminated := closed(automation.WorkflowTerminated)
	terminated.By, terminated.Reason = "ann@host", "wrong input"
	bySystem := closed(automation.WorkflowTerminated)
	bySystem.BySystem, bySystem.Reason = true, "history is too long"
	older := closed(automation.WorkflowGone)
	older.Generation = 0
	executing := func(r *automation.Run) {
		begin(t, r, "a")
		finish(t, r, "a", 1, automation.OutcomeCompleted)
		begin(t, r, "b")
	}
	retrying := func(r *automation.Run) {
		begin(t, r, "a")
		finish(t, r, "a", 1, automation.OutcomeTransient)
	}
	tests := map[string]struct {
		prepare   func(r *automation.Run)
		workflow  automation.ClosedWorkflow
		want      automation.Repair
		statuses  string
		cancelled string // the reason of the cancel
		restarted string // the reason of the restart
	}{
		"terminated before the first step": {
			nil, terminated, automation.RepairCancelled, "cancelled: skipped skipped skipped",
			"terminated in Temporal by ann@host: wrong input", "",
		},
		"terminated while a step executes": {
			executing, terminated, automation.RepairCancelled, "running: completed running skipped",
			"terminated in Temporal by ann@host: wrong input", "",
		},
		"terminated while a step waits for its retry": {
			retrying, terminated, automation.RepairCancelled, "cancelled: cancelled skipped skipped",
			"terminated in Temporal by ann@host: wrong input", "",
		},
		"cancelled": {
			nil, closed(automation.WorkflowCancelled), automation.RepairCancelled, "cancelled: skipped skipped skipped",
			"cancelled in Temporal by somebody", "",
		},
		"terminated by Temporal": {
			executing, bySystem, automation.RepairRestarted, "running: completed running pending", "",
			"Temporal has terminated its workflow: history is too long",
		},
		"gone": {
			executing, closed(automation.WorkflowGone), automation.RepairRestarted, "running: completed running pending", "",
			"Temporal does not know its workflow any more",
		},
		"timed out": {
			nil, closed(automation.WorkflowTimedOut), automation.RepairRestarted, "pending: pending pending pending", "",
			"its workflow has ended in Temporal, as timed out, before the run",
		},
		"failed": {
			retrying, closed(automation.WorkflowFailed), automation.RepairRestarted, "running: running pending pending", "",
			"its workflow has ended in Temporal, as failed, before the run",
		},
		"completed": {
			nil, closed(automation.WorkflowCompleted), automation.RepairRestarted, "pending: pending pending pending", "",
			"its workflow has ended in Temporal, as completed, before the run",
		},
		"of an earlier generation": {nil, older, automation.RepairNone, "pending: pending pending pending", "", ""},
		"terminated again while the machine is to confirm": {
			func(r *automation.Run) { executing(r); _, _ = r.Cancel("first", false, t0) },
			terminated, automation.RepairNone, "running: completed running skipped", "first", "",
		},
		"gone while the machine is to confirm a cancel": {
			func(r *automation.Run) { executing(r); _, _ = r.Cancel("first", false, t0) },
			closed(automation.WorkflowGone), automation.RepairNone, "running: completed running skipped", "first", "",
		},
		"of a run that has ended": {
			func(r *automation.Run) { _, _ = r.Cancel("first", false, t0) },
			closed(automation.WorkflowGone), automation.RepairNone, "cancelled: skipped skipped skipped", "first", "",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRun()
			r.EngineID, r.StalledAt = "engine", &t0
			if test.prepare != nil {
				test.prepare(r)
			}
			if got := r.Reconcile(test.workflow, t0.Add(time.Hour)); got != test.want {
				t.Errorf("repair %q, want %q", got, test.want)
			}
			wantStatuses(t, r, test.statuses)
			if r.CancelReason != test.cancelled {
				t.Errorf("cancelled because %q, want %q", r.CancelReason, test.cancelled)
			}
			if test.restarted == "" {
				if r.Generation != 1 || r.EngineID != "engine" || r.Restarted != nil {
					t.Errorf("restarted as generation %d in %q: %v", r.Generation, r.EngineID, r.Restarted)
				}
				return
			}
			want := &automation.Restart{Count: 1, At: t0.Add(time.Hour), Reason: test.restarted}
			if diff := cmp.Diff(want, r.Restarted); diff != "" || r.Generation != 2 || r.EngineID != "" || r.StalledAt != nil {
				t.Errorf("generation %d in %q (-want +got):\n%s", r.Generation, r.EngineID, diff)
			}
		})
	}
}

func TestParseWorkflowID(t *testing.T) {
	t.Parallel()
	runID, generation, ok := automation.ParseWorkflowID("i", automation.WorkflowID("i", "r", 12))
	if runID != "r" || generation != 12 || !ok {
		t.Errorf("%q %d %v", runID, generation, ok)
	}
	for _, id := range []string{"", "i", "i/run/r", "i/run/r/", "i/run/r/x", "i/run/r/1/2", "i/run/r/01", "j/run/r/1", "i/schedule/r/1"} {
		if runID, generation, ok := automation.ParseWorkflowID("i", id); ok {
			t.Errorf("%q is the workflow of run %q, generation %d", id, runID, generation)
		}
	}
}

func TestStrays(t *testing.T) {
	t.Parallel()
	recent, long := t0.Add(-automation.StrayAfter+1), t0.Add(-automation.StrayAfter)
	for name, test := range map[string]struct {
		mark *automation.RunMark
		want automation.Stray
	}{
		"going on":                 {&automation.RunMark{Generation: 2}, automation.StrayNone},
		"ended a moment ago":       {&automation.RunMark{Generation: 2, FinishedAt: &recent}, automation.StrayNone},
		"ended long ago":           {&automation.RunMark{Generation: 2, FinishedAt: &long}, automation.StrayFinished},
		"superseded":               {&automation.RunMark{Generation: 3}, automation.StraySuperseded},
		"superseded, of an ended":  {&automation.RunMark{Generation: 3, FinishedAt: &long}, automation.StraySuperseded},
		"of a generation to come":  {&automation.RunMark{Generation: 1}, automation.StrayNone},
		"of a run that is unknown": {nil, automation.StrayUnknown},
	} {
		if got := test.mark.Stray(2, t0); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// queue is a look at a machine that is online with one of two slots taken.
func queue(now time.Time, runs ...automation.Run) automation.MachineQueueLook {
	machine := onlineMachine()
	machine.ID, machine.LastSeenAt, machine.RunningSteps, machine.Concurrency = "machine", &now, 1, 2
	return automation.MachineQueueLook{Machine: machine, Waiting: runs}
}

// waitingRun is a run that was admitted at a time and waits since.
func waitingRun(id string, at time.Time) automation.Run {
	r := *newRun()
	r.ID, r.CreatedAt, r.EngineID = id, at, "engine"
	return r
}

func TestALostTaskIsNoticed(t *testing.T) {
	t.Parallel()
	lost, young := waitingRun("lost", t0), waitingRun("young", t0.Add(4*time.Minute))
	older := waitingRun("also lost", t0.Add(time.Second))
	var watch automation.StallWatch
	now := t0.Add(time.Hour)
	for minute := range 5 {
		if got := watch.Look([]automation.MachineQueueLook{queue(now, young, older, lost)}, now); len(got) != 0 {
			t.Fatalf("after %d minutes: %v", minute, got)
		}
		now = now.Add(time.Minute)
	}
	young.CreatedAt = now.Add(-time.Minute)
	want := []automation.StalledStep{
		{StepRef: automation.StepRef{RunID: "lost", StepID: "a"}, Generation: 1},
		{StepRef: automation.StepRef{RunID: "also lost", StepID: "a"}, Generation: 1},
	}
	if diff := cmp.Diff(want, watch.Look([]automation.MachineQueueLook{queue(now, young, older, lost)}, now)); diff != "" {
		t.Fatal(diff)
	}
	if !lost.Stall("a", 1, now) || lost.Stall("a", 1, now) || lost.Stall("b", 1, now.Add(time.Hour)) || lost.Stall("a", 2, now.Add(time.Hour)) {
		t.Error("a task is taken for lost once in five minutes, for the next step of the present workflow")
	}
	now = now.Add(time.Minute)
	if got := watch.Look([]automation.MachineQueueLook{queue(now, lost)}, now); len(got) != 0 {
		t.Errorf("dispatched again a minute ago: %v", got)
	}
	now = now.Add(automation.StalledAfter)
	if got := watch.Look([]automation.MachineQueueLook{queue(now, lost)}, now); len(got) != 1 {
		t.Errorf("dispatched again long ago: %v", got)
	}
	begin(t, &lost, "a")
	if lost.StalledAt != nil {
		t.Error("a step that has begun is not lost")
	}
}

// TestNothingIsLostWhere runs through ten minutes of looks at which nothing must be taken for lost.
func TestNothingIsLostWhere(t *testing.T) {
	t.Parallel()
	all := func(from, to int) []automation.Run {
		var runs []automation.Run
		for i := from; i < to; i++ {
			runs = append(runs, waitingRun(fmt.Sprintf("run %04d", i), t0))
		}
		return runs
	}
	for name, look := range map[string]func(minute int, now time.Time) []automation.MachineQueueLook{
		"a machine works through a long queue": func(minute int, now time.Time) []automation.MachineQueueLook {
			return []automation.MachineQueueLook{queue(now, all(10*minute, 200)...)}
		},
		"a machine is busy now and then": func(minute int, now time.Time) []automation.MachineQueueLook {
			look := queue(now, all(0, 1)...)
			look.Machine.RunningSteps += minute % 2
			return []automation.MachineQueueLook{look}
		},
		"a machine comes and goes": func(minute int, now time.Time) []automation.MachineQueueLook {
			if minute%3 == 0 {
				return nil
			}
			return []automation.MachineQueueLook{queue(now, all(0, 1)...)}
		},
		"a machine was seen a while ago": func(_ int, now time.Time) []automation.MachineQueueLook {
			return []automation.MachineQueueLook{queue(now.Add(-automation.OnlineWithin-1), all(0, 1)...)}
		},
		"a step waits for its retry": func(_ int, now time.Time) []automation.MachineQueueLook {
			r := all(0, 1)[0]
			r.Steps[0].Status, r.Steps[0].RetryAt, r.Steps[0].StartedAt = automation.StepRunning, &now, &t0
			return []automation.MachineQueueLook{queue(now, r)}
		},
		"a run is cancelled": func(_ int, now time.Time) []automation.MachineQueueLook {
			r := all(0, 1)[0]
			r.CancelRequestedAt = &now
			return []automation.MachineQueueLook{queue(now, r)}
		},
		"nothing waits": func(_ int, now time.Time) []automation.MachineQueueLook {
			return []automation.MachineQueueLook{queue(now)}
		},
	} {
		var watch automation.StallWatch
		for minute := range 11 {
			now := t0.Add(time.Hour + time.Duration(minute)*time.Minute)
			if got := watch.Look(look(minute, now), now); len(got) > 0 {
				t.Errorf("%s: after %d minutes these count as lost: %v", name, minute, got)
			}
		}
	}
}

func TestReconcilePause(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]time.Duration{
		-time.Hour:       10 * time.Second, // the clock was set back
		time.Millisecond: 10 * time.Second,
		time.Second:      20 * time.Second,
		time.Hour:        time.Minute,
	} {
		if got := automation.ReconcilePause(took); got != want {
			t.Errorf("after %v: %v, want %v", took, got, want)
		}
	}
}
