package app

import (
	"context"
	"time"
)

const (
	purgeEvery = time.Hour
	// purgeBatch is how many old entries go in one transaction, so that none of them takes long.
	purgeBatch = 1000
	day        = 24 * time.Hour
)

// purgeAudit removes entries of the audit that are older than ERRAND_AUDIT_DAYS, until ctx ends.
// Several servers may do it at once: what one has removed, another does not find.
func (a *App) purgeAudit(ctx context.Context) {
	if a.settings.AuditDays == 0 {
		return
	}
	for ctx.Err() == nil {
		before := a.now().Add(-time.Duration(a.settings.AuditDays) * day)
		removed, err := a.ledger.PurgeAudit(ctx, before, purgeBatch)
		if err != nil && ctx.Err() == nil {
			a.logger.WarnContext(ctx, "old entries of the audit could not be removed", "error", err)
		}
		if removed < purgeBatch {
			wait(ctx, purgeEvery)
		}
	}
}
