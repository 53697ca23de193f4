package app

import (
	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/metrics"
)

// watchMetrics has the metrics ask what exists by now.
func (a *App) watchMetrics() {
	a.metrics.Watch(metrics.Sources{
		Ping: a.ledger.Ping, Census: a.ledger.Census, EngineUp: a.engine.Up, OpenPolls: a.gateway.OpenPolls,
		RunRepairs: func() map[string]int64 {
			did := a.reconciler.Repairs()
			return map[string]int64{
				"cancelled": int64(did.Cancelled), "restarted": int64(did.Restarted), "redispatched": int64(did.Redispatched),
				"told": int64(did.Told), "ended": int64(did.Ended),
			}
		},
		ScheduleRepairs: func() map[string]int64 {
			did := a.firing.reconciler.Repairs()
			return map[string]int64{
				"created": did.Created, "updated": did.Updated, "removed": did.Removed, "adopted": did.Adopted,
			}
		},
		UnknownWorkflows: func() int { return a.reconciler.Repairs().Unknown },
	})
}

// machineRefused counts a call to the gateway that was not a machine's.
func (a *App) machineRefused() { a.metrics.CredentialRefused(automation.CredentialMachine) }

// machineLimited counts a call of a machine that asks or sends too much.
func (a *App) machineLimited() { a.metrics.CallLimited(automation.LimitMachine) }
