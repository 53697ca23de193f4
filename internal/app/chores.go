package app

import (
	"context"
	"time"
)

const (
	// choresEvery is how often the chores are done; none of them is urgent.
	choresEvery = time.Hour
	// choresTTL is how long a dead server keeps the others from them.
	choresTTL = 2 * choresEvery
	// purgeBatch is how many rows go in one transaction, so that none of them takes long.
	purgeBatch = 1000
	day        = 24 * time.Hour
)

// purge is the removal of one kind of rows whose time is over, at most limit of them at a time.
type purge struct {
	what string
	some func(ctx context.Context, limit int) (removed int, err error)
}

// purges are the rows that the database would else grow with.
func (a *App) purges() []purge {
	purges := []purge{
		{"expired idempotency keys", a.ledger.PurgeKeys},
		{"old deliveries of webhooks", a.ledger.PurgeDeliveries},
	}
	if days := a.settings.AuditDays; days > 0 {
		purges = append(purges, purge{"old entries of the audit", func(ctx context.Context, limit int) (int, error) {
			return a.ledger.PurgeAudit(ctx, a.now().Add(-time.Duration(days)*day), limit)
		}})
	}
	return purges
}

// doChores keeps the database from growing with what nobody needs any more, on one of the servers at a time, until
// ctx ends.
func (a *App) doChores(ctx context.Context) {
	for ctx.Err() == nil {
		mine, err := a.ledger.Lease(ctx, "chores", a.serverID, choresTTL)
		if err != nil && ctx.Err() == nil {
			a.logger.Warn("the lease for removing what is old could not be taken; it is tried again", "error", err)
		}
		if mine {
			for _, p := range a.purges() {
				a.purge(ctx, p)
			}
		}
		wait(ctx, choresEvery)
	}
}

// purge removes all rows of one kind whose time is over.
func (a *App) purge(ctx context.Context, p purge) {
	total := 0
	for {
		removed, err := p.some(ctx, purgeBatch)
		if err != nil {
			if ctx.Err() == nil {
				a.logger.Warn("what is old could not be removed; it is tried again", "what", p.what, "error", err)
			}
			return
		}
		if total += removed; removed < purgeBatch {
			break
		}
	}
	if total > 0 {
		a.logger.Info("what is old was removed", "what", p.what, "count", total)
	}
}
