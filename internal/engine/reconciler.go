package engine

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/errandhq/errand/automation"
)

const (
	// passAtMost bounds one pass; the next goes on with what is left.
	passAtMost = 2 * time.Minute
	// reconcileLease is the lease of the passes, so that one server does them at a time, and reconcileTTL how long a
	// dead server keeps the others from them.
	reconcileLease = "reconcile-runs"
	reconcileTTL   = passAtMost + time.Minute
	// settleTime is how young a run may be and not be looked for: Temporal lists a workflow a moment after its start.
	settleTime = 10 * time.Second
	// openRunsPage is how many unfinished runs are read at a time.
	openRunsPage = 1000
	// listsPerSecond and callsPerSecond bound the calls of Temporal: lists, which it answers ten a second of, and
	// those about one workflow.
	listsPerSecond, callsPerSecond = 4, 50
)

// ReconcilerStore is what the reconciler needs of the ledger.
type ReconcilerStore interface {
	OpenRuns(ctx context.Context, engineID string, before time.Time, after automation.OpenRun, limit int) ([]automation.OpenRun, error)
	RunMarks(ctx context.Context, runIDs []string) (map[string]automation.RunMark, error)
	ReconcileRun(ctx context.Context, w automation.ClosedWorkflow) (automation.Repair, error)
	WaitingQueues(ctx context.Context, engineID string, seenSince time.Time) ([]automation.MachineQueueLook, error)
	StallRun(ctx context.Context, s automation.StalledStep) (bool, error)
	Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error)
}

// OpenEngine is what the reconciler needs of the engine; [Engine] is the implementation.
type OpenEngine interface {
	ID() string
	Refresh(ctx context.Context) error
	OpenWorkflows(ctx context.Context, next []byte) (page []OpenWorkflow, token []byte, err error)
	ClosedWorkflow(ctx context.Context, runID string, generation int64) (automation.ClosedWorkflow, bool, error)
	NotifyCancel(ctx context.Context, runID string, generation int64, notice automation.CancelNotice) error
	EndSuperseded(ctx context.Context, runID string, generation int64) error
	Redispatch(ctx context.Context, step automation.StalledStep) error
}

// ReconcilerOptions are what a [Reconciler] is made of.
type ReconcilerOptions struct {
	Engine OpenEngine
	Store  ReconcilerStore
	// Admitted asks for the immediate start of a run; see [Starter.Admitted].
	Admitted func(runID string)
	// Holder names this server in the lease.
	Holder string
	Now    func() time.Time
	Logger *slog.Logger
}

// Repairs counts what a reconciler has repaired since its start.
type Repairs struct {
	// Cancelled are runs whose workflow a person had ended, Restarted those whose workflow was lost, Redispatched
	// steps whose task was lost.
	Cancelled, Restarted, Redispatched int
	// Told are workflows that went on after their run had ended, Ended those that had been superseded, and Unknown
	// open workflows of runs that the ledger does not have, which are reported and left alone.
	Told, Ended, Unknown int
}

// Reconciler makes the ledger and the engine agree where one of them was changed without the other: by an operator, by
// the loss of data, or by a message that got lost. It compares the unfinished runs with the open workflows, as a whole
// and from page to page, and looks closely only at what differs. Everything that it does is a compare-and-set in the
// ledger or harmless when it is repeated, so several servers and old news do no damage.
type Reconciler struct {
	ReconcilerOptions
	lists, calls *rate.Limiter
	stalls       automation.StallWatch

	mu      sync.Mutex
	repairs Repairs
}

// NewReconciler returns a reconciler, not running yet.
func NewReconciler(o ReconcilerOptions) *Reconciler {
	return &Reconciler{
		ReconcilerOptions: o,
		lists:             rate.NewLimiter(listsPerSecond, listsPerSecond),
		calls:             rate.NewLimiter(callsPerSecond, callsPerSecond),
	}
}

// Repairs returns what has been repaired since the start.
func (r *Reconciler) Repairs() Repairs {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.repairs
}

// count notes something in the repairs.
func (r *Reconciler) count(note func(*Repairs)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	note(&r.repairs)
}

// Run works until ctx ends.
func (r *Reconciler) Run(ctx context.Context) {
	for {
		began := r.Now()
		r.pass(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(automation.ReconcilePause(r.Now().Sub(began))):
		}
	}
}

// pass is one comparison, when this server holds the lease.
func (r *Reconciler) pass(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, passAtMost)
	defer cancel()
	mine, err := r.Store.Lease(ctx, reconcileLease, r.Holder, reconcileTTL)
	if err != nil || !mine {
		r.stalls = automation.StallWatch{} // another server watches
		r.report(ctx, "the lease for reconciling runs could not be taken", err)
		return
	}
	if r.Engine.Refresh(ctx) != nil {
		return // the engine has said so
	}
	before := r.Repairs()
	for _, step := range []struct {
		problem string
		run     func(ctx context.Context) error
	}{
		{"runs and workflows could not be compared; it is tried again", r.compare},
		{"lost tasks could not be looked for; it is tried again", r.watchStalls},
	} {
		if err := step.run(ctx); err != nil {
			r.report(ctx, step.problem, err)
			break
		}
	}
	if all := r.Repairs(); all != before {
		r.Logger.WarnContext(ctx, "runs and workflows did not agree; since the start of this server there were",
			"cancelled", all.Cancelled, "restarted", all.Restarted, "redispatched", all.Redispatched,
			"told", all.Told, "ended", all.Ended, "unknown", all.Unknown)
	}
}

// compare lists what is open, mends what is open and should not be, and then what should be open and is not.
func (r *Reconciler) compare(ctx context.Context) error {
	before := r.Now().Add(-settleTime)
	open := map[OpenWorkflow]struct{}{}
	unknown := 0
	for token, first := []byte(nil), true; first || len(token) > 0; first = false {
		if err := r.lists.Wait(ctx); err != nil {
			return err
		}
		page, next, err := r.Engine.OpenWorkflows(ctx, token)
		if err != nil {
			return err
		}
		for _, workflow := range page {
			open[workflow] = struct{}{}
		}
		n, err := r.strays(ctx, page)
		if err != nil {
			return err
		}
		token, unknown = next, unknown+n
	}
	r.count(func(n *Repairs) { n.Unknown = unknown })
	return r.missing(ctx, before, open)
}

// strays tells workflows that are open although their run has ended, or has another one, and returns how many belong to
// no run that the ledger knows.
func (r *Reconciler) strays(ctx context.Context, page []OpenWorkflow) (unknown int, err error) {
	ids := make([]string, len(page))
	for i, workflow := range page {
		ids[i] = workflow.RunID
	}
	marks, err := r.Store.RunMarks(ctx, ids)
	if err != nil {
		return 0, err
	}
	for _, workflow := range page {
		var mark *automation.RunMark
		if found, ok := marks[workflow.RunID]; ok {
			mark = &found
		}
		stray := mark.Stray(workflow.Generation, r.Now())
		if stray == automation.StrayUnknown {
			unknown++
		}
		if err := r.endStray(ctx, workflow, stray); err != nil {
			return unknown, err
		}
	}
	return unknown, nil
}

func (r *Reconciler) endStray(ctx context.Context, workflow OpenWorkflow, stray automation.Stray) error {
	if stray != automation.StrayFinished && stray != automation.StraySuperseded {
		return nil
	}
	if err := r.calls.Wait(ctx); err != nil {
		return err
	}
	if stray == automation.StraySuperseded {
		r.count(func(n *Repairs) { n.Ended++ })
		return r.Engine.EndSuperseded(ctx, workflow.RunID, workflow.Generation)
	}
	r.count(func(n *Repairs) { n.Told++ })
	return r.Engine.NotifyCancel(ctx, workflow.RunID, workflow.Generation, automation.CancelNotice{})
}

// missing looks closely at unfinished runs whose workflow was not among the open ones.
func (r *Reconciler) missing(ctx context.Context, before time.Time, open map[OpenWorkflow]struct{}) error {
	var last automation.OpenRun
	for {
		runs, err := r.Store.OpenRuns(ctx, r.Engine.ID(), before, last, openRunsPage)
		if err != nil || len(runs) == 0 {
			return err
		}
		for _, run := range runs {
			if _, isOpen := open[OpenWorkflow{run.ID, run.Generation}]; isOpen {
				continue
			}
			if err := r.repair(ctx, run); err != nil {
				return err
			}
		}
		last = runs[len(runs)-1]
	}
}

// repair makes one run agree with its workflow, if that is really not open.
func (r *Reconciler) repair(ctx context.Context, run automation.OpenRun) error {
	if err := r.calls.Wait(ctx); err != nil {
		return err
	}
	closed, isClosed, err := r.Engine.ClosedWorkflow(ctx, run.ID, run.Generation)
	if err != nil || !isClosed {
		return err
	}
	repair, err := r.Store.ReconcileRun(ctx, closed)
	if err != nil || repair == automation.RepairNone {
		return err
	}
	r.Logger.WarnContext(ctx, "a run had no open workflow", "run", run.ID, "generation", run.Generation,
		"workflow", closed.End, "by", closed.By, "reason", closed.Reason, "repair", repair)
	switch repair {
	case automation.RepairCancelled:
		r.count(func(n *Repairs) { n.Cancelled++ })
	case automation.RepairRestarted:
		r.count(func(n *Repairs) { n.Restarted++ })
		r.Admitted(run.ID)
	case automation.RepairNone:
	}
	return nil
}

// watchStalls has steps dispatched again whose tasks were lost.
func (r *Reconciler) watchStalls(ctx context.Context) error {
	now := r.Now()
	queues, err := r.Store.WaitingQueues(ctx, r.Engine.ID(), now.Add(-automation.OnlineWithin))
	if err != nil {
		return err
	}
	for _, step := range r.stalls.Look(queues, now) {
		stalled, err := r.Store.StallRun(ctx, step)
		if err != nil {
			return err
		}
		if !stalled {
			continue
		}
		r.Logger.WarnContext(ctx, "a step was dispatched and has not begun, although its machine has free slots; it is dispatched again",
			"run", step.RunID, "step", step.StepID)
		r.count(func(n *Repairs) { n.Redispatched++ })
		if err := r.calls.Wait(ctx); err != nil {
			return err
		}
		if err := r.Engine.Redispatch(ctx, step); err != nil {
			return err
		}
	}
	return nil
}

func (r *Reconciler) report(ctx context.Context, problem string, err error) {
	if err != nil && ctx.Err() == nil {
		r.Logger.WarnContext(ctx, problem, "error", err)
	}
}
