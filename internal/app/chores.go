package app

import (
	"context"
	"errors"
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
			err = errors.Join(a.purgeKeys(background), a.purgeDeliveries(background))
		}
		if err != nil && background.Err() == nil {
			a.logger.Warn("what has expired could not be forgotten; it is tried again", "error", err)
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

// deliveriesAtOnce bounds one transaction of [App.purgeDeliveries].
const deliveriesAtOnce = 1_000

// purgeDeliveries forgets the deliveries of webhooks that need not be recognised any more.
func (a *App) purgeDeliveries(ctx context.Context) error {
	total := 0
	for {
		forgotten, err := a.ledger.ForgetDeliveries(ctx, deliveriesAtOnce)
		if err != nil {
			return err
		}
		total += forgotten
		if forgotten < deliveriesAtOnce {
			break
		}
	}
	if total > 0 {
		a.logger.Info("old deliveries of webhooks are forgotten", "count", total)
	}
	return nil
}
