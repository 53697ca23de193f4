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

// Admit implements [automation.RunStore]. A repeated key, and the delivery of a webhook that has been admitted before,
// answer with the run that the first request admitted, whatever became of the automation since.
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
	var did tally
	did.admitted(admitted)
	s.count(did)
	return *admitted, nil
}

func checkAdmission(a automation.Admission) error {
	var wrong violations
	wrong.json("input", a.Input, automation.MaxInputBytes)
	wrong.checkKey(a.Key)
	switch a.Trigger.Kind {
	case automation.TriggerManual:
	case automation.TriggerSchedule:
		wrong.add("trigger.kind", "is schedule, whose instants are admitted when the schedule is decided")
	case automation.TriggerWebhook:
		if _, ok := canonicalID(a.Trigger.ID); !ok {
			wrong.add("trigger.id", "is not the id of a webhook")
		}
		wrong.text("trigger.deliveryId", a.Trigger.DeliveryID, maxKeyBytes)
		for _, key := range a.DeliveryKeys {
			wrong.name("deliveryKeys", key, maxKeyBytes)
		}
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
	if earlier, err = deliveredBefore(ctx, tx, a, now); err != nil || earlier != "" {
		return nil, earlier, err
	}
	id, ok := canonicalID(a.AutomationID)
	if !ok {
		return nil, "", notFound("automation", a.AutomationID)
	}
	to, err := s.targetOf(ctx, tx, id, a.OwnerID)
	if err != nil {
		return nil, "", err
	}
	if err := to.refusal(); err != nil {
		return nil, "", err
	}
	if a.Trigger.Kind == automation.TriggerWebhook {
		if err := openWebhook(ctx, tx, a); err != nil {
			return nil, "", err
		}
	}
	run := s.newRun(a, to.Automation, now)
	if err := insertRun(ctx, tx, run, place{}); err != nil {
		return nil, "", err
	}
	if err := claimKey(ctx, tx, a.OwnerID, a.Key, run.ID, run.ID, now); err != nil {
		return nil, "", err
	}
	if a.Trigger.Kind == automation.TriggerWebhook {
		if err := claimDelivery(ctx, tx, a, run.ID, now); err != nil {
			return nil, "", err
		}
	}
	return run, "", nil
}

// target is an automation that runs are admitted to, with its plan, and the state of its machine.
type target struct {
	automation.Automation
	machine automation.MachineState
}

// refusal says why no run can be admitted, or nil: automation_disabled, not_executable, unsupported_plan_version,
// machine_revoked. It is the same for every kind of trigger.
func (t target) refusal() error {
	if !t.Enabled {
		return automation.Errorf(automation.CodeAutomationDisabled,
			"automation %s is disabled; enable it first", quoted(t.Name))
	}
	definition := automation.Definition{Workflow: t.Workflow}
	if err := definition.Executable(); err != nil {
		return err
	}
	if t.machine != automation.MachineActive {
		return machineRevoked(t.MachineID)
	}
	return nil
}

// targetOf reads the automation of an admission, whoever owns it when ownerID is empty. It and its machine stay as
// they are until the commit. They are locked one after the other: PostgreSQL reads a row again that it had to wait
// for, but not what was joined to it, and would not find an automation that was moved to another machine meanwhile.
func (s *Store) targetOf(ctx context.Context, tx querier, id, ownerID string) (target, error) {
	var machineID string
	found, err := exists(tx.QueryRowContext(ctx, `SELECT machine_id FROM automations
		WHERE id = $1 AND deleted_at IS NULL`+s.dialect.keep, id).Scan(&machineID))
	if err != nil {
		return target{}, fmt.Errorf("locking the automation of an admission: %w", err)
	}
	if !found {
		return target{}, notFound("automation", id)
	}
	var q statement
	q.add(`SELECT `+automationColumns+`, a.plan, m.state FROM automations a JOIN machines m ON m.id = a.machine_id
		WHERE a.deleted_at IS NULL AND a.id = ?`, id)
	if ownerID != "" {
		q.add(` AND a.owner_id = ?`, ownerID)
	}
	q.add(s.dialect.keep)
	var plan sql.NullString
	var t target
	t.Automation, err = scanAutomation(tx.QueryRowContext(ctx, q.text.String(), q.args...), &plan, &t.machine)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return target{}, notFound("automation", id)
	case err != nil:
		return target{}, fmt.Errorf("reading the automation of an admission: %w", err)
	}
	if t.Workflow.Compiled, err = decodePlan(plan); err != nil {
		return target{}, fmt.Errorf("decoding the plan of automation %s: %w", id, err)
	}
	return t, nil
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
func insertRun(ctx context.Context, tx querier, run *automation.Run, p place) error {
	first, err := affected(tx.ExecContext(ctx, `INSERT INTO runs (id, owner_id, automation_id, automation_name,
			automation_version, machine_id, trigger_kind, trigger_id, scheduled_at, delivery_id, status, cancel_reason,
			engine_id, generation, revision, executing, open_ends, error_code, error_message, error_step_id,
			error_details, created_at, retry_of, occurrence, held, late)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, '', '', $12, $13, 0, 0, '', '', '', '', $14, $15, $16, $17, $18)
		ON CONFLICT DO NOTHING`,
		run.ID, run.OwnerID, run.AutomationID, run.AutomationName, run.AutomationVersion, run.MachineID,
		string(run.Trigger.Kind), optional(run.Trigger.ID), atOptional(run.Trigger.ScheduledAt),
		optional(run.Trigger.DeliveryID), string(run.Status), run.Generation, run.Revision, at(run.CreatedAt),
		optional(run.RetryOf), optionalNumber(p.occurrence), p.held, run.Trigger.Late))
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
