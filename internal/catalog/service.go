package catalog

import (
	"context"
	"sync"
	"time"

	"github.com/errandhq/errand/automation"
)

// Ledger is what the commands need of the ledger.
type Ledger interface {
	automation.AutomationStore
	automation.RunStore
	automation.AccessStore
	automation.AuditStore
	Machines(ctx context.Context, ownerID string, limit int, cursor string) ([]automation.MachineLoad, string, error)
	MachineLoads(ctx context.Context, ids []string) (map[string]automation.MachineLoad, error)
	OwnedMachine(ctx context.Context, ownerID, id string) (automation.MachineLoad, error)
	ChangeMachine(ctx context.Context, ownerID, id string, c automation.MachineChange) (automation.MachineLoad, error)
	RevokeMachine(ctx context.Context, ownerID, id string) (automation.Machine, error)
	LoseRuns(ctx context.Context, limit int) ([]automation.Run, error)
}

// Engine is what the commands need of the engine. Both calls return at once and promise nothing: the ledger
// is the truth, and the engine catches up with it.
type Engine interface {
	// Admitted asks for the start of a run's workflow.
	Admitted(runID string)
	// Cancelled asks that a run's workflow is told of its cancel; begun is the step that executes, or "".
	Cancelled(run automation.Run, begun string)
	// Up reports whether Temporal answers.
	Up() bool
}

// Changes wakes waiters when a run may have changed.
type Changes interface {
	Subscribe(runID string) (wake <-chan struct{}, stop func())
}

// Service is the behaviour of the commands.
type Service struct {
	Ledger     Ledger
	Engine     Engine
	Enrolments Enrolments
	Changes    Changes
	Now        func() time.Time
	// PublicURL is the address under which machines and senders reach this service.
	PublicURL string
	// NewKey makes an API key, and the hash that is stored of it.
	NewKey func() (secret, hash string, err error)

	applying sync.Mutex
	refusals refusals
}

// pollEvery is how often a waiter looks at the ledger by itself, for changes that another server made.
const pollEvery = time.Second

// await returns the run with everything in it when it has ended or wait has passed, whichever is first.
func (s *Service) await(ctx context.Context, p Principal, runID string, wait time.Duration) (RunResult, error) {
	if wait > 0 {
		if err := s.follow(ctx, p, runID, wait); err != nil {
			return RunResult{}, err
		}
	}
	run, err := s.Ledger.Run(ctx, p.OwnerID, runID)
	if err != nil {
		return RunResult{}, err
	}
	run, err = s.explain(ctx, run)
	return RunResult{Run: run}, err
}

// follow returns when the run has ended or wait has passed.
func (s *Service) follow(ctx context.Context, p Principal, runID string, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	wake, stop := s.Changes.Subscribe(runID)
	defer stop()
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		status, err := s.Ledger.RunStatus(ctx, p.OwnerID, runID)
		switch {
		case ctx.Err() != nil:
			return nil // the wait has passed: the caller gets the run as it stands
		case err != nil:
			return err
		case status.Finished():
			return nil
		}
		select {
		case <-ctx.Done():
		case <-wake:
		case <-ticker.C:
		}
	}
}

// explain adds what the run waits for.
func (s *Service) explain(ctx context.Context, run automation.Run) (automation.Run, error) {
	runs, err := s.explainAll(ctx, []automation.Run{run})
	if err != nil {
		return automation.Run{}, err
	}
	return runs[0], nil
}

// explainAll adds to each unfinished run what it waits for.
func (s *Service) explainAll(ctx context.Context, runs []automation.Run) ([]automation.Run, error) {
	var ids []string
	seen := map[string]bool{}
	for _, run := range runs {
		if !run.Status.Finished() && !seen[run.MachineID] {
			seen[run.MachineID] = true
			ids = append(ids, run.MachineID)
		}
	}
	if len(ids) == 0 {
		return runs, nil
	}
	machines, err := s.Ledger.MachineLoads(ctx, ids)
	if err != nil {
		return nil, err
	}
	for i := range runs {
		runs[i].WaitingFor = runs[i].Waiting(machines[runs[i].MachineID], s.Engine.Up(), s.Now())
	}
	return runs, nil
}
