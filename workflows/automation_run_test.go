package workflows_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/workflows"
)

// world is Temporal's test environment with activities that a test scripts.
type world struct {
	env *testsuite.TestWorkflowEnvironment

	mu        sync.Mutex
	executed  []string
	finalized []automation.FinalizeInput
	cancels   []automation.CancelInput

	// step answers for a step's activity; nil completes it.
	step func(ctx context.Context, in automation.StepInput) (automation.StepVerdict, error)
	// final is what the ledger says at the end.
	final automation.FinalizeVerdict
	// begun is what the ledger says had begun at a cancel made in Temporal.
	begun string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	w := &world{env: suite.NewTestWorkflowEnvironment(), final: automation.FinalizeVerdict{Status: automation.RunCompleted}}
	w.env.SetTestTimeout(time.Minute)
	w.env.RegisterWorkflowWithOptions(workflows.AutomationRun, workflow.RegisterOptions{Name: automation.WorkflowAutomationRun})
	for _, contract := range []automation.Activity[automation.StepInput, automation.StepVerdict]{
		automation.ExecuteAction, automation.ExecuteCommand, automation.ExecuteScript,
	} {
		w.env.RegisterActivityWithOptions(w.execute, activity.RegisterOptions{Name: contract.Name})
	}
	w.env.RegisterActivityWithOptions(w.finalize, activity.RegisterOptions{Name: automation.FinalizeRun.Name})
	w.env.RegisterActivityWithOptions(w.cancel, activity.RegisterOptions{Name: automation.RequestCancel.Name})
	return w
}

func (w *world) execute(ctx context.Context, in automation.StepInput) (automation.StepVerdict, error) {
	w.mu.Lock()
	w.executed = append(w.executed, activity.GetInfo(ctx).ActivityType.Name+" "+in.StepID)
	step := w.step
	w.mu.Unlock()
	if step == nil {
		return automation.StepVerdict{Outcome: automation.OutcomeCompleted}, nil
	}
	return step(ctx, in)
}

func (w *world) finalize(_ context.Context, in automation.FinalizeInput) (automation.FinalizeVerdict, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.finalized = append(w.finalized, in)
	return w.final, nil
}

func (w *world) cancel(_ context.Context, in automation.CancelInput) (automation.CancelVerdict, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cancels = append(w.cancels, in)
	return automation.CancelVerdict{Begun: w.begun}, nil
}

func (w *world) run(t *testing.T) error {
	t.Helper()
	w.env.ExecuteWorkflow(automation.WorkflowAutomationRun, automation.RunInput{
		RunID: "run", Generation: 7, MachineQueue: "install/machine/m",
		Steps: []automation.StepOutline{
			{ID: "notify", Kind: automation.KindAction, Summary: "notify · channels.notify_user", TimeoutMs: 1000},
			{ID: "build", Kind: automation.KindCommand, Summary: "build · make", TimeoutMs: 1000},
			{ID: "report", Kind: automation.KindScript, Summary: "report · shell script", TimeoutMs: 1000},
		},
	})
	if !w.env.IsWorkflowCompleted() {
		t.Fatal("the workflow has not ended")
	}
	return w.env.GetWorkflowError()
}

func (w *world) wantExecuted(t *testing.T, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, w.executed); diff != "" {
		t.Errorf("executed steps (-want +got):\n%s", diff)
	}
}

func TestStepsInOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var queues, ids []string
	w.step = func(ctx context.Context, in automation.StepInput) (automation.StepVerdict, error) {
		info := activity.GetInfo(ctx)
		queues, ids = append(queues, info.TaskQueue), append(ids, info.ActivityID)
		if in.RunID != "run" || in.Generation != 7 {
			t.Errorf("input %+v", in)
		}
		if info.HeartbeatTimeout != automation.HeartbeatTimeout {
			t.Errorf("heartbeat timeout %s", info.HeartbeatTimeout)
		}
		return automation.StepVerdict{Outcome: automation.OutcomeCompleted}, nil
	}
	if err := w.run(t); err != nil {
		t.Fatal(err)
	}
	w.wantExecuted(t, "ExecuteAction notify", "ExecuteCommand build", "ExecuteScript report")
	if diff := cmp.Diff([]string{"install/machine/m", "install/machine/m", "install/machine/m"}, queues); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"notify", "build", "report"}, ids); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]automation.FinalizeInput{{RunID: "run", Generation: 7}}, w.finalized); diff != "" {
		t.Error(diff)
	}
}

func TestFailedStepEndsTheRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.final = automation.FinalizeVerdict{Status: automation.RunFailed, Code: "nonzero_exit", StepID: "build"}
	w.step = func(_ context.Context, in automation.StepInput) (automation.StepVerdict, error) {
		if in.StepID == "build" {
			return automation.StepVerdict{}, temporal.NewNonRetryableApplicationError("exit status 2", "nonzero_exit", nil)
		}
		return automation.StepVerdict{Outcome: automation.OutcomeCompleted}, nil
	}
	err := w.run(t)
	var failure *temporal.ApplicationError
	if !errors.As(err, &failure) || failure.Type() != "nonzero_exit" {
		t.Fatalf("the workflow must fail with the run's code: %v", err)
	}
	w.wantExecuted(t, "ExecuteAction notify", "ExecuteCommand build")
	want := []automation.FinalizeInput{{
		RunID: "run", Generation: 7,
		Failure: &automation.RunError{Code: "nonzero_exit", Message: "exit status 2", StepID: "build"},
	}}
	if diff := cmp.Diff(want, w.finalized); diff != "" {
		t.Error(diff)
	}
}

func TestLostAttemptIsMadeAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tries := 0
	w.step = func(_ context.Context, in automation.StepInput) (automation.StepVerdict, error) {
		if in.StepID == "notify" {
			if tries++; tries < 9 {
				return automation.StepVerdict{}, temporal.NewApplicationError("no route", "transport_unavailable")
			}
		}
		return automation.StepVerdict{Outcome: automation.OutcomeCompleted}, nil
	}
	if err := w.run(t); err != nil {
		t.Fatal(err)
	}
	if tries != 9 {
		t.Errorf("%d tries, want 9", tries)
	}
}

func TestStoppedStepEndsTheWorkflow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.final = automation.FinalizeVerdict{Status: automation.RunRunning, Superseded: true}
	w.step = func(context.Context, automation.StepInput) (automation.StepVerdict, error) {
		return automation.StepVerdict{Stopped: automation.StopSuperseded}, nil
	}
	if err := w.run(t); err != nil {
		t.Fatalf("a superseded workflow ends in peace: %v", err)
	}
	w.wantExecuted(t, "ExecuteAction notify")
}

// waitForCancel is a step that its machine ends when Temporal cancels its activity, and that takes an hour else.
func waitForCancel(ctx context.Context) (automation.StepVerdict, error) {
	select {
	case <-ctx.Done():
		return automation.StepVerdict{}, ctx.Err()
	case <-time.After(30 * time.Second):
		return automation.StepVerdict{}, errors.New("the activity was not cancelled")
	}
}

func TestCancelOfAStepThatHasNotBegun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.final = automation.FinalizeVerdict{Status: automation.RunCancelled}
	w.env.SetOnActivityStartedListener(func(info *activity.Info, _ context.Context, _ converter.EncodedValues) {
		if info.ActivityID == "notify" {
			w.env.SignalWorkflow(automation.CancelSignal.Name, automation.CancelNotice{})
		}
	})
	w.step = func(ctx context.Context, _ automation.StepInput) (automation.StepVerdict, error) {
		return waitForCancel(ctx)
	}
	err := w.run(t)
	if !temporal.IsCanceledError(err) {
		t.Fatalf("the workflow must end as cancelled: %v", err)
	}
	w.wantExecuted(t, "ExecuteAction notify")
}

func TestCancelAwaitsAStepThatHasBegun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.final = automation.FinalizeVerdict{Status: automation.RunCancelled}
	w.env.SetOnActivityStartedListener(func(info *activity.Info, _ context.Context, _ converter.EncodedValues) {
		if info.ActivityID == "notify" {
			w.env.SignalWorkflow(automation.CancelSignal.Name, automation.CancelNotice{Begun: "notify"})
		}
	})
	w.step = func(ctx context.Context, _ automation.StepInput) (automation.StepVerdict, error) {
		select {
		case <-ctx.Done():
			t.Error("the activity of a step that had begun was cancelled")
		case <-time.After(300 * time.Millisecond):
		}
		return automation.StepVerdict{Outcome: automation.OutcomeCancelled}, nil
	}
	if err := w.run(t); !temporal.IsCanceledError(err) {
		t.Fatalf("the workflow must end as cancelled: %v", err)
	}
	w.wantExecuted(t, "ExecuteAction notify")
	if len(w.cancels) != 0 {
		t.Errorf("the ledger knew already: %+v", w.cancels)
	}
}

func TestCancelMadeInTemporalIsRecordedFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.final = automation.FinalizeVerdict{Status: automation.RunCancelled}
	w.begun = "notify"
	w.env.SetOnActivityStartedListener(func(info *activity.Info, _ context.Context, _ converter.EncodedValues) {
		if info.ActivityID == "notify" {
			w.env.CancelWorkflow()
		}
	})
	w.step = func(ctx context.Context, _ automation.StepInput) (automation.StepVerdict, error) {
		select {
		case <-ctx.Done():
			t.Error("the activity of a step that had begun was cancelled")
		case <-time.After(300 * time.Millisecond):
		}
		return automation.StepVerdict{Outcome: automation.OutcomeCancelled}, nil
	}
	if err := w.run(t); !temporal.IsCanceledError(err) {
		t.Fatalf("the workflow must end as cancelled: %v", err)
	}
	if diff := cmp.Diff([]automation.CancelInput{{RunID: "run", Reason: "cancelled in Temporal"}}, w.cancels); diff != "" {
		t.Error(diff)
	}
	w.wantExecuted(t, "ExecuteAction notify")
}

// TestALostStepIsDispatchedAgain loses the task of a step: it never begins. What the control plane asks for is
// dispatched beside it, and its verdict counts; notices for other steps mean nothing.
func TestALostStepIsDispatchedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var ids []string
	w.env.SetOnActivityStartedListener(func(info *activity.Info, _ context.Context, _ converter.EncodedValues) {
		if info.ActivityID == "notify" {
			w.env.SignalWorkflow(automation.DispatchSignal.Name, automation.DispatchNotice{StepID: "build"})
			w.env.SignalWorkflow(automation.DispatchSignal.Name, automation.DispatchNotice{StepID: "notify"})
		}
	})
	over := make(chan struct{})
	w.step = func(ctx context.Context, _ automation.StepInput) (automation.StepVerdict, error) {
		id := activity.GetInfo(ctx).ActivityID
		w.mu.Lock()
		ids = append(ids, id)
		w.mu.Unlock()
		if id == "notify" {
			select {
			case <-ctx.Done():
			case <-over:
			}
			return automation.StepVerdict{}, errors.New("nobody has got it")
		}
		return automation.StepVerdict{Outcome: automation.OutcomeCompleted}, nil
	}
	err := w.run(t)
	close(over)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"notify", "notify/2", "build", "report"}, ids); diff != "" {
		t.Errorf("activities (-want +got):\n%s", diff)
	}
}

func TestACancelEndsEveryDispatchOfAStep(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.final = automation.FinalizeVerdict{Status: automation.RunCancelled}
	w.env.SetOnActivityStartedListener(func(info *activity.Info, _ context.Context, _ converter.EncodedValues) {
		switch info.ActivityID {
		case "notify":
			w.env.SignalWorkflow(automation.DispatchSignal.Name, automation.DispatchNotice{StepID: "notify"})
		case "notify/2":
			w.env.SignalWorkflow(automation.CancelSignal.Name, automation.CancelNotice{})
			w.env.SignalWorkflow(automation.DispatchSignal.Name, automation.DispatchNotice{StepID: "notify"})
		}
	})
	w.step = func(ctx context.Context, _ automation.StepInput) (automation.StepVerdict, error) {
		return waitForCancel(ctx)
	}
	if err := w.run(t); !temporal.IsCanceledError(err) {
		t.Fatalf("the workflow must end as cancelled: %v", err)
	}
	w.wantExecuted(t, "ExecuteAction notify", "ExecuteAction notify")
}
