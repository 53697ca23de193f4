package store

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/automation/schedule"
	"github.com/errandhq/errand/internal/strictjson"
)

// scheduleEdit changes the schedules of an automation in the transaction that changes the automation, in two steps:
// settle before the automation is stored, apply after it.
type scheduleEdit struct {
	store         *Store
	before, after target
	rows          []scheduleRow
	now           time.Time
	done          *settlement

	changes []scheduleChange
}

// scheduleChange is what becomes of one schedule.
type scheduleChange struct {
	row    *scheduleRow
	wanted *automation.ScheduleDefinition // nil: it is removed
	timing schedule.Timing
	added  bool
	// settled is set when what is due was settled, because the change may end or move the schedule's firings.
	settled bool
}

// settle finds out what is to change, refuses what is not valid, and settles what is due of every schedule that the
// change concerns, by the automation as it was.
func (e *scheduleEdit) settle(ctx context.Context, tx querier, wanted []automation.ScheduleDefinition) error {
	if err := e.match(wanted); err != nil {
		return err
	}
	if err := e.store.lockSchedules(ctx, tx, e.before.ID); err != nil {
		return err
	}
	for i := range e.changes {
		c := &e.changes[i]
		if c.added || !e.concerns(c) {
			continue
		}
		c.settled = true
		if err := e.store.settle(ctx, tx, e.before, c.row, e.now, e.done); err != nil {
			return err
		}
	}
	return nil
}

// match pairs the schedules that are stored with those that are wanted.
func (e *scheduleEdit) match(wanted []automation.ScheduleDefinition) error {
	var wrong violations
	kept := map[string]bool{}
	for i := range wanted {
		d := &wanted[i]
		path := strictjson.PathElement("schedules", i)
		if d.ID == "" {
			row := e.store.newSchedule(e.after, *d, e.now)
			timing, err := newTiming(&row, *d, e.now)
			wrong.timing(path, err)
			e.changes = append(e.changes, scheduleChange{row: &row, wanted: d, timing: timing, added: true})
			continue
		}
		at := slices.IndexFunc(e.rows, func(r scheduleRow) bool { return r.ID == d.ID })
		if at < 0 || kept[d.ID] {
			wrong.add(path+".id", "names no schedule of this automation, or one that is there already")
			continue
		}
		kept[d.ID] = true
		row := &e.rows[at]
		timing, err := newTiming(row, *d, e.now)
		wrong.timing(path, err)
		e.changes = append(e.changes, scheduleChange{row: row, wanted: d, timing: timing})
	}
	for i := range e.rows {
		if !kept[e.rows[i].ID] {
			e.changes = append(e.changes, scheduleChange{row: &e.rows[i]})
		}
	}
	return wrong.err()
}

// newTiming returns the timing of a wanted schedule. One that is the same as before is restored: its one instant may
// be past by now.
func newTiming(row *scheduleRow, d automation.ScheduleDefinition, now time.Time) (schedule.Timing, error) {
	if timing, err := schedule.Restore(d.Spec, row.createdAt); err == nil && timing.Equal(row.timing) {
		return timing, nil
	}
	timing, _, err := schedule.Parse(d.Spec, row.createdAt, now)
	return timing, err
}

// timing notes what is wrong with the timing of the schedule at path.
func (v *violations) timing(path string, err error) {
	var invalid *schedule.InvalidError
	if !errors.As(err, &invalid) {
		return
	}
	for _, violation := range invalid.Violations {
		at := path
		if violation.Path != "" {
			at += "." + violation.Path
		}
		v.add(at, violation.Message)
	}
}

// concerns reports whether a change touches when a schedule fires, or what it does with its firings.
func (e *scheduleEdit) concerns(c *scheduleChange) bool {
	return c.wanted == nil || e.before.Enabled != e.after.Enabled ||
		!reflect.DeepEqual(c.row.ScheduleDefinition, *c.wanted)
}

// apply makes the changes, and decides anew by the automation as it is from now on.
func (e *scheduleEdit) apply(ctx context.Context, tx querier) error {
	renamed := e.before.Name != e.after.Name || e.before.MachineID != e.after.MachineID
	for i := range e.changes {
		c := &e.changes[i]
		var err error
		switch {
		case c.added:
			err = e.store.addSchedule(ctx, tx, e.after, c.row, c.timing, e.now, e.done)
		case c.wanted == nil:
			err = removeSchedule(ctx, tx, c.row, e.now)
		case c.settled || renamed:
			err = e.change(ctx, tx, c, renamed)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// change changes one schedule by the functions of the core.
func (e *scheduleEdit) change(ctx context.Context, tx querier, c *scheduleChange, renamed bool) error {
	row := c.row
	state := row.state().Retime(c.timing, e.now).SetPolicy(c.wanted.Policy, e.now)
	resume := c.wanted.Resume
	row.ScheduleDefinition, row.automationEnabled = *c.wanted, e.after.Enabled
	row.Resume = false
	if row.disabled() {
		state = state.Disable()
	} else {
		state = state.Enable(e.now)
	}
	if resume {
		state = state.Resume(e.now)
	}
	row.take(state)
	if c.settled {
		if err := e.store.settle(ctx, tx, e.after, row, e.now, e.done); err != nil {
			return err
		}
	}
	return updateSchedule(ctx, tx, row, renamed, e.now)
}

// newSchedule makes the row of a schedule that is added to an automation.
func (s *Store) newSchedule(to target, d automation.ScheduleDefinition, now time.Time) scheduleRow {
	row := scheduleRow{ScheduleDefinition: d, automationID: to.ID, createdAt: now, automationEnabled: to.Enabled}
	row.ID, row.Resume = s.options.NewID(), false
	return row
}

// addSchedule stores a new schedule, which fires from now on.
func (s *Store) addSchedule(
	ctx context.Context, tx querier, to target, row *scheduleRow, timing schedule.Timing, now time.Time, done *settlement,
) error {
	row.take(schedule.New(row.ID, timing, row.Policy, now))
	if err := s.settle(ctx, tx, to, row, now, done); err != nil {
		return err
	}
	return insertSchedule(ctx, tx, row)
}

// addNewSchedules stores the schedules of a new automation.
func (s *Store) addNewSchedules(ctx context.Context, tx querier, id string, d automation.Definition, now time.Time) error {
	if len(d.Schedules) == 0 {
		return nil
	}
	to := target{Automation: automation.Automation{ID: id, Enabled: d.Enabled}}
	edit := scheduleEdit{store: s, after: to, now: now, done: &settlement{}}
	wanted := slices.Clone(d.Schedules)
	for i := range wanted {
		wanted[i].ID = "" // all of them are new
	}
	if err := edit.match(wanted); err != nil {
		return err
	}
	return edit.apply(ctx, tx)
}

// removeSchedule leaves a tombstone.
func removeSchedule(ctx context.Context, tx querier, row *scheduleRow, now time.Time) error {
	row.take(row.state().Remove())
	row.progress.nextWake, row.progress.nextRunAt = instant{}, instant{}
	row.removed = true
	return updateSchedule(ctx, tx, row, false, now)
}

// removeSchedules settles what is due of the schedules of an automation that is deleted, and leaves tombstones.
func (s *Store) removeSchedules(ctx context.Context, tx querier, current automation.Automation, done *settlement) error {
	rows, err := schedulesOf(ctx, tx, current.ID)
	if err != nil || len(rows) == 0 {
		return err
	}
	before, err := s.ownTarget(ctx, tx, current)
	if err != nil {
		return err
	}
	if err := s.lockSchedules(ctx, tx, current.ID); err != nil {
		return err
	}
	now := s.now()
	for i := range rows {
		if err := s.settle(ctx, tx, before, &rows[i], now, done); err != nil {
			return err
		}
		if err := removeSchedule(ctx, tx, &rows[i], now); err != nil {
			return fmt.Errorf("removing the schedules of a deleted automation: %w", err)
		}
	}
	return nil
}
