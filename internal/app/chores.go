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
)

// doChores keeps the database from growing with what nobody needs any more, on one of the servers at a time.
func (a *App) doChores(background context.Context, holder string) {
	for background.Err() == nil {
		mine, err := a.ledger.Lease(background, "chores", holder, choresTTL)
		if err == nil && mine {
			err = a.purgeKeys(background)
		}
		if err != nil && background.Err() == nil {
			a.logger.Warn("expired idempotency keys could not be forgotten; it is tried again", "error", err)
		}
		wait(background, choresEvery)
	}
}

// purgeKeys forgets every idempotency key that has expired.
func (a *App) purgeKeys(ctx context.Context) error {
	total := 0
	for {
		forgotten, err := a.ledger.PurgeKeys(ctx)
		if err != nil {
			return err
		}
		if total += forgotten; forgotten == 0 {
			break
		}
	}
	if total > 0 {
		a.logger.Info("expired idempotency keys are forgotten", "count", total)
	}
	return nil
}
