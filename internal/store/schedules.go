package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/automation/schedule"
)

// scheduleRow is a schedule as it is stored.
type scheduleRow struct {
	automation.ScheduleDefinition
	automationID string
	createdAt    time.Time
	timing       schedule.Timing
	progress     progress
	removed      bool
	generation   int64

	// automationEnabled is the state of its automation, without which it does not fire.
	automationEnabled bool

	// The row as it was read, to tell what has changed.
	readProgress progress
	readShown    shown
}

// progress is the part of a schedule that changes when it is decided. Two of them are compared with ==.
type progress struct {
	status       schedule.Status
	statusReason string
	settledUntil instant
	occurrences  int64
	nextWake     instant
	nextRunAt    instant
	lastRunAt    instant
}

// shown is what the engine knows of a schedule, beside its automation. A change is a new generation.
type shown struct {
	spec     schedule.Spec
	status   schedule.Status
	reason   string
	disabled bool
}

func (r *scheduleRow) shown() shown {
	return shown{
		spec: r.Spec, status: r.progress.status, reason: r.progress.statusReason, disabled: r.disabled(),
	}
}

func (r *scheduleRow) disabled() bool { return !r.Enabled || !r.automationEnabled }

// state is what the core decides about, without what it must know of the schedule's runs.
func (r *scheduleRow) state() schedule.State {
	return schedule.State{
		ID: r.ID, Timing: r.timing, Policy: r.Policy,
		Status: r.progress.status, StatusReason: r.progress.statusReason, Disabled: r.disabled(),
		Cursor: r.progress.settledUntil.time(), Occurrences: r.progress.occurrences,
	}
}

// take keeps a state that was changed.
func (r *scheduleRow) take(s schedule.State) {
	r.timing = s.Timing
	r.progress.status, r.progress.statusReason = s.Status, s.StatusReason
	r.progress.settledUntil, r.progress.occurrences = at(s.Cursor), s.Occurrences
}

// public is the schedule as callers see it.
func (r *scheduleRow) public() automation.Schedule {
	return automation.Schedule{
		ScheduleDefinition: r.ScheduleDefinition,
		CreatedAt:          r.createdAt,
		Status:             r.progress.status,
		StatusReason:       r.progress.statusReason,
		Occurrences:        r.progress.occurrences,
		NextRunAt:          r.progress.nextRunAt.optional(),
		LastRunAt:          r.progress.lastRunAt.optional(),
	}
}

const scheduleColumns = `s.id, s.automation_id, s.spec, s.overlap, s.catch_up, s.catch_up_window_ms, s.jitter_ms,
	s.max_occurrences, s.input, s.enabled, s.created_at, s.status, s.status_reason, s.settled_until, s.occurrences,
	s.next_wake, s.next_run_at, s.last_run_at, s.removed_at, s.generation, a.enabled`

// fromSchedules begins every statement that reads scheduleColumns.
const fromSchedules = ` FROM schedules s JOIN automations a ON a.id = s.automation_id `

func scanSchedule(row scanner) (scheduleRow, error) {
	var r scheduleRow
	var spec, input string
	var window, jitter int64
	var created, removed instant
	p := &r.progress
	if err := row.Scan(&r.ID, &r.automationID, &spec, &r.Policy.Overlap, &r.Policy.CatchUp, &window, &jitter,
		&r.Policy.MaxOccurrences, &input, &r.Enabled, &created, &p.status, &p.statusReason, &p.settledUntil, &p.occurrences,
		&p.nextWake, &p.nextRunAt, &p.lastRunAt, &removed, &r.generation, &r.automationEnabled); err != nil {
		return scheduleRow{}, err
	}
	r.Policy.CatchUpWindow = time.Duration(window) * time.Millisecond
	r.Policy.Jitter = time.Duration(jitter) * time.Millisecond
	r.Input, r.createdAt, r.removed = json.RawMessage(input), created.time(), removed.valid
	if err := json.Unmarshal([]byte(spec), &r.Spec); err != nil {
		return scheduleRow{}, fmt.Errorf("decoding schedule %s: %w", r.ID, err)
	}
	var err error
	if r.timing, err = schedule.Restore(r.Spec, r.createdAt); err != nil {
		return scheduleRow{}, fmt.Errorf("restoring schedule %s: %w", r.ID, err)
	}
	r.readProgress, r.readShown = r.progress, r.shown()
	return r, nil
}

// schedulesOf reads the schedules of an automation in the order of their creation.
func schedulesOf(ctx context.Context, q querier, automationID string) ([]scheduleRow, error) {
	rows, err := q.QueryContext(ctx, `SELECT `+scheduleColumns+fromSchedules+
		`WHERE s.automation_id = $1 AND s.removed_at IS NULL ORDER BY s.created_at, s.id`, automationID)
	found, err := collect(rows, err, scanSchedule)
	if err != nil {
		return nil, fmt.Errorf("reading the schedules of automation %s: %w", automationID, err)
	}
	return found, nil
}

// addSchedules reads the schedules of a page of automations.
func (s *Store) addSchedules(ctx context.Context, automations []automation.Automation) error {
	if len(automations) == 0 {
		return nil
	}
	byID := make(map[string]*automation.Automation, len(automations))
	ids := make([]string, len(automations))
	for i := range automations {
		byID[automations[i].ID] = &automations[i]
		ids[i] = automations[i].ID
	}
	var q statement
	q.add(`SELECT ` + scheduleColumns + fromSchedules + `WHERE s.removed_at IS NULL AND s.automation_id IN `)
	q.addIDs(ids)
	q.add(` ORDER BY s.created_at, s.id`)
	rows, err := q.query(ctx, s.read)
	found, err := collect(rows, err, scanSchedule)
	if err != nil {
		return fmt.Errorf("reading the schedules of automations: %w", err)
	}
	for _, row := range found {
		a := byID[row.automationID]
		a.Schedules = append(a.Schedules, row.public())
	}
	return nil
}

// lockSchedules keeps everybody else from the schedules of an automation until the commit.
func (s *Store) lockSchedules(ctx context.Context, tx querier, automationID string) error {
	rows, err := tx.QueryContext(ctx,
		`SELECT id FROM schedules WHERE automation_id = $1 AND removed_at IS NULL ORDER BY id`+s.dialect.own, automationID)
	if err := each(rows, err, func(scanner) error { return nil }); err != nil {
		return fmt.Errorf("locking the schedules of automation %s: %w", automationID, err)
	}
	return nil
}

// insertSchedule stores a new schedule.
func insertSchedule(ctx context.Context, tx querier, r *scheduleRow) error {
	spec, err := encode(r.Spec)
	if err != nil {
		return fmt.Errorf("encoding a schedule: %w", err)
	}
	p := r.progress
	if _, err := tx.ExecContext(ctx, `INSERT INTO schedules (id, automation_id, spec, overlap, catch_up, catch_up_window_ms,
			jitter_ms, max_occurrences, input, enabled, created_at, status, status_reason, settled_until, occurrences,
			next_wake, next_run_at, last_run_at, generation, synced_generation, engine_id)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, 1, 0, '')`,
		r.ID, r.automationID, spec, string(r.Policy.Overlap), string(r.Policy.CatchUp), r.Policy.CatchUpWindow.Milliseconds(),
		r.Policy.Jitter.Milliseconds(), r.Policy.MaxOccurrences, string(r.Input), r.Enabled, at(r.createdAt),
		string(p.status), p.statusReason, p.settledUntil, p.occurrences, p.nextWake, p.nextRunAt, p.lastRunAt); err != nil {
		return fmt.Errorf("storing a schedule: %w", err)
	}
	return nil
}

// updateProgress stores what a decision has changed.
func updateProgress(ctx context.Context, tx querier, r *scheduleRow) error {
	if r.shown() != r.readShown {
		r.generation++
	} else if r.progress == r.readProgress {
		return nil
	}
	p := r.progress
	if _, err := tx.ExecContext(ctx, `UPDATE schedules SET status = $2, status_reason = $3, settled_until = $4,
			occurrences = $5, next_wake = $6, next_run_at = $7, last_run_at = $8, generation = $9 WHERE id = $1`,
		r.ID, string(p.status), p.statusReason, p.settledUntil, p.occurrences, p.nextWake, p.nextRunAt, p.lastRunAt,
		r.generation); err != nil {
		return fmt.Errorf("storing the progress of schedule %s: %w", r.ID, err)
	}
	return nil
}

// updateSchedule stores everything of a schedule that a change of its automation may have changed. With told it is
// a new generation whatever has changed.
func updateSchedule(ctx context.Context, tx querier, r *scheduleRow, told bool, now time.Time) error {
	if told && r.shown() == r.readShown {
		r.generation++
	}
	if err := updateProgress(ctx, tx, r); err != nil {
		return err
	}
	spec, err := encode(r.Spec)
	if err != nil {
		return fmt.Errorf("encoding a schedule: %w", err)
	}
	var removed instant
	if r.removed {
		removed = at(now)
	}
	if _, err := tx.ExecContext(ctx, `UPDATE schedules SET spec = $2, overlap = $3, catch_up = $4, catch_up_window_ms = $5,
			jitter_ms = $6, max_occurrences = $7, input = $8, enabled = $9, removed_at = $10, generation = $11 WHERE id = $1`,
		r.ID, spec, string(r.Policy.Overlap), string(r.Policy.CatchUp), r.Policy.CatchUpWindow.Milliseconds(),
		r.Policy.Jitter.Milliseconds(), r.Policy.MaxOccurrences, string(r.Input), r.Enabled, removed, r.generation); err != nil {
		return fmt.Errorf("storing a changed schedule: %w", err)
	}
	return nil
}

// checkSchedules refuses what the database cannot hold or the core does not know.
func (v *violations) checkSchedules(schedules []automation.ScheduleDefinition) {
	if len(schedules) > automation.MaxSchedules {
		v.add("schedules", fmt.Sprintf("are %d; an automation may have %d", len(schedules), automation.MaxSchedules))
	}
	for i, d := range schedules {
		path := fmt.Sprintf("schedules[%d]", i)
		v.json(path+".input", d.Input, automation.MaxInputBytes)
		if !slices.Contains(schedule.Overlaps, d.Policy.Overlap) {
			v.add(path+".overlap", fmt.Sprintf("is not known; write one of %q", schedule.Overlaps))
		}
		if !slices.Contains(schedule.CatchUps, d.Policy.CatchUp) {
			v.add(path+".catchUp", fmt.Sprintf("is not known; write one of %q", schedule.CatchUps))
		}
	}
}

// ScheduleDrops implements [automation.AutomationStore].
func (s *Store) ScheduleDrops(ctx context.Context, ownerID, automationID string, limit int) ([]automation.ScheduleDrop, error) {
	owner, isOwner := canonicalID(ownerID)
	id, ok := canonicalID(automationID)
	if !ok || !isOwner {
		return nil, nil
	}
	rows, err := s.read.QueryContext(ctx, `SELECT d.schedule_id, d.first_at, d.last_at, d.firings, d.reason, d.recorded_at
		FROM automations a JOIN schedules s ON s.automation_id = a.id JOIN schedule_drops d ON d.schedule_id = s.id
		WHERE a.id = $1 AND a.owner_id = $2 AND a.deleted_at IS NULL AND s.removed_at IS NULL
		ORDER BY d.recorded_at DESC, d.schedule_id, d.position DESC LIMIT $3`, id, owner, limit)
	drops, err := collect(rows, err, func(row scanner) (automation.ScheduleDrop, error) {
		var d automation.ScheduleDrop
		var from, to, recorded instant
		err := row.Scan(&d.ScheduleID, &from, &to, &d.Count, &d.Reason, &recorded)
		d.From, d.To, d.RecordedAt = from.time(), to.time(), recorded.time()
		return d, err
	})
	if err != nil {
		return nil, translate(fmt.Errorf("reading the drops of schedules: %w", err))
	}
	return drops, nil
}

// lastDrop is the range that was recorded last of a schedule; position 0 when there is none.
type lastDrop struct {
	position int64
	to       instant
	reason   schedule.Reason
}

// recordDrops stores ranges of drops. One that goes on where the last one ended, for the same reason, becomes a part
// of it, so that a schedule that keeps dropping needs one row.
func recordDrops(ctx context.Context, tx querier, r *scheduleRow, drops []schedule.Drop, now time.Time) error {
	if len(drops) == 0 {
		return nil
	}
	var last lastDrop
	if _, err := exists(tx.QueryRowContext(ctx, `SELECT position, last_at, reason FROM schedule_drops
		WHERE schedule_id = $1 ORDER BY position DESC LIMIT 1`, r.ID).Scan(&last.position, &last.to, &last.reason)); err != nil {
		return fmt.Errorf("reading the last drop of schedule %s: %w", r.ID, err)
	}
	for _, d := range drops {
		if err := recordDrop(ctx, tx, r, &last, d, now); err != nil {
			return fmt.Errorf("storing a drop of schedule %s: %w", r.ID, err)
		}
	}
	if _, err := tx.ExecContext(ctx, `DELETE FROM schedule_drops WHERE schedule_id = $1 AND position <= $2`,
		r.ID, last.position-automation.MaxScheduleDrops); err != nil {
		return fmt.Errorf("forgetting old drops of schedule %s: %w", r.ID, err)
	}
	return nil
}

func recordDrop(ctx context.Context, tx querier, r *scheduleRow, last *lastDrop, d schedule.Drop, now time.Time) error {
	if last.position > 0 && last.reason == d.Reason {
		if next, ok := r.timing.Next(last.to.time()); ok && next.Equal(d.From) {
			last.to = at(d.To)
			_, err := tx.ExecContext(ctx, `UPDATE schedule_drops SET last_at = $3, firings = firings + $4, recorded_at = $5
				WHERE schedule_id = $1 AND position = $2`, r.ID, last.position, last.to, d.Count, at(now))
			return err
		}
	}
	*last = lastDrop{position: last.position + 1, to: at(d.To), reason: d.Reason}
	_, err := tx.ExecContext(ctx, `INSERT INTO schedule_drops (schedule_id, position, first_at, last_at, firings, reason, recorded_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7)`, r.ID, last.position, at(d.From), last.to, d.Count, string(d.Reason), at(now))
	return err
}

// ownSchedule reads a schedule that is about to be decided and keeps everybody else from it until the commit; false
// when it is unknown or removed.
func (s *Store) ownSchedule(ctx context.Context, tx querier, id string) (scheduleRow, bool, error) {
	found, err := exists(tx.QueryRowContext(ctx, `SELECT id FROM schedules WHERE id = $1`+s.dialect.own, id).Scan(new(string)))
	if err != nil || !found {
		return scheduleRow{}, false, err
	}
	row, err := scanSchedule(tx.QueryRowContext(ctx, `SELECT `+scheduleColumns+fromSchedules+`WHERE s.id = $1`, id))
	if err != nil {
		return scheduleRow{}, false, fmt.Errorf("reading schedule %s: %w", id, err)
	}
	return row, !row.removed, nil
}

// endInSchedule ends a run of a schedule, which end stores, and releases the one that has waited for it. Admission
// is kept out meanwhile: whichever of the two comes second sees what the first has done.
func (s *Store) endInSchedule(ctx context.Context, tx querier, scheduleID string, done *settlement, end func() error) error {
	id, ok := canonicalID(scheduleID)
	if !ok {
		return end()
	}
	var removed instant
	if _, err := exists(tx.QueryRowContext(ctx, `SELECT removed_at FROM schedules WHERE id = $1`+s.dialect.own, id).
		Scan(&removed)); err != nil {
		return fmt.Errorf("locking schedule %s: %w", id, err)
	}
	if err := end(); err != nil {
		return err
	}
	if err := release(ctx, tx, id, done); err != nil {
		return err
	}
	if removed.valid {
		return forgetTombstone(ctx, tx, id)
	}
	return nil
}

// unfinishedInSchedule is the condition of the unfinished runs of the schedule $1, as text.
const unfinishedInSchedule = `trigger_id = $1 AND trigger_kind = 'schedule' AND finished_at IS NULL`

// release lets the first unfinished run of a schedule start if it was held. Its caller holds the schedule's lock.
func release(ctx context.Context, tx querier, scheduleID string, done *settlement) error {
	var run runRef
	found, err := exists(tx.QueryRowContext(ctx, `UPDATE runs SET held = FALSE, revision = revision + 1
		WHERE held AND id = (SELECT id FROM runs WHERE `+unfinishedInSchedule+` ORDER BY occurrence LIMIT 1)
		RETURNING id, machine_id`, scheduleID).Scan(&run.id, &run.machineID))
	if err != nil {
		return fmt.Errorf("releasing the next run of schedule %s: %w", scheduleID, err)
	}
	if found {
		done.changed = append(done.changed, run)
		done.ready = append(done.ready, run.id)
	}
	return nil
}

// forgetTombstone deletes a removed schedule that the engine has forgotten and that has no unfinished run.
func forgetTombstone(ctx context.Context, tx querier, id string) error {
	_, err := tx.ExecContext(ctx, `DELETE FROM schedules WHERE id = $2 AND removed_at IS NOT NULL
		AND synced_generation = generation AND NOT EXISTS (SELECT 1 FROM runs WHERE `+unfinishedInSchedule+`)`, id, id)
	if err != nil {
		return fmt.Errorf("forgetting schedule %s: %w", id, err)
	}
	return nil
}

// runRef names a run that a transaction has changed.
type runRef struct{ id, machineID string }

// settlement collects what one transaction did, mostly to the runs of schedules, for those who are told after its
// commit.
type settlement struct {
	changed   []runRef
	ready     []string // runs that may start now
	cancelled []automation.Cancellation
	tally
}

// tell tells whoever listens what a commit has done.
func (s *Store) tell(done settlement) {
	for _, run := range done.changed {
		s.changed(run.id, run.machineID)
	}
	s.count(done.tally)
	if s.options.OnRunReady == nil {
		return
	}
	for _, id := range done.ready {
		s.options.OnRunReady(id)
	}
}

// optionalNumber is a number of which 0 is stored as NULL.
func optionalNumber(n int64) sql.NullInt64 { return sql.NullInt64{Int64: n, Valid: n != 0} }
