package store

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/errandhq/errand/automation"
)

// The pool of one server. PostgreSQL allows 100 connections unless it was told otherwise, so several servers
// fit beside each other.
const (
	maxConnections     = 16
	connectionIdleTime = 5 * time.Minute
	connectionLifetime = time.Hour
)

// oldestPostgres is the oldest supported server_version_num.
const oldestPostgres = 150_000

// Waiting for another server that migrates: once a second, for five minutes.
const (
	migrationLockEvery = 1
	migrationLockTries = 300
)

func connectPostgres(ctx context.Context, o Options) (database, error) {
	config, err := pgx.ParseConfig(o.URL)
	if err != nil {
		return database{}, &automation.Error{
			Code: automation.CodeValidationFailed, Message: "the database URL cannot be read", Cause: err,
		}
	}
	if err := checkPassfile(o.URL); err != nil {
		return database{}, err
	}
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "errandd"
	}
	pool := stdlib.OpenDB(*config)
	pool.SetMaxOpenConns(maxConnections)
	pool.SetMaxIdleConns(maxConnections)
	pool.SetConnMaxIdleTime(connectionIdleTime)
	pool.SetConnMaxLifetime(connectionLifetime)
	if err := preparePostgres(ctx, pool, o); err != nil {
		_ = pool.Close() // the reason to close is what counts
		return database{}, err
	}
	return database{
		dialect:    postgresDialect,
		read:       pool,
		write:      postgresWriter(pool),
		checkpoint: func(context.Context) error { return nil },
		close:      pool.Close,
	}, nil
}

// checkPassfile refuses a password file that cannot be read. The driver passes over it, as psql does, and the server
// then refuses credentials that it was never shown.
func checkPassfile(databaseURL string) error {
	path := os.Getenv("PGPASSFILE")
	if address, err := url.Parse(databaseURL); err == nil && address.Query().Get("passfile") != "" {
		path = address.Query().Get("passfile")
	}
	if path == "" {
		return nil
	}
	file, err := os.Open(path)
	if err != nil {
		return &automation.Error{
			Code: automation.CodeValidationFailed, Message: "the password file of the database URL cannot be read", Cause: err,
		}
	}
	return file.Close()
}

// preparePostgres refuses what cannot work and migrates; other servers wait meanwhile.
func preparePostgres(ctx context.Context, pool *sql.DB, o Options) error {
	var version int
	var encoding string
	err := pool.QueryRowContext(ctx,
		`SELECT current_setting('server_version_num')::int, current_setting('server_encoding')`).Scan(&version, &encoding)
	if err != nil {
		return fmt.Errorf("asking PostgreSQL for its version: %w", err)
	}
	if version < oldestPostgres {
		const major = 10_000
		return automation.Errorf(automation.CodeStoreUnavailable,
			"the database is PostgreSQL %d; version 15 or later is needed", version/major)
	}
	if !strings.EqualFold(encoding, "UTF8") {
		return automation.Errorf(automation.CodeStoreUnavailable,
			"the database has the encoding %s; create one with ENCODING 'UTF8'", encoding)
	}
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(migrationLockEvery, migrationLockTries))
	if err != nil {
		return fmt.Errorf("making the lock of the migrations: %w", err)
	}
	provider, err := migrator(postgresDialect, pool, goose.WithSessionLocker(locker))
	if err != nil {
		return err
	}
	return migrate(ctx, postgresDialect, provider, o.Logger)
}

// postgresWriter returns the write function of a pool. PostgreSQL itself groups concurrent commits.
func postgresWriter(pool *sql.DB) func(context.Context, durability, func(context.Context, querier) error) error {
	return func(ctx context.Context, d durability, fn func(context.Context, querier) error) error {
		// The isolation is named because a server may have another default: each change compares the revision
		// itself, and an insertion that meets a unique constraint must see the row that it lost to.
		tx, err := pool.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		if err != nil {
			return fmt.Errorf("beginning a transaction: %w", err)
		}
		defer func() { _ = tx.Rollback() }() // says only that it has been committed, or that the connection is gone
		if d == relaxed {
			if _, err := tx.ExecContext(ctx, `SET LOCAL synchronous_commit = off`); err != nil {
				return fmt.Errorf("relaxing a transaction: %w", err)
			}
		}
		if err := fn(ctx, tx); err != nil {
			return err
		}
		if err := tx.Commit(); err != nil {
			return fmt.Errorf("committing a transaction: %w", err)
		}
		return nil
	}
}
