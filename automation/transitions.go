package automation

import (
	"slices"
	"time"
)

// The functions of this file are the state machine of runs and steps. They change the run in memory and never
// fail half-way: the ledger loads a run, applies one of them and stores what changed, comparing
// [Run.Revision], so that two of them never act on the same state. They read neither plan, input nor outputs.

// Begin decides whether a step executes now, for a machine that asks with r. The answers, in this order:
// done when the step has ended; stop when it must not execute; attach when the machine holds its execution;
// else the step becomes running under the next execution number. [BeginAnswer.Step] is for the caller to fill.
//
// A machine may hold a number that the ledger has never stored, because the commit of an earlier begin was
// lost with the power: the machine has the program, so its number is adopted. A repeated request, told by its
// id, gets the answer of the first one and changes nothing.
//
// Errors: not_found for a step that the run does not have, validation_failed for one whose turn has not come.
func (r *Run) Begin(req BeginRequest, machineRevoked bool, now time.Time) (BeginAnswer, error) {
	i := r.stepIndex(req.StepID)
	if i < 0 {
		return BeginAnswer{}, Errorf(CodeNotFound, "run %s has no step %q", r.ID, req.StepID)
	}
	step := &r.Steps[i]
	if outcome, ended := step.outcome(); ended {
		return BeginAnswer{Decision: BeginDone, Execution: step.Attempt, Outcome: outcome, Error: step.Error}, nil
	}
	if reason := r.stopReason(req.Generation, machineRevoked); reason != "" {
		return BeginAnswer{Decision: BeginStop, Execution: step.Attempt, Stop: reason}, nil
	}
	for _, earlier := range r.Steps[:i] {
		if earlier.Status != StepCompleted {
			return BeginAnswer{}, Errorf(CodeValidationFailed,
				"step %q cannot begin before step %q has completed", req.StepID, earlier.ID)
		}
	}
	repeat := req.RequestID != "" && req.RequestID == step.BeginID
	if repeat {
		return BeginAnswer{Decision: BeginRun, Execution: step.Attempt}, nil
	}
	decision := BeginRun
	if req.Held != nil && req.Held.Execution > 0 {
		decision = BeginAttach
		step.Attempt = req.Held.Execution
	} else {
		step.Attempt++
		step.BeginID = req.RequestID
	}
	step.Status = StepRunning
	step.RetryAt = nil
	r.StalledAt = nil
	if step.StartedAt == nil {
		step.StartedAt = &now
	}
	if r.Status == RunPending {
		r.Status = RunRunning
		r.StartedAt = &now
	}
	return BeginAnswer{Decision: decision, Execution: step.Attempt}, nil
}

// stopReason says why no step of the run may execute for a caller of the given generation; "" when it may.
func (r *Run) stopReason(generation int64, machineRevoked bool) StopReason {
	switch {
	case r.CancelRequestedAt != nil:
		return StopCancelled
	case r.Status.Finished():
		return StopFinished
	case machineRevoked:
		return StopRevoked
	case generation != r.Generation:
		return StopSuperseded
	}
	return ""
}

// Finish records how one execution of a step ended and ends the run when that settles it. Only the current
// execution counts; a repeat answers with what was recorded first. An interrupted or transient execution
// leaves the step running until its next one, unless a cancel is recorded or the trouble has lasted for
// [TransientAtMost]. The result itself is for the caller to store, when the answer is accepted and final.
//
// Errors: not_found for a step that the run does not have.
func (r *Run) Finish(req FinishRequest, now time.Time) (FinishAnswer, error) {
	i := r.stepIndex(req.StepID)
	if i < 0 {
		return FinishAnswer{}, Errorf(CodeNotFound, "run %s has no step %q", r.ID, req.StepID)
	}
	step := &r.Steps[i]
	if outcome, ended := step.outcome(); ended {
		accepted := req.Execution == step.Attempt
		if accepted {
			step.Unconfirmed = false
		}
		return FinishAnswer{Accepted: accepted, Outcome: outcome, Error: step.Error}, nil
	}
	if req.Execution < max(step.Attempt, 1) || step.Status == StepSkipped {
		return FinishAnswer{Accepted: false}, nil
	}
	step.adopt(req.Execution, now)
	if r.Status == RunPending {
		r.Status, r.StartedAt = RunRunning, &now
	}
	outcome, cause := r.settle(step, req, now)
	if !outcome.Final() {
		return FinishAnswer{
			Accepted: true, Outcome: outcome, RetryAfterMs: step.RetryAt.Sub(now).Milliseconds(),
		}, nil
	}
	step.end(outcome, cause, now)
	r.conclude(now)
	return FinishAnswer{Accepted: true, Outcome: outcome, Error: step.Error}, nil
}

// settle turns a reported outcome into the one that counts, and sets when the step is retried.
func (r *Run) settle(step *StepRecord, req FinishRequest, now time.Time) (Outcome, *StepError) {
	if req.Outcome.Final() {
		return req.Outcome, req.Error
	}
	if r.CancelRequestedAt != nil {
		return OutcomeCancelled, nil
	}
	if req.Outcome == OutcomeTransient {
		if step.FirstTransientAt == nil {
			step.FirstTransientAt = &now
		}
		if now.Sub(*step.FirstTransientAt) >= TransientAtMost {
			return OutcomeFailed, req.Error
		}
	} else {
		step.FirstTransientAt = nil
	}
	at := now.Add(retryDelay(step.Attempt))
	step.RetryAt = &at
	return req.Outcome, nil
}

// retryDelay doubles from [RetryFirstDelay] with each execution up to [RetryMaxDelay].
func retryDelay(execution int64) time.Duration {
	delay := RetryFirstDelay
	for n := int64(1); n < execution && delay < RetryMaxDelay; n++ {
		delay *= 2
	}
	return min(delay, RetryMaxDelay)
}

// Cancel records a cancel. Steps that have not begun are skipped; a step that waits for its next execution
// runs no program and is cancelled; a step that executes goes on until its machine has ended it, and is
// named in begun. With force that step is cancelled at once and marked unconfirmed. The run ends when nothing
// executes any more. A second cancel keeps the first one's time and reason, and may add force.
//
// Errors: already_finished.
func (r *Run) Cancel(reason string, force bool, now time.Time) (begun string, err error) {
	if r.Status.Finished() {
		return "", Errorf(CodeAlreadyFinished, "the run has ended already: it is %s", r.Status)
	}
	if r.CancelRequestedAt == nil {
		r.CancelRequestedAt = &now
		r.CancelReason = reason
	}
	r.skipPending(now)
	for i := range r.Steps {
		step := &r.Steps[i]
		if step.Status != StepRunning {
			continue
		}
		switch {
		case step.RetryAt != nil:
			step.end(OutcomeCancelled, nil, now)
		case force:
			step.end(OutcomeCancelled, nil, now)
			step.Unconfirmed = true
			begun = step.ID
		default:
			begun = step.ID
		}
	}
	r.conclude(now)
	return begun, nil
}

// Finalize ends a run that its steps settle. When they do not and in names a failure, which is a reason that
// only the workflow knows, the step that executes fails with it, unconfirmed, and the run with it. A superseded
// or finished run is left as it is.
func (r *Run) Finalize(in FinalizeInput, now time.Time) FinalizeVerdict {
	if !r.Status.Finished() && in.Generation != r.Generation {
		return FinalizeVerdict{Status: r.Status, Superseded: true}
	}
	r.conclude(now)
	if !r.Status.Finished() && in.Failure != nil {
		for i := range r.Steps {
			if r.Steps[i].Status == StepRunning {
				r.Steps[i].end(OutcomeFailed, &StepError{Code: StepErrMachineLost, Message: in.Failure.Message}, now)
				r.Steps[i].Unconfirmed = true
			}
		}
		r.skipPending(now)
		r.finish(RunFailed, in.Failure, now)
	}
	verdict := FinalizeVerdict{Status: r.Status}
	if r.Error != nil {
		verdict.Code, verdict.StepID = r.Error.Code, r.Error.StepID
	}
	return verdict
}

// LoseMachine ends an unfinished run whose machine was revoked: nobody will say how its begun step ended. That
// step has failed with machine_lost, unconfirmed, and the others are skipped. It returns the begun step, or "".
// A step that waits for its next execution had begun too, but runs no program, so nothing of it is unconfirmed.
func (r *Run) LoseMachine(now time.Time) (begun string) {
	if r.Status.Finished() {
		return ""
	}
	cause := &StepError{
		Code: StepErrMachineLost, Message: "the machine was revoked; what it did of this step is not known",
	}
	failure := &RunError{Code: string(StepErrMachineLost), Message: "the machine was revoked before the run had ended"}
	for i := range r.Steps {
		step := &r.Steps[i]
		if step.Status != StepRunning {
			continue
		}
		executing := step.RetryAt == nil
		step.end(OutcomeFailed, cause, now)
		step.Unconfirmed = executing
		begun, failure = step.ID, step.runError()
	}
	r.skipPending(now)
	r.finish(RunFailed, failure, now)
	return begun
}

// conclude ends the run when its steps settle it: a failed step fails it, a cancelled one cancels it, and it
// completes with its last step. The steps of every supported plan version run one after another, so the
// first that did not complete decides.
func (r *Run) conclude(now time.Time) {
	if r.Status.Finished() {
		return
	}
	for i := range r.Steps {
		step := &r.Steps[i]
		switch step.Status {
		case StepCompleted:
		case StepFailed:
			r.skipPending(now)
			r.finish(RunFailed, step.runError(), now)
			return
		case StepCancelled, StepSkipped:
			r.skipPending(now)
			r.finish(RunCancelled, nil, now)
			return
		case StepPending, StepRunning:
			return
		}
	}
	r.finish(RunCompleted, nil, now)
}

// finish writes the terminal status, once.
func (r *Run) finish(status RunStatus, cause *RunError, now time.Time) {
	r.Status, r.Error, r.FinishedAt = status, cause, &now
}

// skipPending marks every step that has not begun as skipped.
func (r *Run) skipPending(now time.Time) {
	for i := range r.Steps {
		if r.Steps[i].Status == StepPending {
			r.Steps[i].Status = StepSkipped
			r.Steps[i].FinishedAt = &now
		}
	}
}

// HeldVerdict tells a machine what to do with an execution that it holds.
func (r *Run) HeldVerdict(held Held, machineRevoked bool) HeldVerdict {
	step := r.Step(held.StepID)
	if step == nil || held.Execution < step.Attempt {
		return r.discard(held)
	}
	if _, ended := step.outcome(); ended {
		if step.Unconfirmed && held.Execution == step.Attempt {
			return r.confirm(held)
		}
		return r.discard(held)
	}
	if held.State == HeldFinished {
		return VerdictFinish
	}
	if r.CancelRequestedAt != nil || machineRevoked {
		return VerdictEnd
	}
	return VerdictKeep
}

// discard is the verdict on an execution that no longer counts.
func (r *Run) discard(held Held) HeldVerdict {
	if held.State == HeldRunning {
		return VerdictEnd
	}
	return VerdictForget
}

// confirm is the verdict on an execution whose end the ledger still wants to hear of.
func (r *Run) confirm(held Held) HeldVerdict {
	if held.State == HeldRunning {
		return VerdictEnd
	}
	return VerdictFinish
}

// OpenEnds returns the ends that the run's machine has not confirmed: of a step that executes under a
// recorded cancel, and of a step that was ended by force.
func (r *Run) OpenEnds() []Event {
	var ends []Event
	for _, step := range r.Steps {
		executing := step.Status == StepRunning && step.RetryAt == nil && r.CancelRequestedAt != nil
		if executing || step.Unconfirmed {
			ends = append(ends, Event{
				Kind: EventEnd, StepRef: StepRef{RunID: r.ID, StepID: step.ID}, Execution: step.Attempt,
			})
		}
	}
	return ends
}

// Executing returns the step that a machine executes now, or nil.
func (r *Run) Executing() *StepRecord {
	for i := range r.Steps {
		if r.Steps[i].Status == StepRunning && r.Steps[i].RetryAt == nil {
			return &r.Steps[i]
		}
	}
	return nil
}

func (r *Run) stepIndex(id string) int {
	return slices.IndexFunc(r.Steps, func(s StepRecord) bool { return s.ID == id })
}

// outcome returns how a step ended, and whether it did. A skipped step has no outcome: it never began, and
// the run's end says why.
func (s *StepRecord) outcome() (Outcome, bool) {
	switch s.Status {
	case StepCompleted:
		return OutcomeCompleted, true
	case StepFailed:
		return OutcomeFailed, true
	case StepCancelled:
		return OutcomeCancelled, true
	case StepPending, StepRunning, StepSkipped:
		return "", false
	}
	return "", false
}

// adopt makes an execution that the machine reports the current one, also when its begin was lost.
func (s *StepRecord) adopt(execution int64, now time.Time) {
	s.Attempt = max(s.Attempt, execution)
	s.Status = StepRunning
	s.RetryAt = nil
	if s.StartedAt == nil {
		s.StartedAt = &now
	}
}

// end writes the final outcome of a step.
func (s *StepRecord) end(outcome Outcome, cause *StepError, now time.Time) {
	s.FinishedAt, s.RetryAt, s.Error = &now, nil, cause
	switch outcome {
	case OutcomeCompleted:
		s.Status, s.Error = StepCompleted, nil
	case OutcomeFailed:
		s.Status = StepFailed
		if cause == nil {
			s.Error = &StepError{Code: StepErrActionFailed, Message: "the machine reported a failure without saying which"}
		}
	case OutcomeCancelled, OutcomeInterrupted, OutcomeTransient:
		s.Status = StepCancelled
		if cause == nil {
			s.Error = &StepError{Code: StepErrCancelled, Message: "the run was cancelled"}
		}
	}
}

// runError is the error of a run that failed with this step.
func (s *StepRecord) runError() *RunError {
	if s.Error == nil {
		return &RunError{Code: string(CodeInternal), Message: "the step failed", StepID: s.ID}
	}
	return &RunError{Code: string(s.Error.Code), Message: s.Error.Message, StepID: s.ID}
}
