package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/errandhq/errand/automation"
)

// maxStartable bounds one batch of runs to start.
const maxStartable = 500

// anyRun is the view of the engine, which is bound to no owner and no machine.
func anyRun(*automation.Run) bool { return true }

// startable is a run to be started, with the engine that it was started in before, if any.
type startable struct {
	automation.Startable
	engineID  string
	createdAt instant
}

// StartableRuns implements [automation.EngineStore]. At most 500 are returned at a time.
func (s *Store) StartableRuns(ctx context.Context, engineID string, limit int) ([]automation.Startable, error) {
	if err := checkEngine(engineID); err != nil {
		return nil, err
	}
	limit = min(max(limit, 1), maxStartable)
	// Those of no engine, and those of engines before and after this one: three ranges of an index, instead of a
	// look at all the runs that this engine holds, which may be many.
	var found []startable
	for _, engines := range []struct {
		condition string
		args      []any
	}{
		{` AND r.engine_id = ''`, nil},
		{` AND r.engine_id > '' AND r.engine_id < ?`, []any{engineID}},
		{` AND r.engine_id > ?`, []any{engineID}},
	} {
		var q statement
		q.add(engines.condition, engines.args...)
		q.add(` ORDER BY r.engine_id, r.created_at, r.id LIMIT ?`, limit)
		some, err := s.findStartable(ctx, &q)
		if err != nil {
			return nil, err
		}
		found = append(found, some...)
	}
	slices.SortFunc(found, func(a, b startable) int {
		return cmp.Or(cmp.Compare(a.createdAt.micros, b.createdAt.micros), cmp.Compare(a.RunID, b.RunID))
	})
	return s.toStart(ctx, found[:min(len(found), limit)])
}

// StartableRun implements [automation.EngineStore].
func (s *Store) StartableRun(ctx context.Context, engineID, runID string) (automation.Startable, bool, error) {
	if err := checkEngine(engineID); err != nil {
		return automation.Startable{}, false, err
	}
	var q statement
	q.add(` AND r.engine_id <> ? AND r.id = `, engineID)
	if !q.addID(runID) {
		return automation.Startable{}, false, nil
	}
	found, err := s.findStartable(ctx, &q)
	if err != nil {
		return automation.Startable{}, false, err
	}
	runs, err := s.toStart(ctx, found)
	if err != nil || len(runs) == 0 {
		return automation.Startable{}, false, err
	}
	return runs[0], true, nil
}

func checkEngine(engineID string) error {
	var wrong violations
	wrong.name("engineId", engineID, maxKeyBytes)
	return wrong.err()
}

// findStartable reads the unfinished runs of a condition that wait for no earlier one.
func (s *Store) findStartable(ctx context.Context, condition *statement) ([]startable, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT r.id, r.automation_id, r.automation_name, r.machine_id, r.trigger_kind,
		r.generation, r.engine_id, r.created_at FROM runs r WHERE r.finished_at IS NULL AND NOT r.held`+condition.text.String(), condition.args...)
	found, err := collect(rows, err, func(row scanner) (startable, error) {
		var r startable
		err := row.Scan(&r.RunID, &r.AutomationID, &r.AutomationName, &r.MachineID, &r.Trigger,
			&r.Generation, &r.engineID, &r.createdAt)
		return r, err
	})
	if err != nil {
		return nil, translate(fmt.Errorf("finding runs to start: %w", err))
	}
	return found, nil
}

// toStart takes runs away from other engines and adds the outlines of their steps.
func (s *Store) toStart(ctx context.Context, found []startable) ([]automation.Startable, error) {
	runs := make([]automation.Startable, 0, len(found))
	for i := range found {
		if found[i].engineID != "" {
			ours, err := s.takeFromEngine(ctx, &found[i])
			if err != nil {
				return nil, err
			}
			if !ours {
				continue
			}
		}
		runs = append(runs, found[i].Startable)
	}
	return runs, translate(s.addOutlines(ctx, runs))
}

// takeFromEngine raises the generation of a run, so that calls of its earlier workflow are superseded; false
// when the run has changed since it was read, and is left for the next time.
func (s *Store) takeFromEngine(ctx context.Context, r *startable) (bool, error) {
	var ours bool
	_, err := s.transition(ctx, r.RunID, durable, anyRun, func(state *runState, now time.Time) error {
		ours = state.EngineID == r.engineID && state.Generation == r.Generation && !state.Status.Finished()
		if ours {
			state.MoveEngine(now)
		}
		return nil
	})
	if err != nil || !ours {
		return false, err
	}
	r.Generation++
	return true, nil
}

// addOutlines reads what the workflows know of the steps.
func (s *Store) addOutlines(ctx context.Context, runs []automation.Startable) error {
	if len(runs) == 0 {
		return nil
	}
	byID := make(map[string]*automation.Startable, len(runs))
	ids := make([]string, len(runs))
	for i := range runs {
		byID[runs[i].RunID] = &runs[i]
		ids[i] = runs[i].RunID
	}
	var q statement
	q.add(`SELECT run_id, id, kind, summary, timeout_ms FROM steps WHERE run_id IN `)
	q.addIDs(ids)
	q.add(` ORDER BY run_id, position`)
	rows, err := q.query(ctx, s.read)
	err = each(rows, err, func(row scanner) error {
		var runID string
		var outline automation.StepOutline
		if err := row.Scan(&runID, &outline.ID, &outline.Kind, &outline.Summary, &outline.TimeoutMs); err != nil {
			return err
		}
		byID[runID].Steps = append(byID[runID].Steps, outline)
		return nil
	})
	if err != nil {
		return fmt.Errorf("reading the outlines of steps: %w", err)
	}
	return nil
}

// MarkStarted implements [automation.EngineStore]. It need not survive a power cut: starting a workflow again
// finds that it exists.
func (s *Store) MarkStarted(ctx context.Context, runID string, generation int64, engineID string) error {
	if err := checkEngine(engineID); err != nil {
		return err
	}
	known, ok := canonicalID(runID)
	if !ok {
		return notFound("run", runID)
	}
	var machineID string
	err := retry(ctx, func() error {
		return s.write(ctx, relaxed, func(ctx context.Context, tx querier) error {
			_, err := exists(tx.QueryRowContext(ctx, `UPDATE runs SET engine_id = $1, revision = revision + 1
				WHERE id = $2 AND generation = $3 AND engine_id <> $1 AND finished_at IS NULL RETURNING machine_id`,
				engineID, known, generation).Scan(&machineID))
			return err
		})
	})
	if err == nil && machineID != "" {
		s.changed(known, machineID)
	}
	return err
}

// FinalizeRun implements [automation.EngineStore].
func (s *Store) FinalizeRun(ctx context.Context, in automation.FinalizeInput) (automation.FinalizeVerdict, error) {
	if in.Failure != nil {
		in.Failure = &automation.RunError{
			Code:    cleanCode(in.Failure.Code, string(automation.CodeInternal)),
			Message: clean(in.Failure.Message, automation.MaxMessageBytes),
			StepID:  clean(in.Failure.StepID, maxKeyBytes),
			Details: in.Failure.Details,
		}
	}
	var verdict automation.FinalizeVerdict
	_, err := s.transition(ctx, in.RunID, durable, anyRun, func(state *runState, now time.Time) error {
		verdict = state.Finalize(in, now)
		return nil
	})
	if err != nil {
		return automation.FinalizeVerdict{}, err
	}
	return verdict, nil
}

// CancelRun implements [automation.EngineStore]. The cancel of a run that has ended already is no error: there
// is nothing left to wait for.
func (s *Store) CancelRun(ctx context.Context, in automation.CancelInput) (automation.CancelVerdict, error) {
	reason := clean(in.Reason, maxReasonBytes)
	var begun string
	_, err := s.transition(ctx, in.RunID, durable, anyRun, func(state *runState, now time.Time) (err error) {
		begun, err = state.Cancel(reason, false, now)
		return err
	})
	if err != nil && automation.CodeOf(err) != automation.CodeAlreadyFinished {
		return automation.CancelVerdict{}, err
	}
	return automation.CancelVerdict{Begun: begun}, nil
}

// clockSlack is how much longer than a ttl a lease may seem to last, because the clock of its holder is ahead.
const clockSlack = time.Minute

// Lease implements [automation.ChoreStore]. A lease compares the clocks of the servers, which must agree to
// well within its ttl. One that would last much longer than that was taken before a clock was set back, and counts
// for nothing: else a dead server could keep the others from their work for as long as its clock had been wrong.
func (s *Store) Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error) {
	var wrong violations
	wrong.name("name", name, maxKeyBytes)
	wrong.name("holder", holder, maxKeyBytes)
	if err := wrong.err(); err != nil {
		return false, err
	}
	var taken bool
	err := retry(ctx, func() error {
		return s.write(ctx, relaxed, func(ctx context.Context, tx querier) (err error) {
			now := s.now()
			taken, err = affected(tx.ExecContext(ctx, `INSERT INTO leases (name, holder, expires_at) VALUES ($1, $2, $3)
				ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at
				WHERE leases.holder = excluded.holder OR leases.expires_at <= $4 OR leases.expires_at > $5`,
				name, holder, at(now.Add(ttl)), at(now), at(now.Add(ttl+clockSlack))))
			return err
		})
	})
	return taken, err
}
