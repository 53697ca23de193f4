package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/automation/schedule"
)

// DecideSchedule implements [automation.ScheduleStore]. One call admits up to [schedule.MaxAdmissions] runs; when
// more are due, NextWake is now.
func (s *Store) DecideSchedule(ctx context.Context, id string) (automation.ScheduleDecision, error) {
	var row scheduleRow
	var done settlement
	found, err := s.inSchedule(ctx, id, func(ctx context.Context, tx querier, to target, locked scheduleRow) error {
		row, done = locked, settlement{}
		if _, err := s.decide(ctx, tx, to, &row, s.now(), &done); err != nil {
			return err
		}
		return updateProgress(ctx, tx, &row)
	})
	if err != nil || !found {
		return automation.ScheduleDecision{}, err
	}
	for _, run := range done.changed {
		s.changed(run.id, run.machineID)
	}
	s.count(done.tally)
	decision := automation.ScheduleDecision{Admitted: done.ready, Cancelled: done.cancelled}
	if row.progress.nextWake.valid {
		decision.NextWake = row.progress.nextWake.time()
	}
	return decision, nil
}

// backlogError says that more is due of a schedule than a change of it should settle in its own transaction.
type backlogError struct{ scheduleID string }

func (e *backlogError) Error() string { return "too much is due of schedule " + e.scheduleID }

// writeSettled runs fn, which changes schedules, in a transaction. What fn settles first is more than one decision
// after an outage; then it is decided before, each decision in a transaction of its own: the one of the change would
// keep everybody else from the database for as long as it takes to admit everything that was missed.
func (s *Store) writeSettled(ctx context.Context, fn func(ctx context.Context, tx querier) error) error {
	for {
		err := s.write(ctx, durable, fn)
		backlog, ok := errors.AsType[*backlogError](err)
		if !ok {
			return err
		}
		if err := s.decideAll(ctx, backlog.scheduleID); err != nil {
			return err
		}
	}
}

// decideAll decides a schedule until nothing is due any more, and tells of the runs that may start.
func (s *Store) decideAll(ctx context.Context, id string) error {
	for {
		decision, err := s.DecideSchedule(ctx, id)
		if err != nil {
			return err
		}
		s.tell(settlement{ready: decision.Admitted})
		if decision.NextWake.IsZero() || decision.NextWake.After(s.now()) {
			return nil
		}
	}
}

// inSchedule runs fn in a transaction that holds a schedule and keeps its automation and its machine as they are. It
// does nothing and returns false for a schedule that is unknown or removed. fn may be called more than once, also when
// the schedule is removed in between.
func (s *Store) inSchedule(
	ctx context.Context, id string, fn func(ctx context.Context, tx querier, to target, row scheduleRow) error,
) (found bool, err error) {
	known, ok := canonicalID(id)
	if !ok {
		return false, nil
	}
	var automationID string // of a schedule it never changes
	found, err = exists(s.read.QueryRowContext(ctx, `SELECT automation_id FROM schedules WHERE id = $1`, known).Scan(&automationID))
	if err != nil || !found {
		return false, translate(err)
	}
	err = retry(ctx, func() error {
		return s.writeSettled(ctx, func(ctx context.Context, tx querier) error {
			found = false
			to, err := s.targetOf(ctx, tx, automationID, "")
			if automation.CodeOf(err) == automation.CodeNotFound {
				return nil // it was deleted, and its schedules with it
			}
			if err != nil {
				return err
			}
			var row scheduleRow
			if row, found, err = s.ownSchedule(ctx, tx, known); err != nil || !found {
				return err
			}
			return fn(ctx, tx, to, row)
		})
	})
	return found, err
}

// settle decides what is due, in a transaction of [Store.writeSettled].
func (s *Store) settle(ctx context.Context, tx querier, to target, row *scheduleRow, now time.Time, done *settlement) error {
	more, err := s.decide(ctx, tx, to, row, now, done)
	if err == nil && more {
		err = &backlogError{row.ID}
	}
	return err
}

// decide makes one decision and carries it out: runs, cancels and drops are stored, and the row has the new progress,
// which the caller stores. The caller holds the locks of the automation and of the schedule. more is true when the
// decision was cut and another one is due at once.
func (s *Store) decide(
	ctx context.Context, tx querier, to target, row *scheduleRow, now time.Time, done *settlement,
) (more bool, err error) {
	state := row.state()
	if state.Fires() {
		if err := s.addRuns(ctx, tx, to, &state, now); err != nil {
			return false, err
		}
	}
	d := schedule.Decide(state, now)
	if d.CursorReset {
		s.options.Logger.WarnContext(ctx, "a schedule was settled further than the clock says; it goes on from now",
			"schedule", row.ID, "settledUntil", state.Cursor, "now", now)
	}
	if err := s.cancelEarlier(ctx, tx, d.CancelRuns, now, done); err != nil {
		return false, err
	}
	if err := s.admitInstants(ctx, tx, to, row, d.Admit, now, done); err != nil {
		return false, err
	}
	if err := recordDrops(ctx, tx, row, d.Drops, now); err != nil {
		return false, err
	}
	for _, drop := range d.Drops {
		done.dropped(drop)
	}
	row.apply(state, d)
	return d.More, nil
}

// apply takes over what a decision says of the schedule.
func (r *scheduleRow) apply(state schedule.State, d schedule.Decision) {
	r.take(state.Apply(d))
	r.progress.nextWake, r.progress.nextRunAt = instant{}, instant{}
	if d.Next != nil {
		r.progress.nextWake, r.progress.nextRunAt = at(d.NextWake), at(d.Next.At)
	}
	if n := len(d.Admit); n > 0 {
		r.progress.lastRunAt = at(d.Admit[n-1].At)
	}
}

// addRuns adds what a decision must know of the schedule's runs and of its target.
func (s *Store) addRuns(ctx context.Context, tx querier, to target, state *schedule.State, now time.Time) error {
	switch automation.CodeOf(to.refusal()) {
	case "":
	case automation.CodeMachineRevoked:
		state.Blocked = schedule.ReasonMachineRevoked
	default: // a disabled automation does not fire at all
		state.Blocked = schedule.ReasonNotExecutable
	}
	var err error
	if state.Taken, err = takenInstants(ctx, tx, state, now); err != nil {
		return fmt.Errorf("reading the instants of schedule %s: %w", state.ID, err)
	}
	switch state.Policy.Overlap {
	case schedule.OverlapSkip, schedule.OverlapQueueOne, schedule.OverlapCancelRunning:
		if state.Unfinished, err = s.unfinishedOf(ctx, tx, state.ID); err != nil {
			return fmt.Errorf("reading the runs of schedule %s: %w", state.ID, err)
		}
	case schedule.OverlapQueue, schedule.OverlapParallel: // look at no run, of which there may be many
	}
	return nil
}

func takenInstants(ctx context.Context, tx querier, state *schedule.State, now time.Time) ([]time.Time, error) {
	after := state.Cursor
	if after.After(now) {
		after = now
	}
	rows, err := tx.QueryContext(ctx, `SELECT scheduled_at FROM runs
		WHERE trigger_id = $1 AND trigger_kind = 'schedule' AND scheduled_at > $2`, state.ID, at(after))
	return collect(rows, err, func(row scanner) (time.Time, error) {
		var taken instant
		err := row.Scan(&taken)
		return taken.time(), err
	})
}

// unfinishedOf locks the unfinished runs of a schedule, by id, since they may be cancelled.
func (s *Store) unfinishedOf(ctx context.Context, tx querier, scheduleID string) ([]schedule.Run, error) {
	rows, err := tx.QueryContext(ctx, `SELECT id, started_at FROM runs WHERE `+unfinishedInSchedule+` ORDER BY id`+s.dialect.own,
		scheduleID)
	return collect(rows, err, func(row scanner) (schedule.Run, error) {
		var run schedule.Run
		var started instant
		err := row.Scan(&run.ID, &started)
		run.Begun = started.valid
		return run, err
	})
}

const overtaken = "a later run of its schedule was admitted, and the overlap is cancel_running"

// cancelEarlier records a cancel of runs that are locked. One whose cancel is recorded already keeps it.
func (s *Store) cancelEarlier(ctx context.Context, tx querier, ids []string, now time.Time, done *settlement) error {
	for _, id := range ids {
		state, err := s.state(ctx, tx, id, anyRun)
		if err != nil {
			return err
		}
		if state.CancelRequestedAt != nil {
			continue
		}
		begun, err := cancelIn(ctx, tx, &state.Run, now, done)
		if err != nil {
			return err
		}
		done.changed = append(done.changed, runRef{state.ID, state.MachineID})
		done.cancelled = append(done.cancelled, automation.Cancellation{Run: state.Run, Begun: begun})
	}
	return nil
}

// cancelIn records a cancel of a run whose row and whose schedule are locked.
func cancelIn(ctx context.Context, tx querier, run *automation.Run, now time.Time, done *settlement) (begun string, err error) {
	before, err := rowsOf(run)
	if err != nil {
		return "", err
	}
	if begun, err = run.Cancel(overtaken, false, now); err != nil {
		return "", err
	}
	after, err := rowsOf(run)
	if err != nil {
		return "", err
	}
	if err := updateRows(ctx, tx, run, after, changedSteps(before, after)); err != nil {
		return "", err
	}
	done.moved(run, before, after)
	run.Revision++
	return begun, nil
}

// admitInstants admits runs in the order of their instants. The runs of one schedule are numbered; unless they are
// to execute beside each other, each one is held while an earlier one has not ended.
func (s *Store) admitInstants(
	ctx context.Context, tx querier, to target, row *scheduleRow, instants []schedule.Instant, now time.Time, done *settlement,
) error {
	if len(instants) == 0 {
		return nil
	}
	ordered := row.Policy.Overlap != schedule.OverlapParallel
	held := false
	if ordered {
		var err error
		if held, err = exists(tx.QueryRowContext(ctx, `SELECT id FROM runs WHERE `+unfinishedInSchedule+` LIMIT 1`, row.ID).
			Scan(new(string))); err != nil {
			return fmt.Errorf("looking for unfinished runs of schedule %s: %w", row.ID, err)
		}
	}
	for i, instant := range instants {
		run := s.newRun(automation.Admission{
			OwnerID: to.OwnerID, AutomationID: to.ID, Input: row.Input,
			Trigger: automation.Trigger{Kind: automation.TriggerSchedule, ID: row.ID, ScheduledAt: &instant.At, Late: instant.Late},
		}, to.Automation, now)
		if err := insertRun(ctx, tx, run, place{occurrence: row.progress.occurrences + int64(i) + 1, held: held}); err != nil {
			return err
		}
		done.changed = append(done.changed, runRef{run.ID, run.MachineID})
		done.admitted(run)
		done.fired(instant, now)
		if i+1 < len(instants) && instants[i+1].CancelsEarlier {
			if _, err := cancelIn(ctx, tx, run, now, done); err != nil {
				return err
			}
			continue
		}
		if !held {
			done.ready = append(done.ready, run.ID)
		}
		held = ordered
	}
	return nil
}

// place is where a run stands among the runs of its schedule; the zero value for a run of no schedule.
type place struct {
	occurrence int64 // from 1
	held       bool  // it must not start, because an earlier one has not ended
}
