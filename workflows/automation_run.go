// Package workflows holds the deterministic programs that Temporal carries: what they do depends only on
// their input and on what their activities and signals return. They know ids, kinds, limits and verdicts;
// plans, inputs and outputs stay in the ledger.
//
// A change of a workflow's logic that alters the commands it issues adds a version constant (asked for with
// workflow.GetVersion) and a recorded history to testdata; a test replays every recorded history.
package workflows

import (
	"errors"
	"strconv"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/errandhq/errand/automation"
)

// stepSlack is how much longer than the step's own timeout an activity may take: time asleep and time without
// the control plane do not count for the step, and its liveness is watched by the heartbeat.
const stepSlack = 24 * time.Hour

// AutomationRun carries one run from its first step to its last. The ledger decides what each step's outcome
// is and how the run ends; the workflow sequences, waits and retries. It ends as completed, failed or
// cancelled as the run does, so that operators find runs by the status that Temporal shows.
func AutomationRun(ctx workflow.Context, in automation.RunInput) (automation.FinalizeVerdict, error) {
	r := &run{in: in}
	// Machine activities must outlive a cancel of the workflow: Temporal does not retry a cancelled activity
	// and would close it at its heartbeat timeout while the program is alive.
	detached, _ := workflow.NewDisconnectedContext(ctx)
	workflow.Go(detached, func(bg workflow.Context) { r.watchCancel(ctx, bg) })

	failure := r.steps(detached)
	final, err := finalize(detached, automation.FinalizeInput{
		RunID: in.RunID, Generation: in.Generation, Failure: failure,
	})
	if err != nil {
		return final, err
	}
	return final, closing(final)
}

// changeRedispatch is the change after which a workflow dispatches a step again when it is asked to.
const (
	changeRedispatch  = "redispatch"
	versionRedispatch = 1
	// maxDispatches bounds how often one step is dispatched: a machine that got none of so many gets no other either.
	maxDispatches = 10
)

// run is the state of one [AutomationRun].
type run struct {
	in        automation.RunInput
	cancelled bool
	// current is the step whose activity is open, and cancelStep cancels that activity.
	current    string
	cancelStep workflow.CancelFunc
}

// steps executes the steps one after another until one does not complete or a cancel is noticed. It returns
// what went wrong with the last one; the ledger knows better when the step's end is recorded there.
func (r *run) steps(ctx workflow.Context) *automation.RunError {
	for _, step := range r.in.Steps {
		if r.cancelled {
			return nil
		}
		verdict, err := r.execute(ctx, step)
		if err != nil {
			return failureOf(step, err)
		}
		if verdict.Stopped != "" || verdict.Outcome != automation.OutcomeCompleted {
			return nil
		}
	}
	return nil
}

// execute runs one step on the machine and waits for its verdict, for as long as that takes: an attempt that
// was lost is made again without limit. When the control plane says that the machine has not got the step, it is
// dispatched once more beside the first time, because the first may be on its way after all and a cancel would
// then end its program. The ledger makes both one execution; the verdict that comes first counts, and what is still
// open then is cancelled.
func (r *run) execute(ctx workflow.Context, step automation.StepOutline) (automation.StepVerdict, error) {
	stepCtx, cancel := workflow.WithCancel(ctx)
	r.current, r.cancelStep = step.ID, cancel
	defer func() { r.current, r.cancelStep = "", nil }()
	verdicts := []workflow.Future{r.dispatch(stepCtx, step, step.ID)}
	again := workflow.GetSignalChannel(ctx, automation.DispatchSignal.Name)
	for {
		var settled workflow.Future
		selector := workflow.NewSelector(ctx)
		for _, verdict := range verdicts {
			selector.AddFuture(verdict, func(f workflow.Future) { settled = f })
		}
		selector.AddReceive(again, func(c workflow.ReceiveChannel, _ bool) {
			var notice automation.DispatchNotice
			c.Receive(ctx, &notice)
			if len(verdicts) < maxDispatches && r.redispatches(ctx, step, notice) {
				verdicts = append(verdicts, r.dispatch(stepCtx, step, step.ID+"/"+strconv.Itoa(len(verdicts)+1)))
			}
		})
		selector.Select(ctx)
		if settled == nil {
			continue
		}
		if len(verdicts) > 1 {
			cancel()
		}
		var verdict automation.StepVerdict
		err := settled.Get(ctx, &verdict)
		return verdict, err
	}
}

// redispatches reports whether a notice has the step dispatched again. A workflow that got one when its code did not
// know notices ignores it for good.
func (r *run) redispatches(ctx workflow.Context, step automation.StepOutline, notice automation.DispatchNotice) bool {
	return notice.StepID == step.ID && !r.cancelled &&
		workflow.GetVersion(ctx, changeRedispatch, workflow.DefaultVersion, versionRedispatch) >= versionRedispatch
}

// dispatch schedules the activity of a step under an id of its own.
func (r *run) dispatch(ctx workflow.Context, step automation.StepOutline, id string) workflow.Future {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		TaskQueue:           r.in.MachineQueue,
		ActivityID:          id,
		Summary:             step.Summary,
		StartToCloseTimeout: time.Duration(step.TimeoutMs)*time.Millisecond + stepSlack,
		HeartbeatTimeout:    automation.HeartbeatTimeout,
		WaitForCancellation: true,
		RetryPolicy: &temporal.RetryPolicy{
			InitialInterval: automation.RetryFirstDelay, BackoffCoefficient: 2, MaximumInterval: automation.RetryMaxDelay,
		},
	})
	return schedule(ctx, automation.ExecuteStep(step.Kind), automation.StepInput{
		RunID: r.in.RunID, StepID: step.ID, Generation: r.in.Generation,
	})
}

// watchCancel waits for the notice of a recorded cancel, or for a cancel of the workflow itself, which it
// records first. An activity whose step had not begun is cancelled; one whose step had is awaited, since its
// machine ends the program and says so.
func (r *run) watchCancel(ctx, background workflow.Context) {
	notices := workflow.GetSignalChannel(background, automation.CancelSignal.Name)
	for {
		var notice automation.CancelNotice
		noticed := false
		selector := workflow.NewSelector(background)
		selector.AddReceive(notices, func(c workflow.ReceiveChannel, _ bool) {
			c.Receive(background, &notice)
			noticed = true
		})
		if !r.cancelled {
			selector.AddReceive(ctx.Done(), func(workflow.ReceiveChannel, bool) {})
		}
		selector.Select(background)
		if !noticed {
			verdict, err := recordCancel(background, automation.CancelInput{
				RunID: r.in.RunID, Reason: "cancelled in Temporal",
			})
			if err != nil {
				return
			}
			notice.Begun = verdict.Begun
		}
		r.cancelled = true
		if r.cancelStep != nil && r.current != notice.Begun {
			r.cancelStep()
		}
	}
}

// finalize asks the ledger to end the run, and waits for the ledger for as long as that takes.
func finalize(ctx workflow.Context, in automation.FinalizeInput) (automation.FinalizeVerdict, error) {
	return callLocal(ctx, automation.FinalizeRun, in)
}

// recordCancel tells the ledger of a cancel that was made in Temporal.
func recordCancel(ctx workflow.Context, in automation.CancelInput) (automation.CancelVerdict, error) {
	return callLocal(ctx, automation.RequestCancel, in)
}

// closing turns the end of the run into the end of the workflow.
func closing(final automation.FinalizeVerdict) error {
	switch final.Status {
	case automation.RunFailed:
		message := "the run failed"
		if final.StepID != "" {
			message = "step " + final.StepID + " failed"
		}
		return temporal.NewNonRetryableApplicationError(message, final.Code, nil)
	case automation.RunCancelled:
		return temporal.NewCanceledError()
	case automation.RunPending, automation.RunRunning, automation.RunCompleted:
		return nil
	}
	return nil
}

// failureOf says why a step's activity failed, for a step whose end the ledger may not know. The code of a
// step error is the type of the application error; its message stays with the machine and the ledger.
func failureOf(step automation.StepOutline, err error) *automation.RunError {
	failure := &automation.RunError{
		Code: string(automation.CodeInternal), StepID: step.ID,
		Message: "Temporal closed the step's activity without a result from the machine",
	}
	if temporal.IsCanceledError(err) {
		failure.Message = "the step's activity was cancelled in Temporal"
	}
	if app, ok := errors.AsType[*temporal.ApplicationError](err); ok {
		failure.Code, failure.Message = app.Type(), app.Message()
	}
	return failure
}

// schedule schedules an activity by its contract.
func schedule[In, Out any](ctx workflow.Context, activity automation.Activity[In, Out], in In) workflow.Future {
	return workflow.ExecuteActivity(ctx, activity.Name, in)
}

// callLocal executes a local activity by its contract, tried again until it succeeds.
func callLocal[In, Out any](ctx workflow.Context, activity automation.Activity[In, Out], in In) (Out, error) {
	var out Out
	ctx = workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{
		StartToCloseTimeout: 10 * time.Second,
		Summary:             activity.Name,
		RetryPolicy: &temporal.RetryPolicy{
			InitialInterval: time.Second, BackoffCoefficient: 2, MaximumInterval: time.Minute,
		},
	})
	err := workflow.ExecuteLocalActivity(ctx, activity.Name, in).Get(ctx, &out)
	return out, err
}
