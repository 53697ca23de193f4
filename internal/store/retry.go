package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/errandhq/errand/automation"
)

// Retry implements [automation.RunStore]. What it repeats has ended and cannot change any more, so it is read before
// the transaction; the transaction checks what an admission depends on.
func (s *Store) Retry(ctx context.Context, r automation.Retry) (automation.Run, error) {
	var wrong violations
	wrong.checkKey(r.Key)
	if err := wrong.err(); err != nil {
		return automation.Run{}, err
	}
	of, err := s.RunState(ctx, r.OwnerID, r.RunID)
	if err != nil {
		return automation.Run{}, err
	}
	steps, err := of.Repeat(r.FromStep)
	if err != nil {
		return automation.Run{}, err
	}
	executes, err := s.snapshot(ctx, of.ID)
	if err != nil {
		return automation.Run{}, translate(err)
	}
	var admitted *automation.Run
	var earlier string
	err = retry(ctx, func() error {
		return s.write(ctx, durable, func(ctx context.Context, tx querier) (err error) {
			admitted = nil
			earlier, err = earlierResult(ctx, tx, of.OwnerID, r.Key, s.now())
			if err != nil || earlier != "" {
				return err
			}
			admitted, err = s.repeat(ctx, tx, of, steps, executes, r.Key)
			return err
		})
	})
	if err != nil {
		return automation.Run{}, err
	}
	if admitted == nil {
		return s.Run(ctx, of.OwnerID, earlier)
	}
	s.changed(admitted.ID, of.MachineID)
	var did tally
	did.admitted(admitted)
	s.count(did)
	return s.Run(ctx, of.OwnerID, admitted.ID)
}

// repeat stores the run that repeats another one, and returns it.
func (s *Store) repeat(
	ctx context.Context, tx querier, of automation.Run, steps []automation.StepRecord, executes snapshot, key automation.Idempotency,
) (*automation.Run, error) {
	if err := s.repeatable(ctx, tx, of, &executes.plan); err != nil {
		return nil, err
	}
	run := s.newRun(automation.Admission{
		OwnerID: of.OwnerID, Input: executes.input, Trigger: automation.Trigger{Kind: automation.TriggerManual},
	}, automation.Automation{
		ID: of.AutomationID, Name: of.AutomationName, Version: of.AutomationVersion, MachineID: of.MachineID,
		Workflow: automation.Workflow{Compiled: &executes.plan},
	}, s.now())
	run.RetryOf, run.Steps = of.ID, steps
	if err := insertRun(ctx, tx, run, place{}); err != nil {
		return nil, err
	}
	if _, err := tx.ExecContext(ctx, `UPDATE steps SET output = (
			SELECT earlier.output FROM steps earlier WHERE earlier.run_id = $1 AND earlier.position = steps.position)
		WHERE run_id = $2 AND carried_from <> ''`, of.ID, run.ID); err != nil {
		return nil, fmt.Errorf("carrying the outputs of a run: %w", err)
	}
	return run, claimKey(ctx, tx, of.OwnerID, key, run.ID, run.ID, run.CreatedAt)
}

// repeatable checks what the admission of a repeated run depends on. The automation and the machine stay as they
// are until the commit.
func (s *Store) repeatable(ctx context.Context, tx querier, of automation.Run, plan *automation.Plan) error {
	var enabled bool
	err := tx.QueryRowContext(ctx, `SELECT a.enabled FROM automations a
		WHERE a.id = $1 AND a.deleted_at IS NULL`+s.dialect.keep, of.AutomationID).Scan(&enabled)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return automation.Errorf(automation.CodeNotFound,
			"the automation of run %s was deleted: its runs can be read, and not repeated", of.ID)
	case err != nil:
		return fmt.Errorf("reading the automation of a run to repeat: %w", err)
	case !enabled:
		return automation.Errorf(automation.CodeAutomationDisabled,
			"automation %s is disabled; enable it first", quoted(of.AutomationName))
	}
	if err := (automation.Definition{Workflow: automation.Workflow{Compiled: plan}}).Executable(); err != nil {
		return err
	}
	var state automation.MachineState
	if err := tx.QueryRowContext(ctx, `SELECT m.state FROM machines m WHERE m.id = $1`+s.dialect.keep, of.MachineID).
		Scan(&state); err != nil {
		return fmt.Errorf("reading the machine of a run to repeat: %w", err)
	}
	if state != automation.MachineActive {
		return automation.Errorf(automation.CodeMachineRevoked,
			"machine %s of this run is revoked; use run-now to run the automation on the machine that it targets now", of.MachineID)
	}
	return nil
}
