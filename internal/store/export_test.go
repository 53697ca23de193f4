package store

import (
	"context"

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
