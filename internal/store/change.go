package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"

	"github.com/errandhq/errand/automation"
)

// UpdateAutomation implements [automation.AutomationStore].
func (s *Store) UpdateAutomation(
	ctx context.Context, ownerID, id string, expectedVersion int64, change func(*automation.Definition) error,
) (automation.Automation, error) {
	err := retry(ctx, func() error {
		return s.write(ctx, durable, func(ctx context.Context, tx querier) error {
			current, err := s.ownAutomation(ctx, tx, ownerID, id, expectedVersion)
			if err != nil {
				return err
			}
			before := definitionOf(current)
			after := definitionOf(current)
			if err := change(&after); err != nil {
				return err
			}
			if reflect.DeepEqual(before, after) {
				return nil
			}
			return s.replaceDefinition(ctx, tx, current, after)
		})
	})
	if err != nil {
		return automation.Automation{}, err
	}
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
	return current, nil
}

func definitionOf(a automation.Automation) automation.Definition {
	return automation.Definition{
		Name: a.Name, Description: a.Description, Enabled: a.Enabled, MachineID: a.MachineID, Workflow: a.Workflow,
	}
}

// replaceDefinition stores a changed definition as the next version.
func (s *Store) replaceDefinition(ctx context.Context, tx querier, current automation.Automation, d automation.Definition) error {
	if err := checkDefinition(d, automation.Idempotency{}); err != nil {
		return err
	}
	machineID := current.MachineID
	if d.MachineID != machineID {
		var err error
		if machineID, err = s.machineForNew(ctx, tx, current.OwnerID, d.MachineID); err != nil {
			return err
		}
	}
	plan, err := encodePlan(d.Workflow.Compiled)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `UPDATE automations SET version = version + 1, name = $2, name_folded = $3, description = $4,
			enabled = $5, machine_id = $6, script = $7, plan = $8, updated_at = $9 WHERE id = $1`,
		current.ID, d.Name, fold(d.Name), d.Description, d.Enabled, machineID, d.Workflow.Script, plan, at(s.now())); err != nil {
		return fmt.Errorf("storing a changed automation: %w", err)
	}
	return nil
}

// DeleteAutomation implements [automation.AutomationStore].
func (s *Store) DeleteAutomation(ctx context.Context, ownerID, id string, expectedVersion int64) error {
	return retry(ctx, func() error {
		return s.write(ctx, durable, func(ctx context.Context, tx querier) error {
			current, err := s.ownAutomation(ctx, tx, ownerID, id, expectedVersion)
			if err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, `UPDATE automations SET deleted_at = $2 WHERE id = $1`, current.ID, at(s.now())); err != nil {
				return fmt.Errorf("deleting an automation: %w", err)
			}
			return nil
		})
	})
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
