package automation

// Retry is a request to admit a run that repeats a finished one, of the same snapshot and input.
type Retry struct {
	OwnerID string
	RunID   string
	// FromStep is the first step to execute again; empty for the first that did not complete.
	FromStep string
	Key      Idempotency
}

// Repeat returns the journal of a run that repeats r from a step on: the steps before it are carried, with the
// run that executed them, and the others are to be executed. Without a step it starts at the first that did not
// complete, and where all have completed at the first of all. Outputs are for the caller to copy.
//
// Errors: not_finished; validation_failed for a step that r does not have, or one with an incomplete step
// before it.
func (r *Run) Repeat(fromStep string) ([]StepRecord, error) {
	if !r.Status.Finished() {
		return nil, Errorf(CodeNotFinished, "run %s is %s; wait for its end or cancel it, then retry it", r.ID, r.Status)
	}
	incomplete := r.firstIncomplete()
	from := incomplete
	switch {
	case fromStep != "":
		from = r.stepIndex(fromStep)
	case incomplete == len(r.Steps):
		from = 0
	}
	switch {
	case from < 0:
		return nil, Invalid(Violation{Path: "from_step", Message: "names no step of the run"})
	case from > incomplete:
		return nil, Invalid(Violation{
			Path: "from_step", Message: "is after the step " + r.Steps[incomplete].ID + ", which did not complete: start there or before",
		})
	}
	steps := make([]StepRecord, len(r.Steps))
	for i, step := range r.Steps {
		steps[i] = StepRecord{ID: step.ID, Kind: step.Kind, Status: StepPending}
		if i >= from {
			continue
		}
		steps[i].Status, steps[i].StartedAt, steps[i].FinishedAt = StepCompleted, step.StartedAt, step.FinishedAt
		steps[i].CarriedFrom = step.CarriedFrom
		if step.CarriedFrom == "" {
			steps[i].CarriedFrom = r.ID
		}
	}
	return steps, nil
}

// firstIncomplete returns the position of the first step that did not complete, or the number of steps.
func (r *Run) firstIncomplete() int {
	for i := range r.Steps {
		if r.Steps[i].Status != StepCompleted {
			return i
		}
	}
	return len(r.Steps)
}
