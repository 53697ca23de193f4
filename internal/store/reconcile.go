package store

import (
	"context"
	"fmt"
	"time"

	"github.com/errandhq/errand/automation"
)

const (
	// maxOpenRuns bounds one page of OpenRuns.
	maxOpenRuns = 2000
	// maxQueues bounds how many machines one call of WaitingQueues returns, and waitingOfQueue how many runs of each.
	maxQueues, waitingOfQueue = 500, 50
)

// OpenRuns implements [automation.EngineStore]. At most 2000 are returned at a time.
func (s *Store) OpenRuns(
	ctx context.Context, engineID string, before time.Time, after automation.OpenRun, limit int,
) ([]automation.OpenRun, error) {
	if err := checkEngine(engineID); err != nil {
		return nil, err
	}
	// A held run is in no engine. To say so makes each page a range of an index.
	var q statement
	q.add(`SELECT id, generation, created_at FROM runs WHERE finished_at IS NULL AND NOT held AND engine_id = ? AND created_at < ?`,
		engineID, at(before))
	if after.ID != "" {
		q.add(` AND (created_at, id) > (?, ?)`, at(after.CreatedAt), after.ID)
	}
	q.add(` ORDER BY created_at, id LIMIT ?`, min(max(limit, 1), maxOpenRuns))
	rows, err := q.query(ctx, s.read)
	runs, err := collect(rows, err, func(row scanner) (automation.OpenRun, error) {
		var run automation.OpenRun
		var created instant
		err := row.Scan(&run.ID, &run.Generation, &created)
		run.CreatedAt = created.time()
		return run, err
	})
	if err != nil {
		return nil, translate(fmt.Errorf("reading unfinished runs of an engine: %w", err))
	}
	return runs, nil
}

// RunMarks implements [automation.EngineStore].
func (s *Store) RunMarks(ctx context.Context, runIDs []string) (map[string]automation.RunMark, error) {
	marks := make(map[string]automation.RunMark, len(runIDs))
	for ids := range chunks(canonicalIDs(runIDs)) {
		var q statement
		q.add(`SELECT id, generation, finished_at FROM runs WHERE id IN `)
		q.addIDs(ids)
		rows, err := q.query(ctx, s.read)
		err = each(rows, err, func(row scanner) error {
			var id string
			var mark automation.RunMark
			var finished instant
			if err := row.Scan(&id, &mark.Generation, &finished); err != nil {
				return err
			}
			mark.FinishedAt = finished.optional()
			marks[id] = mark
			return nil
		})
		if err != nil {
			return nil, translate(fmt.Errorf("reading where runs stand: %w", err))
		}
	}
	return marks, nil
}

// ReconcileRun implements [automation.EngineStore].
func (s *Store) ReconcileRun(ctx context.Context, w automation.ClosedWorkflow) (automation.Repair, error) {
	w.By, w.Reason = clean(w.By, maxKeyBytes), clean(w.Reason, maxReasonBytes/2)
	var repair automation.Repair
	_, err := s.transition(ctx, w.RunID, durable, anyRun, func(state *runState, now time.Time) error {
		repair = state.Reconcile(w, now)
		return nil
	})
	if err != nil {
		return automation.RepairNone, err
	}
	return repair, nil
}

// WaitingQueues implements [automation.EngineStore]. At most 500 machines are returned, each with at most 50 runs.
func (s *Store) WaitingQueues(ctx context.Context, engineID string, seenSince time.Time) ([]automation.MachineQueueLook, error) {
	if err := checkEngine(engineID); err != nil {
		return nil, err
	}
	rows, err := s.read.QueryContext(ctx, `SELECT `+machineColumns+` FROM machines m
		WHERE m.state = 'active' AND m.last_seen_at >= $1 AND EXISTS (SELECT 1 FROM runs r
			WHERE r.machine_id = m.id AND r.finished_at IS NULL AND r.executing = 0 AND r.engine_id = $2)
		ORDER BY m.id LIMIT $3`, at(seenSince), engineID, maxQueues)
	machines, err := collect(rows, err, scanMachine)
	if err != nil {
		return nil, translate(fmt.Errorf("finding machines for which runs wait: %w", err))
	}
	looks := make([]automation.MachineQueueLook, 0, len(machines))
	for _, machine := range machines {
		loads, err := s.addLoads(ctx, []automation.Machine{machine})
		if err != nil {
			return nil, translate(err)
		}
		waiting, err := s.waiting(ctx, engineID, machine.ID)
		if err != nil {
			return nil, translate(err)
		}
		looks = append(looks, automation.MachineQueueLook{Machine: loads[0], Waiting: waiting})
	}
	return looks, nil
}

// waiting reads the oldest runs that an engine holds for a machine and that execute no step.
func (s *Store) waiting(ctx context.Context, engineID, machineID string) ([]automation.Run, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT `+runColumns+` FROM runs r WHERE r.machine_id = $1 AND r.finished_at IS NULL
			AND r.executing = 0 AND r.engine_id = $2 AND r.cancel_requested_at IS NULL
		ORDER BY r.created_at, r.id LIMIT $3`, machineID, engineID, waitingOfQueue)
	runs, err := collect(rows, err, func(row scanner) (automation.Run, error) {
		var run runScan
		if err := row.Scan(run.columns()...); err != nil {
			return automation.Run{}, err
		}
		return run.finish(s.installation.ID)
	})
	if err != nil {
		return nil, fmt.Errorf("reading the runs that wait for a machine: %w", err)
	}
	return runs, s.addSteps(ctx, runs)
}

// StallRun implements [automation.EngineStore].
func (s *Store) StallRun(ctx context.Context, step automation.StalledStep) (bool, error) {
	var stalled bool
	_, err := s.transition(ctx, step.RunID, relaxed, anyRun, func(state *runState, now time.Time) error {
		stalled = state.Stall(step.StepID, step.Generation, now)
		return nil
	})
	return stalled, err
}
