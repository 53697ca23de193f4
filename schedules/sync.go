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
	c := convergence{Syncer: s, did: unchanged}
	for range convergeRounds {
		have, found, err := s.temporal.describe(ctx, id)
		if err != nil {
			return c.did, err
		}
		row, known, err := s.store.ScheduleSync(ctx, id)
		if err != nil {
			return c.did, err
		}
		if !known || row.Removed {
			return s.forget(ctx, row, id, found)
		}
		want, err := s.temporal.alarm(row)
		if err != nil {
			return c.did, err
		}
		done := false
		if found {
			done, err = c.change(ctx, row, want, have)
		} else {
			done, err = c.create(ctx, row, want)
		}
		if done || err != nil {
			return c.did, err
		}
	}
	return c.did, fmt.Errorf("schedule %s does not appear in Temporal as it was written", id)
}

// convergence is the making of one schedule in Temporal what it is in the ledger.
type convergence struct {
	*Syncer
	did outcome
	// told is the state in Temporal that the ledger was told of as made by hand, times how often.
	told  string
	times int
}

// create makes a schedule that Temporal does not hold; done unless somebody else was first.
func (c *convergence) create(ctx context.Context, row automation.ScheduleSync, want alarm) (done bool, err error) {
	isNew, err := c.temporal.create(ctx, want)
	if err != nil || !isNew {
		return false, err
	}
	c.did = max(c.did, created)
	return true, c.learned(ctx, row)
}

// change takes one step from what Temporal holds to what it is to hold; done when they are the same.
func (c *convergence) change(ctx context.Context, row automation.ScheduleSync, want alarm, have held) (done bool, err error) {
	switch {
	case want.byHand(have) && c.tells(have):
		c.did = adopted
		return false, c.store.PauseSchedule(ctx, row.ID, row.Generation, have.schedule.GetState().GetPaused(), reason(have))
	case want.same(have) && want.sameMemo(have):
		return true, c.learned(ctx, row)
	case !want.sameMemo(have):
		c.did = max(c.did, updated)
		return false, c.temporal.remove(ctx, row.ID)
	}
	if c.did = max(c.did, updated); want.byHand(have) {
		c.did = updated // the ledger did not take it over
	}
	return false, c.temporal.update(ctx, want, have.token)
}

// tells reports whether the ledger is to be told of what a person did in Temporal. It may leave that without effect,
// or may be at a later generation by then. So it is told twice; then Temporal is told how the schedule is.
func (c *convergence) tells(have held) bool {
	if token := string(have.token); c.told != token {
		c.told, c.times = token, 0
	}
	c.times++
	return c.times <= tellings
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
