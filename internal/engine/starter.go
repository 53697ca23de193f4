package engine

import (
	"context"
	"log/slog"
	"time"

	"github.com/errandhq/errand/automation"
)

const (
	// StartEvery is how often runs without a workflow are looked for.
	StartEvery = 5 * time.Second
	// startBatch is how many of them one look takes.
	startBatch = 100
	// leaseName is the lease of the look, so that one server does it at a time.
	leaseName = "start-runs"
	// leaseTTL is how long a dead server keeps the others from looking.
	leaseTTL = 3 * StartEvery
	// queueLength is how many runs may wait for their immediate start; the look starts what does not fit.
	queueLength = 1024
	// startersAtOnce is how many workflows are started side by side.
	startersAtOnce = 4
)

// Store is what starting and cancelling needs of the ledger.
type Store interface {
	StartableRuns(ctx context.Context, engineID string, limit int) ([]automation.Startable, error)
	StartableRun(ctx context.Context, engineID, runID string) (automation.Startable, bool, error)
	MarkStarted(ctx context.Context, runID string, generation int64, engineID string) error
	Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error)
}

// Workflows is what the starter needs of the engine; [Engine] is the implementation.
type Workflows interface {
	ID() string
	Check(ctx context.Context) error
	StartRun(ctx context.Context, run automation.Startable) error
	NotifyCancel(ctx context.Context, runID string, generation int64, notice automation.CancelNotice) error
}

// Starter starts the workflows of admitted runs: at once for those that this server admitted, and by a
// regular look for those that were left behind, because Temporal was down or their server died. A start that
// is made twice is one start, so nothing here needs to be exact.
type Starter struct {
	engine  Workflows
	store   Store
	holder  string
	logger  *slog.Logger
	every   time.Duration
	admits  chan string
	cancels chan cancelOrder
}

type cancelOrder struct {
	runID      string
	generation int64
	notice     automation.CancelNotice
}

// NewStarter returns a starter that looks every interval; holder names this server in the lease.
func NewStarter(engine Workflows, store Store, holder string, every time.Duration, logger *slog.Logger) *Starter {
	return &Starter{
		engine: engine, store: store, holder: holder, logger: logger, every: every,
		admits: make(chan string, queueLength), cancels: make(chan cancelOrder, queueLength),
	}
}

// Admitted asks for the immediate start of a run. It never blocks: a run that finds no place is started by
// the next look.
func (s *Starter) Admitted(runID string) {
	select {
	case s.admits <- runID:
	default:
	}
}

// Cancelled asks that the workflow of a run is told of its cancel. It never blocks: a workflow that is not
// told learns it when its step asks the ledger to begin or reports its end.
func (s *Starter) Cancelled(runID string, generation int64, begun string) {
	select {
	case s.cancels <- cancelOrder{runID, generation, automation.CancelNotice{Begun: begun}}:
	default:
	}
}

// Run works until ctx ends.
func (s *Starter) Run(ctx context.Context) {
	done := make(chan struct{})
	for range startersAtOnce {
		go func() {
			s.serve(ctx)
			done <- struct{}{}
		}()
	}
	s.look(ctx)
	ticker := time.NewTicker(s.every)
	defer ticker.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-ticker.C:
			s.look(ctx)
		}
	}
	for range startersAtOnce {
		<-done
	}
}

// serve starts runs and tells workflows of cancels as they are asked for.
func (s *Starter) serve(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case runID := <-s.admits:
			run, wanted, err := s.store.StartableRun(ctx, s.engine.ID(), runID)
			if err == nil && wanted {
				err = s.start(ctx, run)
			}
			s.report(ctx, "a run could not be started at once; it is tried again", runID, err)
		case order := <-s.cancels:
			err := s.engine.NotifyCancel(ctx, order.runID, order.generation, order.notice)
			s.report(ctx, "a workflow could not be told of a cancel", order.runID, err)
		}
	}
}

// look starts every run that has no workflow, when this server holds the lease and Temporal answers.
func (s *Starter) look(ctx context.Context) {
	mine, err := s.store.Lease(ctx, leaseName, s.holder, leaseTTL)
	if err != nil {
		s.report(ctx, "the lease for starting runs could not be taken", "", err)
		return
	}
	if s.engine.Check(ctx) != nil {
		return // the engine has said so
	}
	for mine && ctx.Err() == nil {
		runs, err := s.store.StartableRuns(ctx, s.engine.ID(), startBatch)
		if err != nil {
			s.report(ctx, "runs without a workflow could not be read", "", err)
			return
		}
		started := 0
		for _, run := range runs {
			err := s.start(ctx, run)
			s.report(ctx, "a run could not be started; it is tried again", run.RunID, err)
			if automation.CodeOf(err) == automation.CodeEngineUnavailable {
				return
			}
			if err == nil {
				started++
			}
		}
		if started == 0 || len(runs) < startBatch {
			return
		}
	}
}

// start starts one workflow and records it. A crash in between is harmless: the next start finds it there.
func (s *Starter) start(ctx context.Context, run automation.Startable) error {
	if err := s.engine.StartRun(ctx, run); err != nil {
		return err
	}
	return s.store.MarkStarted(ctx, run.RunID, run.Generation, s.engine.ID())
}

func (s *Starter) report(ctx context.Context, message, runID string, err error) {
	if err == nil || ctx.Err() != nil {
		return
	}
	s.logger.WarnContext(ctx, message, "run", runID, "error", err)
}
