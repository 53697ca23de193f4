package schedules

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/errandhq/errand/automation"
)

const (
	// SyncEvery is how often the ledger is asked for what Temporal has not learned.
	SyncEvery = 5 * time.Second
	// syncBatch is how many schedules one question returns.
	syncBatch = 100
	// syncAtOnce is how many schedules are synchronized side by side.
	syncAtOnce = 4
	// tellings is how often the ledger is told of one change that a person has made in Temporal.
	tellings = 2
	// convergeRounds is how often a schedule that others change meanwhile is looked at before it is left for later.
	convergeRounds = 8
)

// Store is what the package needs of the ledger.
type Store interface {
	automation.ScheduleStore
	leases
}

// Options are what all parts of the package work with.
type Options struct {
	Store          Store
	Engine         Engine
	InstallationID string
	// Holder names this server in leases.
	Holder string
	Now    func() time.Time
	NewID  func() string
	Logger *slog.Logger
}

// outcome is what was done to make Temporal hold a schedule as the ledger has it.
type outcome int

const (
	unchanged outcome = iota
	created
	updated
	removed
	adopted // a pause made by hand, or its end, is recorded in the ledger
)

// Syncer makes Temporal follow the ledger.
type Syncer struct {
	temporal temporal
	store    Store
	lease    *lease
	reporter *reporter
	hints    chan struct{}
}

// NewSyncer returns a syncer, not running yet.
func NewSyncer(o Options) *Syncer {
	return &Syncer{
		temporal: temporal{
			engine: o.Engine, installationID: o.InstallationID, newID: o.NewID,
			lists: rate.NewLimiter(listsPerSecond, listsPerSecond),
		},
		store: o.Store, reporter: newReporter(o.Logger), hints: make(chan struct{}, 1),
		lease: &lease{ledger: o.Store, name: "sync-schedules", holder: o.Holder, now: o.Now, ttl: leaseTTL},
	}
}

// Changed says that schedules have changed. It never blocks.
func (s *Syncer) Changed() { hint(s.hints) }

func hint(hints chan<- struct{}) {
	select {
	case hints <- struct{}{}:
	default:
	}
}

// Run works until ctx ends.
func (s *Syncer) Run(ctx context.Context) {
	ticker := time.NewTicker(SyncEvery)
	defer ticker.Stop()
	for ctx.Err() == nil {
		s.look(ctx)
		select {
		case <-ctx.Done():
		case <-ticker.C:
		case <-s.hints:
		}
	}
}

// look synchronizes everything that Temporal has not learned. Of the lease no more is held than the work takes, so
// that the server on which something changes can do it at once.
func (s *Syncer) look(ctx context.Context) {
	if s.temporal.engine.ID() == "" {
		return // never reached yet
	}
	defer s.lease.release(ctx)
	failed := map[string]bool{}
	for ctx.Err() == nil {
		rows, err := s.store.UnsyncedSchedules(ctx, s.temporal.engine.ID(), syncBatch+len(failed))
		s.reporter.report(ctx, "schedules that Temporal does not know yet could not be read", "", err)
		rows = without(rows, failed, func(row automation.ScheduleSync) string { return row.ID })
		if err != nil || len(rows) == 0 {
			return
		}
		mine, err := s.lease.mine(ctx)
		s.reporter.report(ctx, "the lease for synchronizing schedules could not be taken", "", err)
		if err != nil || !mine || s.temporal.engine.Check(ctx) != nil {
			return
		}
		if !s.syncAll(ctx, rows, failed) {
			return
		}
	}
}

// without returns the elements whose id is not in a set.
func without[T any](list []T, set map[string]bool, id func(T) string) []T {
	var rest []T
	for _, element := range list {
		if !set[id(element)] {
			rest = append(rest, element)
		}
	}
	return rest
}

// syncAll synchronizes schedules and notes those that failed; false when Temporal has stopped to answer.
func (s *Syncer) syncAll(ctx context.Context, rows []automation.ScheduleSync, failed map[string]bool) bool {
	var mu sync.Mutex
	answers := true
	together(rows, syncAtOnce, func(row automation.ScheduleSync) {
		mu.Lock()
		skip := !answers
		mu.Unlock()
		if skip {
			return
		}
		err := s.sync(ctx, row)
		away := automation.CodeOf(err) == automation.CodeEngineUnavailable && s.temporal.engine.Check(ctx) != nil
		if !away {
			s.reporter.report(ctx, "a schedule could not be brought to Temporal; it fires, and is tried again", row.ID, err)
		}
		mu.Lock()
		defer mu.Unlock()
		answers = answers && !away
		if err != nil {
			failed[row.ID] = true
		}
	})
	return answers
}

// together calls do for each element, a few side by side.
func together[T any](list []T, atOnce int, do func(T)) {
	var group sync.WaitGroup
	next := make(chan T)
	for range min(atOnce, len(list)) {
		group.Go(func() {
			for element := range next {
				do(element)
			}
		})
	}
	for _, element := range list {
		next <- element
	}
	close(next)
	group.Wait()
}

// sync brings one schedule to Temporal. Most that it has not learned are new, and are created without a look first.
func (s *Syncer) sync(ctx context.Context, row automation.ScheduleSync) error {
	if !row.Removed && (row.SyncedGeneration == 0 || row.EngineID != s.temporal.engine.ID()) {
		want, err := s.temporal.alarm(row)
		if err != nil {
			return err
		}
		isNew, err := s.temporal.create(ctx, want)
		if err != nil {
			return err
		}
		if isNew {
			return s.learned(ctx, row)
		}
	}
	_, err := s.converge(ctx, row.ID)
	return err
}

// knows reports whether Temporal has learned a schedule as it was read.
func (s *Syncer) knows(row automation.ScheduleSync) bool {
	return row.Generation == row.SyncedGeneration && row.EngineID == s.temporal.engine.ID()
}

// learned records that Temporal holds a schedule as it was read.
func (s *Syncer) learned(ctx context.Context, row automation.ScheduleSync) error {
	if s.knows(row) && !row.Removed {
		return nil
	}
	return s.store.MarkScheduleSynced(ctx, row.ID, row.Generation, s.temporal.engine.ID())
}

// converge makes Temporal hold a schedule as the ledger has it, whatever either holds now. What Temporal holds is
// always read before the ledger is: a change that was computed from an older state of the ledger than somebody else
// has written is refused by its token. It is done when Temporal shows what it is to hold.
func (s *Syncer) converge(ctx context.Context, id string) (outcome, error) {
	did := unchanged
	// What a person did in Temporal is told the ledger, which may leave it without effect, or may be at a later
	// generation by then. So it is told twice; then Temporal is told how the schedule is.
	told, times := "", 0
	for range convergeRounds {
		have, found, err := s.temporal.describe(ctx, id)
		if err != nil {
			return did, err
		}
		row, known, err := s.store.ScheduleSync(ctx, id)
		if err != nil {
			return did, err
		}
		if !known || row.Removed {
			return s.forget(ctx, row, id, found)
		}
		want, err := s.temporal.alarm(row)
		if err != nil {
			return did, err
		}
		switch {
		case !found:
			isNew, err := s.temporal.create(ctx, want)
			if err != nil {
				return did, err
			}
			if isNew {
				return max(did, created), s.learned(ctx, row)
			}
		case want.byHand(have) && (told != string(have.token) || times < tellings):
			if told != string(have.token) {
				told, times = string(have.token), 0
			}
			times, did = times+1, adopted
			if err := s.store.PauseSchedule(ctx, id, row.Generation, have.schedule.GetState().GetPaused(), reason(have)); err != nil {
				return did, err
			}
		case want.same(have) && want.sameMemo(have):
			return did, s.learned(ctx, row)
		case !want.sameMemo(have):
			did = max(did, updated)
			if err := s.temporal.remove(ctx, id); err != nil {
				return did, err
			}
		default:
			if did = max(did, updated); want.byHand(have) {
				did = updated // the ledger did not take it over
			}
			if err := s.temporal.update(ctx, want, have.token); err != nil {
				return did, err
			}
		}
	}
	return did, fmt.Errorf("Temporal does not show schedule %s as it was written", id)
}

// forget removes a schedule from Temporal, if it is there, that the ledger has removed or never had.
func (s *Syncer) forget(ctx context.Context, row automation.ScheduleSync, id string, found bool) (outcome, error) {
	did := unchanged
	if found {
		did = removed
		if err := s.temporal.remove(ctx, id); err != nil {
			return did, err
		}
	}
	if row.ID == "" {
		return did, nil
	}
	return did, s.learned(ctx, row)
}
