package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/errandhq/errand/automation"
)

// checkKey refuses an idempotency key that cannot be kept.
func (v *violations) checkKey(key automation.Idempotency) {
	if key.Key == "" {
		return
	}
	v.text("idempotency_key", key.Key, maxKeyBytes)
	v.name("operation", key.Operation, maxKeyBytes)
	v.name("request_hash", key.RequestHash, maxKeyBytes)
}

// keyCutoff is the time before which a key has expired, unless it names a run.
func keyCutoff(now time.Time) instant { return at(now.Add(-automation.IdempotencyFor)) }

// earlierResult returns the id that the first request with a key led to, or "" when there was none.
// Errors: idempotency_conflict when that was another request.
func earlierResult(ctx context.Context, tx querier, ownerID string, key automation.Idempotency, now time.Time) (string, error) {
	if key.Key == "" {
		return "", nil
	}
	var hash, result string
	err := tx.QueryRowContext(ctx, `SELECT request_hash, result_id FROM idempotency
		WHERE owner_id = $1 AND operation = $2 AND key = $3 AND (run_id IS NOT NULL OR created_at >= $4)`,
		ownerID, key.Operation, key.Key, keyCutoff(now)).Scan(&hash, &result)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("looking up an idempotency key: %w", err)
	case hash != key.RequestHash:
		return "", automation.Errorf(automation.CodeIdempotencyConflict,
			"the idempotency key %s was used for another request; use a new key", quoted(key.Key))
	}
	return result, nil
}

// claimKey binds a key to a result, in the transaction that makes the result. Of two transactions that claim a
// key the second loses the race: it makes nothing and finds the first one's result. runID is empty when the
// result is not a run.
func claimKey(ctx context.Context, tx querier, ownerID string, key automation.Idempotency, resultID, runID string, now time.Time) error {
	if key.Key == "" {
		return nil
	}
	first, err := affected(tx.ExecContext(ctx, `INSERT INTO idempotency
			(owner_id, operation, key, request_hash, result_id, run_id, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7)
		ON CONFLICT (owner_id, operation, key) DO UPDATE SET request_hash = excluded.request_hash,
			result_id = excluded.result_id, run_id = excluded.run_id, created_at = excluded.created_at
		WHERE idempotency.run_id IS NULL AND idempotency.created_at < $8`,
		ownerID, key.Operation, key.Key, key.RequestHash, resultID, optional(runID), at(now), keyCutoff(now)))
	if err != nil {
		return fmt.Errorf("storing an idempotency key: %w", err)
	}
	if !first {
		return errLostRace
	}
	return nil
}

// PurgeKeys implements [automation.ChoreStore].
func (s *Store) PurgeKeys(ctx context.Context, limit int) (int, error) {
	return s.purge(ctx, "expired idempotency keys", `DELETE FROM idempotency WHERE (owner_id, operation, key) IN (
		SELECT owner_id, operation, key FROM idempotency WHERE run_id IS NULL AND created_at < $1 ORDER BY created_at LIMIT $2)`,
		keyCutoff(s.now()), limit)
}

// purge deletes rows whose time is over and returns how many. A crash may bring some of them back; they go with the
// next purge.
func (s *Store) purge(ctx context.Context, what, query string, args ...any) (int, error) {
	var removed int64
	err := retry(ctx, func() error {
		return s.write(ctx, relaxed, func(ctx context.Context, tx querier) error {
			result, err := tx.ExecContext(ctx, query, args...)
			if err != nil {
				return fmt.Errorf("removing %s: %w", what, err)
			}
			removed, err = result.RowsAffected()
			return err
		})
	})
	return int(removed), err
}

// optional is a text of which the empty one is stored as NULL.
func optional(s string) sql.NullString { return sql.NullString{String: s, Valid: s != ""} }
