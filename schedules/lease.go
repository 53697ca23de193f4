package schedules

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// leaseTTL is how long a dead server keeps the others from firing and synchronizing.
const leaseTTL = 15 * time.Second

// leases takes leases of the ledger.
type leases interface {
	Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error)
}

// lease lets one server at a time do a piece of work. For a third of its ttl it is relied on without being renewed. It
// is used by one goroutine.
type lease struct {
	ledger       leases
	name, holder string
	now          func() time.Time
	ttl          time.Duration
	renewed      time.Time
}

// mine takes or renews the lease; false when another server has it.
func (l *lease) mine(ctx context.Context) (bool, error) {
	now := l.now()
	if age := now.Sub(l.renewed); age >= 0 && age < l.ttl/3 {
		return true, nil
	}
	mine, err := l.ledger.Lease(ctx, l.name, l.holder, l.ttl)
	if mine && err == nil {
		l.renewed = now
	}
	return mine, err
}

// release lets any server take the lease.
func (l *lease) release(ctx context.Context) {
	if l.renewed.IsZero() {
		return
	}
	l.renewed = time.Time{}
	_, _ = l.ledger.Lease(ctx, l.name, l.holder, 0) // else it runs out
}

// reporter logs a trouble once, and again when it has become another or was over in between.
type reporter struct {
	logger *slog.Logger

	mu   sync.Mutex
	said map[string]string
}

func newReporter(logger *slog.Logger) *reporter {
	return &reporter{logger: logger, said: map[string]string{}}
}

// report logs what befell a schedule, or all of them when key is empty; a nil error ends the trouble.
func (r *reporter) report(ctx context.Context, message, key string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		delete(r.said, message+key)
		return
	}
	if ctx.Err() != nil || r.said[message+key] == err.Error() {
		return
	}
	r.said[message+key] = err.Error()
	r.logger.WarnContext(ctx, message, "schedule", key, "error", err)
}
