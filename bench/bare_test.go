//go:build unix

package bench_test

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"golang.org/x/sync/errgroup"
	_ "modernc.org/sqlite" // the driver of the commits

	"github.com/errandhq/errand/internal/embedded"
)

const (
	controlQueue, machineQueue = "bare-control", "bare-machine"
	// slots is how many programs run at once: the default of errand worker.
	slots = 4
	// workflowPollers and activityPollers are those of errandd and errand worker.
	workflowPollers, activityPollers = 4, 2
)

// bareInput is the input of the bare workflow.
type bareInput struct {
	Steps   int
	Commits bool   // whether each step makes a commit
	Queue   string // of its steps; "" for that of the worker that speaks to the server directly
}

// bare is Temporal without Errand: the same embedded server with the same settings, a workflow that executes its steps
// one after another, and an activity that runs `true`. Its workers are in this process and speak to the server without a
// gateway, on two queues as Errand's do, so that no activity skips the server.
type bare struct {
	server  *embedded.Server
	client  client.Client
	ledger  *sql.DB
	count   atomic.Int64
	program string
}

func startBare(b *testing.B) *bare {
	b.Helper()
	quiet := slog.New(slog.DiscardHandler)
	dir := b.TempDir()
	server, err := embedded.Start(b.Context(), embedded.Options{Dir: filepath.Join(dir, "temporal"), Logger: quiet})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(server.Stop)
	t := &bare{server: server}
	if t.program, err = exec.LookPath("true"); err != nil {
		b.Fatal(err)
	}
	if t.ledger, err = openLedger(b.Context(), filepath.Join(dir, "ledger.db")); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = t.ledger.Close() })
	t.client, err = client.DialContext(b.Context(), client.Options{
		HostPort: server.HostPort(), Namespace: server.Namespace(), Logger: log.NewStructuredLogger(quiet),
		ConnectionOptions: client.ConnectionOptions{TLS: server.TLS()},
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(t.client.Close)
	control := worker.New(t.client, controlQueue, worker.Options{MaxConcurrentWorkflowTaskPollers: workflowPollers})
	control.RegisterWorkflowWithOptions(bareWorkflow, workflow.RegisterOptions{Name: "Bare"})
	machine := worker.New(t.client, machineQueue, worker.Options{
		DisableWorkflowWorker: true, MaxConcurrentActivityExecutionSize: slots, MaxConcurrentActivityTaskPollers: activityPollers,
	})
	registerStep(machine, t)
	for _, w := range []worker.Worker{control, machine} {
		if err := w.Start(); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(w.Stop)
	}
	return t
}

// openLedger opens a database whose commits wait for the disk, as those of Errand's ledger do that must not be lost.
func openLedger(ctx context.Context, path string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	_, err = db.ExecContext(ctx, `CREATE TABLE commits (id INTEGER PRIMARY KEY, text TEXT NOT NULL)`)
	return db, err
}

func registerStep(w worker.Worker, t *bare) {
	w.RegisterActivityWithOptions(t.step, activity.RegisterOptions{Name: "Step"})
}

func bareWorkflow(ctx workflow.Context, in bareInput) error {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		TaskQueue: cmp.Or(in.Queue, machineQueue), StartToCloseTimeout: time.Hour, HeartbeatTimeout: time.Minute,
	})
	for range in.Steps {
		if err := workflow.ExecuteActivity(ctx, "Step", in.Commits).Get(ctx, nil); err != nil {
			return err
		}
	}
	return nil
}

func (t *bare) step(ctx context.Context, commit bool) error {
	if err := exec.CommandContext(ctx, t.program).Run(); err != nil {
		return fmt.Errorf("running true: %w", err)
	}
	if !commit {
		return nil
	}
	return t.commit(ctx)
}

func (t *bare) commit(ctx context.Context) error {
	_, err := t.ledger.ExecContext(ctx, `INSERT INTO commits (text) VALUES ('a step has ended')`)
	return err
}

// start starts one workflow. With commits it makes one first, as the admission of a run is one.
func (t *bare) start(ctx context.Context, in bareInput) (client.WorkflowRun, error) {
	if in.Commits {
		if err := t.commit(ctx); err != nil {
			return nil, err
		}
	}
	return t.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
		ID: fmt.Sprintf("bare-%d", t.count.Add(1)), TaskQueue: controlQueue, EnableEagerStart: true,
	}, "Bare", in)
}

// run measures workflows that are started at once, from the first call to the end of the last. That end is what Temporal
// has recorded rather than what the caller is told, which the server now and then does two seconds late.
func (t *bare) run(b *testing.B, count int, in bareInput) time.Duration {
	b.Helper()
	began := time.Now()
	ends := make([]time.Time, count)
	together(b, count, func(i int) error {
		run, err := t.start(b.Context(), in)
		if err != nil {
			return err
		}
		if err := run.Get(b.Context(), nil); err != nil {
			return err
		}
		ends[i] = time.Now()
		described, err := t.client.DescribeWorkflowExecution(b.Context(), run.GetID(), run.GetRunID())
		if err != nil {
			return err
		}
		if closed := described.GetWorkflowExecutionInfo().GetCloseTime().AsTime(); closed.Before(ends[i]) {
			ends[i] = closed
		}
		return nil
	})
	last := ends[0]
	for _, end := range ends[1:] {
		if end.After(last) {
			last = end
		}
	}
	return last.Sub(began)
}

// together does the same thing count times at once and fails the benchmark with the first error.
func together(b *testing.B, count int, do func(i int) error) {
	b.Helper()
	var group errgroup.Group
	for i := range count {
		group.Go(func() error { return do(i) })
	}
	if err := group.Wait(); err != nil {
		b.Fatal(err)
	}
}
