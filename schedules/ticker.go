package schedules

import (
	"context"
	"sync"
	"time"

	"github.com/errandhq/errand/automation"
)

const (
	// TickEvery is how often the ledger is asked for schedules that are due, at least.
	TickEvery = 5 * time.Second
	// tickBatch is how many due schedules one question returns.
	tickBatch = 200
	// decideAtOnce is how many of them are decided side by side.
	decideAtOnce = 4
	// retryAfter is how long a schedule that could not be decided waits, while the next one is due sooner.
	retryAfter = time.Second
)

// TickerOptions are what a ticker works with beside [Options], and whom it tells of what it has done.
type TickerOptions struct {
	Options
	// Admitted asks for the immediate start of a run; Cancelled that the workflow and the machine of a run are told of
	// its cancel. Neither blocks.
	Admitted  func(runID string)
	Cancelled func(run automation.Run, begun string)
	// Settled says that a schedule does not fire any more, which Temporal is to learn. It does not block.
	Settled func()
}

// Ticker lets the ledger decide schedules: those that are due, and those that something wakes up.
type Ticker struct {
	o        TickerOptions
	lease    *lease
	reporter *reporter
	hints    chan struct{}
}

// NewTicker returns a ticker, not running yet.
func NewTicker(o TickerOptions) *Ticker {
	return &Ticker{
		o: o, reporter: newReporter(o.Logger), hints: make(chan struct{}, 1),
		lease: &lease{ledger: o.Store, name: "due-schedules", holder: o.Holder, now: o.Now, ttl: leaseTTL},
	}
}

// Changed says that schedules have changed, so that the next one may be due earlier. It never blocks.
func (t *Ticker) Changed() { hint(t.hints) }

// Decide lets the ledger decide one schedule now, starts what was admitted, and passes on what was cancelled. Anybody
// may call it at any time, as often as they like.
func (t *Ticker) Decide(ctx context.Context, id string) (automation.ScheduleDecision, error) {
	decision, err := t.o.Store.DecideSchedule(ctx, id)
	if err != nil {
		return decision, err
	}
	for _, run := range decision.Admitted {
		t.o.Admitted(run)
	}
	for _, c := range decision.Cancelled {
		t.o.Cancelled(c.Run, c.Begun)
	}
	if decision.NextWake.IsZero() {
		t.o.Settled()
	}
	return decision, nil
}

// Run works until ctx ends.
func (t *Ticker) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		timer.Reset(t.look(ctx))
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-t.hints:
		}
	}
}

// look decides everything that is due, when this server has the lease, and returns how long to wait until the next
// look.
func (t *Ticker) look(ctx context.Context) time.Duration {
	failed := map[string]bool{}
	for ctx.Err() == nil {
		mine, err := t.lease.mine(ctx)
		t.reporter.report(ctx, "the lease for schedules that are due could not be taken", "", err)
		if err != nil || !mine {
			return TickEvery
		}
		due, err := t.o.Store.DueSchedules(ctx, tickBatch+len(failed))
		t.reporter.report(ctx, "schedules that are due could not be read", "", err)
		if err != nil {
			return TickEvery
		}
		due = without(due, failed, func(id string) string { return id })
		if len(due) == 0 {
			break
		}
		t.decideAll(ctx, due, failed)
	}
	return t.untilNext(ctx, len(failed) > 0)
}

// decideAll decides schedules and notes those that failed.
func (t *Ticker) decideAll(ctx context.Context, ids []string, failed map[string]bool) {
	var mu sync.Mutex
	together(ids, decideAtOnce, func(id string) {
		if ctx.Err() != nil {
			return
		}
		_, err := t.Decide(ctx, id)
		t.reporter.report(ctx, "a schedule could not be decided; it is tried again", id, err)
		if err != nil {
			mu.Lock()
			failed[id] = true
			mu.Unlock()
		}
	})
}

// untilNext returns how long it is until the next schedule is due, at most TickEvery.
func (t *Ticker) untilNext(ctx context.Context, failed bool) time.Duration {
	next, err := t.o.Store.NextScheduleWake(ctx)
	t.reporter.report(ctx, "the next schedule could not be read", "", err)
	if err != nil || next.IsZero() {
		return TickEvery
	}
	wait := next.Sub(t.o.Now())
	if failed {
		wait = max(wait, retryAfter)
	}
	return min(max(wait, 0), TickEvery)
}
