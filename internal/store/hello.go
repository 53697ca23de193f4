package store

import (
	"context"
	"fmt"
	"time"

	"github.com/errandhq/errand/automation"
)

// Hello implements [automation.StepLedger]. Which instance may take a machine over is decided by [takesOver]. A
// revoked machine is told to end what it holds, and nothing of it is recorded.
func (s *Store) Hello(ctx context.Context, machineID string, h automation.Hello) ([]automation.HeldAnswer, error) {
	known, ok := canonicalID(machineID)
	if !ok {
		return nil, notFound("machine", machineID)
	}
	labels, err := checkHello(h)
	if err != nil {
		return nil, err
	}
	var revoked bool
	var seen time.Time
	err = retry(ctx, func() error {
		return s.write(ctx, relaxed, func(ctx context.Context, tx querier) error {
			m, err := readMachine(ctx, tx, known, s.dialect.own)
			if err != nil {
				return err
			}
			if revoked = m.State == automation.MachineRevoked; revoked {
				return nil
			}
			seen = s.now()
			if !takesOver(m, h.Instance, seen) {
				return occupied(m, seen)
			}
			kept := labels
			if h.Labels == nil {
				if kept, err = encode(m.Labels); err != nil {
					return fmt.Errorf("encoding labels: %w", err)
				}
			}
			return updateInstance(ctx, tx, known, h, kept, seen)
		})
	})
	if err != nil {
		return nil, err
	}
	if !revoked {
		s.touched.Store(known, seen)
	}
	return s.heldAnswers(ctx, known, revoked, h.Held)
}

func checkHello(h automation.Hello) (labels string, err error) {
	var wrong violations
	wrong.name("instance.directoryId", h.Instance.DirectoryID, maxKeyBytes)
	wrong.name("instance.bootId", h.Instance.BootID, maxKeyBytes)
	wrong.name("instance.host", h.Instance.Host, maxKeyBytes)
	wrong.text("version", h.Version, maxKeyBytes)
	wrong.text("platform", h.Platform, maxKeyBytes)
	if h.Concurrency < 1 || h.Concurrency > maxConcurrency {
		wrong.add("concurrency", fmt.Sprintf("is %d; it must be 1 to %d", h.Concurrency, maxConcurrency))
	}
	labels = wrong.labels(h.Labels)
	return labels, wrong.err()
}

// takesOver reports whether an instance may work as the machine from now on.
//
// The same start of the same worker reconnects. A later start from the same directory, host and boot proves that
// the earlier process is gone, because that one held the lock of the directory. Nothing proves it for any other
// instance: another directory or host, and also another boot of the same host, which may be a copy of a virtual
// machine that goes by the same name. Those wait until the machine has not been seen for
// [automation.OnlineWithin]; a machine that restarts takes about as long anyway.
func takesOver(m automation.Machine, next automation.Instance, now time.Time) bool {
	first := m.Instance
	if first == nil {
		return true
	}
	sameBoot := next.DirectoryID == first.DirectoryID && next.BootID == first.BootID && next.Host == first.Host
	if sameBoot && next.Start >= first.Start {
		return true
	}
	return !m.Online(now)
}

// occupied tells a refused instance where the first one is, and how long it takes at least until that one counts
// as gone.
func occupied(m automation.Machine, now time.Time) error {
	silent := now.Sub(*m.LastSeenAt)
	refusal := automation.Errorf(automation.CodeForbidden,
		"machine %s is already worked by another worker, on host %s, which was seen %s ago: stop that one, or wait until it has been silent for %s",
		quoted(m.Name), quoted(m.Instance.Host), silent.Truncate(time.Second), automation.OnlineWithin)
	refusal.RetryAfter = max(automation.OnlineWithin-silent, time.Second)
	return refusal
}

func updateInstance(ctx context.Context, tx querier, machineID string, h automation.Hello, labels string, now time.Time) error {
	_, err := tx.ExecContext(ctx, `UPDATE machines SET version = $1, platform = $2, labels = $3, concurrency = $4,
			instance_directory = $5, instance_boot = $6, instance_start = $7, instance_host = $8, last_seen_at = $9
		WHERE id = $10`,
		h.Version, h.Platform, labels, h.Concurrency,
		h.Instance.DirectoryID, h.Instance.BootID, h.Instance.Start, h.Instance.Host, at(now), machineID)
	if err != nil {
		return fmt.Errorf("storing the instance of machine %s: %w", machineID, err)
	}
	return nil
}
