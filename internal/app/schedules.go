package app

import (
	"context"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/store"
	"github.com/errandhq/errand/schedules"
)

// firing is what fires schedules and brings them to Temporal.
type firing struct {
	ticker     *schedules.Ticker
	syncer     *schedules.Syncer
	reconciler *schedules.Reconciler
}

// changed lets a change of schedules take effect at once. Other servers find it within seconds.
func (f *firing) changed() {
	f.ticker.Changed()
	f.syncer.Changed()
}

func (a *App) prepareSchedules() {
	options := schedules.Options{
		Store: a.ledger, Engine: a.engine, InstallationID: a.install.ID, Holder: a.serverID,
		Now: a.now, NewID: a.newID, Logger: a.logger.With("component", "schedules"),
	}
	syncer := schedules.NewSyncer(options)
	a.firing = firing{
		syncer: syncer, reconciler: schedules.NewReconciler(options, syncer),
		ticker: schedules.NewTicker(schedules.TickerOptions{
			Options: options, Admitted: a.starter.Admitted, Cancelled: engineSide{a}.Cancelled, Settled: syncer.Changed,
		}),
	}
}

// runSchedules fires schedules, with or without Temporal, and brings them there when it can be reached.
func (a *App) runSchedules(background context.Context) {
	a.goBackground(func() { a.firing.ticker.Run(background) })
	a.goBackground(func() { a.firing.syncer.Run(background) })
	a.goBackground(func() { a.firing.reconciler.Run(background) })
}

// hintingLedger is the ledger of the commands, which says when schedules may have changed.
type hintingLedger struct {
	*store.Store
	changed func()
}

func (l hintingLedger) CreateAutomation(
	ctx context.Context, ownerID string, d automation.Definition, key automation.Idempotency,
) (automation.Automation, error) {
	defer l.changed()
	return l.Store.CreateAutomation(ctx, ownerID, d, key)
}

func (l hintingLedger) UpdateAutomation(
	ctx context.Context, ownerID, id string, expectedVersion int64, change func(*automation.Definition) error,
) (automation.Automation, error) {
	defer l.changed()
	return l.Store.UpdateAutomation(ctx, ownerID, id, expectedVersion, change)
}

func (l hintingLedger) DeleteAutomation(ctx context.Context, ownerID, id string, expectedVersion int64) error {
	defer l.changed()
	return l.Store.DeleteAutomation(ctx, ownerID, id, expectedVersion)
}
