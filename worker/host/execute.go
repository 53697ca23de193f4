package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.temporal.io/sdk/temporal"

	"github.com/errandhq/errand/activities/machine"
	"github.com/errandhq/errand/automation"
)

// Types of the application errors of attempts that Temporal makes again. The types of final ones are step and
// service codes.
const (
	errTypeDetached = "attempt_detached"
	errTypeDraining = "worker_stopping"
)

// reply is what an attempt answers Temporal, unless the ledger is to be asked again.
type reply struct {
	verdict automation.StepVerdict
	err     error
	again   bool
}

// execute is the activity of all three lanes: it brings the step to its end, or finds out that it has ended,
// and answers with a verdict. A failed step is a final application error of the step's code. Its message never
// has more than ids: what a program said stays in the ledger.
func (h *Host) execute(ctx, session context.Context, t Attempt, in automation.StepInput) (automation.StepVerdict, error) {
	if h.draining.Err() != nil {
		return automation.StepVerdict{}, draining().err
	}
	a, over := h.startAttempt(ctx, session, t)
	defer over()
	s := h.acquire(in.Ref())
	defer h.release(s)
	for pause := h.newBackoff(); ; {
		r := h.attend(a, s, in)
		if !r.again {
			return r.verdict, r.err
		}
		if !h.pause(a.asking, pause.next(), nil) {
			r := h.aborted(a, s)
			return r.verdict, r.err
		}
	}
}

// errAskAgain is returned where the ledger's answer came to nothing.
var errAskAgain = errors.New("the ledger is asked again")

// attend asks the ledger about the step and does what it answers.
func (h *Host) attend(a *attempt, s *step, in automation.StepInput) reply {
	answer, e, err := h.ask(a, s, in)
	switch {
	case errors.Is(err, errAskAgain):
		return reply{again: true}
	case err != nil && isFinal(err):
		return reply{err: refused(err)}
	case err != nil:
		return h.aborted(a, s)
	case e != nil:
		return h.await(a, s, e)
	}
	switch answer.Decision {
	case automation.BeginDone:
		return h.done(s, answer)
	case automation.BeginStop:
		return h.stop(a, s, answer)
	case automation.BeginAttach, automation.BeginRun:
		return reply{again: true}
	}
	h.log.Error("The ledger gave an answer that this version does not know.", "step", s.ref.Key(), "decision", answer.Decision)
	return reply{again: true}
}

// ask takes the step's flight, so that of two attempts at once the second finds what the first has started,
// and makes one begin. It returns the execution to wait for, when the answer leads to one. The error is
// errAskAgain, a refusal, or the cause of a.asking's end.
func (h *Host) ask(a *attempt, s *step, in automation.StepInput) (automation.BeginAnswer, *execution, error) {
	var none automation.BeginAnswer
	select {
	case s.flight <- struct{}{}:
		defer func() { <-s.flight }()
	case <-a.asking.Done():
		return none, nil, context.Cause(a.asking)
	}
	select {
	case <-s.cleared:
	case <-a.asking.Done():
		return none, nil, context.Cause(a.asking)
	}
	slot, err := h.takeSlot(a, s)
	if err != nil {
		return none, nil, err
	}
	defer slot.giveBack()
	answer, err := h.begin(a, s, in)
	if err != nil {
		return none, nil, err
	}
	switch answer.Decision {
	case automation.BeginAttach:
		return answer, h.attach(s, answer.Execution), nil
	case automation.BeginRun:
		e, err := h.start(a, s, answer, slot)
		return answer, e, err
	case automation.BeginDone, automation.BeginStop:
	}
	return answer, nil, nil
}

// slot is empty, or the right to run one program, until it is given back or passed on to the program.
type slot struct{ slots chan struct{} }

// takeSlot waits for a free program slot, unless the machine holds the step already.
func (h *Host) takeSlot(a *attempt, s *step) (*slot, error) {
	s.mu.Lock()
	held := s.exec != nil
	s.mu.Unlock()
	if held {
		return &slot{}, nil
	}
	taken := &slot{}
	return taken, h.fillSlot(a, taken)
}

// fillSlot waits for a free program slot, unless one is taken.
func (h *Host) fillSlot(a *attempt, s *slot) error {
	if s.slots != nil {
		return nil
	}
	select {
	case h.slots <- struct{}{}:
		s.slots = h.slots
		return nil
	case <-a.asking.Done():
		return context.Cause(a.asking)
	}
}

func (s *slot) giveBack() {
	if s.slots != nil {
		<-s.slots
	}
}

// passOn leaves it to the program to give the slot back.
func (s *slot) passOn() { s.slots = nil }

// begin asks the ledger whether the step may execute, for as long as the attempt lives: only an answer or a
// refusal ends it. Every try bears the same request id, so that an answer that was lost costs nothing.
func (h *Host) begin(a *attempt, s *step, in automation.StepInput) (automation.BeginAnswer, error) {
	request := automation.BeginRequest{StepRef: s.ref, Generation: in.Generation, RequestID: h.o.NewID()}
	for pause := h.newBackoff(); ; {
		s.mu.Lock()
		request.Held = s.held()
		s.mu.Unlock()
		ctx, cancel := context.WithTimeout(a.asking, h.o.Timing.Call)
		answer, err := h.o.ControlPlane.Begin(ctx, request)
		cancel()
		if err == nil || isFinal(err) {
			return answer, err
		}
		if a.asking.Err() != nil {
			return answer, context.Cause(a.asking)
		}
		wait := pause.next()
		h.log.Warn("The ledger could not be asked about a step.", "step", s.ref.Key(), "error", err, "retry_in", wait)
		if !h.pause(a.asking, wait, nil) {
			return answer, context.Cause(a.asking)
		}
	}
}

// attach returns the execution that the ledger wants the attempt to wait for, or nil when the machine does not
// hold it any more. A result that was acknowledged once is sent again: the ledger has lost it.
func (h *Host) attach(s *step, n int64) *execution {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.exec
	if e == nil || e.number != n {
		return nil
	}
	if e.acked {
		e.acked = false
		h.deliver(s, e)
	}
	return e
}

// start starts the execution that the ledger has numbered, unless that is stale. A program of the step that the
// ledger does not count any more is ended first, and to its last process.
func (h *Host) start(a *attempt, s *step, answer automation.BeginAnswer, slot *slot) (*execution, error) {
	if answer.Step == nil {
		h.log.Error("The ledger wants a step executed but did not say what.", "step", s.ref.Key(), "execution", answer.Execution)
		return nil, errAskAgain
	}
	s.mu.Lock()
	earlier := s.exec
	stale := s.stale(answer.Execution)
	if earlier != nil && !stale {
		h.endExecution(earlier, machine.EndCancelled)
	}
	s.mu.Unlock()
	if earlier != nil && !stale {
		select {
		case <-earlier.done:
		case <-a.asking.Done():
			return nil, context.Cause(a.asking)
		}
	}
	if err := h.fillSlot(a, slot); err != nil {
		return nil, err
	}
	e, ok := h.launch(s, answer.Execution, *answer.Step)
	if !ok {
		return nil, errAskAgain
	}
	slot.passOn()
	return e, nil
}

// await waits until an execution has ended and the ledger has its result, and turns the ledger's answer into
// the attempt's.
func (h *Host) await(a *attempt, s *step, e *execution) reply {
	cancelled := a.cancelled.Done()
	for running := true; running; {
		select {
		case <-e.done:
			running = false
		case <-cancelled:
			cancelled = nil
			s.mu.Lock()
			h.endExecution(e, machine.EndCancelled)
			s.mu.Unlock()
		case <-a.ctx.Done():
			if !e.isDone() {
				return detached()
			}
		}
	}
	s.mu.Lock()
	d := e.delivery
	if d == nil {
		d = h.deliver(s, e)
	}
	s.mu.Unlock()
	select {
	case <-d.settled:
	case <-a.ctx.Done():
		if !isClosed(d.settled) { // of two things that have happened, the answer counts
			return detached()
		}
	}
	if d.err != nil {
		return reply{err: refused(d.err)}
	}
	if !d.answer.Accepted {
		return reply{again: true}
	}
	return verdictOf(s.ref, d.answer)
}

// done answers with the outcome that the ledger has recorded. What the machine still runs for the step has
// nothing to contribute any more.
func (h *Host) done(s *step, answer automation.BeginAnswer) reply {
	s.mu.Lock()
	if s.exec != nil {
		h.endExecution(s.exec, machine.EndCancelled)
	}
	s.mu.Unlock()
	return verdictOf(s.ref, automation.FinishAnswer{Accepted: true, Outcome: answer.Outcome, Error: answer.Error})
}

// stop answers that the step must not execute, once nothing of it is running. A superseded call ends its
// workflow only.
func (h *Host) stop(a *attempt, s *step, answer automation.BeginAnswer) reply {
	verdict := automation.StepVerdict{Outcome: automation.OutcomeCancelled, Stopped: answer.Stop}
	if answer.Stop == automation.StopSuperseded {
		return reply{verdict: verdict}
	}
	if answer.Execution > 0 {
		h.end(s.ref, answer.Execution)
	}
	s.mu.Lock()
	e := s.exec
	if e != nil {
		h.endExecution(e, machine.EndCancelled)
	}
	s.mu.Unlock()
	if e == nil {
		return reply{verdict: verdict}
	}
	select {
	case <-e.done:
		return reply{verdict: verdict}
	case <-a.ctx.Done():
		return detached()
	}
}

// aborted answers for an attempt that was cut short before it had an execution to wait for.
func (h *Host) aborted(a *attempt, s *step) reply {
	cause := context.Cause(a.asking)
	switch {
	case errors.Is(cause, errCancelled):
		s.mu.Lock()
		e := s.exec
		s.mu.Unlock()
		if e != nil && !e.isDone() {
			return h.await(a, s, e)
		}
		return reply{err: temporal.NewCanceledError()}
	case errors.Is(cause, errDraining):
		return draining()
	}
	return detached()
}

func draining() reply {
	return reply{err: temporal.NewApplicationError("the machine's worker is stopping; the step is tried again", errTypeDraining)}
}

func detached() reply {
	return reply{err: temporal.NewApplicationError(
		"the attempt lost its connection; what it started goes on and the next attempt is attached to it", errTypeDetached)}
}

// refused is the final error of a step that the ledger will not talk about.
func refused(err error) error {
	code := automation.CodeInternal
	if refusal, ok := errors.AsType[*RefusalError](err); ok {
		code = refusal.Code
	}
	return temporal.NewApplicationErrorWithOptions("the ledger refused the machine's call: "+string(code), string(code),
		temporal.ApplicationErrorOptions{NonRetryable: true})
}

// verdictOf turns what the ledger recorded into the attempt's answer.
func verdictOf(ref automation.StepRef, answer automation.FinishAnswer) reply {
	switch answer.Outcome {
	case automation.OutcomeCompleted, automation.OutcomeCancelled:
		return reply{verdict: automation.StepVerdict{Outcome: answer.Outcome}}
	case automation.OutcomeFailed:
		code := automation.StepErrActionFailed
		if answer.Error != nil {
			code = answer.Error.Code
		}
		return reply{err: temporal.NewApplicationErrorWithOptions(
			fmt.Sprintf("step %s failed: %s", ref.StepID, code), string(code),
			temporal.ApplicationErrorOptions{NonRetryable: true})}
	case automation.OutcomeInterrupted, automation.OutcomeTransient:
		return reply{err: temporal.NewApplicationErrorWithOptions(
			fmt.Sprintf("step %s is executed again: %s", ref.StepID, answer.Outcome), string(answer.Outcome),
			temporal.ApplicationErrorOptions{NextRetryDelay: time.Duration(answer.RetryAfterMs) * time.Millisecond})}
	}
	return reply{again: true}
}
