package store

import (
	"context"
	"database/sql"
	"errors"

	"github.com/pressly/goose/v3"
)

// dialect is all that the shared statements need to know of the database that they run on.
type dialect struct {
	// name is what people call the database; folder and goose choose its migrations.
	name   string
	folder string
	goose  goose.Dialect
	// keep ends a SELECT whose row must stay as it was read until the commit, and own one whose row is about
	// to change. SQLite needs neither: its write transactions run one after another.
	keep, own string
}

var (
	postgresDialect = dialect{
		name: "PostgreSQL", folder: "postgres", goose: goose.DialectPostgres,
		// A key share does not wait for the frequent updates of a machine's last-seen time; a change that
		// must not be overtaken by an admission takes the row for update first.
		keep: " FOR KEY SHARE", own: " FOR UPDATE",
	}
	sqliteDialect = dialect{name: "SQLite", folder: "sqlite", goose: goose.DialectSQLite3}
)

// durability says whether a commit must survive a power cut before it returns.
type durability bool

const (
	durable durability = true
	relaxed durability = false
)

// database is an open database of either kind.
type database struct {
	dialect dialect
	// read runs single statements outside transactions.
	read querier
	// write runs fn in a transaction and commits it. fn may run again in a later call, but only once in one.
	write      func(ctx context.Context, d durability, fn func(ctx context.Context, tx querier) error) error
	checkpoint func(ctx context.Context) error
	close      func() error
}

// exists tells a missing row from an error.
func exists(err error) (bool, error) {
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}
