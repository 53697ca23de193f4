package store

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/errandhq/errand/automation"
)

// runRows are the columns of a run and its steps that a transition may change.
type runRows struct {
	run   runRow
	steps []stepRow
}

func rowsOf(r *automation.Run) (runRows, error) {
	run, err := rowOfRun(r)
	if err != nil {
		return runRows{}, err
	}
	rows := runRows{run: run, steps: make([]stepRow, len(r.Steps))}
	for i := range r.Steps {
		rows.steps[i] = rowOfStep(&r.Steps[i])
	}
	return rows, nil
}

// changedSteps returns the positions of the steps that differ. An output is new only where the step has ended.
func changedSteps(before, after runRows) []int {
	var positions []int
	for i := range after.steps {
		if before.steps[i] != after.steps[i] {
			positions = append(positions, i)
		}
	}
	return positions
}

// transition loads the state of a run, lets decide change it, and stores what changed, if no other change came
// first; else it starts again, so decide may be called several times. The end of a run is durable whatever d
// says. An error of decide changes nothing and is returned.
func (s *Store) transition(
	ctx context.Context, id string, d durability,
	visible func(*automation.Run) bool, decide func(state *runState, now time.Time) error,
) (automation.Run, error) {
	var state runState
	err := retry(ctx, func() error {
		var err error
		if state, err = s.state(ctx, s.read, id, visible); err != nil {
			return err
		}
		before, err := rowsOf(&state.Run)
		if err != nil {
			return err
		}
		if err := decide(&state, s.now()); err != nil {
			return err
		}
		return s.save(ctx, d, &state.Run, before)
	})
	return state.Run, err
}

// save stores what differs from before, as the revision after r.Revision.
func (s *Store) save(ctx context.Context, d durability, r *automation.Run, before runRows) error {
	after, err := rowsOf(r)
	if err != nil {
		return err
	}
	steps := changedSteps(before, after)
	if after.run == before.run && len(steps) == 0 {
		return nil
	}
	ends := after.run.finishedAt.valid && !before.run.finishedAt.valid
	if ends {
		d = durable
	}
	var done settlement
	err = s.write(ctx, d, func(ctx context.Context, tx querier) error {
		done = settlement{}
		update := func() error { return updateRows(ctx, tx, r, after, steps) }
		if ends && r.Trigger.Kind == automation.TriggerSchedule {
			return s.endInSchedule(ctx, tx, r.Trigger.ID, &done, update)
		}
		return update()
	})
	if err != nil {
		return err
	}
	r.Revision++
	s.changed(r.ID, r.MachineID)
	done.moved(r, before, after)
	s.tell(done)
	return nil
}

// updateRows stores the columns of a run and of the given steps.
func updateRows(ctx context.Context, tx querier, r *automation.Run, rows runRows, steps []int) error {
	if err := updateRun(ctx, tx, r, rows.run); err != nil {
		return err
	}
	for _, i := range steps {
		if err := updateStep(ctx, tx, r, i, rows.steps[i]); err != nil {
			return err
		}
	}
	return nil
}

func updateRun(ctx context.Context, tx querier, r *automation.Run, row runRow) error {
	current, err := affected(tx.ExecContext(ctx, `UPDATE runs SET status = $1, cancel_requested_at = $2, cancel_reason = $3,
			engine_id = $4, generation = $5, executing = $6, open_ends = $7, error_code = $8, error_message = $9,
			error_step_id = $10, error_details = $11, started_at = $12, finished_at = $13, restarted_at = $14,
			restart_reason = $15, stalled_at = $16, revision = revision + 1
		WHERE id = $17 AND revision = $18`,
		row.status, row.cancelRequestedAt, row.cancelReason, row.engineID, row.generation, row.executing, row.openEnds,
		row.errorCode, row.errorMessage, row.errorStepID, row.errorDetails, row.startedAt, row.finishedAt,
		row.restartedAt, row.restartReason, row.stalledAt, r.ID, r.Revision))
	if err != nil {
		return fmt.Errorf("storing run %s: %w", r.ID, err)
	}
	if !current {
		return errLostRace
	}
	return nil
}

// updateStep stores a step and its output, when there is a new one.
func updateStep(ctx context.Context, tx querier, r *automation.Run, position int, row stepRow) error {
	var q statement
	q.add(`UPDATE steps SET status = ?, attempt = ?, begin_id = ?, started_at = ?, finished_at = ?, retry_at = ?,
			first_transient_at = ?, error_code = ?, error_message = ?, unconfirmed = ?`,
		row.status, row.attempt, row.beginID, row.startedAt, row.finishedAt, row.retryAt,
		row.firstTransientAt, row.errorCode, row.errorMessage, row.unconfirmed)
	if output := r.Steps[position].Output; output != nil {
		q.add(`, output = ?`, string(output))
	}
	q.add(` WHERE run_id = ? AND position = ?`, r.ID, position)
	if _, err := q.exec(ctx, tx); err != nil {
		return fmt.Errorf("storing step %d of run %s: %w", position, r.ID, err)
	}
	return nil
}

// RequestCancel implements [automation.RunStore].
func (s *Store) RequestCancel(ctx context.Context, ownerID, id, reason string, force bool) (automation.Cancellation, error) {
	var wrong violations
	wrong.text("reason", reason, maxReasonBytes)
	if err := wrong.err(); err != nil {
		return automation.Cancellation{}, err
	}
	var begun string
	ofOwner := func(r *automation.Run) bool { return sameID(r.OwnerID, ownerID) }
	run, err := s.transition(ctx, id, durable, ofOwner, func(state *runState, now time.Time) (err error) {
		begun, err = state.Cancel(reason, force, now)
		return err
	})
	if err != nil {
		return automation.Cancellation{}, err
	}
	return automation.Cancellation{Run: run, Begun: begun}, nil
}

// cancelBatch is how many runs one call of RequestCancels cancels, and cancelsAtOnce how many of them side by side,
// so that they share commits.
const (
	cancelBatch   = 200
	cancelsAtOnce = 8
)

// RequestCancels implements [automation.RunStore].
func (s *Store) RequestCancels(
	ctx context.Context, ownerID string, selection automation.RunSelection, reason string,
) ([]automation.Cancellation, error) {
	ids, err := s.cancellable(ctx, ownerID, selection, true)
	if err == nil && len(ids) == 0 {
		ids, err = s.cancellable(ctx, ownerID, selection, false)
	}
	if err != nil {
		return nil, translate(err)
	}
	cancelled := make([]*automation.Cancellation, len(ids))
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(cancelsAtOnce)
	for i, id := range ids {
		group.Go(func() error {
			recorded, err := s.RequestCancel(groupCtx, ownerID, id, reason, false)
			if err == nil {
				cancelled[i] = &recorded
			}
			if automation.CodeOf(err) == automation.CodeAlreadyFinished {
				return nil
			}
			return err
		})
	}
	err = group.Wait()
	var all []automation.Cancellation
	for _, one := range cancelled {
		if one != nil {
			all = append(all, *one)
		}
	}
	if err == nil && len(all) == 0 && len(ids) > 0 { // all of them have ended meanwhile; there may be more
		return s.RequestCancels(ctx, ownerID, selection, reason)
	}
	return all, err
}

// cancellable returns the oldest runs of a selection that a cancel would change: those that are held, or the others.
func (s *Store) cancellable(ctx context.Context, ownerID string, selection automation.RunSelection, held bool) ([]string, error) {
	var q statement
	q.add(`SELECT id FROM runs WHERE finished_at IS NULL AND cancel_requested_at IS NULL AND held = ? AND owner_id = `, held)
	possible := q.addID(ownerID)
	if selection.AutomationID != "" {
		q.add(` AND automation_id = `)
		possible = q.addID(selection.AutomationID) && possible
	}
	if selection.MachineID != "" {
		q.add(` AND machine_id = `)
		possible = q.addID(selection.MachineID) && possible
	}
	if !selection.Until.IsZero() {
		q.add(` AND created_at <= ?`, at(selection.Until))
	}
	if !possible {
		return nil, nil
	}
	q.add(` ORDER BY created_at, id LIMIT ?`, cancelBatch)
	rows, err := q.query(ctx, s.read)
	ids, err := collect(rows, err, func(row scanner) (string, error) {
		var id string
		err := row.Scan(&id)
		return id, err
	})
	if err != nil {
		return nil, fmt.Errorf("finding runs to cancel: %w", err)
	}
	return ids, nil
}
