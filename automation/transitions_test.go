package automation_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/automation"
)

var t0 = time.Date(2026, 12, 1, 9, 0, 0, 0, time.UTC)

// newRun returns a pending run with steps a, b, c.
func newRun() *automation.Run {
	r := &automation.Run{ID: "run", MachineID: "machine", Status: automation.RunPending, Generation: 1, CreatedAt: t0}
	for _, id := range []string{"a", "b", "c"} {
		r.Steps = append(r.Steps, automation.StepRecord{ID: id, Kind: automation.KindCommand, Status: automation.StepPending})
	}
	return r
}

func ref(step string) automation.StepRef { return automation.StepRef{RunID: "run", StepID: step} }

func begin(t *testing.T, r *automation.Run, step string, change ...func(*automation.BeginRequest)) automation.BeginAnswer {
	t.Helper()
	request := automation.BeginRequest{StepRef: ref(step), Generation: r.Generation}
	for _, c := range change {
		c(&request)
	}
	answer, err := r.Begin(request, false, t0)
	if err != nil {
		t.Fatalf("begin %s: %v", step, err)
	}
	return answer
}

func finish(t *testing.T, r *automation.Run, step string, n int64, outcome automation.Outcome) automation.FinishAnswer {
	t.Helper()
	request := automation.FinishRequest{StepRef: ref(step), Execution: n, Outcome: outcome}
	if outcome == automation.OutcomeFailed {
		request.Error = &automation.StepError{Code: automation.StepErrNonzeroExit, Message: "exit status 3"}
	}
	answer, err := r.Finish(request, t0.Add(time.Minute))
	if err != nil {
		t.Fatalf("finish %s: %v", step, err)
	}
	return answer
}

func statuses(r *automation.Run) string {
	text := string(r.Status) + ":"
	for _, s := range r.Steps {
		text += " " + string(s.Status)
	}
	return text
}

func wantStatuses(t *testing.T, r *automation.Run, want string) {
	t.Helper()
	if got := statuses(r); got != want {
		t.Fatalf("statuses\n got %s\nwant %s", got, want)
	}
}

func TestRunCompletesStepByStep(t *testing.T) {
	t.Parallel()
	r := newRun()
	for i, step := range []string{"a", "b", "c"} {
		want := automation.BeginAnswer{Decision: automation.BeginRun, Execution: 1}
		if diff := cmp.Diff(want, begin(t, r, step)); diff != "" {
			t.Fatal(diff)
		}
		if r.Status != automation.RunRunning {
			t.Fatalf("status %s while step %d executes", r.Status, i)
		}
		if a := finish(t, r, step, 1, automation.OutcomeCompleted); !a.Accepted {
			t.Fatalf("finish of %s was not accepted", step)
		}
	}
	wantStatuses(t, r, "completed: completed completed completed")
	if r.FinishedAt == nil || r.StartedAt == nil {
		t.Fatal("a completed run needs its times")
	}
}

func TestBeginAnswers(t *testing.T) {
	t.Parallel()
	held := func(n int64) func(*automation.BeginRequest) {
		return func(q *automation.BeginRequest) {
			q.Held = &automation.Held{StepRef: q.StepRef, Execution: n, State: automation.HeldRunning}
		}
	}
	id := func(id string) func(*automation.BeginRequest) {
		return func(q *automation.BeginRequest) { q.RequestID = id }
	}
	old := func(q *automation.BeginRequest) { q.Generation = 0 }
	tests := map[string]struct {
		prepare func(t *testing.T, r *automation.Run)
		change  []func(*automation.BeginRequest)
		want    automation.BeginAnswer
	}{
		"first": {nil, nil, automation.BeginAnswer{Decision: automation.BeginRun, Execution: 1}},
		"the attempt before was lost and nothing is held": {
			func(t *testing.T, r *automation.Run) { begin(t, r, "a", id("x")) },
			[]func(*automation.BeginRequest){id("y")},
			automation.BeginAnswer{Decision: automation.BeginRun, Execution: 2},
		},
		"the answer was lost and the request is repeated": {
			func(t *testing.T, r *automation.Run) { begin(t, r, "a", id("x")) },
			[]func(*automation.BeginRequest){id("x")},
			automation.BeginAnswer{Decision: automation.BeginRun, Execution: 1},
		},
		"the machine holds the execution": {
			func(t *testing.T, r *automation.Run) { begin(t, r, "a") },
			[]func(*automation.BeginRequest){held(1)},
			automation.BeginAnswer{Decision: automation.BeginAttach, Execution: 1},
		},
		"the ledger lost the begin that the machine holds": {
			nil,
			[]func(*automation.BeginRequest){held(4)},
			automation.BeginAnswer{Decision: automation.BeginAttach, Execution: 4},
		},
		"the step has ended, also for a superseded workflow": {
			func(t *testing.T, r *automation.Run) {
				begin(t, r, "a")
				finish(t, r, "a", 1, automation.OutcomeCompleted)
			},
			[]func(*automation.BeginRequest){old},
			automation.BeginAnswer{Decision: automation.BeginDone, Execution: 1, Outcome: automation.OutcomeCompleted},
		},
		"superseded while the program runs": {
			func(t *testing.T, r *automation.Run) { begin(t, r, "a") },
			[]func(*automation.BeginRequest){old, held(1)},
			automation.BeginAnswer{Decision: automation.BeginStop, Execution: 1, Stop: automation.StopSuperseded},
		},
		"cancelled before it began": {
			func(_ *testing.T, r *automation.Run) { _, _ = r.Cancel("", false, t0) },
			nil,
			automation.BeginAnswer{Decision: automation.BeginStop, Stop: automation.StopCancelled},
		},
		"cancelled while it executes": {
			func(t *testing.T, r *automation.Run) {
				begin(t, r, "a")
				_, _ = r.Cancel("", false, t0)
			},
			[]func(*automation.BeginRequest){held(1)},
			automation.BeginAnswer{Decision: automation.BeginStop, Execution: 1, Stop: automation.StopCancelled},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRun()
			if test.prepare != nil {
				test.prepare(t, r)
			}
			if diff := cmp.Diff(test.want, begin(t, r, "a", test.change...)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestBeginRefusals(t *testing.T) {
	t.Parallel()
	r := newRun()
	if _, err := r.Begin(automation.BeginRequest{StepRef: ref("z"), Generation: 1}, false, t0); automation.CodeOf(err) != automation.CodeNotFound {
		t.Errorf("an unknown step: %v", err)
	}
	if _, err := r.Begin(automation.BeginRequest{StepRef: ref("b"), Generation: 1}, false, t0); automation.CodeOf(err) != automation.CodeValidationFailed {
		t.Errorf("a step out of turn: %v", err)
	}
	answer, err := r.Begin(automation.BeginRequest{StepRef: ref("a"), Generation: 1}, true, t0)
	if err != nil || answer.Stop != automation.StopRevoked {
		t.Errorf("a revoked machine: %+v, %v", answer, err)
	}
	wantStatuses(t, r, "pending: pending pending pending")
}

func TestFailureSkipsTheRest(t *testing.T) {
	t.Parallel()
	r := newRun()
	begin(t, r, "a")
	finish(t, r, "a", 1, automation.OutcomeFailed)
	wantStatuses(t, r, "failed: failed skipped skipped")
	want := &automation.RunError{Code: "nonzero_exit", Message: "exit status 3", StepID: "a"}
	if diff := cmp.Diff(want, r.Error); diff != "" {
		t.Error(diff)
	}
}

func TestFinishIsWrittenOnce(t *testing.T) {
	t.Parallel()
	r := newRun()
	begin(t, r, "a")
	finish(t, r, "a", 1, automation.OutcomeCompleted)
	repeat := finish(t, r, "a", 1, automation.OutcomeFailed)
	if !repeat.Accepted || repeat.Outcome != automation.OutcomeCompleted {
		t.Errorf("a repeat must get the first outcome: %+v", repeat)
	}
	if late := finish(t, r, "a", 0, automation.OutcomeFailed); late.Accepted {
		t.Errorf("an execution that is not the current one was accepted: %+v", late)
	}
	wantStatuses(t, r, "running: completed pending pending")
}

func TestOnlyTheCurrentExecutionCounts(t *testing.T) {
	t.Parallel()
	r := newRun()
	begin(t, r, "a")
	begin(t, r, "a")
	if a := finish(t, r, "a", 1, automation.OutcomeFailed); a.Accepted {
		t.Fatalf("the first execution was superseded by the second: %+v", a)
	}
	if a := finish(t, r, "a", 2, automation.OutcomeCompleted); !a.Accepted {
		t.Fatalf("the current execution was refused: %+v", a)
	}
	wantStatuses(t, r, "running: completed pending pending")
}

func TestRetryAfterInterruptedAndTransient(t *testing.T) {
	t.Parallel()
	r := newRun()
	delays := []int64{1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000}
	for i, want := range delays {
		n := begin(t, r, "a").Execution
		if n != int64(i+1) {
			t.Fatalf("execution %d, want %d", n, i+1)
		}
		answer := finish(t, r, "a", n, automation.OutcomeTransient)
		if !answer.Accepted || answer.RetryAfterMs != want {
			t.Fatalf("after execution %d: %+v, want a retry after %d ms", n, answer, want)
		}
		if w := r.Waiting(onlineMachine(), true, t0); w == nil || w.Reason != automation.WaitRetry {
			t.Fatalf("waiting for %+v, want a retry", w)
		}
	}
	n := begin(t, r, "a").Execution
	request := automation.FinishRequest{
		StepRef: ref("a"), Execution: n, Outcome: automation.OutcomeTransient,
		Error: &automation.StepError{Code: automation.StepErrTransportUnavailable, Message: "no route"},
	}
	answer, err := r.Finish(request, t0.Add(time.Minute).Add(automation.TransientAtMost))
	if err != nil || answer.Outcome != automation.OutcomeFailed {
		t.Fatalf("trouble of a day must fail: %+v, %v", answer, err)
	}
	wantStatuses(t, r, "failed: failed skipped skipped")
}

func TestCancel(t *testing.T) {
	t.Parallel()
	cancel := func(t *testing.T, r *automation.Run, force bool) string {
		t.Helper()
		begun, err := r.Cancel("why", force, t0)
		if err != nil {
			t.Fatal(err)
		}
		return begun
	}
	t.Run("before anything began", func(t *testing.T) {
		t.Parallel()
		r := newRun()
		if begun := cancel(t, r, false); begun != "" {
			t.Errorf("begun %q", begun)
		}
		wantStatuses(t, r, "cancelled: skipped skipped skipped")
		if _, err := r.Cancel("", false, t0); automation.CodeOf(err) != automation.CodeAlreadyFinished {
			t.Errorf("a second cancel: %v", err)
		}
	})
	t.Run("while a step executes", func(t *testing.T) {
		t.Parallel()
		r := newRun()
		begin(t, r, "a")
		if begun := cancel(t, r, false); begun != "a" {
			t.Errorf("begun %q", begun)
		}
		wantStatuses(t, r, "running: running skipped skipped")
		want := []automation.Event{{Kind: automation.EventEnd, StepRef: ref("a"), Execution: 1}}
		if diff := cmp.Diff(want, r.OpenEnds()); diff != "" {
			t.Error(diff)
		}
		if w := r.Waiting(onlineMachine(), true, t0); w == nil || w.Reason != automation.WaitCancelConfirmation {
			t.Errorf("waiting for %+v", w)
		}
		finish(t, r, "a", 1, automation.OutcomeCancelled)
		wantStatuses(t, r, "cancelled: cancelled skipped skipped")
		if ends := r.OpenEnds(); len(ends) > 0 {
			t.Errorf("ends stay open: %+v", ends)
		}
	})
	t.Run("the program ends by itself first", func(t *testing.T) {
		t.Parallel()
		r := newRun()
		begin(t, r, "a")
		cancel(t, r, false)
		finish(t, r, "a", 1, automation.OutcomeCompleted)
		wantStatuses(t, r, "cancelled: completed skipped skipped")
	})
	t.Run("the drain of the worker ends it first", func(t *testing.T) {
		t.Parallel()
		r := newRun()
		begin(t, r, "a")
		cancel(t, r, false)
		finish(t, r, "a", 1, automation.OutcomeInterrupted)
		wantStatuses(t, r, "cancelled: cancelled skipped skipped")
	})
	t.Run("while a step waits for its next execution", func(t *testing.T) {
		t.Parallel()
		r := newRun()
		begin(t, r, "a")
		finish(t, r, "a", 1, automation.OutcomeInterrupted)
		if begun := cancel(t, r, false); begun != "" {
			t.Errorf("begun %q, though no program runs", begun)
		}
		wantStatuses(t, r, "cancelled: cancelled skipped skipped")
	})
	t.Run("by force", func(t *testing.T) {
		t.Parallel()
		r := newRun()
		begin(t, r, "a")
		cancel(t, r, true)
		wantStatuses(t, r, "cancelled: cancelled skipped skipped")
		if !r.Steps[0].Unconfirmed || len(r.OpenEnds()) != 1 {
			t.Fatal("the step is unconfirmed, and its machine must be told")
		}
		finish(t, r, "a", 1, automation.OutcomeCancelled)
		if r.Steps[0].Unconfirmed || len(r.OpenEnds()) != 0 {
			t.Error("the machine's confirmation clears the mark")
		}
	})
	t.Run("a second one adds force", func(t *testing.T) {
		t.Parallel()
		r := newRun()
		begin(t, r, "a")
		cancel(t, r, false)
		cancel(t, r, true)
		wantStatuses(t, r, "cancelled: cancelled skipped skipped")
		if r.CancelReason != "why" {
			t.Errorf("reason %q", r.CancelReason)
		}
	})
}

func TestFinalize(t *testing.T) {
	t.Parallel()
	failure := &automation.RunError{Code: "internal", Message: "lost", StepID: "a"}
	t.Run("what the steps settle wins", func(t *testing.T) {
		t.Parallel()
		r := newRun()
		begin(t, r, "a")
		finish(t, r, "a", 1, automation.OutcomeFailed)
		verdict := r.Finalize(automation.FinalizeInput{Generation: 1, Failure: failure}, t0)
		if verdict.Status != automation.RunFailed || verdict.Code != "nonzero_exit" || verdict.StepID != "a" {
			t.Errorf("%+v", verdict)
		}
	})
	t.Run("the workflow gave up", func(t *testing.T) {
		t.Parallel()
		r := newRun()
		begin(t, r, "a")
		verdict := r.Finalize(automation.FinalizeInput{Generation: 1, Failure: failure}, t0)
		wantStatuses(t, r, "failed: failed skipped skipped")
		if verdict.Code != "internal" || !r.Steps[0].Unconfirmed {
			t.Errorf("%+v, unconfirmed %v", verdict, r.Steps[0].Unconfirmed)
		}
	})
	t.Run("superseded", func(t *testing.T) {
		t.Parallel()
		r := newRun()
		r.Generation = 2
		verdict := r.Finalize(automation.FinalizeInput{Generation: 1, Failure: failure}, t0)
		wantStatuses(t, r, "pending: pending pending pending")
		if !verdict.Superseded {
			t.Errorf("%+v", verdict)
		}
	})
	t.Run("nothing is settled and nothing is wrong", func(t *testing.T) {
		t.Parallel()
		r := newRun()
		if verdict := r.Finalize(automation.FinalizeInput{Generation: 1}, t0); verdict.Status != automation.RunPending {
			t.Errorf("%+v", verdict)
		}
	})
}

func TestHeldVerdict(t *testing.T) {
	t.Parallel()
	running := func(t *testing.T, r *automation.Run) { begin(t, r, "a") }
	tests := map[string]struct {
		prepare func(t *testing.T, r *automation.Run)
		held    automation.Held
		revoked bool
		want    automation.HeldVerdict
	}{
		"it runs":                {running, automation.Held{Execution: 1, State: automation.HeldRunning}, false, automation.VerdictKeep},
		"its number was lost":    {running, automation.Held{Execution: 3, State: automation.HeldRunning}, false, automation.VerdictKeep},
		"its result is awaited":  {running, automation.Held{Execution: 1, State: automation.HeldFinished}, false, automation.VerdictFinish},
		"the machine is revoked": {running, automation.Held{Execution: 1, State: automation.HeldRunning}, true, automation.VerdictEnd},
		"the run is being cancelled": {func(t *testing.T, r *automation.Run) {
			begin(t, r, "a")
			_, _ = r.Cancel("", false, t0)
		}, automation.Held{Execution: 1, State: automation.HeldRunning}, false, automation.VerdictEnd},
		"it was ended by force and runs": {func(t *testing.T, r *automation.Run) {
			begin(t, r, "a")
			_, _ = r.Cancel("", true, t0)
		}, automation.Held{Execution: 1, State: automation.HeldRunning}, false, automation.VerdictEnd},
		"it was ended by force and has ended": {func(t *testing.T, r *automation.Run) {
			begin(t, r, "a")
			_, _ = r.Cancel("", true, t0)
		}, automation.Held{Execution: 1, State: automation.HeldFinished}, false, automation.VerdictFinish},
		"a later one counts": {func(t *testing.T, r *automation.Run) {
			begin(t, r, "a")
			begin(t, r, "a")
		}, automation.Held{Execution: 1, State: automation.HeldRunning}, false, automation.VerdictEnd},
		"its result is known": {func(t *testing.T, r *automation.Run) {
			begin(t, r, "a")
			finish(t, r, "a", 1, automation.OutcomeCompleted)
		}, automation.Held{Execution: 1, State: automation.HeldFinished}, false, automation.VerdictForget},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRun()
			test.prepare(t, r)
			test.held.StepRef = ref("a")
			if got := r.HeldVerdict(test.held, test.revoked); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func onlineMachine() automation.MachineLoad {
	seen := t0
	return automation.MachineLoad{Machine: automation.Machine{
		Name: "laptop", State: automation.MachineActive, Concurrency: 4, LastSeenAt: &seen,
	}}
}

func TestWaiting(t *testing.T) {
	t.Parallel()
	offline := onlineMachine()
	long := t0.Add(-time.Hour)
	offline.LastSeenAt = &long
	never := onlineMachine()
	never.LastSeenAt = nil
	busy := onlineMachine()
	busy.RunningSteps = 4
	started := func(r *automation.Run) { r.EngineID = "engine" }
	lost := func(r *automation.Run) {
		started(r)
		if !r.Stall("a", 1, t0) {
			t.Error("the task of the first step was not taken for lost")
		}
	}
	tests := map[string]struct {
		prepare  func(r *automation.Run)
		machine  automation.MachineLoad
		engineUp bool
		want     automation.WaitReason
	}{
		"no workflow yet":  {func(*automation.Run) {}, onlineMachine(), true, automation.WaitNotStarted},
		"Temporal is down": {func(*automation.Run) {}, onlineMachine(), false, automation.WaitEngineUnavailable},
		"an earlier run of its schedule has not ended": {
			func(r *automation.Run) { r.WaitsFor = "earlier" }, offline, false, automation.WaitPreviousRun,
		},
		"the machine is off":          {started, offline, true, automation.WaitMachineOffline},
		"the machine never connected": {started, never, true, automation.WaitMachineOffline},
		"the machine is busy":         {started, busy, true, automation.WaitMachineBusy},
		"on its way":                  {started, onlineMachine(), true, ""},
		"its task was lost":           {lost, onlineMachine(), true, automation.WaitDispatchStalled},
		"lost, and busy since":        {lost, busy, true, automation.WaitMachineBusy},
		"lost, and begun since":       {func(r *automation.Run) { lost(r); begin(t, r, "a") }, onlineMachine(), true, ""},
		"it is tried again": {func(r *automation.Run) {
			started(r)
			begin(t, r, "a")
			finish(t, r, "a", 1, automation.OutcomeTransient)
		}, onlineMachine(), true, automation.WaitRetry},
		"its cancel is to be confirmed": {func(r *automation.Run) {
			started(r)
			begin(t, r, "a")
			_, _ = r.Cancel("", false, t0)
		}, offline, false, automation.WaitCancelConfirmation},
		"it executes":           {func(r *automation.Run) { started(r); begin(t, r, "a") }, busy, true, ""},
		"its machine went away": {func(r *automation.Run) { started(r); begin(t, r, "a") }, offline, true, automation.WaitMachineOffline},
		"it has ended":          {func(r *automation.Run) { _, _ = r.Cancel("", false, t0) }, offline, false, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRun()
			test.prepare(r)
			got := automation.WaitReason("")
			if w := r.Waiting(test.machine, test.engineUp, t0); w != nil {
				got = w.Reason
				if w.Since.IsZero() {
					t.Error("since is missing")
				}
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// TestRandomHistories drives runs through random events, as machines, people and workflows of any age may
// send them, and checks what must hold whatever comes.
func TestRandomHistories(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3000) {
		random := rand.New(rand.NewPCG(seed, 1))
		r := newRun()
		now := t0
		var log []string
		for range 60 {
			now = now.Add(time.Duration(random.IntN(100)) * time.Second)
			before := copyRun(r)
			log = append(log, randomEvent(random, r, now))
			if problem := broken(before, r); problem != "" {
				t.Fatalf("seed %d: %s after %v", seed, problem, log)
			}
		}
	}
}

func copyRun(r *automation.Run) automation.Run {
	c := *r
	c.Steps = append([]automation.StepRecord(nil), r.Steps...)
	return c
}

func randomEvent(random *rand.Rand, r *automation.Run, now time.Time) string {
	step := ref([]string{"a", "b", "c"}[random.IntN(3)])
	n := int64(random.IntN(4))
	switch random.IntN(13) {
	case 12:
		if random.IntN(4) == 0 {
			ends := []automation.WorkflowEnd{automation.WorkflowGone, automation.WorkflowGone, automation.WorkflowTerminated}
			return "reconcile: " + string(r.Reconcile(automation.ClosedWorkflow{
				Generation: r.Generation - int64(random.IntN(8)/7), End: ends[random.IntN(len(ends))],
			}, now))
		}
		r.Stall(step.StepID, r.Generation, now)
		return "stall " + step.StepID
	case 0:
		if random.IntN(4) == 0 {
			_, _ = r.Cancel("", random.IntN(3) == 0, now)
			return "cancel"
		}
		return "-"
	case 1:
		if random.IntN(6) == 0 {
			r.Finalize(automation.FinalizeInput{Generation: r.Generation, Failure: &automation.RunError{Code: "internal"}}, now)
			return "give up"
		}
		return "-"
	case 2, 3, 4, 5, 6:
		request := automation.BeginRequest{
			StepRef: step, Generation: r.Generation - int64(random.IntN(8)/7), RequestID: fmt.Sprint(random.IntN(3)),
		}
		if random.IntN(3) == 0 && n > 0 {
			request.Held = &automation.Held{StepRef: step, Execution: n, State: automation.HeldRunning}
		}
		_, _ = r.Begin(request, random.IntN(30) == 0, now)
		return "begin " + step.StepID
	}
	outcomes := []automation.Outcome{
		automation.OutcomeCompleted, automation.OutcomeCompleted, automation.OutcomeCompleted, automation.OutcomeFailed,
		automation.OutcomeCancelled, automation.OutcomeInterrupted, automation.OutcomeTransient,
	}
	outcome := outcomes[random.IntN(len(outcomes))]
	if r.Step(step.StepID).Status == automation.StepPending {
		return "-" // a machine only reports what it was told to run
	}
	_, _ = r.Finish(automation.FinishRequest{StepRef: step, Execution: n, Outcome: outcome}, now)
	return fmt.Sprintf("finish %s %d %s", step.StepID, n, outcome)
}

// broken says which rule a change violated.
func broken(before automation.Run, after *automation.Run) string {
	if before.Status.Finished() && (after.Status != before.Status || !after.FinishedAt.Equal(*before.FinishedAt)) {
		return "a terminal status changed"
	}
	executing, reached := 0, true
	for i, step := range after.Steps {
		earlier := before.Steps[i]
		ended := earlier.Status != automation.StepPending && earlier.Status != automation.StepRunning
		if ended && step.Status != earlier.Status {
			return "step " + step.ID + " changed after its end"
		}
		if ended && step.Attempt != earlier.Attempt {
			return "step " + step.ID + " was executed after its end"
		}
		if step.Status == automation.StepRunning {
			executing++
		}
		if step.Attempt > 0 && !reached {
			return "step " + step.ID + " began before the one before it completed"
		}
		reached = reached && step.Status == automation.StepCompleted
	}
	switch {
	case executing > 1:
		return "two steps execute"
	case after.Status.Finished() && executing > 0:
		return "a step executes in a run that has ended"
	case after.Status.Finished() != (after.FinishedAt != nil):
		return "a terminal status and its time do not go together"
	case (after.Status == automation.RunCompleted) != reached:
		return "completed and all steps completed do not go together"
	case after.Status == automation.RunPending && after.StartedAt != nil:
		return "a pending run has begun"
	}
	return ""
}
