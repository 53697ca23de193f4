package store

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/errandhq/errand/automation"
)

// codesKeptFor is how long codes are remembered after they have expired.
const codesKeptFor = 24 * time.Hour

// SaveEnrollmentCode implements [automation.EnrollmentStore].
func (s *Store) SaveEnrollmentCode(ctx context.Context, c automation.EnrollmentCode) error {
	owner, ok := canonicalID(c.OwnerID)
	if !ok {
		return notFound("owner", c.OwnerID)
	}
	var wrong violations
	wrong.name("hash", c.Hash, maxKeyBytes)
	if err := wrong.err(); err != nil {
		return err
	}
	return retry(ctx, func() error {
		return s.write(ctx, durable, func(ctx context.Context, tx querier) error {
			machine, err := codeMachine(ctx, tx, owner, c.MachineID)
			if err != nil {
				return err
			}
			now := s.now()
			if _, err := tx.ExecContext(ctx, `DELETE FROM enrollment_codes WHERE expires_at <= $1`, at(now.Add(-codesKeptFor))); err != nil {
				return fmt.Errorf("removing old enrolment codes: %w", err)
			}
			if err := checkOpenCodes(ctx, tx, owner, now); err != nil {
				return err
			}
			_, err = tx.ExecContext(ctx, `INSERT INTO enrollment_codes (hash, owner_id, machine_id, created_at, expires_at, used_by)
				VALUES ($1, $2, $3, $4, $5, '')`, c.Hash, owner, machine, at(now), at(c.ExpiresAt))
			if err != nil {
				return fmt.Errorf("storing an enrolment code: %w", err)
			}
			return nil
		})
	})
}

// codeMachine returns the column of the machine that a code names.
func codeMachine(ctx context.Context, tx querier, owner, id string) (sql.NullString, error) {
	if id == "" {
		return sql.NullString{}, nil
	}
	known, err := ownedMachine(ctx, tx, owner, id, "")
	return sql.NullString{String: known.ID, Valid: true}, err
}

func checkOpenCodes(ctx context.Context, tx querier, owner string, now time.Time) error {
	var open int
	var first instant
	err := tx.QueryRowContext(ctx, `SELECT count(*), min(expires_at) FROM enrollment_codes
		WHERE owner_id = $1 AND used_at IS NULL AND expires_at > $2`, owner, at(now)).Scan(&open, &first)
	if err != nil {
		return fmt.Errorf("counting open enrolment codes: %w", err)
	}
	if open < automation.MaxOpenEnrollmentCodes {
		return nil
	}
	return automation.RateLimited(max(first.time().Sub(now), time.Second),
		"%d enrolment codes are open; use them, or wait until some have expired", open)
}

// RedeemEnrollmentCode implements [automation.EnrollmentStore].
func (s *Store) RedeemEnrollmentCode(ctx context.Context, hash string, m automation.NewMachine) (automation.Machine, error) {
	labels, err := checkNewMachine(m)
	if err != nil {
		return automation.Machine{}, err
	}
	var strange violations
	if strange.name("hash", hash, maxKeyBytes); len(strange) > 0 {
		return automation.Machine{}, noOpenCode()
	}
	var machine automation.Machine
	err = retry(ctx, func() error {
		return s.write(ctx, durable, func(ctx context.Context, tx querier) error {
			owner, target, err := s.takeCode(ctx, tx, hash, m.PublicKey)
			if err != nil {
				return err
			}
			id := target
			if target == "" {
				id, err = s.enrollNew(ctx, tx, owner, m, labels)
			} else {
				err = s.enrollAgain(ctx, tx, target, m, labels)
			}
			if err != nil {
				return err
			}
			machine, err = readMachine(ctx, tx, id, "")
			return err
		})
	})
	return machine, err
}

func noOpenCode() error {
	return automation.Errorf(automation.CodeNotFound, "there is no such open enrolment code")
}

// takeCode gives an open code to a public key, which may have it already, and returns its owner and machine.
func (s *Store) takeCode(ctx context.Context, tx querier, hash, publicKey string) (owner, machine string, err error) {
	now := s.now()
	open, err := affected(tx.ExecContext(ctx, `UPDATE enrollment_codes SET used_at = COALESCE(used_at, $1), used_by = $2
		WHERE hash = $3 AND expires_at > $1 AND (used_at IS NULL OR used_by = $2)`, at(now), publicKey, hash))
	if err != nil {
		return "", "", fmt.Errorf("taking an enrolment code: %w", err)
	}
	if !open {
		return "", "", noOpenCode()
	}
	var named sql.NullString
	err = tx.QueryRowContext(ctx, `SELECT owner_id, machine_id FROM enrollment_codes WHERE hash = $1`, hash).Scan(&owner, &named)
	if err != nil {
		return "", "", fmt.Errorf("reading an enrolment code: %w", err)
	}
	return owner, named.String, nil
}

// enrollNew stores a machine of the owner, unless its key is enrolled for the owner already.
func (s *Store) enrollNew(ctx context.Context, tx querier, owner string, m automation.NewMachine, labels string) (string, error) {
	var id, enrolledFor, state string
	found, err := exists(tx.QueryRowContext(ctx, `SELECT id, owner_id, state FROM machines WHERE public_key = $1`, m.PublicKey).
		Scan(&id, &enrolledFor, &state))
	switch {
	case err != nil:
		return "", fmt.Errorf("looking up a device key: %w", err)
	case found && enrolledFor != owner:
		return "", automation.Errorf(automation.CodeForbidden, "this device key is enrolled for another owner; make a new key")
	case found && automation.MachineState(state) == automation.MachineRevoked:
		return "", revokedKey(id)
	case found:
		return id, nil
	}
	id = s.options.NewID()
	return id, s.insertMachine(ctx, tx, id, owner, m, labels)
}

func revokedKey(id string) error {
	return automation.Errorf(automation.CodeMachineRevoked,
		"the key belongs to the machine %s, which has been revoked; enrol again with a new key", id)
}

// enrollAgain gives a machine a new key. Its name stays, and its labels where none are given.
func (s *Store) enrollAgain(ctx context.Context, tx querier, id string, m automation.NewMachine, labels string) error {
	current, err := readMachine(ctx, tx, id, s.dialect.own)
	if err != nil {
		return err
	}
	if current.PublicKey == m.PublicKey {
		if current.State == automation.MachineRevoked {
			return revokedKey(id)
		}
		return nil // a repeat
	}
	taken, err := exists(tx.QueryRowContext(ctx, `SELECT id FROM machines WHERE public_key = $1`, m.PublicKey).Scan(new(string)))
	if err != nil {
		return fmt.Errorf("looking up a device key: %w", err)
	}
	if taken {
		return automation.Errorf(automation.CodeForbidden, "this device key is enrolled for another machine; make a new key")
	}
	if m.Labels == nil {
		if labels, err = encode(current.Labels); err != nil {
			return fmt.Errorf("encoding labels: %w", err)
		}
	}
	_, err = tx.ExecContext(ctx, `UPDATE machines SET public_key = $1, platform = $2, version = $3, labels = $4, state = $5,
			revoked_at = NULL, access_changed_at = $6 WHERE id = $7`,
		m.PublicKey, m.Platform, m.Version, labels, string(automation.MachineActive), at(s.now()), id)
	if err != nil {
		return fmt.Errorf("storing the new key of machine %s: %w", id, err)
	}
	return nil
}

// RevokeMachine implements [automation.MachineStore].
func (s *Store) RevokeMachine(ctx context.Context, ownerID, id string) (automation.Machine, error) {
	var m automation.Machine
	err := retry(ctx, func() error {
		return s.write(ctx, durable, func(ctx context.Context, tx querier) (err error) {
			if m, err = ownedMachine(ctx, tx, ownerID, id, s.dialect.own); err != nil || m.State == automation.MachineRevoked {
				return err
			}
			now := s.now()
			m.State, m.RevokedAt = automation.MachineRevoked, &now
			_, err = tx.ExecContext(ctx, `UPDATE machines SET state = $1, revoked_at = $2, access_changed_at = $2 WHERE id = $3`,
				string(m.State), at(now), m.ID)
			if err != nil {
				return fmt.Errorf("revoking machine %s: %w", m.ID, err)
			}
			return nil
		})
	})
	return m, err
}

// LoseRuns implements [automation.MachineStore].
func (s *Store) LoseRuns(ctx context.Context, limit int) ([]automation.Run, error) {
	// The order is that of an index. By id, SQLite would look at every run there ever was.
	rows, err := s.read.QueryContext(ctx, `SELECT r.id FROM runs r
		WHERE r.finished_at IS NULL AND r.machine_id IN (SELECT m.id FROM machines m WHERE m.state = 'revoked')
		ORDER BY r.machine_id, r.created_at, r.id LIMIT $1`, limit)
	ids, err := collect(rows, err, func(row scanner) (id string, err error) { return id, row.Scan(&id) })
	if err != nil {
		return nil, translate(fmt.Errorf("finding runs of revoked machines: %w", err))
	}
	lost := make([]automation.Run, 0, len(ids))
	for _, id := range ids {
		revoked := false // no longer, when the machine was given a new key in between: its runs go on
		run, err := s.transition(ctx, id, durable, anyRun, func(state *runState, now time.Time) error {
			if revoked = state.machineRevoked; revoked {
				state.LoseMachine(now)
			}
			return nil
		})
		if err != nil {
			return lost, err
		}
		if revoked {
			lost = append(lost, run)
		}
	}
	return lost, nil
}

// AccessChanges implements [automation.MachineStore].
func (s *Store) AccessChanges(ctx context.Context, since time.Time) ([]automation.AccessChange, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT id, state, access_changed_at FROM machines
		WHERE access_changed_at IS NOT NULL AND access_changed_at >= $1 ORDER BY access_changed_at`, at(since))
	changes, err := collect(rows, err, func(row scanner) (automation.AccessChange, error) {
		var c automation.AccessChange
		var changed instant
		err := row.Scan(&c.MachineID, &c.State, &changed)
		c.At = changed.time()
		return c, err
	})
	if err != nil {
		return nil, translate(fmt.Errorf("reading changes of access: %w", err))
	}
	return changes, nil
}
