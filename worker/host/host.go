package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/errandhq/errand/activities/machine"
	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/lockfile"
	"github.com/errandhq/errand/internal/machinestate"
)

// recordsDir is the directory of the step records in the state directory.
const recordsDir = "steps"

// ErrOrphaned is returned by [Host.Run] when the worker left by itself because it reached no control plane
// and held no program for [Options.OrphanExit].
var ErrOrphaned = errors.New("no control plane was reachable, and there was nothing to do")

// ErrRevoked is returned by [Host.Run] when the control plane has said that the machine was revoked.
var ErrRevoked = errors.New("this machine was revoked")

// Host is one worker of a machine. Its methods are safe for concurrent use.
type Host struct {
	o        Options
	log      *slog.Logger
	lock     *os.File
	instance automation.Instance
	records  recordStore

	// life ends when the host leaves; draining when it begins to.
	life     context.Context
	leave    context.CancelFunc
	draining context.Context
	drain    context.CancelFunc
	// hurry is closed when a drain must not wait for programs any longer.
	hurry     chan struct{}
	hurryOnce sync.Once
	left      chan struct{} // closed when Run has returned
	revoked   atomic.Bool

	slots      chan struct{} // holds one token per program
	programs   *gate
	deliveries *gate
	background sync.WaitGroup

	mu           sync.Mutex
	steps        map[automation.StepRef]*step
	suspects     map[string]struct{} // unreadable records, by path
	queue        queue
	queueChanged chan struct{} // closed when queue changes
	connected    bool
	contact      time.Time // when the control plane was last known to be there
}

// Open takes the state directory for a worker: its lock, its identity and its records. It returns a
// [*lockfile.HeldError], which names the process, when another worker has it. The caller runs the host, which gives the directory back.
func Open(o Options) (*Host, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.StateDir, 0o700); err != nil {
		return nil, fmt.Errorf("making the state directory: %w", err)
	}
	held, err := lockfile.Take(machinestate.LockPath(o.StateDir))
	if err != nil {
		return nil, fmt.Errorf("taking the machine's state directory; another worker must be stopped first: %w", err)
	}
	h := &Host{
		o: o, log: o.Logger, lock: held,
		hurry: make(chan struct{}), left: make(chan struct{}),
		slots:    make(chan struct{}, o.Concurrency),
		programs: newGate(), deliveries: newGate(),
		steps: map[automation.StepRef]*step{}, suspects: map[string]struct{}{}, queueChanged: make(chan struct{}), contact: o.Now(),
	}
	h.life, h.leave = context.WithCancel(context.Background())
	h.draining, h.drain = context.WithCancel(h.life)
	if h.instance, err = nextInstance(o); err == nil {
		h.records, err = openRecords(filepath.Join(o.StateDir, recordsDir))
	}
	if err == nil {
		err = h.recover()
	}
	if err != nil {
		h.leave()
		h.background.Wait()
		_ = held.Close()
		return nil, err
	}
	return h, nil
}

// Instance returns what tells this start of the worker from every other one.
func (h *Host) Instance() automation.Instance { return h.instance }

// Run works until ctx ends, [Host.Stop] is called or the host is orphaned, then drains: it begins nothing
// new, waits [Options.Drain] for its programs, ends the rest as interrupted, reports what it can and gives
// the state directory back. What could not be reported is in the records, for the next worker. It is called
// once; it returns nil, [ErrOrphaned] or [ErrRevoked].
func (h *Host) Run(ctx context.Context) error {
	defer close(h.left)
	defer func() { _ = h.lock.Close() }()
	defer h.background.Wait()
	defer h.leave()
	h.background.Go(h.keepLink)
	h.background.Go(h.keepSweeping)
	polling := make(chan struct{})
	go func() {
		defer close(polling)
		h.keepPolling()
	}()
	stop := context.AfterFunc(ctx, h.drain)
	defer stop()

	err := h.untilDrain()
	h.finishPrograms()
	h.leave() // attempts that still wait are detached
	h.awaitWithin(polling, h.o.Timing.SettleWithin)
	h.log.Info("The worker has stopped.", "unreported", len(h.heldForHello()))
	if h.revoked.Load() {
		return ErrRevoked
	}
	return err
}

// Stop makes Run drain, and returns when Run has. When ctx ends first, programs that still run are ended at
// once instead of at the end of the drain.
func (h *Host) Stop(ctx context.Context) {
	h.drain()
	select {
	case <-h.left:
		return
	case <-ctx.Done():
	}
	h.hurryOnce.Do(func() { close(h.hurry) })
	<-h.left
}

// untilDrain returns when the drain has begun, also because the host is orphaned.
func (h *Host) untilDrain() error {
	if h.o.OrphanExit <= 0 {
		<-h.draining.Done()
		return nil
	}
	const looks = 20 // per OrphanExit; leaving a little late is no harm
	ticker := time.NewTicker(max(h.o.OrphanExit/looks, time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-h.draining.Done():
			return nil
		case <-ticker.C:
		}
		if h.orphanedFor() >= h.o.OrphanExit {
			h.log.Info("The worker leaves: no control plane is reachable and no program runs.", "since", h.o.OrphanExit)
			h.drain()
			return ErrOrphaned
		}
	}
}

// orphanedFor returns how long the host has had neither a control plane nor a program.
func (h *Host) orphanedFor() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.o.Now()
	if h.connected || !isClosed(h.programs.whenEmpty()) {
		h.contact = now
	}
	return now.Sub(h.contact)
}

func (h *Host) setConnected(connected bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.connected || connected {
		h.contact = h.o.Now()
	}
	h.connected = connected
}

// finishPrograms sees what runs to its end within the limits of the drain, and its results to the ledger.
func (h *Host) finishPrograms() {
	h.drain()
	h.programs.close()
	h.log.Info("The worker is stopping and begins nothing new.", "drain", h.o.Drain)
	timer := time.NewTimer(max(h.o.Drain, 0))
	defer timer.Stop()
	select {
	case <-h.programs.whenEmpty():
	case <-timer.C:
	case <-h.hurry:
	}
	h.endAll(machine.EndInterrupted)
	if !h.awaitWithin(h.programs.whenEmpty(), h.o.Timing.EndWithin) {
		h.log.Error("Programs are still running although they were killed; the next worker of this machine looks for them.")
	}
	h.awaitWithin(h.deliveries.whenEmpty(), h.o.Timing.SettleWithin)
	h.deliveries.close()
}

// awaitWithin waits for c to close and reports whether it did within d.
func (h *Host) awaitWithin(c <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-c:
		return true
	case <-timer.C:
		return false
	}
}

// keepSweeping removes old records now and then.
func (h *Host) keepSweeping() {
	for {
		switch n, err := h.records.sweep(h.o.Now().Add(-keepRecords)); {
		case err != nil:
			h.log.Error("Old step records could not be removed.", "error", err)
		case n > 0:
			h.log.Debug("Old step records were removed.", "count", n)
		}
		if !h.pause(h.life, h.o.Timing.SweepEvery, nil) {
			return
		}
	}
}

// Status is how a worker stands.
type Status struct {
	Connected bool
	Draining  bool
	MachineID string // "" before the first connection
	TaskQueue string
	// Held lists the programs that run and the results that are not acknowledged, by key.
	Held []automation.Held
}

// Status returns how the worker stands now.
func (h *Host) Status() Status {
	held := h.heldForHello()
	slices.SortFunc(held, func(a, b automation.Held) int { return strings.Compare(a.Key(), b.Key()) })
	h.mu.Lock()
	defer h.mu.Unlock()
	return Status{
		Connected: h.connected, Draining: h.draining.Err() != nil,
		MachineID: h.queue.machineID, TaskQueue: h.queue.taskQueue, Held: held,
	}
}
