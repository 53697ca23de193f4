package schedules_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/automation/schedule"
	"github.com/errandhq/errand/schedules"
)

// firings is what a ticker has asked for.
type firings struct {
	mu        sync.Mutex
	admitted  []string
	lags      []time.Duration // from the instant to the request
	cancelled []string
	settled   int
}

func (f *firings) runs() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.admitted)
}

func (f *firings) longest() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Max(f.lags)
}

// ticker returns a ticker over a world, and what it asks for.
func (w *world) ticker(holder string) (*schedules.Ticker, *firings) {
	f := &firings{}
	return schedules.NewTicker(schedules.TickerOptions{
		Options: w.server(holder),
		Admitted: func(run string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			_, instant, _ := strings.Cut(run, "@")
			at, _ := time.Parse(time.RFC3339, instant)
			f.admitted, f.lags = append(f.admitted, run), append(f.lags, time.Since(at))
		},
		Cancelled: func(run automation.Run, begun string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.cancelled = append(f.cancelled, fmt.Sprint(run.ID, "/", run.Generation, " ", begun))
		},
		Settled: func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.settled++
		},
	}), f
}

// TestEverySecond fires at each second, without Temporal, and not from one look to the next.
func TestEverySecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.temporal.down = true
		ticker, f := w.ticker("me")
		w.ledger.add(t, "s", schedule.Spec{Every: "1s"}, schedule.Policy{MaxOccurrences: 10})
		run(t, ticker, func() {
			pass(time.Minute)
			runs := f.runs()
			f.mu.Lock()
			defer f.mu.Unlock()
			if len(runs) != 10 || f.settled != 1 {
				t.Errorf("%d runs, settled %d times: %v", len(runs), f.settled, runs)
			}
			for i, lag := range f.lags {
				if lag > 5*time.Millisecond {
					t.Errorf("%s was admitted after %s", runs[i], lag)
				}
			}
		})
	})
}

func TestJitterIsKeptToTheMillisecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		ticker, f := w.ticker("me")
		w.ledger.add(t, "s", schedule.Spec{Every: "1h"}, schedule.Policy{Jitter: 40 * time.Minute})
		due := w.ledger.rows["s"].wake
		run(t, ticker, func() {
			pass(time.Until(due) - time.Millisecond)
			if len(f.runs()) != 0 {
				t.Error("admitted before its time")
			}
			pass(5 * time.Millisecond)
			if len(f.runs()) != 1 {
				t.Errorf("%d runs right after %s", len(f.runs()), due)
			}
		})
	})
}

func TestACrowdedMinute(t *testing.T) {
	t.Parallel()
	const crowd = 2000
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		ticker, f := w.ticker("me")
		for i := range crowd {
			w.ledger.add(t, fmt.Sprintf("s%04d", i), schedule.Spec{Cron: "2 * * * *", Timezone: "UTC"}, schedule.Policy{})
		}
		run(t, ticker, func() {
			pass(5 * time.Minute)
			runs := len(f.runs())
			w.ledger.mu.Lock()
			defer w.ledger.mu.Unlock()
			if runs != crowd || len(w.ledger.calls) != crowd {
				t.Errorf("%d runs of %d schedules", runs, len(w.ledger.calls))
			}
			for id, calls := range w.ledger.calls {
				if calls != 1 {
					t.Errorf("%s was decided %d times", id, calls)
				}
			}
			if w.ledger.most != 4 {
				t.Errorf("%d decisions were made at once", w.ledger.most)
			}
		})
	})
}

func TestAScheduleThatCannotBeDecidedStopsNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		ticker, f := w.ticker("me")
		for i := range 450 { // more than one question returns
			id := fmt.Sprintf("a%03d", i)
			w.ledger.add(t, id, schedule.Spec{Every: "1h"}, schedule.Policy{CatchUpWindow: time.Hour})
			w.ledger.broken[id] = errors.New("its row is damaged")
		}
		w.ledger.add(t, "z", schedule.Spec{Every: "1h"}, schedule.Policy{})
		run(t, ticker, func() {
			pass(time.Hour + time.Minute)
			if len(f.runs()) != 1 {
				t.Errorf("admitted: %v", f.runs())
			}
			if lines := strings.Count(w.log.String(), "its row is damaged"); lines != 450 {
				t.Errorf("logged %d times for 450 schedules", lines)
			}
			w.ledger.mu.Lock()
			if calls := w.ledger.calls["a000"]; calls < 5 || calls > 61 {
				t.Errorf("tried %d times in a minute", calls)
			}
			clear(w.ledger.broken)
			w.ledger.mu.Unlock()
			pass(schedules.TickEvery + time.Second)
			if len(f.runs()) != 451 {
				t.Errorf("once they are mended: %d runs", len(f.runs()))
			}
		})
	})
}

func TestCancelsArePassedOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		ticker, f := w.ticker("me")
		w.ledger.add(t, "s", schedule.Spec{Every: "1h"}, schedule.Policy{Overlap: schedule.OverlapCancelRunning})
		run(t, ticker, func() {
			pass(time.Hour + time.Second)
			f.mu.Lock()
			cancelled := slices.Clone(f.cancelled)
			f.mu.Unlock()
			if diff := cmp.Diff([]string{"earlier/3 step"}, cancelled); diff != "" || len(f.runs()) != 1 {
				t.Errorf("%v (-want +got):\n%s", f.runs(), diff)
			}
		})
	})
}

// TestTwoServersTick runs two tickers: one works, and the other takes over when it is gone.
func TestTwoServersTick(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		first, one := w.ticker("first")
		second, two := w.ticker("second")
		w.ledger.add(t, "s", schedule.Spec{Every: "1s"}, schedule.Policy{CatchUp: schedule.CatchUpAll, CatchUpWindow: time.Hour})
		run(t, second, func() {
			run(t, first, func() { pass(10 * time.Second) })
			if len(one.runs()) > 0 && len(two.runs()) > 0 || len(one.runs())+len(two.runs()) < 9 {
				t.Errorf("%d and %d runs", len(one.runs()), len(two.runs()))
			}
			pass(20 * time.Second)
			if runs := len(one.runs()) + len(two.runs()); runs < 29 || runs > 30 {
				t.Errorf("%d runs after 30 s", runs)
			}
		})
	})
}

// TestASchedulesOwnWakeUp decides a schedule at once, whoever has the lease; the same instant is not admitted again.
func TestASchedulesOwnWakeUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.ledger.leases["due-schedules"] = leaseRow{"another", time.Now().Add(2 * time.Hour)}
		ticker, f := w.ticker("me")
		w.ledger.add(t, "s", schedule.Spec{Every: "1h"}, schedule.Policy{})
		run(t, ticker, func() {
			pass(time.Hour)
			for range 3 {
				if _, err := ticker.Decide(t.Context(), "s"); err != nil {
					t.Fatal(err)
				}
			}
			if len(f.runs()) != 1 {
				t.Errorf("admitted: %v", f.runs())
			}
			if decision, err := ticker.Decide(t.Context(), "unknown"); err != nil || decision.Admitted != nil {
				t.Errorf("an unknown schedule: %+v, %v", decision, err)
			}
		})
	})
}

// TestAHintBringsTheNextLookForward adds a schedule that is due sooner than the next look.
func TestAHintBringsTheNextLookForward(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		ticker, f := w.ticker("me")
		run(t, ticker, func() {
			pass(100 * time.Millisecond)
			w.ledger.add(t, "s", schedule.Spec{At: time.Now().Add(2 * time.Second).UTC().Format(time.RFC3339)}, schedule.Policy{})
			ticker.Changed()
			pass(2100 * time.Millisecond)
			if len(f.runs()) != 1 || f.longest() > 5*time.Millisecond {
				t.Errorf("admitted %v after %s", f.runs(), f.longest())
			}
		})
	})
}
