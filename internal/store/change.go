package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/errandhq/errand/automation"
)

// UpdateAutomation implements [automation.AutomationStore].
func (s *Store) UpdateAutomation(
	ctx context.Context, ownerID, id string, expectedVersion int64, change func(*automation.Definition) error,
) (automation.Automation, error) {
	var done settlement
	err := retry(ctx, func() error {
		return s.writeSettled(ctx, func(ctx context.Context, tx querier) error {
			done = settlement{}
			current, err := s.ownAutomation(ctx, tx, ownerID, id, expectedVersion)
			if err != nil {
				return err
			}
			// Nobody else changes definitions of schedules meanwhile: whoever does owns the automation.
			schedules, err := schedulesOf(ctx, tx, current.ID)
			if err != nil {
				return err
			}
			before, after := definitionOf(current, schedules), definitionOf(current, schedules)
			if err := change(&after); err != nil {
				return err
			}
			after = withInputs(after)
			if reflect.DeepEqual(before, after) {
				return nil
			}
			return s.replaceDefinition(ctx, tx, current, schedules, after, &done)
		})
	})
	if err != nil {
		return automation.Automation{}, err
	}
	s.tell(done)
	return s.Automation(ctx, ownerID, id)
}

// ownAutomation reads an automation that is about to be changed and keeps everybody else from it until the
// commit: an admission that has read it comes first, whole, or after, whole.
func (s *Store) ownAutomation(
	ctx context.Context, tx querier, ownerID, id string, expectedVersion int64,
) (automation.Automation, error) {
	known, ok := canonicalID(id)
	owner, isOwner := canonicalID(ownerID)
	if !ok || !isOwner {
		return automation.Automation{}, notFound("automation", id)
	}
	var plan sql.NullString
	current, err := scanAutomation(tx.QueryRowContext(ctx, `SELECT `+automationColumns+`, a.plan FROM automations a
		WHERE a.deleted_at IS NULL AND a.id = $1 AND a.owner_id = $2`+s.dialect.own, known, owner), &plan)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return automation.Automation{}, notFound("automation", id)
	case err != nil:
		return automation.Automation{}, fmt.Errorf("reading automation %s: %w", known, err)
	case expectedVersion != 0 && expectedVersion != current.Version:
		return automation.Automation{}, automation.Errorf(automation.CodeVersionConflict,
			"the automation is at version %d, not %d: read it again and repeat the change", current.Version, expectedVersion)
	}
	if current.Workflow.Compiled, err = decodePlan(plan); err != nil {
		return automation.Automation{}, fmt.Errorf("decoding the plan of automation %s: %w", known, err)
	}
	if current.Webhooks, err = webhooksOf(ctx, tx, current.ID); err != nil {
		return automation.Automation{}, err
	}
	return current, nil
}

func definitionOf(a automation.Automation, schedules []scheduleRow) automation.Definition {
	d := automation.Definition{
		Name: a.Name, Description: a.Description, Enabled: a.Enabled, MachineID: a.MachineID, Workflow: a.Workflow,
	}
	for i := range schedules {
		d.Schedules = append(d.Schedules, schedules[i].ScheduleDefinition)
	}
	for _, w := range a.Webhooks {
		d.Webhooks = append(d.Webhooks, w.WebhookDefinition)
	}
	return d
}

// withInputs spells out the inputs of schedules that have none.
func withInputs(d automation.Definition) automation.Definition {
	d.Schedules = slices.Clone(d.Schedules)
	for i := range d.Schedules {
		if len(d.Schedules[i].Input) == 0 {
			d.Schedules[i].Input = json.RawMessage("null")
		}
	}
	return d
}

// replaceDefinition stores a changed definition as the next version. A change that only resumes schedules leaves the
// version.
func (s *Store) replaceDefinition(
	ctx context.Context, tx querier, current automation.Automation, schedules []scheduleRow, d automation.Definition, done *settlement,
) error {
	if err := checkDefinition(d, automation.Idempotency{}); err != nil {
		return err
	}
	before, err := s.ownTarget(ctx, tx, current)
	if err != nil {
		return err
	}
	after := before
	after.Name, after.Enabled, after.Workflow = d.Name, d.Enabled, d.Workflow
	if d.MachineID != current.MachineID {
		if after.MachineID, err = s.machineForNew(ctx, tx, current.OwnerID, d.MachineID); err != nil {
			return err
		}
		after.machine = automation.MachineActive
	}
	if !reflect.DeepEqual(definitionOf(current, schedules), withoutResume(d)) {
		after.Version++
	}
	edit := scheduleEdit{store: s, before: before, after: after, rows: schedules, now: s.now(), done: done}
	if err := edit.settle(ctx, tx, d.Schedules); err != nil {
		return err
	}
	if after.Version > before.Version {
		if err := updateDefinition(ctx, tx, after, d, edit.now); err != nil {
			return err
		}
		if err := s.replaceWebhooks(ctx, tx, current.ID, current.Webhooks, d.Webhooks); err != nil {
			return err
		}
	}
	return edit.apply(ctx, tx)
}

func withoutResume(d automation.Definition) automation.Definition {
	d.Schedules = slices.Clone(d.Schedules)
	for i := range d.Schedules {
		d.Schedules[i].Resume = false
	}
	return d
}

// ownTarget returns an automation that is about to be changed as a target of admissions.
func (s *Store) ownTarget(ctx context.Context, tx querier, current automation.Automation) (target, error) {
	t := target{Automation: current}
	if err := tx.QueryRowContext(ctx, `SELECT state FROM machines WHERE id = $1`+s.dialect.keep, current.MachineID).
		Scan(&t.machine); err != nil {
		return target{}, fmt.Errorf("reading the machine of automation %s: %w", current.ID, err)
	}
	return t, nil
}

func updateDefinition(ctx context.Context, tx querier, after target, d automation.Definition, now time.Time) error {
	plan, err := encodePlan(d.Workflow.Compiled)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `UPDATE automations SET version = $2, name = $3, name_folded = $4, description = $5,
			enabled = $6, machine_id = $7, script = $8, plan = $9, updated_at = $10 WHERE id = $1`,
		after.ID, after.Version, d.Name, fold(d.Name), d.Description, d.Enabled, after.MachineID, d.Workflow.Script, plan,
		at(now)); err != nil {
		return fmt.Errorf("storing a changed automation: %w", err)
	}
	return nil
}

// DeleteAutomation implements [automation.AutomationStore].
func (s *Store) DeleteAutomation(ctx context.Context, ownerID, id string, expectedVersion int64) error {
	var done settlement
	err := retry(ctx, func() error {
		return s.writeSettled(ctx, func(ctx context.Context, tx querier) error {
			done = settlement{}
			current, err := s.ownAutomation(ctx, tx, ownerID, id, expectedVersion)
			if err != nil {
				return err
			}
			if err := s.removeSchedules(ctx, tx, current, &done); err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, `UPDATE automations SET deleted_at = $2 WHERE id = $1`, current.ID, at(s.now())); err != nil {
				return fmt.Errorf("deleting an automation: %w", err)
			}
			return s.replaceWebhooks(ctx, tx, current.ID, current.Webhooks, nil)
		})
	})
	if err == nil {
		s.tell(done)
	}
	return err
}

// UnfinishedRuns implements [automation.RunStore].
func (s *Store) UnfinishedRuns(ctx context.Context, ownerID, automationID string, limit int) ([]string, int, error) {
	owner, isOwner := canonicalID(ownerID)
	id, ok := canonicalID(automationID)
	if !ok || !isOwner {
		return nil, 0, nil
	}
	const unfinished = ` FROM runs WHERE owner_id = $1 AND automation_id = $2 AND finished_at IS NULL`
	var count int
	if err := s.read.QueryRowContext(ctx, `SELECT count(*)`+unfinished, owner, id).Scan(&count); err != nil {
		return nil, 0, translate(fmt.Errorf("counting unfinished runs: %w", err))
	}
	rows, err := s.read.QueryContext(ctx, `SELECT id`+unfinished+` ORDER BY created_at, id LIMIT $3`, owner, id, limit)
	if err != nil {
		return nil, 0, translate(fmt.Errorf("reading unfinished runs: %w", err))
	}
	defer rows.Close()
	var ids []string
	for rows.Next() {
		var run string
		if err := rows.Scan(&run); err != nil {
			return nil, 0, translate(fmt.Errorf("reading unfinished runs: %w", err))
		}
		ids = append(ids, run)
	}
	return ids, count, translate(rows.Err())
}
