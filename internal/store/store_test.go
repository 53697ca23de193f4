package store_test

import (
	"database/sql"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the "pgx" driver
	_ "modernc.org/sqlite"             // the "sqlite" driver

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/pgtest"
	"github.com/errandhq/errand/internal/store"
	"github.com/errandhq/errand/internal/storetest"
)

// kind is a database that the store supports, for tests that are the same on all of them.
type kind struct {
	name   string
	driver string
	// fresh returns the URL of a new, empty database.
	fresh func(t testing.TB) string
}

var kinds = []kind{
	{"SQLite", "sqlite", func(t testing.TB) string { return filepath.Join(t.TempDir(), "errand.db") }},
	{"PostgreSQL", "pgx", pgtest.Database},
}

// eachKind runs a test on every kind of database.
func eachKind(t *testing.T, fn func(t *testing.T, k kind)) {
	t.Helper()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			fn(t, k)
		})
	}
}

func open(t testing.TB, url string, o storetest.Options) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{
		URL: url, Now: o.Now, NewID: o.NewID, OnRunChange: o.OnRunChange, OnRunReady: o.OnRunReady, Vault: o.Vault,
		Observer: o.Observer,
		Logger:   slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// raw opens a database without the store.
func raw(t testing.TB, k kind, url string) *sql.DB {
	t.Helper()
	name := url
	if k.driver == "sqlite" {
		name = "file:" + url + "?_pragma=busy_timeout(10000)"
	}
	db, err := sql.Open(k.driver, name)
	if err != nil {
		t.Fatalf("opening the database: %v", err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func exec(t testing.TB, db *sql.DB, statement string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func TestLedger(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, k kind) {
		storetest.Run(t, func(t *testing.T) storetest.Database {
			url := k.fresh(t)
			db := raw(t, k, url)
			return storetest.Database{
				Open: func(t *testing.T, o storetest.Options) automation.Ledger { return open(t, url, o) },
				AddOwner: func(t *testing.T, id string) {
					t.Helper()
					exec(t, db, `INSERT INTO owners (id, name, created_at) VALUES ($1, 'other', 0)`, id)
				},
				Revoke: func(t *testing.T, machineID string) {
					t.Helper()
					exec(t, db, `UPDATE machines SET state = 'revoked', revoked_at = $1 WHERE id = $2`, time.Now().UnixMicro(), machineID)
				},
			}
		})
	})
}
