package schedules

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/errandhq/errand/automation"
)

const (
	// reconcileTTL is how long a dead server keeps the others from comparing.
	reconcileTTL = automation.MaxReconcilePause + 30*time.Second
	// rowsPage is how many schedules of the ledger are read at a time.
	rowsPage = 500
	// inspectedEach is how many schedules each comparison looks at closely, one after another through all of them: a
	// list does not show everything that somebody may have changed.
	inspectedEach = 25
)

// Repairs count what comparisons have found and put right since the start.
type Repairs struct {
	// Created were missing in Temporal, Updated differed there, Removed were there and unknown to the ledger.
	Created, Updated, Removed int64
	// Adopted are pauses and their ends that were made in Temporal and are now in the ledger.
	Adopted int64
}

// Reconciler compares Temporal with the ledger and repairs what differs.
type Reconciler struct {
	syncer    *Syncer
	store     Store
	lease     *lease
	logger    *slog.Logger
	now       func() time.Time
	inspected string // the id of the schedule that was looked at closely last

	mu      sync.Mutex
	repairs Repairs
}

// NewReconciler returns a reconciler that repairs by means of a syncer.
func NewReconciler(o Options, syncer *Syncer) *Reconciler {
	return &Reconciler{
		syncer: syncer, store: o.Store, logger: o.Logger, now: o.Now,
		lease: &lease{ledger: o.Store, name: "reconcile-schedules", holder: o.Holder, now: o.Now, ttl: reconcileTTL},
	}
}

// Repairs returns what has been repaired since the start.
func (r *Reconciler) Repairs() Repairs {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.repairs
}

// Run works until ctx ends.
func (r *Reconciler) Run(ctx context.Context) {
	for ctx.Err() == nil {
		began := r.now()
		err := r.look(ctx)
		if automation.CodeOf(err) != automation.CodeEngineUnavailable {
			r.syncer.reporter.report(ctx, "schedules in Temporal could not be compared with the ledger", "", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(automation.ReconcilePause(r.now().Sub(began))):
		}
	}
}

// look compares once, when this server has the lease and Temporal answers.
func (r *Reconciler) look(ctx context.Context) error {
	if r.syncer.temporal.engine.ID() == "" {
		return nil
	}
	if mine, err := r.lease.mine(ctx); err != nil || !mine {
		return err
	}
	if r.syncer.temporal.engine.Check(ctx) != nil {
		return nil //nolint:nilerr // the engine has said so
	}
	suspects, err := r.suspects(ctx)
	if err != nil {
		return err
	}
	before := r.Repairs()
	err = r.repair(ctx, suspects)
	if after := r.Repairs(); after != before {
		r.logger.WarnContext(ctx, "schedules in Temporal differed from the ledger",
			"created", after.Created-before.Created, "updated", after.Updated-before.Updated,
			"removed", after.Removed-before.Removed, "adopted", after.Adopted-before.Adopted)
	}
	return err
}

// suspects returns the ids of schedules to look at: those that a list, which may be behind, shows otherwise than the
// ledger has them, those that only one side has, and some of the others. What Temporal has not learned yet is the
// syncer's business.
func (r *Reconciler) suspects(ctx context.Context) ([]string, error) {
	listed, err := r.syncer.temporal.list(ctx)
	if err != nil {
		return nil, err
	}
	var suspects, inspected []string
	for after, more := "", true; more; {
		rows, err := r.store.ScheduleSyncs(ctx, after, rowsPage)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			seen, found := listed[row.ID]
			delete(listed, row.ID)
			if !r.syncer.knows(row) {
				continue
			}
			want, err := r.syncer.temporal.alarm(row)
			inspect := len(inspected) < inspectedEach && row.ID > r.inspected
			if inspect {
				inspected = append(inspected, row.ID)
			}
			if err == nil && (inspect || !found || seen != want.glance()) {
				suspects = append(suspects, row.ID)
			}
		}
		if more = len(rows) == rowsPage; more {
			after = rows[len(rows)-1].ID
		}
	}
	r.inspected = "" // from the start again
	if len(inspected) == inspectedEach {
		r.inspected = inspected[inspectedEach-1]
	}
	return slices.AppendSeq(suspects, maps.Keys(listed)), nil
}

// repair looks at schedules and repairs them.
func (r *Reconciler) repair(ctx context.Context, ids []string) error {
	var away error
	together(ids, syncAtOnce, func(id string) {
		r.mu.Lock()
		skip := away != nil
		r.mu.Unlock()
		if skip || ctx.Err() != nil {
			return
		}
		did, err := r.syncer.converge(ctx, id)
		if automation.CodeOf(err) == automation.CodeEngineUnavailable && r.syncer.temporal.engine.Check(ctx) != nil {
			r.mu.Lock()
			away = err
			r.mu.Unlock()
			return
		}
		r.syncer.reporter.report(ctx, "a schedule in Temporal could not be repaired; it fires, and is tried again", id, err)
		if err == nil {
			r.count(did)
		}
	})
	return away
}

// count counts a repair.
func (r *Reconciler) count(did outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch did {
	case created:
		r.repairs.Created++
	case updated:
		r.repairs.Updated++
	case removed:
		r.repairs.Removed++
	case adopted:
		r.repairs.Adopted++
	case unchanged:
	}
}
