package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/errandhq/errand/automation"
)

// ofMachine is the view of a machine: its own runs.
func ofMachine(machineID string) func(*automation.Run) bool {
	return func(r *automation.Run) bool { return sameID(r.MachineID, machineID) }
}

// Begin implements [automation.StepLedger].
func (s *Store) Begin(ctx context.Context, machineID string, r automation.BeginRequest) (automation.BeginAnswer, error) {
	var wrong violations
	wrong.text("requestId", r.RequestID, maxKeyBytes)
	if err := wrong.err(); err != nil {
		return automation.BeginAnswer{}, err
	}
	var answer automation.BeginAnswer
	var executes *snapshot
	_, err := s.transition(ctx, r.RunID, relaxed, ofMachine(machineID), func(state *runState, now time.Time) error {
		var err error
		answer, err = state.Begin(r, state.machineRevoked, now)
		if err != nil || answer.Decision != automation.BeginRun {
			return err
		}
		if executes == nil {
			loaded, err := s.snapshot(ctx, state.ID)
			if err != nil {
				return err
			}
			executes = &loaded
		}
		return fillStep(state, executes, r.StepRef, &answer, now)
	})
	if err != nil {
		return automation.BeginAnswer{}, err
	}
	return answer, nil
}

// fillStep puts the concrete step into the answer. A step that cannot be made concrete has failed: the answer
// becomes done.
func fillStep(state *runState, executes *snapshot, ref automation.StepRef, answer *automation.BeginAnswer, now time.Time) error {
	i := slices.IndexFunc(executes.plan.Steps, func(step automation.Step) bool { return step.ID == ref.StepID })
	if i < 0 {
		return fmt.Errorf("the plan of run %s has no step %q", state.ID, ref.StepID)
	}
	step, stepErr := automation.Concrete(state.ID, executes.plan.Steps[i], executes.input)
	if stepErr == nil {
		answer.Step = &step
		return nil
	}
	finished, err := state.Finish(automation.FinishRequest{
		StepRef: ref, Execution: answer.Execution, Outcome: automation.OutcomeFailed, Error: stepErr,
	}, now)
	if err != nil {
		return err
	}
	*answer = automation.BeginAnswer{
		Decision: automation.BeginDone, Execution: answer.Execution, Outcome: finished.Outcome, Error: finished.Error,
	}
	return nil
}

// Finish implements [automation.StepLedger]. What a machine reports has happened: strange texts are mended, and a
// result that breaks the bound of the journal is shortened, rather than refused. Errors: not_found;
// validation_failed for an unknown outcome.
func (s *Store) Finish(ctx context.Context, machineID string, r automation.FinishRequest) (automation.FinishAnswer, error) {
	if err := checkFinish(r); err != nil {
		return automation.FinishAnswer{}, err
	}
	if r.Error != nil {
		r.Error = &automation.StepError{
			Code:    automation.StepCode(cleanCode(string(r.Error.Code), string(automation.StepErrActionFailed))),
			Message: clean(r.Error.Message, automation.MaxMessageBytes),
		}
	}
	var answer automation.FinishAnswer
	_, err := s.transition(ctx, r.RunID, durable, ofMachine(machineID), func(state *runState, now time.Time) error {
		step := state.Step(r.StepID)
		// A step that was given up by force gets its result when its machine confirms the end.
		open := step != nil && (step.FinishedAt == nil || step.Unconfirmed)
		var err error
		answer, err = state.Finish(r, now)
		if err == nil && open && answer.Accepted && answer.Outcome.Final() && len(r.Result) > 0 {
			step.Output = automation.BoundResult(step.Kind, r.Result)
		}
		return err
	})
	if err != nil {
		return automation.FinishAnswer{}, err
	}
	return answer, nil
}

func checkFinish(r automation.FinishRequest) error {
	var wrong violations
	switch r.Outcome {
	case automation.OutcomeCompleted, automation.OutcomeFailed, automation.OutcomeCancelled,
		automation.OutcomeInterrupted, automation.OutcomeTransient:
	default:
		wrong.add("outcome", "is not an outcome: completed, failed, cancelled, interrupted or transient")
	}
	return wrong.err()
}

// heldAnswers says for each held execution what its machine is to do with it.
func (s *Store) heldAnswers(ctx context.Context, machineID string, revoked bool, held []automation.Held) ([]automation.HeldAnswer, error) {
	runs := map[string]*automation.Run{}
	answers := make([]automation.HeldAnswer, 0, len(held))
	for _, h := range held {
		run, known := runs[h.RunID]
		if !known {
			found, err := s.stateOf(ctx, h.RunID, ofMachine(machineID))
			if err != nil {
				return nil, err
			}
			run, runs[h.RunID] = found, found
		}
		answers = append(answers, automation.HeldAnswer{
			StepRef: h.StepRef, Execution: h.Execution, Verdict: run.HeldVerdict(h, revoked),
		})
	}
	return answers, nil
}

// stateOf reads the state of a run; one without steps stands for a run that the caller may not see.
func (s *Store) stateOf(ctx context.Context, id string, visible func(*automation.Run) bool) (*automation.Run, error) {
	var state runState
	err := retry(ctx, func() (err error) {
		state, err = s.state(ctx, s.read, id, visible)
		return err
	})
	if automation.CodeOf(err) == automation.CodeNotFound {
		return &automation.Run{}, nil
	}
	return &state.Run, err
}

// OpenEnds implements [automation.StepLedger]. A machine without open ends is missing from the result.
func (s *Store) OpenEnds(ctx context.Context, machineIDs []string) (map[string][]automation.Event, error) {
	ends := map[string][]automation.Event{}
	for machines := range chunks(canonicalIDs(machineIDs)) {
		ids, err := s.runsWithOpenEnds(ctx, machines, "")
		for ; len(ids) > 0 && err == nil; ids, err = s.runsWithOpenEnds(ctx, machines, ids[len(ids)-1]) {
			for _, id := range ids {
				run, err := s.stateOf(ctx, id, anyRun)
				if err != nil {
					return nil, err
				}
				if events := run.OpenEnds(); len(events) > 0 {
					ends[run.MachineID] = append(ends[run.MachineID], events...)
				}
			}
		}
		if err != nil {
			return nil, translate(err)
		}
	}
	return ends, nil
}

// runsWithOpenEnds returns ids of runs, in order, after a given one.
func (s *Store) runsWithOpenEnds(ctx context.Context, machineIDs []string, after string) ([]string, error) {
	var q statement
	q.add(`SELECT id FROM runs WHERE open_ends > 0 AND machine_id IN `)
	q.addIDs(machineIDs)
	if after != "" {
		q.add(` AND id > ?`, after)
	}
	q.add(` ORDER BY id LIMIT ?`, idsAtOnce)
	rows, err := q.query(ctx, s.read)
	ids, err := collect(rows, err, func(row scanner) (string, error) {
		var id string
		err := row.Scan(&id)
		return id, err
	})
	if err != nil {
		return nil, fmt.Errorf("finding ends that are not confirmed: %w", err)
	}
	return ids, nil
}
