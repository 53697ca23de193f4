package engine_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/engine"
)

// fake is a ledger and a Temporal in memory.
type fake struct {
	mu      sync.Mutex
	pending map[string]int64 // run id → generation
	started []string
	told    []string
	holder  string
	down    bool
	broken  map[string]bool // runs that Temporal refuses for good
}

func newFake(runs ...string) *fake {
	f := &fake{pending: map[string]int64{}, broken: map[string]bool{}}
	for _, run := range runs {
		f.pending[run] = 1
	}
	return f
}

func (f *fake) ID() string { return "engine" }

var errDown = automation.Errorf(automation.CodeEngineUnavailable, "down")

func (f *fake) Check(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return errDown
	}
	return nil
}

func (f *fake) StartRun(_ context.Context, run automation.Startable) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.down:
		return errDown
	case f.broken[run.RunID]:
		return errors.New("invalid argument")
	}
	f.started = append(f.started, fmt.Sprintf("%s/%d", run.RunID, run.Generation))
	return nil
}

func (f *fake) NotifyCancel(_ context.Context, runID string, generation int64, notice automation.CancelNotice) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.told = append(f.told, fmt.Sprintf("%s/%d %s", runID, generation, notice.Begun))
	return nil
}

func (f *fake) StartableRuns(_ context.Context, engineID string, limit int) ([]automation.Startable, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if engineID != "engine" {
		return nil, errors.New("another engine")
	}
	var runs []automation.Startable
	for id, generation := range f.pending {
		if len(runs) < limit {
			runs = append(runs, automation.Startable{RunID: id, Generation: generation})
		}
	}
	return runs, nil
}

func (f *fake) StartableRun(_ context.Context, _, runID string) (automation.Startable, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	generation, found := f.pending[runID]
	return automation.Startable{RunID: runID, Generation: generation}, found, nil
}

func (f *fake) MarkStarted(_ context.Context, runID string, generation int64, _ string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pending[runID] == generation {
		delete(f.pending, runID)
	}
	return nil
}

func (f *fake) Lease(_ context.Context, _, holder string, _ time.Duration) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.holder == "" {
		f.holder = holder
	}
	return f.holder == holder, nil
}

func (f *fake) state() (pending, started int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.pending), len(f.started)
}

// run runs a starter over f in a bubble of fake time until check returns.
func run(t *testing.T, f *fake, check func(s *engine.Starter)) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	s := engine.NewStarter(f, f, "me", engine.StartEvery, slog.New(slog.DiscardHandler))
	done := make(chan struct{})
	go func() {
		s.Run(ctx)
		close(done)
	}()
	synctest.Wait()
	check(s)
	stop()
	<-done
}

func TestWhatWasLeftBehindIsStarted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var runs []string
		for i := range 250 {
			runs = append(runs, fmt.Sprint("run", i))
		}
		f := newFake(runs...)
		run(t, f, func(*engine.Starter) {
			if pending, started := f.state(); pending != 0 || started != 250 {
				t.Errorf("%d pending, %d started, want 0 and 250", pending, started)
			}
		})
	})
}

func TestAnAdmittedRunIsStartedAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		run(t, f, func(s *engine.Starter) {
			f.mu.Lock()
			f.pending["a"] = 3
			f.mu.Unlock()
			s.Admitted("a")
			s.Admitted("a") // doubled
			synctest.Wait()
			if diff := cmp.Diff([]string{"a/3"}, f.started); diff != "" {
				t.Error(diff)
			}
		})
	})
}

func TestTemporalComesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a")
		f.down = true
		run(t, f, func(s *engine.Starter) {
			s.Admitted("a")
			synctest.Wait()
			if _, started := f.state(); started != 0 {
				t.Fatal("a run was started while Temporal is down")
			}
			f.mu.Lock()
			f.down = false
			f.mu.Unlock()
			time.Sleep(engine.StartEvery)
			synctest.Wait()
			if pending, started := f.state(); pending != 0 || started != 1 {
				t.Errorf("%d pending, %d started, want 0 and 1", pending, started)
			}
		})
	})
}

func TestARunThatCannotBeStartedHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a", "b", "c")
		f.broken["b"] = true
		run(t, f, func(*engine.Starter) {
			if pending, started := f.state(); pending != 1 || started != 2 {
				t.Errorf("%d pending, %d started, want 1 and 2", pending, started)
			}
		})
	})
}

func TestAnotherServerLooks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake("a")
		f.holder = "another"
		run(t, f, func(*engine.Starter) {
			if _, started := f.state(); started != 0 {
				t.Fatal("two servers look at a time")
			}
			f.mu.Lock()
			f.holder = "" // it died, and its lease ran out
			f.mu.Unlock()
			time.Sleep(engine.StartEvery)
			synctest.Wait()
			if _, started := f.state(); started != 1 {
				t.Error("nobody took over from a dead server")
			}
		})
	})
}

func TestCancelIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		run(t, f, func(s *engine.Starter) {
			s.Cancelled("a", 2, "build")
			synctest.Wait()
			if diff := cmp.Diff([]string{"a/2 build"}, f.told); diff != "" {
				t.Error(diff)
			}
		})
	})
}
