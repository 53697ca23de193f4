package store

import (
	"context"
	"database/sql"

	"github.com/errandhq/errand/migrations"
)

// Querier runs statements inside a transaction.
type Querier = querier

// Translate is the translation of errors.
var Translate = translate

// Migrations are the files that Open applies.
var Migrations = migrations.Files

// Write runs fn in a write transaction of its own or of a batch.
func (s *Store) Write(ctx context.Context, mustSurvive bool, fn func(ctx context.Context, tx Querier) error) error {
	return s.write(ctx, durability(mustSurvive), fn)
}

// WatchReads calls fn with each statement that reads outside a transaction, before it is executed.
func (s *Store) WatchReads(fn func(query string, args []any)) { s.read = watched{s.read, fn} }

type watched struct {
	querier

	fn func(query string, args []any)
}

func (w watched) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	w.fn(query, args)
	return w.querier.QueryContext(ctx, query, args...)
}

func (w watched) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	w.fn(query, args)
	return w.querier.QueryRowContext(ctx, query, args...)
}
