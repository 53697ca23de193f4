package store

import (
	"context"
	"fmt"
	"time"

	"github.com/errandhq/errand/automation"
)

// runGroup are unfinished runs of one machine that are alike in everything that decides what they wait for.
type runGroup struct {
	machineID                 string
	status                    automation.RunStatus
	executing                 int
	cancelled, held, inEngine bool
	stalled, retrying         bool
	count                     int
}

// Census implements [automation.CensusStore]. It reads every unfinished run once, by an index, and every machine.
func (s *Store) Census(ctx context.Context, engineUp bool) (automation.Census, error) {
	now := s.now()
	groups, err := s.unfinishedGroups(ctx, now)
	if err != nil {
		return automation.Census{}, translate(fmt.Errorf("counting unfinished runs: %w", err))
	}
	machines, err := s.presences(ctx)
	if err != nil {
		return automation.Census{}, translate(fmt.Errorf("counting machines: %w", err))
	}
	for _, group := range groups {
		if machine := machines[group.machineID]; machine != nil {
			machine.RunningSteps += group.executing
		}
	}
	census := automation.Census{Unfinished: map[automation.RunStanding]int{}}
	for _, machine := range machines {
		if machine.State == automation.MachineActive {
			census.Enrolled++
		}
		if machine.Online(now) {
			census.Online++
		}
	}
	for _, group := range groups {
		standing := automation.RunStanding{Status: group.status}
		run := group.example(now)
		if machine := machines[group.machineID]; machine != nil {
			if waits := run.Waiting(*machine, engineUp, now); waits != nil {
				standing.Waits = waits.Reason
			}
		}
		census.Unfinished[standing] += group.count
	}
	return census, nil
}

// example is a run as each of the group is, in what [automation.Run.Waiting] looks at for its reason.
func (g *runGroup) example(now time.Time) *automation.Run {
	run := &automation.Run{Status: g.status}
	if g.cancelled {
		run.CancelRequestedAt = &now
	}
	if g.held {
		run.WaitsFor = "an earlier run"
	}
	if g.inEngine {
		run.EngineID = "an engine"
	}
	if g.stalled {
		run.StalledAt = &now
	}
	switch {
	case g.executing > 0:
		run.Steps = []automation.StepRecord{{Status: automation.StepRunning, StartedAt: &now}}
	case g.retrying:
		later := now.Add(time.Second)
		run.Steps = []automation.StepRecord{{Status: automation.StepRunning, StartedAt: &now, RetryAt: &later}}
	}
	return run
}

// unfinishedGroups counts the unfinished runs. Only of those that run and do not execute, which are few, it looks at
// steps.
func (s *Store) unfinishedGroups(ctx context.Context, now time.Time) ([]runGroup, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT machine_id, status, sum(executing), cancelled, held, in_engine, stalled,
			retrying, count(*)
		FROM (SELECT r.machine_id, r.status, r.executing, r.executing > 0 AS executes, r.held,
			r.cancel_requested_at IS NOT NULL AS cancelled, r.engine_id <> '' AS in_engine, r.stalled_at IS NOT NULL AS stalled,
			r.status = 'running' AND r.executing = 0 AND EXISTS (SELECT 1 FROM steps s
				WHERE s.run_id = r.id AND s.status = 'running' AND s.retry_at > $1) AS retrying
			FROM runs r WHERE r.finished_at IS NULL) unfinished
		GROUP BY machine_id, status, executes, cancelled, held, in_engine, stalled, retrying`, at(now))
	return collect(rows, err, func(row scanner) (runGroup, error) {
		var g runGroup
		err := row.Scan(&g.machineID, &g.status, &g.executing, &g.cancelled, &g.held, &g.inEngine, &g.stalled, &g.retrying, &g.count)
		return g, err
	})
}

// presences reads of every machine whether it is there, and how many steps it executes at most.
func (s *Store) presences(ctx context.Context) (map[string]*automation.MachineLoad, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT id, state, concurrency, last_seen_at FROM machines`)
	machines := map[string]*automation.MachineLoad{}
	err = each(rows, err, func(row scanner) error {
		var m automation.MachineLoad
		var seen instant
		if err := row.Scan(&m.ID, &m.State, &m.Concurrency, &seen); err != nil {
			return err
		}
		m.LastSeenAt = seen.optional()
		machines[m.ID] = &m
		return nil
	})
	return machines, err
}
