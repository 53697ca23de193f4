package host

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"

	"github.com/errandhq/errand/automation"
)

// maxPollers is how many polls are open at once: one waits at the server while another fetches a task.
const maxPollers = 2

// TemporalDialer reaches Temporal, through the gateway.
type TemporalDialer interface {
	// Dial connects and returns a worker that does not take tasks yet. It tries once.
	Dial(ctx context.Context, o WorkerOptions) (TemporalWorker, error)
}

// TemporalWorker takes the machine's tasks.
type TemporalWorker interface {
	// Start begins to take tasks. It tries once.
	Start() error
	// Stop takes no more tasks, waits for attempts to return but no longer than the stop timeout, and closes
	// the connection.
	Stop()
}

// WorkerOptions says what a [TemporalWorker] does.
type WorkerOptions struct {
	Namespace   string
	TaskQueue   string
	Identity    string
	Concurrency int
	StopTimeout time.Duration
	// Execute is the activity of every lane.
	Execute func(ctx context.Context, a Attempt, in automation.StepInput) (automation.StepVerdict, error)
	// OnFatal is told when the worker has given up polling for good. It must not block.
	OnFatal func(error)
}

// Gateway is the [TemporalDialer] for a control plane's gateway.
type Gateway struct {
	HostPort string
	// Connection holds TLS and the interceptor that proves the machine's identity for each call.
	Connection client.ConnectionOptions
	Logger     *slog.Logger
}

// Dial makes the SDK's client and worker: activities only, no heartbeat of the worker itself, no alias names.
func (g Gateway) Dial(ctx context.Context, o WorkerOptions) (TemporalWorker, error) {
	c, err := client.DialContext(ctx, client.Options{
		HostPort:                g.HostPort,
		Namespace:               o.Namespace,
		Identity:                o.Identity,
		ConnectionOptions:       g.Connection,
		WorkerHeartbeatInterval: -1,
		Logger:                  log.NewStructuredLogger(quiet(g.Logger)),
	})
	if err != nil {
		return nil, fmt.Errorf("dialling the gateway: %w", err)
	}
	dialled := &sdkWorker{client: c, linger: o.StopTimeout}
	w := worker.New(c, o.TaskQueue, worker.Options{
		Identity:                           o.Identity,
		DisableWorkflowWorker:              true,
		DisableEagerActivities:             true,
		DisableRegistrationAliasing:        true,
		MaxConcurrentActivityExecutionSize: o.Concurrency,
		MaxConcurrentActivityTaskPollers:   min(maxPollers, o.Concurrency),
		WorkerStopTimeout:                  o.StopTimeout,
		OnFatalError: func(err error) {
			dialled.gaveUp.Store(true)
			o.OnFatal(err)
		},
	})
	execute := func(ctx context.Context, in automation.StepInput) (automation.StepVerdict, error) {
		token := activity.GetInfo(ctx).TaskToken
		return o.Execute(ctx, Attempt{Heartbeat: func(ctx context.Context) error {
			return c.RecordActivityHeartbeat(ctx, token)
		}}, in)
	}
	bind(w, automation.ExecuteAction, execute)
	bind(w, automation.ExecuteCommand, execute)
	bind(w, automation.ExecuteScript, execute)
	dialled.worker = w
	return dialled, nil
}

// bind registers a function under an activity's contract; another input or result type does not compile.
func bind[In, Out any](
	registry worker.ActivityRegistry, contract automation.Activity[In, Out], fn func(context.Context, In) (Out, error),
) {
	registry.RegisterActivityWithOptions(fn, activity.RegisterOptions{Name: contract.Name})
}

type sdkWorker struct {
	client client.Client
	worker worker.Worker
	// linger is how long the SDK may need to stop a worker that gave up.
	linger time.Duration
	gaveUp atomic.Bool
}

func (w *sdkWorker) Start() error {
	if err := w.worker.Start(); err != nil {
		w.client.Close()
		return fmt.Errorf("starting to take tasks: %w", err)
	}
	return nil
}

func (w *sdkWorker) Stop() {
	if w.gaveUp.Load() {
		// The SDK is stopping it already, which may be done once only, and waits in vain for the very poller
		// that noticed. Attempts have returned or will; their answers may still go out.
		time.AfterFunc(w.linger, w.client.Close)
		return
	}
	w.worker.Stop()
	w.client.Close()
}

// quiet lowers what the SDK says: it reports every attempt that ends in an error, which here is the ordinary
// way to say that a step failed or is tried again.
func quiet(logger *slog.Logger) *slog.Logger {
	if logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(quietHandler{logger.Handler()})
}

// quietHandler shows the SDK's info and debug as debug.
type quietHandler struct{ slog.Handler }

func (q quietHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return q.Handler.Enabled(ctx, lowered(level))
}

func (q quietHandler) Handle(ctx context.Context, r slog.Record) error {
	r.Level = lowered(r.Level)
	return q.Handler.Handle(ctx, r)
}

func (q quietHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return quietHandler{q.Handler.WithAttrs(attrs)}
}

func (q quietHandler) WithGroup(name string) slog.Handler {
	return quietHandler{q.Handler.WithGroup(name)}
}

func lowered(level slog.Level) slog.Level {
	if level < slog.LevelWarn {
		return slog.LevelDebug
	}
	return level
}
