package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/errandhq/errand/automation"
)

// CreateAutomation implements [automation.AutomationStore]. not_found is the answer for an owner that does not
// exist.
func (s *Store) CreateAutomation(
	ctx context.Context, ownerID string, d automation.Definition, key automation.Idempotency,
) (automation.Automation, error) {
	owner, ok := canonicalID(ownerID)
	if !ok {
		return automation.Automation{}, notFound("owner", ownerID)
	}
	d = withInputs(d)
	if err := checkDefinition(d, key); err != nil {
		return automation.Automation{}, err
	}
	plan, err := encodePlan(d.Workflow.Compiled)
	if err != nil {
		return automation.Automation{}, translate(err)
	}
	var id string
	err = retry(ctx, func() error {
		return s.write(ctx, durable, func(ctx context.Context, tx querier) error {
			now := s.now()
			var err error
			if id, err = earlierResult(ctx, tx, owner, key, now); err != nil || id != "" {
				return err
			}
			machineID, err := s.machineForNew(ctx, tx, owner, d.MachineID)
			if err != nil {
				return err
			}
			id = s.options.NewID()
			if _, err := tx.ExecContext(ctx, `INSERT INTO automations (id, owner_id, version, name, name_folded, description,
					enabled, machine_id, script, plan, created_at, updated_at) VALUES ($1, $2, 1, $3, $4, $5, $6, $7, $8, $9, $10, $10)`,
				id, owner, d.Name, fold(d.Name), d.Description, d.Enabled, machineID, d.Workflow.Script, plan, at(now)); err != nil {
				return fmt.Errorf("storing an automation: %w", err)
			}
			if err := s.addNewSchedules(ctx, tx, id, d, now); err != nil {
				return err
			}
			if err := s.replaceWebhooks(ctx, tx, id, nil, d.Webhooks); err != nil {
				return err
			}
			return claimKey(ctx, tx, owner, key, id, "", now)
		})
	})
	if err != nil {
		return automation.Automation{}, err
	}
	return s.Automation(ctx, owner, id)
}

// encodePlan writes a plan as it is stored; NULL for a draft.
func encodePlan(plan *automation.Plan) (sql.NullString, error) {
	if plan == nil {
		return sql.NullString{}, nil
	}
	text, err := encode(plan)
	if err != nil {
		return sql.NullString{}, fmt.Errorf("encoding a plan: %w", err)
	}
	return sql.NullString{String: text, Valid: true}, nil
}

// checkDefinition refuses what the database cannot hold; what a definition may say is checked where it is decoded.
func checkDefinition(d automation.Definition, key automation.Idempotency) error {
	var wrong violations
	const bytesPerCharacter = utf8.UTFMax
	wrong.name("name", d.Name, automation.MaxNameLength*bytesPerCharacter)
	wrong.text("description", d.Description, automation.MaxDescriptionLength*bytesPerCharacter)
	wrong.text("workflow.script", d.Workflow.Script, automation.MaxScriptTextBytes)
	if d.Workflow.Compiled != nil {
		for i, step := range d.Workflow.Compiled.Steps { // the rest of a plan is stored as JSON, which holds any text
			wrong.name(fmt.Sprintf("workflow.compiled.steps[%d].id", i), step.ID, automation.MaxStepIDLength)
			wrong.text(fmt.Sprintf("workflow.compiled.steps[%d].kind", i), string(step.Kind), maxKeyBytes)
		}
	}
	wrong.checkSchedules(d.Schedules)
	wrong.checkWebhooks(d.Webhooks)
	wrong.checkKey(key)
	return wrong.err()
}

// machineForNew checks the machine that a new automation targets. It stays active until the commit.
func (s *Store) machineForNew(ctx context.Context, tx querier, ownerID, machineID string) (string, error) {
	known, _ := canonicalID(machineID)
	var state automation.MachineState
	var err error = sql.ErrNoRows
	if known != "" {
		err = tx.QueryRowContext(ctx, `SELECT state FROM machines WHERE id = $1 AND owner_id = $2`+s.dialect.keep,
			known, ownerID).Scan(&state)
	}
	switch {
	case errors.Is(err, sql.ErrNoRows):
		message := "is required"
		if machineID != "" {
			message = "names no machine of yours"
		}
		return "", automation.Invalid(automation.Violation{Path: "machineId", Message: message})
	case err != nil:
		return "", fmt.Errorf("looking up a machine: %w", err)
	case state != automation.MachineActive:
		return "", machineRevoked(known)
	}
	return known, nil
}

func machineRevoked(id string) error {
	return automation.Errorf(automation.CodeMachineRevoked, "machine %s is revoked; choose another one", id)
}

const automationColumns = `a.id, a.owner_id, a.version, a.name, a.description, a.enabled, a.machine_id, a.script,
	a.created_at, a.updated_at`

// scanAutomation reads the columns of an automation, and further ones into more.
func scanAutomation(row scanner, more ...any) (automation.Automation, error) {
	var a automation.Automation
	var created, updated instant
	columns := []any{
		&a.ID, &a.OwnerID, &a.Version, &a.Name, &a.Description, &a.Enabled, &a.MachineID, &a.Workflow.Script,
		&created, &updated,
	}
	if err := row.Scan(append(columns, more...)...); err != nil {
		return automation.Automation{}, err
	}
	a.CreatedAt, a.UpdatedAt = created.time(), updated.time()
	return a, nil
}

// Automation implements [automation.AutomationStore].
func (s *Store) Automation(ctx context.Context, ownerID, id string) (automation.Automation, error) {
	var a automation.Automation
	err := retry(ctx, func() (err error) {
		if a, err = s.automation(ctx, ownerID, id); err != nil {
			return err
		}
		return s.addTriggers(ctx, &a)
	})
	if err != nil {
		return automation.Automation{}, err
	}
	return a, nil
}

// addTriggers reads the triggers of an automation. It loses the race to a change that came after a was read.
func (s *Store) addTriggers(ctx context.Context, a *automation.Automation) error {
	schedules, err := schedulesOf(ctx, s.read, a.ID)
	if err != nil {
		return err
	}
	for i := range schedules {
		a.Schedules = append(a.Schedules, schedules[i].public())
	}
	if a.Webhooks, err = webhooksOf(ctx, s.read, a.ID); err != nil {
		return err
	}
	var version int64
	if err := s.read.QueryRowContext(ctx, `SELECT version FROM automations WHERE id = $1`, a.ID).Scan(&version); err != nil {
		return fmt.Errorf("reading automation %s again: %w", a.ID, err)
	}
	if version != a.Version {
		return errLostRace
	}
	return nil
}

// automation reads an automation without its triggers.
func (s *Store) automation(ctx context.Context, ownerID, id string) (automation.Automation, error) {
	var q statement
	q.add(`SELECT ` + automationColumns + `, a.plan FROM automations a WHERE a.deleted_at IS NULL AND a.id = `)
	known := q.addID(id)
	q.add(` AND a.owner_id = `)
	if known = q.addID(ownerID) && known; !known {
		return automation.Automation{}, notFound("automation", id)
	}
	var plan sql.NullString
	a, err := scanAutomation(s.read.QueryRowContext(ctx, q.text.String(), q.args...), &plan)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return automation.Automation{}, notFound("automation", id)
	case err != nil:
		return automation.Automation{}, fmt.Errorf("reading automation %s: %w", id, err)
	}
	if a.Workflow.Compiled, err = decodePlan(plan); err != nil {
		return automation.Automation{}, fmt.Errorf("decoding the plan of automation %s: %w", id, err)
	}
	return a, nil
}

// decodePlan reads a stored plan; nil for a draft.
func decodePlan(plan sql.NullString) (*automation.Plan, error) {
	if !plan.Valid {
		return nil, nil //nolint:nilnil // no plan is a draft
	}
	var decoded automation.Plan
	if err := json.Unmarshal([]byte(plan.String), &decoded); err != nil {
		return nil, err
	}
	return &decoded, nil
}

// ListAutomations implements [automation.AutomationStore]. The query is compared character by character, in any
// case, by the case rules of Unicode on both databases. Ids in the filter that name nothing select nothing.
func (s *Store) ListAutomations(
	ctx context.Context, ownerID string, f automation.AutomationFilter,
) ([]automation.Automation, string, error) {
	var wrong violations
	wrong.text("query", f.Query, maxQueryBytes)
	after := wrong.cursor(listAutomations, f.Cursor)
	if err := wrong.err(); err != nil {
		return nil, "", err
	}
	var q statement
	q.add(`SELECT ` + automationColumns + ` FROM automations a WHERE a.deleted_at IS NULL AND a.owner_id = `)
	possible := q.addID(ownerID)
	if f.MachineID != "" {
		q.add(` AND a.machine_id = `)
		possible = q.addID(f.MachineID) && possible
	}
	if !possible {
		return nil, "", nil
	}
	if f.Enabled != nil {
		q.add(` AND a.enabled = ?`, *f.Enabled)
	}
	if f.Query != "" {
		q.add(` AND a.name_folded LIKE ? ESCAPE '\'`, containing(fold(f.Query)))
	}
	if after != nil {
		q.add(` AND (a.created_at, a.id) < (?, ?)`, after.createdAt, after.id)
	}
	size := pageSize(f.Limit)
	q.add(` ORDER BY a.created_at DESC, a.id DESC LIMIT ?`, size+1)
	rows, err := q.query(ctx, s.read)
	found, err := collect(rows, err, func(row scanner) (automation.Automation, error) { return scanAutomation(row) })
	if err != nil {
		return nil, "", translate(fmt.Errorf("listing automations: %w", err))
	}
	found, next := page(found, size, listAutomations, func(a automation.Automation) position {
		return position{createdAt: at(a.CreatedAt), id: a.ID}
	})
	if err := s.addSchedules(ctx, found); err != nil {
		return nil, "", translate(err)
	}
	return found, next, nil
}

// fold makes texts comparable in any case. The program does it, because SQLite knows the case of ASCII only and
// PostgreSQL that of its locale.
func fold(s string) string { return strings.ToLower(s) }

// containing is the LIKE pattern of texts that contain s.
func containing(s string) string {
	return "%" + strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(s) + "%"
}
