package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/errandhq/errand/automation"
)

// Limits of what is kept of owners and keys.
const (
	maxSubjectBytes = 1_000 // issuer and subject share an index row, of which PostgreSQL holds 2,704 bytes
	maxHashBytes    = 64
)

const ownerColumns = `o.id, o.name, o.issuer, o.subject, o.created_at`

func scanOwner(row scanner) (automation.Owner, error) {
	var o automation.Owner
	var issuer, subject sql.NullString
	var created instant
	if err := row.Scan(&o.ID, &o.Name, &issuer, &subject, &created); err != nil {
		return automation.Owner{}, err
	}
	o.Issuer, o.Subject, o.CreatedAt = issuer.String, subject.String, created.time()
	return o, nil
}

func (v *violations) owner(o automation.NewOwner) {
	v.name("name", o.Name, maxKeyBytes)
	v.text("issuer", o.Issuer, maxSubjectBytes)
	v.text("subject", o.Subject, maxSubjectBytes)
	if (o.Issuer == "") != (o.Subject == "") {
		v.add("subject", "goes together with issuer: give both, or neither")
	}
}

// CreateOwner implements [automation.AccessStore].
func (s *Store) CreateOwner(ctx context.Context, o automation.NewOwner) (automation.Owner, error) {
	made, first, err := s.insertOwner(ctx, o)
	if err == nil && !first {
		err = automation.Invalid(automation.Violation{Path: "subject", Message: "has an owner already: " + made.ID})
	}
	if err != nil {
		return automation.Owner{}, err
	}
	return made, nil
}

// OwnerOfSubject implements [automation.AccessStore].
func (s *Store) OwnerOfSubject(ctx context.Context, o automation.NewOwner) (automation.Owner, error) {
	if o.Subject == "" {
		return automation.Owner{}, automation.Invalid(automation.Violation{Path: "subject", Message: "is required"})
	}
	found, err := ownerOf(ctx, s.read, o)
	if automation.CodeOf(err) != automation.CodeNotFound {
		return found, translate(err)
	}
	made, _, err := s.insertOwner(ctx, o)
	return made, err
}

func ownerOf(ctx context.Context, q querier, o automation.NewOwner) (automation.Owner, error) {
	found, err := scanOwner(q.QueryRowContext(ctx,
		`SELECT `+ownerColumns+` FROM owners o WHERE o.issuer = $1 AND o.subject = $2`, o.Issuer, o.Subject))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return automation.Owner{}, notFound("owner", o.Subject)
	case err != nil:
		return automation.Owner{}, fmt.Errorf("looking up a subject: %w", err)
	}
	return found, nil
}

// insertOwner stores an owner; false with the owner that the subject has, when it has one.
func (s *Store) insertOwner(ctx context.Context, o automation.NewOwner) (made automation.Owner, first bool, err error) {
	var wrong violations
	wrong.owner(o)
	if err := wrong.err(); err != nil {
		return automation.Owner{}, false, err
	}
	err = retry(ctx, func() error {
		return s.write(ctx, durable, func(ctx context.Context, tx querier) error {
			made = automation.Owner{
				ID: s.options.NewID(), Name: o.Name, Issuer: o.Issuer, Subject: o.Subject, CreatedAt: s.now(),
			}
			var err error
			first, err = affected(tx.ExecContext(ctx, `INSERT INTO owners (id, name, issuer, subject, created_at)
				VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING`,
				made.ID, made.Name, optional(made.Issuer), optional(made.Subject), at(made.CreatedAt)))
			if err != nil {
				return fmt.Errorf("storing an owner: %w", err)
			}
			if !first {
				made, err = ownerOf(ctx, tx, o)
			}
			return err
		})
	})
	return made, first, err
}

// Owner implements [automation.AccessStore].
func (s *Store) Owner(ctx context.Context, id string) (automation.Owner, error) {
	known, ok := canonicalID(id)
	if !ok {
		return automation.Owner{}, notFound("owner", id)
	}
	found, err := scanOwner(s.read.QueryRowContext(ctx, `SELECT `+ownerColumns+` FROM owners o WHERE o.id = $1`, known))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return automation.Owner{}, notFound("owner", id)
	case err != nil:
		return automation.Owner{}, translate(fmt.Errorf("reading an owner: %w", err))
	}
	return found, nil
}

// Owners implements [automation.AccessStore].
func (s *Store) Owners(ctx context.Context, limit int, cursor string) ([]automation.Owner, string, error) {
	var wrong violations
	after := wrong.cursor(listOwners, cursor)
	if err := wrong.err(); err != nil {
		return nil, "", err
	}
	var q statement
	q.add(`SELECT ` + ownerColumns + ` FROM owners o`)
	if after != nil {
		q.add(` WHERE (o.created_at, o.id) > (?, ?)`, after.createdAt, after.id)
	}
	size := pageSize(limit)
	q.add(` ORDER BY o.created_at, o.id LIMIT ?`, size+1)
	rows, err := q.query(ctx, s.read)
	owners, err := collect(rows, err, scanOwner)
	if err != nil {
		return nil, "", translate(fmt.Errorf("listing owners: %w", err))
	}
	owners, next := page(owners, size, listOwners, func(o automation.Owner) position {
		return position{createdAt: at(o.CreatedAt), id: o.ID}
	})
	return owners, next, nil
}

const keyColumns = `k.id, k.owner_id, k.name, k.scope, k.created_by_kind, k.created_by_id, k.created_at, k.expires_at,
	k.last_used_at, k.revoked_at`

func scanKey(row scanner) (automation.APIKey, error) {
	var k automation.APIKey
	var created, expires, used, revoked instant
	if err := row.Scan(&k.ID, &k.OwnerID, &k.Name, &k.Scope, &k.CreatedBy.Kind, &k.CreatedBy.ID, &created, &expires,
		&used, &revoked); err != nil {
		return automation.APIKey{}, err
	}
	k.CreatedAt, k.ExpiresAt = created.time(), expires.optional()
	k.LastUsedAt, k.RevokedAt = used.optional(), revoked.optional()
	return k, nil
}

// CreateKey implements [automation.AccessStore].
func (s *Store) CreateKey(ctx context.Context, k automation.NewAPIKey) (automation.APIKey, error) {
	var wrong violations
	wrong.name("name", k.Name, maxKeyBytes)
	wrong.name("hash", k.Hash, maxHashBytes)
	if !k.Scope.Known() {
		wrong.add("scope", "is not a scope")
	}
	if err := wrong.err(); err != nil {
		return automation.APIKey{}, err
	}
	owner, err := s.Owner(ctx, k.OwnerID)
	if err != nil {
		return automation.APIKey{}, err
	}
	id := s.options.NewID()
	err = retry(ctx, func() error {
		return s.write(ctx, durable, func(ctx context.Context, tx querier) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO api_keys
					(id, owner_id, name, hash, scope, created_by_kind, created_by_id, created_at, expires_at)
				VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`, id, owner.ID, k.Name, k.Hash, string(k.Scope),
				string(k.CreatedBy.Kind), clean(k.CreatedBy.ID, maxKeyBytes), at(s.now()), atOptional(k.ExpiresAt))
			if err != nil {
				return fmt.Errorf("storing an API key: %w", err)
			}
			return nil
		})
	})
	if err != nil {
		return automation.APIKey{}, err
	}
	made, err := readKey(ctx, s.read, `k.id = $1`, id)
	return made, translate(err)
}

// KeyOfHash implements [automation.AccessStore].
func (s *Store) KeyOfHash(ctx context.Context, hash string) (automation.APIKey, error) {
	if len(hash) > maxHashBytes {
		return automation.APIKey{}, noKey()
	}
	k, err := readKey(ctx, s.read, `k.hash = $1`, hash)
	return k, translate(err)
}

// readKey reads the key that a condition selects.
func readKey(ctx context.Context, q querier, condition string, args ...any) (automation.APIKey, error) {
	k, err := scanKey(q.QueryRowContext(ctx, `SELECT `+keyColumns+` FROM api_keys k WHERE `+condition, args...))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return automation.APIKey{}, noKey()
	case err != nil:
		return automation.APIKey{}, fmt.Errorf("reading an API key: %w", err)
	}
	return k, nil
}

func noKey() error { return automation.Errorf(automation.CodeNotFound, "there is no such API key") }

// KeyUsed implements [automation.AccessStore].
func (s *Store) KeyUsed(ctx context.Context, k automation.APIKey, t time.Time) error {
	if k.LastUsedAt != nil && t.Sub(*k.LastUsedAt) < automation.KeyUsedEvery {
		return nil
	}
	return retry(ctx, func() error {
		return s.write(ctx, relaxed, func(ctx context.Context, tx querier) error {
			_, err := tx.ExecContext(ctx, `UPDATE api_keys SET last_used_at = $1
				WHERE id = $2 AND (last_used_at IS NULL OR last_used_at <= $3)`,
				at(t), k.ID, at(t.Add(-automation.KeyUsedEvery)))
			if err != nil {
				return fmt.Errorf("recording the use of an API key: %w", err)
			}
			return nil
		})
	})
}

// Keys implements [automation.AccessStore].
func (s *Store) Keys(ctx context.Context, ownerID string, limit int, cursor string) ([]automation.APIKey, string, error) {
	var wrong violations
	after := wrong.cursor(listKeys, cursor)
	if err := wrong.err(); err != nil {
		return nil, "", err
	}
	var q statement
	q.add(`SELECT ` + keyColumns + ` FROM api_keys k WHERE k.owner_id = `)
	if !q.addID(ownerID) {
		return nil, "", nil
	}
	if after != nil {
		q.add(` AND (k.created_at, k.id) < (?, ?)`, after.createdAt, after.id)
	}
	size := pageSize(limit)
	q.add(` ORDER BY k.created_at DESC, k.id DESC LIMIT ?`, size+1)
	rows, err := q.query(ctx, s.read)
	keys, err := collect(rows, err, scanKey)
	if err != nil {
		return nil, "", translate(fmt.Errorf("listing API keys: %w", err))
	}
	keys, next := page(keys, size, listKeys, func(k automation.APIKey) position {
		return position{createdAt: at(k.CreatedAt), id: k.ID}
	})
	return keys, next, nil
}

// RevokeKey implements [automation.AccessStore].
func (s *Store) RevokeKey(ctx context.Context, ownerID, id string) (automation.APIKey, error) {
	known, ok := canonicalID(id)
	if !ok {
		return automation.APIKey{}, noKey()
	}
	var revoked automation.APIKey
	err := retry(ctx, func() error {
		return s.write(ctx, durable, func(ctx context.Context, tx querier) error {
			var err error
			revoked, err = readKey(ctx, tx, `k.id = $1`+s.dialect.own, known)
			if err == nil && ownerID != "" && revoked.OwnerID != ownerID {
				err = noKey()
			}
			if err != nil || revoked.RevokedAt != nil {
				return err
			}
			now := s.now()
			if _, err := tx.ExecContext(ctx, `UPDATE api_keys SET revoked_at = $1 WHERE id = $2`, at(now), known); err != nil {
				return fmt.Errorf("revoking an API key: %w", err)
			}
			revoked.RevokedAt = &now
			return nil
		})
	})
	if err != nil {
		return automation.APIKey{}, err
	}
	return revoked, nil
}
