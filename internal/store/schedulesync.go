package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/automation/schedule"
)

// maxSyncs bounds one batch of schedules.
const maxSyncs = 1_000

// DueSchedules implements [automation.ScheduleStore]. Beside those that are due it returns those that were settled
// so far ahead of the clock, which must have been set back, that they are to be decided for that. At most 1,000 are
// returned at a time.
func (s *Store) DueSchedules(ctx context.Context, limit int) ([]string, error) {
	limit = min(max(limit, 1), maxSyncs)
	now := s.now()
	due, err := s.scheduleIDs(ctx, `SELECT id FROM schedules WHERE next_wake <= $1 ORDER BY next_wake, id LIMIT $2`, at(now), limit)
	if err != nil || len(due) == limit {
		return due, err
	}
	ahead, err := s.scheduleIDs(ctx, `SELECT id FROM schedules WHERE next_wake IS NOT NULL AND settled_until > $1
		ORDER BY settled_until, id LIMIT $2`, at(now.Add(schedule.MaxCursorAhead)), limit-len(due))
	for _, id := range ahead {
		if !slices.Contains(due, id) {
			due = append(due, id)
		}
	}
	return due, err
}

// NextScheduleWake implements [automation.ScheduleStore].
func (s *Store) NextScheduleWake(ctx context.Context) (time.Time, error) {
	var wake instant
	_, err := exists(s.read.QueryRowContext(ctx, `SELECT next_wake FROM schedules WHERE next_wake IS NOT NULL
		ORDER BY next_wake LIMIT 1`).Scan(&wake))
	if err != nil {
		return time.Time{}, translate(fmt.Errorf("finding the next wake-up of a schedule: %w", err))
	}
	if !wake.valid {
		return time.Time{}, nil
	}
	return wake.time(), nil
}

func (s *Store) scheduleIDs(ctx context.Context, query string, args ...any) ([]string, error) {
	rows, err := s.read.QueryContext(ctx, query, args...)
	ids, err := collect(rows, err, func(row scanner) (string, error) {
		var id string
		err := row.Scan(&id)
		return id, err
	})
	if err != nil {
		return nil, translate(fmt.Errorf("finding schedules that are due: %w", err))
	}
	return ids, nil
}

const syncColumns = `s.id, s.automation_id, a.name, a.machine_id, s.created_at, s.spec, s.status, s.status_reason,
	s.enabled, a.enabled, s.removed_at, s.generation, s.synced_generation, s.engine_id`

func scanSync(row scanner) (automation.ScheduleSync, error) {
	var sync automation.ScheduleSync
	var spec, reason string
	var status schedule.Status
	var enabled, automationEnabled bool
	var created, removed instant
	if err := row.Scan(&sync.ID, &sync.AutomationID, &sync.AutomationName, &sync.MachineID, &created, &spec, &status, &reason,
		&enabled, &automationEnabled, &removed, &sync.Generation, &sync.SyncedGeneration, &sync.EngineID); err != nil {
		return automation.ScheduleSync{}, err
	}
	if err := json.Unmarshal([]byte(spec), &sync.Spec); err != nil {
		return automation.ScheduleSync{}, fmt.Errorf("decoding schedule %s: %w", sync.ID, err)
	}
	sync.CreatedAt, sync.Removed = created.time(), removed.valid
	switch {
	case sync.Removed:
		sync.Paused, sync.Note = true, "the schedule is removed"
	case status == schedule.StatusPaused:
		sync.Paused, sync.Note = true, reason
	case status == schedule.StatusFinished:
		sync.Paused, sync.Note = true, "finished: "+reason
	case !automationEnabled:
		sync.Paused, sync.Note = true, "the automation is disabled"
	case !enabled:
		sync.Paused, sync.Note = true, "the schedule is disabled"
	}
	return sync, nil
}

// findSyncs reads schedules of a condition.
func (s *Store) findSyncs(ctx context.Context, condition string, args ...any) ([]automation.ScheduleSync, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT `+syncColumns+fromSchedules+condition, args...)
	found, err := collect(rows, err, scanSync)
	if err != nil {
		return nil, translate(fmt.Errorf("reading schedules for the engine: %w", err))
	}
	return found, nil
}

// UnsyncedSchedules implements [automation.ScheduleStore]. At most 1,000 are returned at a time, those that were
// changed before those that another engine holds. A tombstone that the engine has forgotten is not among them.
func (s *Store) UnsyncedSchedules(ctx context.Context, engineID string, limit int) ([]automation.ScheduleSync, error) {
	if err := checkEngine(engineID); err != nil {
		return nil, err
	}
	limit = min(max(limit, 1), maxSyncs)
	// Three ranges of indexes, as for runs: a look at all schedules would be long, and is taken often.
	var found []automation.ScheduleSync
	for _, some := range []struct {
		condition string
		args      []any
	}{
		{`WHERE s.synced_generation < s.generation ORDER BY s.id LIMIT $1`, []any{limit}},
		{`WHERE s.engine_id < $2 AND s.synced_generation = s.generation ORDER BY s.engine_id, s.id LIMIT $1`, []any{limit, engineID}},
		{`WHERE s.engine_id > $2 AND s.synced_generation = s.generation ORDER BY s.engine_id, s.id LIMIT $1`, []any{limit, engineID}},
	} {
		syncs, err := s.findSyncs(ctx, some.condition, some.args...)
		if err != nil {
			return nil, err
		}
		for _, sync := range syncs {
			if !sync.Removed || sync.SyncedGeneration < sync.Generation {
				found = append(found, sync)
			}
		}
	}
	return found[:min(len(found), limit)], nil
}

// ScheduleSyncs implements [automation.ScheduleStore]. Tombstones are not among them. At most 1,000 are returned at
// a time.
func (s *Store) ScheduleSyncs(ctx context.Context, after string, limit int) ([]automation.ScheduleSync, error) {
	limit = min(max(limit, 1), maxSyncs)
	if after == "" {
		return s.findSyncs(ctx, `WHERE s.removed_at IS NULL ORDER BY s.id LIMIT $1`, limit)
	}
	known, ok := canonicalID(after)
	if !ok {
		return nil, automation.Invalid(automation.Violation{Path: "after", Message: "is not the id of a schedule"})
	}
	return s.findSyncs(ctx, `WHERE s.removed_at IS NULL AND s.id > $2 ORDER BY s.id LIMIT $1`, limit, known)
}

// ScheduleSync implements [automation.ScheduleStore].
func (s *Store) ScheduleSync(ctx context.Context, id string) (automation.ScheduleSync, bool, error) {
	known, ok := canonicalID(id)
	if !ok {
		return automation.ScheduleSync{}, false, nil
	}
	found, err := s.findSyncs(ctx, `WHERE s.id = $1`, known)
	if err != nil || len(found) == 0 {
		return automation.ScheduleSync{}, false, err
	}
	return found[0], true, nil
}

// MarkScheduleSynced implements [automation.ScheduleStore]. It need not survive a power cut: what the engine has
// learned is told again.
func (s *Store) MarkScheduleSynced(ctx context.Context, id string, generation int64, engineID string) error {
	if err := checkEngine(engineID); err != nil {
		return err
	}
	known, ok := canonicalID(id)
	if !ok {
		return nil
	}
	return retry(ctx, func() error {
		return s.write(ctx, relaxed, func(ctx context.Context, tx querier) error {
			var removed instant
			found, err := exists(tx.QueryRowContext(ctx, `SELECT removed_at FROM schedules WHERE id = $1`+s.dialect.own, known).Scan(&removed))
			if err != nil || !found {
				return err
			}
			if generation <= 0 {
				_, err = tx.ExecContext(ctx, `UPDATE schedules SET synced_generation = 0, engine_id = ''
					WHERE id = $1 AND engine_id = $2`, known, engineID)
				return err
			}
			if _, err := tx.ExecContext(ctx, `UPDATE schedules SET synced_generation = $2, engine_id = $3
				WHERE id = $1 AND generation >= $2 AND (engine_id <> $3 OR synced_generation < $2)`, known, generation, engineID); err != nil {
				return fmt.Errorf("marking schedule %s: %w", known, err)
			}
			if !removed.valid {
				return nil
			}
			return forgetTombstone(ctx, tx, known)
		})
	})
}

// PauseSchedule implements [automation.ScheduleStore]. What the operator did that has no effect here, because the
// schedule does not fire anyway, makes a new generation, with which the engine is told how it is.
func (s *Store) PauseSchedule(ctx context.Context, id string, generation int64, paused bool, reason string) error {
	if reason = clean(strings.TrimSpace(reason), maxReasonBytes); reason == "" {
		reason = "paused by an operator"
	}
	var done settlement
	found, err := s.inSchedule(ctx, id, func(ctx context.Context, tx querier, to target, row scheduleRow) error {
		done = settlement{}
		if row.generation != generation {
			return nil
		}
		now := s.now()
		if err := s.settle(ctx, tx, to, &row, now, &done); err != nil {
			return err
		}
		if paused {
			row.take(row.state().Pause(reason))
		} else {
			row.take(row.state().Resume(now))
		}
		if err := s.settle(ctx, tx, to, &row, now, &done); err != nil {
			return err
		}
		return updateSchedule(ctx, tx, &row, true, now)
	})
	if err == nil && found {
		s.tell(done)
	}
	return err
}
