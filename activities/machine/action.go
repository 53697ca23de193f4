package machine

import (
	"context"
	"encoding/json"
	"errors"
	"runtime/debug"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/process"
)

// Actions runs the actions of this machine.
type Actions interface {
	// Run runs the action that the step names and returns its result as JSON. An [*automation.StepError] keeps
	// its code; transport_unavailable is transient, everything else is final. Run returns soon after ctx ends.
	Run(ctx context.Context, step automation.ConcreteStep) (json.RawMessage, error)
}

// The causes that end an action's context, beside the reasons of [Execution.End].
var (
	errCancelled   = errors.New("the step was cancelled")
	errInterrupted = errors.New("the worker is stopping")
	errTimedOut    = errors.New("the step's timeout is over")
)

// actionExecution is an action under way. It lives in this process, so it can be asked to end but not killed.
type actionExecution struct {
	end    context.CancelCauseFunc
	done   chan struct{}
	result Result // written before done is closed
}

// actionAnswer is what an action returned.
type actionAnswer struct {
	result json.RawMessage
	err    error
}

func (r *Runner) startAction(step automation.ConcreteStep) Execution {
	ctx, end := context.WithCancelCause(context.Background())
	e := &actionExecution{end: end, done: make(chan struct{})}
	answers := make(chan actionAnswer, 1)
	timeout := time.AfterFunc(timeoutOf(step), func() { end(errTimedOut) })
	go func() { answers <- r.callAction(ctx, step) }()
	go func() {
		defer close(e.done)
		defer end(nil)
		defer timeout.Stop()
		e.result = r.awaitAction(ctx, step, answers)
	}()
	return e
}

// callAction runs an action; one that panics has failed, and takes nothing else with it.
func (r *Runner) callAction(ctx context.Context, step automation.ConcreteStep) (answer actionAnswer) {
	defer func() {
		if cause := recover(); cause != nil {
			r.log.Error("An action panicked.", "action", step.ActionID, "step", step.IdempotencyKey(),
				"panic", cause, "stack", string(debug.Stack()))
			answer = actionAnswer{err: errors.New("the action broke down; the worker's log has the details")}
		}
	}()
	result, err := r.actions.Run(ctx, step)
	return actionAnswer{result: result, err: err}
}

// awaitAction waits for an action's answer, after the end of its context for no longer than the grace period.
func (r *Runner) awaitAction(ctx context.Context, step automation.ConcreteStep, answers <-chan actionAnswer) Result {
	select {
	case answer := <-answers:
		return actionResult(ctx, step, answer)
	case <-ctx.Done():
	}
	grace := time.NewTimer(r.grace)
	defer grace.Stop()
	select {
	case answer := <-answers:
		return actionResult(ctx, step, answer)
	case <-grace.C:
		r.log.Warn("An action did not end when it was asked to, and is left to itself.", "action", step.ActionID, "step", step.IdempotencyKey())
		return actionResult(ctx, step, actionAnswer{err: context.Cause(ctx)})
	}
}

// actionResult says what an action's answer means for its step. One that succeeded has had its effect, so it
// is completed even when its end had been asked for; an error after that is a consequence of it.
func actionResult(ctx context.Context, step automation.ConcreteStep, answer actionAnswer) Result {
	if answer.err == nil {
		return Result{Outcome: automation.OutcomeCompleted, Data: automation.BoundResult(step.Kind, answer.result)}
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errCancelled):
		result := failure(automation.StepErrCancelled, "%s was ended because the step was cancelled", step.ActionID)
		result.Outcome = automation.OutcomeCancelled
		return result
	case errors.Is(cause, errInterrupted):
		return Result{Outcome: automation.OutcomeInterrupted}
	case errors.Is(cause, errTimedOut):
		return failure(automation.StepErrTimedOut, "%s was still running after %s, the step's timeout, and was ended", step.ActionID, timeoutOf(step))
	}
	var stepErr *automation.StepError
	if !errors.As(answer.err, &stepErr) {
		return failure(automation.StepErrActionFailed, "%v", answer.err)
	}
	result := Result{Outcome: automation.OutcomeFailed, Err: stepErr.Bounded()}
	if stepErr.Code == automation.StepErrTransportUnavailable {
		result.Outcome = automation.OutcomeTransient
	}
	return result
}

// Process returns none: an action runs in the worker.
func (e *actionExecution) Process() (process.Info, bool) { return process.Info{}, false }

// End ends the action's context.
func (e *actionExecution) End(reason EndReason) {
	if reason == EndInterrupted {
		e.end(errInterrupted)
		return
	}
	e.end(errCancelled)
}

// Wait returns how the action ended.
func (e *actionExecution) Wait() Result {
	<-e.done
	return e.result
}
