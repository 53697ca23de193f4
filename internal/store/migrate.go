package store

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"log/slog"

	"github.com/pressly/goose/v3"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/migrations"
)

// migrator returns the migrations of a dialect, bound to a database.
func migrator(d dialect, db *sql.DB, options ...goose.ProviderOption) (*goose.Provider, error) {
	files, err := fs.Sub(migrations.Files, d.folder)
	if err != nil {
		return nil, fmt.Errorf("finding the migrations of %s: %w", d.name, err)
	}
	provider, err := goose.NewProvider(d.goose, db, files, options...)
	if err != nil {
		return nil, fmt.Errorf("reading the migrations of %s: %w", d.name, err)
	}
	return provider, nil
}

// migrate applies what is missing and refuses a schema that a newer build has made.
func migrate(ctx context.Context, d dialect, provider *goose.Provider, log *slog.Logger) error {
	applied, err := provider.Up(ctx)
	if err != nil {
		return fmt.Errorf("migrating the database: %w", err)
	}
	for _, m := range applied {
		log.InfoContext(ctx, "database migrated", "kind", d.name, "migration", m.Source.Version, "duration", m.Duration)
	}
	current, target, err := provider.GetVersions(ctx)
	if err != nil {
		return fmt.Errorf("reading the version of the schema: %w", err)
	}
	if current > target {
		return automation.Errorf(automation.CodeStoreUnavailable,
			"the database has schema version %d, and this build knows versions up to %d: start a newer build, or restore the backup from before the upgrade",
			current, target)
	}
	return nil
}
