package store

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"github.com/errandhq/errand/automation"
)

// runRow is the part of a run that changes, as its columns hold it. Two rows are compared with == to tell
// whether a transition has changed the run.
type runRow struct {
	status            string
	cancelRequestedAt instant
	cancelReason      string
	engineID          string
	generation        int64
	executing         int
	openEnds          int
	errorCode         string
	errorMessage      string
	errorStepID       string
	errorDetails      string
	startedAt         instant
	finishedAt        instant
	restartedAt       instant
	restartReason     string
	stalledAt         instant
}

func rowOfRun(r *automation.Run) (runRow, error) {
	row := runRow{
		status:            string(r.Status),
		cancelRequestedAt: atOptional(r.CancelRequestedAt),
		cancelReason:      r.CancelReason,
		engineID:          r.EngineID,
		generation:        r.Generation,
		openEnds:          len(r.OpenEnds()),
		startedAt:         atOptional(r.StartedAt),
		finishedAt:        atOptional(r.FinishedAt),
		stalledAt:         atOptional(r.StalledAt),
	}
	if r.Restarted != nil {
		row.restartedAt, row.restartReason = at(r.Restarted.At), r.Restarted.Reason
	}
	for _, step := range r.Steps {
		if step.Status == automation.StepRunning && step.RetryAt == nil && !r.Status.Finished() {
			row.executing++
		}
	}
	if r.Error == nil {
		return row, nil
	}
	details, err := encode(r.Error.Details)
	if err != nil {
		return runRow{}, fmt.Errorf("encoding the error of a run: %w", err)
	}
	row.errorCode, row.errorMessage = r.Error.Code, r.Error.Message
	row.errorStepID, row.errorDetails = r.Error.StepID, details
	return row, nil
}

// stepRow is the part of a step that changes, except its output.
type stepRow struct {
	status           string
	attempt          int64
	beginID          string
	startedAt        instant
	finishedAt       instant
	retryAt          instant
	firstTransientAt instant
	errorCode        string
	errorMessage     string
	unconfirmed      bool
}

func rowOfStep(s *automation.StepRecord) stepRow {
	row := stepRow{
		status:           string(s.Status),
		attempt:          s.Attempt,
		beginID:          s.BeginID,
		startedAt:        atOptional(s.StartedAt),
		finishedAt:       atOptional(s.FinishedAt),
		retryAt:          atOptional(s.RetryAt),
		firstTransientAt: atOptional(s.FirstTransientAt),
		unconfirmed:      s.Unconfirmed,
	}
	if s.Error != nil {
		row.errorCode, row.errorMessage = string(s.Error.Code), s.Error.Message
	}
	return row
}

const runColumns = `r.id, r.owner_id, r.automation_id, r.automation_name, r.automation_version, r.machine_id,
	r.trigger_kind, r.trigger_id, r.scheduled_at, r.delivery_id, r.retry_of, r.status, r.cancel_requested_at,
	r.cancel_reason, r.engine_id, r.generation, r.revision, r.error_code, r.error_message, r.error_step_id,
	r.error_details, r.created_at, r.started_at, r.finished_at, r.restarted_at, r.restart_reason, r.stalled_at,
	r.late, CASE WHEN r.held AND r.finished_at IS NULL THEN (SELECT e.id FROM runs e
		WHERE e.trigger_id = r.trigger_id AND e.trigger_kind = 'schedule' AND e.finished_at IS NULL
			AND e.occurrence < r.occurrence ORDER BY e.occurrence DESC LIMIT 1) END`

const stepColumns = `s.id, s.kind, s.status, s.attempt, s.begin_id, s.started_at, s.finished_at, s.retry_at,
	s.first_transient_at, s.error_code, s.error_message, s.carried_from, s.unconfirmed`

// runScan holds the columns of a run while a row is read.
type runScan struct {
	run                                     automation.Run
	triggerID, deliveryID, retryOf          sql.NullString
	waitsFor                                sql.NullString
	errorCode, errorMessage, errorStepID    string
	errorDetails                            string
	scheduledAt, cancelRequestedAt, created instant
	started, finished, restarted, stalled   instant
	restartReason                           string
}

func (s *runScan) columns() []any {
	r := &s.run
	return []any{
		&r.ID, &r.OwnerID, &r.AutomationID, &r.AutomationName, &r.AutomationVersion, &r.MachineID,
		&r.Trigger.Kind, &s.triggerID, &s.scheduledAt, &s.deliveryID, &s.retryOf, &r.Status, &s.cancelRequestedAt,
		&r.CancelReason, &r.EngineID, &r.Generation, &r.Revision, &s.errorCode, &s.errorMessage, &s.errorStepID,
		&s.errorDetails, &s.created, &s.started, &s.finished, &s.restarted, &s.restartReason, &s.stalled,
		&r.Trigger.Late, &s.waitsFor,
	}
}

// finish returns the run that was read.
func (s *runScan) finish(installationID string) (automation.Run, error) {
	r := s.run
	r.Trigger.ID, r.Trigger.DeliveryID, r.RetryOf = s.triggerID.String, s.deliveryID.String, s.retryOf.String
	r.Trigger.ScheduledAt = s.scheduledAt.optional()
	r.WaitsFor = s.waitsFor.String
	r.CancelRequestedAt = s.cancelRequestedAt.optional()
	r.CreatedAt, r.StartedAt, r.FinishedAt = s.created.time(), s.started.optional(), s.finished.optional()
	r.WorkflowID = automation.WorkflowID(installationID, r.ID, r.Generation)
	r.StalledAt = s.stalled.optional()
	if s.restarted.valid {
		r.Restarted = &automation.Restart{Count: r.Generation - 1, At: s.restarted.time(), Reason: s.restartReason}
	}
	if s.errorCode == "" {
		return r, nil
	}
	r.Error = &automation.RunError{Code: s.errorCode, Message: s.errorMessage, StepID: s.errorStepID}
	if err := json.Unmarshal([]byte(s.errorDetails), &r.Error.Details); err != nil {
		return automation.Run{}, fmt.Errorf("decoding the error of run %s: %w", r.ID, err)
	}
	return r, nil
}

// stepScan holds the columns of a step while a row is read.
type stepScan struct {
	step                                 automation.StepRecord
	started, finished, retry, transients instant
	errorCode, errorMessage              string
}

func (s *stepScan) columns() []any {
	r := &s.step
	return []any{
		&r.ID, &r.Kind, &r.Status, &r.Attempt, &r.BeginID, &s.started, &s.finished, &s.retry,
		&s.transients, &s.errorCode, &s.errorMessage, &r.CarriedFrom, &r.Unconfirmed,
	}
}

func scanStep(row scanner) (automation.StepRecord, error) {
	var step stepScan
	if err := row.Scan(step.columns()...); err != nil {
		return automation.StepRecord{}, err
	}
	return step.finish(), nil
}

func (s *stepScan) finish() automation.StepRecord {
	r := s.step
	r.StartedAt, r.FinishedAt = s.started.optional(), s.finished.optional()
	r.RetryAt, r.FirstTransientAt = s.retry.optional(), s.transients.optional()
	if s.errorCode != "" {
		r.Error = &automation.StepError{Code: automation.StepCode(s.errorCode), Message: s.errorMessage}
	}
	return r
}

// runState is what a transition works on: a run without plan, input and outputs, and what it needs to know of
// its machine.
type runState struct {
	automation.Run
	machineRevoked bool
}

// state reads the state of one run that the caller may see. Errors: not_found; errLostRace when the run changed
// between the two statements.
func (s *Store) state(ctx context.Context, q querier, id string, visible func(*automation.Run) bool) (runState, error) {
	known, ok := canonicalID(id)
	if !ok {
		return runState{}, notFound("run", id)
	}
	var scan runScan
	var machine automation.MachineState
	found, err := exists(q.QueryRowContext(ctx, `SELECT `+runColumns+`, m.state
		FROM runs r JOIN machines m ON m.id = r.machine_id WHERE r.id = $1`, known).Scan(append(scan.columns(), &machine)...))
	if err != nil {
		return runState{}, fmt.Errorf("reading run %s: %w", known, err)
	}
	if !found {
		return runState{}, notFound("run", id)
	}
	run, err := scan.finish(s.installation.ID)
	if err != nil {
		return runState{}, err
	}
	if !visible(&run) {
		return runState{}, notFound("run", id)
	}
	rows, err := q.QueryContext(ctx, `SELECT `+stepColumns+` FROM runs r JOIN steps s ON s.run_id = r.id
		WHERE r.id = $1 AND r.revision = $2 ORDER BY s.position`, known, run.Revision)
	run.Steps, err = collect(rows, err, scanStep)
	if err != nil {
		return runState{}, fmt.Errorf("reading the steps of run %s: %w", known, err)
	}
	if len(run.Steps) == 0 {
		return runState{}, errLostRace
	}
	return runState{Run: run, machineRevoked: machine == automation.MachineRevoked}, nil
}

// Run implements [automation.RunStore].
func (s *Store) Run(ctx context.Context, ownerID, id string) (automation.Run, error) {
	run, err := s.RunState(ctx, ownerID, id)
	if err != nil {
		return automation.Run{}, err
	}
	snapshot, err := s.snapshot(ctx, run.ID)
	if err != nil {
		return automation.Run{}, translate(err)
	}
	run.Plan, run.Input = &snapshot.plan, snapshot.input
	if err := s.addOutputs(ctx, &run); err != nil {
		return automation.Run{}, translate(err)
	}
	return run, nil
}

// RunState implements [automation.RunStore].
func (s *Store) RunState(ctx context.Context, ownerID, id string) (automation.Run, error) {
	var state runState
	err := retry(ctx, func() (err error) {
		state, err = s.state(ctx, s.read, id, func(r *automation.Run) bool { return sameID(r.OwnerID, ownerID) })
		return err
	})
	return state.Run, err
}

// RunStatus implements [automation.RunStore].
func (s *Store) RunStatus(ctx context.Context, ownerID, id string) (automation.RunStatus, error) {
	known, ok := canonicalID(id)
	owner, isOwner := canonicalID(ownerID)
	if !ok || !isOwner {
		return "", notFound("run", id)
	}
	var status automation.RunStatus
	err := retry(ctx, func() error {
		found, err := exists(s.read.QueryRowContext(ctx,
			`SELECT status FROM runs WHERE id = $1 AND owner_id = $2`, known, owner).Scan(&status))
		switch {
		case err != nil:
			return fmt.Errorf("reading the status of run %s: %w", known, err)
		case !found:
			return notFound("run", id)
		}
		return nil
	})
	return status, err
}

// sameID compares an id of the database with one of a caller.
func sameID(stored, given string) bool {
	known, ok := canonicalID(given)
	return ok && known == stored
}

// addOutputs reads the outputs of the steps that have ended. The journal may have moved on since the steps
// were read: an output of a step that had not ended by then is left out.
func (s *Store) addOutputs(ctx context.Context, run *automation.Run) error {
	rows, err := s.read.QueryContext(ctx,
		`SELECT position, output FROM steps WHERE run_id = $1 AND output IS NOT NULL`, run.ID)
	err = each(rows, err, func(row scanner) error {
		var position int
		var output []byte
		if err := row.Scan(&position, &output); err != nil {
			return err
		}
		if position < len(run.Steps) && run.Steps[position].FinishedAt != nil {
			run.Steps[position].Output = output
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("reading the outputs of a run: %w", err)
	}
	return nil
}

// snapshot is what a run executes; it never changes.
type snapshot struct {
	plan  automation.Plan
	input json.RawMessage
}

func (s *Store) snapshot(ctx context.Context, runID string) (snapshot, error) {
	var plan, input []byte
	err := s.read.QueryRowContext(ctx, `SELECT plan, input FROM snapshots WHERE run_id = $1`, runID).Scan(&plan, &input)
	if err != nil {
		return snapshot{}, fmt.Errorf("reading the snapshot of run %s: %w", runID, err)
	}
	loaded := snapshot{input: input}
	if err := json.Unmarshal(plan, &loaded.plan); err != nil {
		return snapshot{}, fmt.Errorf("decoding the plan of run %s: %w", runID, err)
	}
	return loaded, nil
}

// ListRuns implements [automation.RunStore]. Ids in the filter that name nothing select nothing.
func (s *Store) ListRuns(ctx context.Context, ownerID string, f automation.RunFilter) ([]automation.Run, string, error) {
	q, possible, err := runQuery(ownerID, f)
	if err != nil || !possible {
		return nil, "", err
	}
	rows, err := q.query(ctx, s.read)
	runs, err := collect(rows, err, func(row scanner) (automation.Run, error) {
		var run runScan
		if err := row.Scan(run.columns()...); err != nil {
			return automation.Run{}, err
		}
		return run.finish(s.installation.ID)
	})
	if err != nil {
		return nil, "", translate(fmt.Errorf("listing runs: %w", err))
	}
	runs, next := page(runs, pageSize(f.Limit), listRuns, func(r automation.Run) position {
		return position{createdAt: at(r.CreatedAt), id: r.ID}
	})
	if err := s.addSteps(ctx, runs); err != nil {
		return nil, "", translate(err)
	}
	return runs, next, nil
}

// runQuery returns the statement of a listing, and false when the filter cannot select anything.
func runQuery(ownerID string, f automation.RunFilter) (*statement, bool, error) {
	var wrong violations
	switch f.Status {
	case "", automation.RunPending, automation.RunRunning, automation.RunCompleted, automation.RunFailed, automation.RunCancelled:
	default:
		wrong.add("status", "is not the status of a run: pending, running, completed, failed or cancelled")
	}
	switch f.Trigger {
	case "", automation.TriggerManual, automation.TriggerSchedule, automation.TriggerWebhook:
	default:
		wrong.add("trigger", "is not a kind of trigger: manual, schedule or webhook")
	}
	after := wrong.cursor(listRuns, f.Cursor)
	if err := wrong.err(); err != nil {
		return nil, false, err
	}
	var q statement
	q.add(`SELECT ` + runColumns + ` FROM runs r WHERE r.owner_id = `)
	possible := q.addID(ownerID)
	if f.AutomationID != "" {
		q.add(` AND r.automation_id = `)
		possible = q.addID(f.AutomationID) && possible
	}
	if f.MachineID != "" {
		q.add(` AND r.machine_id = `)
		possible = q.addID(f.MachineID) && possible
	}
	if f.Status != "" {
		q.add(` AND r.status = ?`, string(f.Status))
	}
	if f.Trigger != "" {
		q.add(` AND r.trigger_kind = ?`, string(f.Trigger))
	}
	if f.Since != nil {
		q.add(` AND r.created_at >= ?`, at(*f.Since))
	}
	if f.Until != nil {
		q.add(` AND r.created_at < ?`, at(*f.Until))
	}
	if after != nil {
		q.add(` AND (r.created_at, r.id) < (?, ?)`, after.createdAt, after.id)
	}
	q.add(` ORDER BY r.created_at DESC, r.id DESC LIMIT ?`, pageSize(f.Limit)+1)
	return &q, possible, nil
}

// addSteps reads the steps of a page of runs. A run that changes meanwhile may show newer steps than its status.
func (s *Store) addSteps(ctx context.Context, runs []automation.Run) error {
	if len(runs) == 0 {
		return nil
	}
	byID := make(map[string]*automation.Run, len(runs))
	ids := make([]string, len(runs))
	for i := range runs {
		byID[runs[i].ID] = &runs[i]
		ids[i] = runs[i].ID
	}
	var q statement
	q.add(`SELECT s.run_id, ` + stepColumns + ` FROM steps s WHERE s.run_id IN `)
	q.addIDs(ids)
	q.add(` ORDER BY s.run_id, s.position`)
	rows, err := q.query(ctx, s.read)
	err = each(rows, err, func(row scanner) error {
		var runID string
		var step stepScan
		if err := row.Scan(append([]any{&runID}, step.columns()...)...); err != nil {
			return err
		}
		run := byID[runID]
		run.Steps = append(run.Steps, step.finish())
		return nil
	})
	if err != nil {
		return fmt.Errorf("reading the steps of runs: %w", err)
	}
	return nil
}

// encode returns a value as compact JSON in which characters stand as they are.
func encode(v any) (string, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return "", err
	}
	return string(bytes.TrimSuffix(out.Bytes(), []byte("\n"))), nil
}
