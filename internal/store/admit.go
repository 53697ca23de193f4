package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/errandhq/errand/automation"
)

// Admit implements [automation.RunStore]. A repeated key, and the instant of a schedule or the delivery of a
// webhook that has been admitted before, answer with the run that the first request admitted, whatever became of
// the automation since.
func (s *Store) Admit(ctx context.Context, a automation.Admission) (automation.Run, error) {
	owner, ok := canonicalID(a.OwnerID)
	if !ok {
		return automation.Run{}, notFound("automation", a.AutomationID)
	}
	a.OwnerID = owner
	if len(a.Input) == 0 {
		a.Input = json.RawMessage("null")
	}
	if err := checkAdmission(a); err != nil {
		return automation.Run{}, err
	}
	var admitted *automation.Run
	var earlier string
	err := retry(ctx, func() error {
		return s.write(ctx, durable, func(ctx context.Context, tx querier) (err error) {
			admitted, earlier, err = s.admit(ctx, tx, a)
			return err
		})
	})
	if err != nil {
		return automation.Run{}, err
	}
	if admitted == nil {
		return s.Run(ctx, owner, earlier)
	}
	s.changed(admitted.ID, admitted.MachineID)
	return *admitted, nil
}

func checkAdmission(a automation.Admission) error {
	var wrong violations
	wrong.json("input", a.Input, automation.MaxInputBytes)
	wrong.checkKey(a.Key)
	switch a.Trigger.Kind {
	case automation.TriggerManual:
	case automation.TriggerSchedule:
		wrong.name("trigger.id", a.Trigger.ID, maxKeyBytes)
		if a.Trigger.ScheduledAt == nil {
			wrong.add("trigger.scheduledAt", "is required")
		}
	case automation.TriggerWebhook:
		wrong.name("trigger.id", a.Trigger.ID, maxKeyBytes)
		wrong.text("trigger.deliveryId", a.Trigger.DeliveryID, maxKeyBytes)
	default:
		wrong.add("trigger.kind", "is not a kind of trigger: manual, schedule or webhook")
	}
	return wrong.err()
}

// admit is the transaction of an admission. It returns the new run, or the id of the one that the same request
// has led to before.
func (s *Store) admit(ctx context.Context, tx querier, a automation.Admission) (*automation.Run, string, error) {
	now := s.now()
	earlier, err := earlierResult(ctx, tx, a.OwnerID, a.Key, now)
	if err != nil || earlier != "" {
		return nil, earlier, err
	}
	if earlier, err = triggered(ctx, tx, a); err != nil || earlier != "" {
		return nil, earlier, err
	}
	target, err := s.admissible(ctx, tx, a)
	if err != nil {
		return nil, "", err
	}
	run := s.newRun(a, target, now)
	if err := insertRun(ctx, tx, run); err != nil {
		return nil, "", err
	}
	if err := claimKey(ctx, tx, a.OwnerID, a.Key, run.ID, run.ID, now); err != nil {
		return nil, "", err
	}
	return run, "", nil
}

// triggered returns the run that the instant of a schedule or the delivery of a webhook has admitted, or "".
func triggered(ctx context.Context, tx querier, a automation.Admission) (string, error) {
	var q statement
	q.add(`SELECT id FROM runs WHERE owner_id = ? AND trigger_id = ?`, a.OwnerID, a.Trigger.ID)
	switch {
	case a.Trigger.Kind == automation.TriggerSchedule:
		q.add(` AND scheduled_at = ? AND trigger_kind = 'schedule'`, atOptional(a.Trigger.ScheduledAt))
	case a.Trigger.Kind == automation.TriggerWebhook && a.Trigger.DeliveryID != "":
		q.add(` AND delivery_id = ? AND trigger_kind = 'webhook'`, a.Trigger.DeliveryID)
	default:
		return "", nil
	}
	var id string
	if _, err := exists(tx.QueryRowContext(ctx, q.text.String(), q.args...).Scan(&id)); err != nil {
		return "", fmt.Errorf("looking for an earlier admission: %w", err)
	}
	return id, nil
}

// admissible returns the automation of an admission, with its plan, after all checks. It and its machine stay as
// they are until the commit.
func (s *Store) admissible(ctx context.Context, tx querier, a automation.Admission) (automation.Automation, error) {
	id, ok := canonicalID(a.AutomationID)
	if !ok {
		return automation.Automation{}, notFound("automation", a.AutomationID)
	}
	var plan sql.NullString
	var machine automation.MachineState
	target, err := scanAutomation(tx.QueryRowContext(ctx, `SELECT `+automationColumns+`, a.plan, m.state
		FROM automations a JOIN machines m ON m.id = a.machine_id
		WHERE a.id = $1 AND a.owner_id = $2 AND a.deleted_at IS NULL`+s.dialect.keep, id, a.OwnerID), &plan, &machine)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return automation.Automation{}, notFound("automation", a.AutomationID)
	case err != nil:
		return automation.Automation{}, fmt.Errorf("reading the automation of an admission: %w", err)
	case !target.Enabled:
		return automation.Automation{}, automation.Errorf(automation.CodeAutomationDisabled,
			"automation %s is disabled; enable it first", quoted(target.Name))
	}
	if target.Workflow.Compiled, err = decodePlan(plan); err != nil {
		return automation.Automation{}, fmt.Errorf("decoding the plan of automation %s: %w", id, err)
	}
	definition := automation.Definition{Workflow: target.Workflow}
	if err := definition.Executable(); err != nil {
		return automation.Automation{}, err
	}
	if machine != automation.MachineActive {
		return automation.Automation{}, machineRevoked(target.MachineID)
	}
	return target, nil
}

// newRun makes the pending run of an admission, with its snapshot and its journal.
func (s *Store) newRun(a automation.Admission, target automation.Automation, now time.Time) *automation.Run {
	run := &automation.Run{
		ID:                s.options.NewID(),
		OwnerID:           a.OwnerID,
		AutomationID:      target.ID,
		AutomationName:    target.Name,
		AutomationVersion: target.Version,
		MachineID:         target.MachineID,
		Trigger:           a.Trigger,
		Status:            automation.RunPending,
		Input:             a.Input,
		Plan:              target.Workflow.Compiled,
		CreatedAt:         now,
		Generation:        1,
		Revision:          1,
	}
	run.Trigger.ScheduledAt = atOptional(a.Trigger.ScheduledAt).optional()
	run.WorkflowID = automation.WorkflowID(s.installation.ID, run.ID, run.Generation)
	for _, step := range run.Plan.Steps {
		run.Steps = append(run.Steps, automation.StepRecord{ID: step.ID, Kind: step.Lane(), Status: automation.StepPending})
	}
	return run
}

// insertRun stores a new run. It loses the race to a run of the same instant or delivery.
func insertRun(ctx context.Context, tx querier, run *automation.Run) error {
	first, err := affected(tx.ExecContext(ctx, `INSERT INTO runs (id, owner_id, automation_id, automation_name,
			automation_version, machine_id, trigger_kind, trigger_id, scheduled_at, delivery_id, status, cancel_reason,
			engine_id, generation, revision, executing, open_ends, error_code, error_message, error_step_id,
			error_details, created_at, retry_of)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, '', '', $12, $13, 0, 0, '', '', '', '', $14, $15)
		ON CONFLICT DO NOTHING`,
		run.ID, run.OwnerID, run.AutomationID, run.AutomationName, run.AutomationVersion, run.MachineID,
		string(run.Trigger.Kind), optional(run.Trigger.ID), atOptional(run.Trigger.ScheduledAt),
		optional(run.Trigger.DeliveryID), string(run.Status), run.Generation, run.Revision, at(run.CreatedAt),
		optional(run.RetryOf)))
	if err != nil {
		return fmt.Errorf("storing a run: %w", err)
	}
	if !first {
		return errLostRace
	}
	plan, err := encode(run.Plan)
	if err != nil {
		return fmt.Errorf("encoding the plan of a run: %w", err)
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO snapshots (run_id, plan, input) VALUES ($1, $2, $3)`,
		run.ID, plan, string(run.Input)); err != nil {
		return fmt.Errorf("storing the snapshot of a run: %w", err)
	}
	return insertSteps(ctx, tx, run)
}

// insertSteps stores the journal of a new run, without outputs: one row per step, pending or carried.
func insertSteps(ctx context.Context, tx querier, run *automation.Run) error {
	const rowsAtOnce = 50
	position := 0
	for chunk := range slices.Chunk(run.Plan.Steps, rowsAtOnce) {
		var q statement
		q.add(`INSERT INTO steps (run_id, position, id, kind, summary, timeout_ms, status, attempt, begin_id, error_code,
			error_message, carried_from, unconfirmed, started_at, finished_at) VALUES `)
		for i, step := range chunk {
			if i > 0 {
				q.add(`, `)
			}
			record := run.Steps[position]
			q.add(`(?, ?, ?, ?, ?, ?, ?, 0, '', '', '', ?, ?, ?, ?)`, run.ID, position, step.ID, string(step.Lane()),
				summary(step), step.Timeout().Milliseconds(), string(record.Status), record.CarriedFrom, false,
				atOptional(record.StartedAt), atOptional(record.FinishedAt))
			position++
		}
		if _, err := q.exec(ctx, tx); err != nil {
			return fmt.Errorf("storing the steps of a run: %w", err)
		}
	}
	return nil
}

// summary is what operators see of a step in the engine: never its arguments.
func summary(step automation.Step) string {
	return clean(step.ID+" · "+step.Program(), maxSummaryBytes)
}
