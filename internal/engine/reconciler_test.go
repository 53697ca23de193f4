package engine_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/engine"
)

// twoSides is a ledger and a Temporal in memory that do not always agree. What is done about it is logged.
type twoSides struct {
	mu       sync.Mutex
	runs     []automation.OpenRun
	finished map[string]automation.RunMark
	open     []engine.OpenWorkflow
	unlisted []engine.OpenWorkflow // open, though the list does not show them yet
	ended    map[string]automation.ClosedWorkflow
	queues   []automation.MachineQueueLook
	holder   string
	down     bool
	lists    int
	looks    int // at single workflows
	done     []string
	repairs  engine.Repairs // that the last reconciler has counted
}

func newTwoSides() *twoSides {
	return &twoSides{finished: map[string]automation.RunMark{}, ended: map[string]automation.ClosedWorkflow{}}
}

// add adds an unfinished run, with its open workflow if there is one.
func (w *twoSides) add(id string, hasWorkflow bool) {
	w.runs = append(w.runs, automation.OpenRun{ID: id, Generation: 1, CreatedAt: time.Now().Add(time.Duration(len(w.runs)) - time.Hour)})
	if hasWorkflow {
		w.open = append(w.open, engine.OpenWorkflow{RunID: id, Generation: 1})
	}
}

func (w *twoSides) log(format string, args ...any) {
	w.done = append(w.done, fmt.Sprintf(format, args...))
}

func (w *twoSides) locked(do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	do()
}

func (w *twoSides) ID() string { return "engine" }

func (w *twoSides) Refresh(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down {
		return errDown
	}
	return nil
}

const listedAtOnce = 100

func (w *twoSides) OpenWorkflows(_ context.Context, next []byte) ([]engine.OpenWorkflow, []byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lists++
	from := 0
	if len(next) > 0 {
		if _, err := fmt.Sscan(string(next), &from); err != nil {
			return nil, nil, err
		}
	}
	to := min(from+listedAtOnce, len(w.open))
	if to == len(w.open) {
		return w.open[from:to], nil, nil
	}
	return w.open[from:to], fmt.Append(nil, to), nil
}

func (w *twoSides) ClosedWorkflow(_ context.Context, runID string, generation int64) (automation.ClosedWorkflow, bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.looks++
	if slices.Contains(w.unlisted, engine.OpenWorkflow{RunID: runID, Generation: generation}) {
		return automation.ClosedWorkflow{}, false, nil
	}
	closed, known := w.ended[runID]
	if !known {
		closed.End = automation.WorkflowGone
	}
	closed.RunID, closed.Generation = runID, generation
	return closed, true, nil
}

func (w *twoSides) NotifyCancel(_ context.Context, runID string, generation int64, _ automation.CancelNotice) error {
	w.locked(func() { w.log("tell %s/%d", runID, generation) })
	return nil
}

func (w *twoSides) EndSuperseded(_ context.Context, runID string, generation int64) error {
	w.locked(func() { w.log("end %s/%d", runID, generation) })
	return nil
}

func (w *twoSides) Redispatch(_ context.Context, s automation.StalledStep) error {
	w.locked(func() { w.log("dispatch %s/%d %s", s.RunID, s.Generation, s.StepID) })
	return nil
}

func (w *twoSides) OpenRuns(_ context.Context, engineID string, before time.Time, after automation.OpenRun, limit int) ([]automation.OpenRun, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if engineID != "engine" {
		return nil, errors.New("another engine")
	}
	var page []automation.OpenRun
	for _, run := range w.runs {
		if run.CreatedAt.After(after.CreatedAt) && run.CreatedAt.Before(before) && len(page) < limit {
			page = append(page, run)
		}
	}
	return page, nil
}

func (w *twoSides) RunMarks(_ context.Context, ids []string) (map[string]automation.RunMark, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := maps.Clone(w.finished)
	for _, run := range w.runs {
		all[run.ID] = automation.RunMark{Generation: run.Generation}
	}
	marks := map[string]automation.RunMark{}
	for _, id := range ids {
		if mark, known := all[id]; known {
			marks[id] = mark
		}
	}
	return marks, nil
}

func (w *twoSides) ReconcileRun(_ context.Context, closed automation.ClosedWorkflow) (automation.Repair, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log("repair %s/%d %s", closed.RunID, closed.Generation, closed.End)
	w.runs = slices.DeleteFunc(w.runs, func(r automation.OpenRun) bool { return r.ID == closed.RunID })
	if closed.End == automation.WorkflowTerminated {
		return automation.RepairCancelled, nil
	}
	return automation.RepairRestarted, nil
}

func (w *twoSides) WaitingQueues(context.Context, string, time.Time) ([]automation.MachineQueueLook, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.queues {
		now := time.Now()
		w.queues[i].Machine.LastSeenAt = &now
	}
	return w.queues, nil
}

func (w *twoSides) StallRun(_ context.Context, s automation.StalledStep) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.queues[0].Waiting[0].Stall(s.StepID, s.Generation, time.Now()), nil
}

func (w *twoSides) Lease(_ context.Context, _, holder string, _ time.Duration) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.holder == "" {
		w.holder = holder
	}
	return w.holder == holder, nil
}

// reconcile lets a reconciler work in a bubble of fake time for a while and returns what it has done.
func reconcile(t *testing.T, w *twoSides, during time.Duration) []string {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	r := engine.NewReconciler(engine.ReconcilerOptions{
		Engine: w, Store: w, Holder: "me", Now: time.Now, Logger: slog.New(slog.DiscardHandler),
		Admitted: func(runID string) { w.locked(func() { w.log("start %s", runID) }) },
	})
	ended := make(chan struct{})
	go func() {
		r.Run(ctx)
		close(ended)
	}()
	time.Sleep(during)
	synctest.Wait()
	w.repairs = r.Repairs()
	stop()
	<-ended
	return w.done
}

// wantRepairs checks what the last reconciler has counted.
func (w *twoSides) wantRepairs(t *testing.T, want engine.Repairs) {
	t.Helper()
	if diff := cmp.Diff(want, w.repairs); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
}

func TestRunsWithoutAWorkflowAreRepaired(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTwoSides()
		w.add("going on", true)
		w.add("terminated", false)
		w.ended["terminated"] = automation.ClosedWorkflow{End: automation.WorkflowTerminated}
		w.add("gone", false)
		w.add("not listed yet", false)
		w.unlisted = []engine.OpenWorkflow{{RunID: "not listed yet", Generation: 1}}
		w.add("young", false)
		w.runs[len(w.runs)-1].CreatedAt = time.Now()
		want := []string{"repair terminated/1 terminated", "repair gone/1 gone", "start gone"}
		if diff := cmp.Diff(want, reconcile(t, w, time.Second)); diff != "" {
			t.Errorf("done (-want +got):\n%s", diff)
		}
		w.wantRepairs(t, engine.Repairs{Cancelled: 1, Restarted: 1})
	})
}

func TestOpenWorkflowsWithoutARunAreEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTwoSides()
		ago := time.Now().Add(-time.Hour)
		w.add("going on", true)
		w.runs[0].Generation = 2
		w.open = append(w.open,
			engine.OpenWorkflow{RunID: "going on", Generation: 2},
			engine.OpenWorkflow{RunID: "finished", Generation: 1}, engine.OpenWorkflow{RunID: "of another database", Generation: 1})
		w.finished["finished"] = automation.RunMark{Generation: 1, FinishedAt: &ago}
		if diff := cmp.Diff([]string{"end going on/1", "tell finished/1"}, reconcile(t, w, time.Second)); diff != "" {
			t.Errorf("done (-want +got):\n%s", diff)
		}
		w.wantRepairs(t, engine.Repairs{Told: 1, Ended: 1, Unknown: 1})
	})
}

// TestTenThousandWaitingRunsCostLittle has nothing to repair: no run is looked at by itself.
func TestTenThousandWaitingRunsCostLittle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTwoSides()
		for i := range 10_000 {
			w.add(fmt.Sprint("run", i), true)
		}
		if done := reconcile(t, w, 10*time.Minute); len(done) != 0 || w.looks != 0 {
			t.Errorf("%d looks at single workflows, %v", w.looks, done)
		}
		// A list of a hundred pages takes 25 s at four a second; the next follows a minute later.
		if passes := w.lists / (10_000 / listedAtOnce); passes < 6 || passes > 8 {
			t.Errorf("%d passes in ten minutes", passes)
		}
	})
}

func TestManyLostWorkflowsAreRepairedAtABoundedRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTwoSides()
		for i := range 2000 {
			w.add(fmt.Sprint("run", i), false)
		}
		if done := reconcile(t, w, 10*time.Second); len(done) > 2*(10*50+50) {
			t.Errorf("%d calls in ten seconds", len(done)/2)
		}
		if reconcile(t, w, time.Minute); len(w.runs) != 0 {
			t.Errorf("%d runs are left after a minute", len(w.runs))
		}
	})
}

func TestALostTaskIsDispatchedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTwoSides()
		run := automation.Run{
			ID: "lost", Status: automation.RunPending, Generation: 3, CreatedAt: time.Now().Add(-time.Hour),
			Steps: []automation.StepRecord{{ID: "a", Status: automation.StepPending}},
		}
		w.queues = []automation.MachineQueueLook{{
			Machine: automation.MachineLoad{Machine: automation.Machine{ID: "m", State: automation.MachineActive, Concurrency: 1}},
			Waiting: []automation.Run{run},
		}}
		if done := reconcile(t, w, automation.StalledAfter-time.Second); len(done) != 0 {
			t.Errorf("after less than five minutes: %v", done)
		}
		if diff := cmp.Diff([]string{"dispatch lost/3 a"}, reconcile(t, w, automation.StalledAfter+time.Minute)); diff != "" {
			t.Errorf("done (-want +got):\n%s", diff)
		}
		w.wantRepairs(t, engine.Repairs{Redispatched: 1})
	})
}

func TestNothingIsRepairedByAServerThatMayNot(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(w *twoSides){
		"another server does it": func(w *twoSides) { w.holder = "another" },
		"Temporal is down":       func(w *twoSides) { w.down = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newTwoSides()
				w.add("gone", false)
				prepare(w)
				if done := reconcile(t, w, 5*time.Minute); len(done) != 0 {
					t.Errorf("done: %v", done)
				}
				w.holder, w.down = "", false
				if done := reconcile(t, w, time.Minute); len(done) != 2 {
					t.Errorf("done when it may again: %v", done)
				}
			})
		})
	}
}
