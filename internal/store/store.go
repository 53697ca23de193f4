// Package store is the ledger on a database: [automation.Ledger], once, over database/sql, for PostgreSQL 15 or
// later and for an embedded SQLite file. The statements are the same on both; what differs is in dialect.go,
// postgres.go and sqlite.go, and in the migrations.
//
// What happens to a run is decided by the functions of package automation. This package loads a run's state,
// applies one of them, and stores what changed in a transaction that compares the run's revision: two changes
// never act on the same state, whichever servers they come from; the one that comes second starts again from
// the new state. Plans, inputs and outputs are kept apart and are not read for that.
//
// Transactions that need several rows take their locks in one order: the automation, its machine, the schedule, the
// runs by id. What concerns the runs of one schedule together (their admission, their end, which of them may start)
// happens under the lock of the schedule's row.
//
// A method returns after its commit. Admission, finish, cancel and everything else are on disk by then; a begin
// and a machine's last-seen time may be lost with the power, as the protocol allows. Every error that leaves
// the package is an [automation.Error].
package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/errandhq/errand/automation"
)

// Options say which database to open and what the store takes from outside.
type Options struct {
	// URL is postgres://… or postgresql://… (what pgx accepts as a URL), or the path of a SQLite file, which is
	// created (0600) when missing; its directory must exist.
	URL string
	// Now is the clock of the ledger.
	Now func() time.Time
	// NewID makes ids: UUIDs of version 7.
	NewID func() string
	// Vault seals the secrets of webhooks. Without it no webhook can be added.
	Vault automation.SecretVault
	// Logger is told about the opening and about migrations.
	Logger *slog.Logger
	// OnRunChange is called after each commit of this store that changed a run, with the ids of the run and
	// its machine. It must not block. Nil means that nobody listens.
	OnRunChange func(runID, machineID string)
	// OnRunReady is called after each commit of this store that lets a run start which nobody was told of: one
	// that waited for an earlier run of its schedule, or that was admitted because its schedule was changed. It
	// must not block. Nil means that nobody listens.
	OnRunReady func(runID string)
	// Observer is told what each commit of this store has done. Nil means that nobody counts.
	Observer automation.Observer
}

// Store is the ledger. It is safe for concurrent use; several stores, also of different processes, may be open
// on one database.
type Store struct {
	database
	options      Options
	installation automation.Installation

	touched sync.Map // machine id → time.Time that is stored as last seen
}

var _ automation.Ledger = (*Store)(nil)

// errClosed is the cause of a refused call on a store that has been closed.
var errClosed = errors.New("the store is closed")

// Open opens a database, brings its schema up to date, and makes the identity of the installation when it is
// new. Two servers may open one database at the same time. A database whose schema is newer than this build, or
// a PostgreSQL older than 15, is refused.
func Open(ctx context.Context, o Options) (*Store, error) {
	db, err := connect(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("opening the database: %w", translate(err))
	}
	s := &Store{database: db, options: o}
	if err := s.install(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("reading the installation: %w", err), s.Close())
	}
	o.Logger.InfoContext(ctx, "database open", "kind", db.dialect.name, "installation", s.installation.ID)
	return s, nil
}

// connect chooses the database by the form of the URL.
func connect(ctx context.Context, o Options) (database, error) {
	if strings.HasPrefix(o.URL, "postgres://") || strings.HasPrefix(o.URL, "postgresql://") {
		return connectPostgres(ctx, o)
	}
	if scheme, _, found := strings.Cut(o.URL, "://"); found {
		return database{}, automation.Errorf(automation.CodeValidationFailed,
			"a database is postgres://… or the path of a SQLite file, not %s://…", scheme)
	}
	return connectSQLite(ctx, o)
}

// install loads the identity of the installation, and makes it when there is none.
func (s *Store) install(ctx context.Context) error {
	return retry(ctx, func() error {
		return s.write(ctx, durable, func(ctx context.Context, tx querier) error {
			var createdAt instant
			found, err := exists(tx.QueryRowContext(ctx, `SELECT id, local_owner_id, created_at FROM installation`).
				Scan(&s.installation.ID, &s.installation.LocalOwnerID, &createdAt))
			if err != nil || found {
				s.installation.CreatedAt = createdAt.time()
				return err
			}
			return s.createInstallation(ctx, tx)
		})
	})
}

func (s *Store) createInstallation(ctx context.Context, tx querier) error {
	made := automation.Installation{ID: s.options.NewID(), LocalOwnerID: s.options.NewID(), CreatedAt: s.now()}
	if _, err := tx.ExecContext(ctx, `INSERT INTO owners (id, name, created_at) VALUES ($1, $2, $3)`,
		made.LocalOwnerID, "local", at(made.CreatedAt)); err != nil {
		return err
	}
	first, err := affected(tx.ExecContext(ctx,
		`INSERT INTO installation (only_row, id, local_owner_id, created_at) VALUES (1, $1, $2, $3) ON CONFLICT DO NOTHING`,
		made.ID, made.LocalOwnerID, at(made.CreatedAt)))
	if err != nil {
		return err
	}
	if !first {
		return errLostRace
	}
	s.installation = made
	return nil
}

// Installation implements [automation.Ledger].
func (s *Store) Installation(context.Context) (automation.Installation, error) {
	return s.installation, nil
}

// Ping implements [automation.Ledger].
func (s *Store) Ping(ctx context.Context) error {
	var one int
	return translate(s.read.QueryRowContext(ctx, `SELECT 1`).Scan(&one))
}

// Checkpoint moves what SQLite has written ahead into the database file, so that a copy of the file alone is
// complete up to now; on PostgreSQL it does nothing.
func (s *Store) Checkpoint(ctx context.Context) error { return translate(s.checkpoint(ctx)) }

// Close ends the store; calls in progress fail with store_unavailable.
func (s *Store) Close() error { return translate(s.close()) }

// now is the clock in the precision of the database, so that what is returned equals what is read later.
func (s *Store) now() time.Time { return s.options.Now().UTC().Truncate(time.Microsecond) }

// changed tells whoever listens that a commit changed a run.
func (s *Store) changed(runID, machineID string) {
	if s.options.OnRunChange != nil {
		s.options.OnRunChange(runID, machineID)
	}
}
