package host

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"runtime"
	"time"

	"github.com/errandhq/errand/activities/machine"
	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/process"
)

// Defaults of [Options].
const (
	DefaultConcurrency = 4
	DefaultDrain       = 30 * time.Second
)

// keepRecords is how long a record stays after its acknowledgement, so that a ledger that lost its last
// commits gets the result again instead of a second execution.
const keepRecords = 7 * 24 * time.Hour

// Options says what a [Host] is made of. StateDir, BootID, ControlPlane, Temporal, Runner, Now, NewID and
// Random are required.
type Options struct {
	// StateDir holds the lock, the identity of the directory and the step records; it is created 0700.
	StateDir string
	// BootID tells this boot of the machine from every other one.
	BootID string
	// Hostname, Version, Platform (GOOS/GOARCH) and Labels describe the machine to the control plane. The
	// first and third are found out when empty.
	Hostname string
	Version  string
	Platform string
	Labels   map[string]string
	// Concurrency is how many programs may run at once; 0 means [DefaultConcurrency].
	Concurrency int
	// Drain is how long a worker that is told to stop waits for its programs; 0 means [DefaultDrain], and a
	// negative value not to wait.
	Drain time.Duration
	// OrphanExit is how long the worker stays while it reaches no control plane and holds no program; 0 means
	// for ever.
	OrphanExit time.Duration

	ControlPlane ControlPlane
	Temporal     TemporalDialer
	Runner       Runner
	// Logger may be nil.
	Logger *slog.Logger

	Now   func() time.Time
	NewID func() string
	// Random returns a number in [0, 1) that spreads retries.
	Random func() float64
	Timing Timing
}

// Timing holds the intervals of the protocol; a zero value means its default.
type Timing struct {
	HeartbeatEvery   time.Duration // between heartbeats of an attempt; 10 s
	HeartbeatTimeout time.Duration // after which Temporal has given an attempt up that it does not hear of; 30 s
	RetryFirst       time.Duration // first pause between tries of a call; 500 ms
	RetryMax         time.Duration // longest pause between tries of a call; 30 s
	Call             time.Duration // how long one call may take; 30 s
	EndWithin        time.Duration // how long a drain waits for ended programs to be gone; 30 s
	SettleWithin     time.Duration // how long a drain waits for the ledger to acknowledge; 10 s
	SweepEvery       time.Duration // between sweeps of old records; 24 h
}

// ControlPlane is the machine API. A refusal is a [*RefusalError]; any other error is trouble on the way
// there, which passes.
type ControlPlane interface {
	Hello(ctx context.Context, h automation.Hello) (automation.HelloAnswer, error)
	Begin(ctx context.Context, r automation.BeginRequest) (automation.BeginAnswer, error)
	Finish(ctx context.Context, r automation.FinishRequest) (automation.FinishAnswer, error)
	// Alive tells that this machine is there. The control plane counts only what a machine sends.
	Alive(ctx context.Context) error
	// Events hands every event of the machine's stream to handle until the stream breaks or ctx ends. It
	// always returns an error that says why.
	Events(ctx context.Context, handle func(automation.Event)) error
}

// Runner executes concrete steps on this machine, as [machine.Runner] does.
type Runner interface {
	// Start starts a step and returns without waiting for its end.
	Start(step automation.ConcreteStep) machine.Execution
	// EndLeftover ends what is left of an execution whose worker died. known is nil when that worker did not
	// live to write down which process it had started. It blocks, and after an error some of it may be alive.
	EndLeftover(ref automation.StepRef, known *process.Info) (int, error)
}

// withDefaults returns o with every optional value set.
func (o Options) withDefaults() (Options, error) {
	if o.StateDir == "" || o.BootID == "" || o.ControlPlane == nil || o.Temporal == nil || o.Runner == nil ||
		o.Now == nil || o.NewID == nil || o.Random == nil {
		return o, errors.New("a required option of the host is missing")
	}
	if o.Hostname == "" {
		// A machine without a name is still told from others by its directory and boot.
		o.Hostname, _ = os.Hostname()
	}
	if o.Platform == "" {
		o.Platform = runtime.GOOS + "/" + runtime.GOARCH
	}
	if o.Concurrency <= 0 {
		o.Concurrency = DefaultConcurrency
	}
	if o.Drain == 0 {
		o.Drain = DefaultDrain
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Timing = o.Timing.withDefaults()
	return o, nil
}

func (t Timing) withDefaults() Timing {
	def := func(d *time.Duration, value time.Duration) {
		if *d <= 0 {
			*d = value
		}
	}
	def(&t.HeartbeatEvery, automation.HeartbeatEvery)
	def(&t.HeartbeatTimeout, automation.HeartbeatTimeout)
	def(&t.RetryFirst, 500*time.Millisecond)
	def(&t.RetryMax, 30*time.Second)
	def(&t.Call, 30*time.Second)
	def(&t.EndWithin, 30*time.Second)
	def(&t.SettleWithin, 10*time.Second)
	def(&t.SweepEvery, 24*time.Hour)
	return t
}
