package automation

import (
	"fmt"
	"time"
)

// Waiting says what the run waits for at now, given the machine that it targets and whether the engine
// answers; nil when it has ended or its step executes.
func (r *Run) Waiting(machine MachineLoad, engineUp bool, now time.Time) *Waiting {
	if r.Status.Finished() {
		return nil
	}
	executing := r.Executing()
	offline := !machine.Online(now)
	switch {
	case executing != nil && r.CancelRequestedAt != nil:
		w := &Waiting{Reason: WaitCancelConfirmation, Since: *r.CancelRequestedAt}
		if offline {
			w.Detail = fmt.Sprintf("machine %q is offline; it ends the step when it is back", machine.Name)
		}
		return w
	case executing != nil && offline:
		return offlineSince(machine, *executing.StartedAt)
	case executing != nil:
		return nil
	}
	since := r.idleSince()
	if r.WaitsFor != "" {
		return &Waiting{
			Reason: WaitPreviousRun, Since: since,
			Detail: fmt.Sprintf("run %s of the same schedule has not ended", r.WaitsFor),
		}
	}
	if step := r.retrying(); step != nil && step.RetryAt.After(now) {
		return &Waiting{
			Reason: WaitRetry, Since: since,
			Detail: fmt.Sprintf("step %q is tried again at %s", step.ID, step.RetryAt.UTC().Format(time.RFC3339)),
		}
	}
	switch {
	case !engineUp:
		return &Waiting{Reason: WaitEngineUnavailable, Since: since, Detail: "Temporal does not answer"}
	case r.EngineID == "":
		return &Waiting{Reason: WaitNotStarted, Since: since}
	case offline:
		return offlineSince(machine, since)
	case machine.RunningSteps >= machine.Concurrency:
		return &Waiting{
			Reason: WaitMachineBusy, Since: since,
			Detail: fmt.Sprintf("machine %q executes %d of at most %d steps", machine.Name, machine.RunningSteps, machine.Concurrency),
		}
	case r.StalledAt != nil:
		return &Waiting{
			Reason: WaitDispatchStalled, Since: since,
			Detail: fmt.Sprintf("machine %q has free slots and has not got the step; it was dispatched again at %s",
				machine.Name, r.StalledAt.UTC().Format(time.RFC3339)),
		}
	}
	return nil
}

// offlineSince is the wait for a machine that was last seen after or before the wait began.
func offlineSince(machine MachineLoad, began time.Time) *Waiting {
	detail := fmt.Sprintf("machine %q has never connected", machine.Name)
	if machine.LastSeenAt != nil {
		detail = fmt.Sprintf("machine %q was last seen at %s", machine.Name, machine.LastSeenAt.UTC().Format(time.RFC3339))
		if machine.LastSeenAt.After(began) {
			began = *machine.LastSeenAt
		}
	}
	return &Waiting{Reason: WaitMachineOffline, Since: began, Detail: detail}
}

// idleSince is when the run last did something.
func (r *Run) idleSince() time.Time {
	since := r.CreatedAt
	for _, step := range r.Steps {
		for _, at := range []*time.Time{step.StartedAt, step.FinishedAt} {
			if at != nil && at.After(since) {
				since = *at
			}
		}
	}
	return since
}

// retrying returns the step that waits for its next execution, or nil.
func (r *Run) retrying() *StepRecord {
	for i := range r.Steps {
		if r.Steps[i].Status == StepRunning && r.Steps[i].RetryAt != nil {
			return &r.Steps[i]
		}
	}
	return nil
}
