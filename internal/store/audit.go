package store

import (
	"context"
	"fmt"
	"time"

	"github.com/errandhq/errand/automation"
)

// maxAuditBytes bounds each text of an entry; what is longer is cut, since an entry must not be refused.
const maxAuditBytes = 100

// AppendAudit implements [automation.AuditStore].
func (s *Store) AppendAudit(ctx context.Context, e automation.AuditEntry) error {
	owner, ok := canonicalID(e.OwnerID)
	if !ok {
		return notFound("owner", e.OwnerID)
	}
	return retry(ctx, func() error {
		return s.write(ctx, relaxed, func(ctx context.Context, tx querier) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO audit
					(id, at, owner_id, actor_kind, actor_id, action, object_id, result_id, outcome, address, request_id)
				VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
				s.options.NewID(), at(e.At), owner, clean(string(e.Actor.Kind), maxAuditBytes), clean(e.Actor.ID, maxAuditBytes),
				clean(e.Action, maxAuditBytes), clean(e.ObjectID, maxAuditBytes), clean(e.ResultID, maxAuditBytes),
				clean(e.Outcome, maxAuditBytes), clean(e.Address, maxAuditBytes), clean(e.RequestID, maxAuditBytes))
			if err != nil {
				return fmt.Errorf("storing an entry of the audit: %w", err)
			}
			return nil
		})
	})
}

func scanAudit(row scanner) (automation.AuditEntry, error) {
	var e automation.AuditEntry
	var when instant
	err := row.Scan(&e.ID, &when, &e.OwnerID, &e.Actor.Kind, &e.Actor.ID, &e.Action, &e.ObjectID, &e.ResultID,
		&e.Outcome, &e.Address, &e.RequestID)
	e.At = when.time()
	return e, err
}

// Audit implements [automation.AuditStore]. An owner in the filter that is none selects nothing.
func (s *Store) Audit(ctx context.Context, f automation.AuditFilter) ([]automation.AuditEntry, string, error) {
	var wrong violations
	wrong.text("object_id", f.Object, maxAuditBytes)
	wrong.text("actor_id", f.Actor, maxAuditBytes)
	wrong.text("action", f.Action, maxAuditBytes)
	after := wrong.cursor(listAudit, f.Cursor)
	if err := wrong.err(); err != nil {
		return nil, "", err
	}
	var q statement
	q.add(`SELECT a.id, a.at, a.owner_id, a.actor_kind, a.actor_id, a.action, a.object_id, a.result_id, a.outcome,
		a.address, a.request_id FROM audit a WHERE a.at >= ?`, at(since(f.Since)))
	if f.Until != nil {
		q.add(` AND a.at < ?`, at(*f.Until))
	}
	if f.OwnerID != "" {
		q.add(` AND a.owner_id = `)
		if !q.addID(f.OwnerID) {
			return nil, "", nil
		}
	}
	if f.Object != "" {
		// The conditions beside the ids let the partial indexes be used.
		q.add(` AND (a.object_id = ? AND a.object_id <> '' OR a.result_id = ? AND a.result_id <> '')`, f.Object, f.Object)
	}
	if f.Actor != "" {
		q.add(` AND a.actor_id = ?`, f.Actor)
	}
	if f.Action != "" {
		q.add(` AND a.action = ?`, f.Action)
	}
	if after != nil {
		q.add(` AND (a.at, a.id) < (?, ?)`, after.createdAt, after.id)
	}
	size := pageSize(f.Limit)
	q.add(` ORDER BY a.at DESC, a.id DESC LIMIT ?`, size+1)
	rows, err := q.query(ctx, s.read)
	entries, err := collect(rows, err, scanAudit)
	if err != nil {
		return nil, "", translate(fmt.Errorf("reading the audit: %w", err))
	}
	entries, next := page(entries, size, listAudit, func(e automation.AuditEntry) position {
		return position{createdAt: at(e.At), id: e.ID}
	})
	return entries, next, nil
}

// since is the start of a filter, or of time.
func since(t *time.Time) time.Time {
	if t == nil {
		return time.Unix(0, 0)
	}
	return *t
}

// PurgeAudit implements [automation.AuditStore].
func (s *Store) PurgeAudit(ctx context.Context, before time.Time, limit int) (int, error) {
	return s.purge(ctx, "old entries of the audit", `DELETE FROM audit WHERE id IN (
		SELECT id FROM audit WHERE at < $1 ORDER BY at, id LIMIT $2)`, at(before), limit)
}
