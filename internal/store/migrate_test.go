package store_test

import (
	"database/sql"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/pressly/goose/v3"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/store"
	"github.com/errandhq/errand/internal/storetest"
)

func TestMigrationNames(t *testing.T) {
	t.Parallel()
	names := map[string][]string{}
	for _, folder := range []string{"postgres", "sqlite"} {
		entries, err := fs.ReadDir(store.Migrations, folder)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			names[folder] = append(names[folder], entry.Name())
		}
	}
	if diff := cmp.Diff(names["postgres"], names["sqlite"]); diff != "" || len(names["sqlite"]) == 0 {
		t.Errorf("the names of the migrations differ (-postgres +sqlite):\n%s", diff)
	}
}

// schema is what both databases must have in common: columns with their kind of value and whether they may be
// NULL, and indexes.
type schema struct {
	Columns []string
	Indexes []string
}

// TestMigrations goes up, down and up again on both databases, and compares what the two then hold.
func TestMigrations(t *testing.T) {
	t.Parallel()
	schemas := map[string]schema{}
	for _, k := range kinds {
		db := raw(t, k, k.fresh(t))
		provider := migrations(t, k, db)
		if _, err := provider.Up(t.Context()); err != nil {
			t.Fatalf("%s: up: %v", k.name, err)
		}
		first := readSchema(t, k, db)
		if _, err := provider.DownTo(t.Context(), 0); err != nil {
			t.Fatalf("%s: down: %v", k.name, err)
		}
		if left := readSchema(t, k, db); len(left.Columns)+len(left.Indexes) > 0 {
			t.Errorf("%s: down leaves %v", k.name, left)
		}
		if _, err := provider.Up(t.Context()); err != nil {
			t.Fatalf("%s: up again: %v", k.name, err)
		}
		if diff := cmp.Diff(first, readSchema(t, k, db)); diff != "" {
			t.Errorf("%s: the schema differs after down and up (-first +second):\n%s", k.name, diff)
		}
		schemas[k.name] = first
	}
	if diff := cmp.Diff(schemas["PostgreSQL"], schemas["SQLite"]); diff != "" {
		t.Errorf("the schemas differ (-PostgreSQL +SQLite):\n%s", diff)
	}
	if n := len(schemas["SQLite"].Columns); n < 50 {
		t.Errorf("only %d columns were compared", n)
	}
}

func migrations(t *testing.T, k kind, db *sql.DB) *goose.Provider {
	t.Helper()
	dialect, folder := goose.DialectPostgres, "postgres"
	if k.driver == "sqlite" {
		dialect, folder = goose.DialectSQLite3, "sqlite"
	}
	files, err := fs.Sub(store.Migrations, folder)
	if err != nil {
		t.Fatal(err)
	}
	provider, err := goose.NewProvider(dialect, db, files)
	if err != nil {
		t.Fatal(err)
	}
	return provider
}

func readSchema(t *testing.T, k kind, db *sql.DB) schema {
	t.Helper()
	columns := `SELECT table_name || '.' || column_name || ' ' || data_type || CASE is_nullable WHEN 'YES' THEN ' null' ELSE '' END
		FROM information_schema.columns WHERE table_schema = 'public' AND table_name NOT LIKE 'goose%'`
	indexes := `SELECT tablename || '.' || indexname || CASE WHEN indexdef LIKE '%UNIQUE%' THEN ' unique' ELSE '' END
			|| CASE WHEN indexdef LIKE '% WHERE %' THEN ' partial' ELSE '' END
		FROM pg_indexes WHERE schemaname = 'public' AND tablename NOT LIKE 'goose%' AND indexname NOT LIKE '%\_pkey' AND indexname NOT LIKE '%\_key'`
	if k.driver == "sqlite" {
		columns = `SELECT m.name || '.' || c.name || ' ' || c.type || CASE WHEN c."notnull" OR c.pk THEN '' ELSE ' null' END
			FROM sqlite_schema m, pragma_table_info(m.name) c WHERE m.type = 'table' AND m.name NOT LIKE 'goose%' AND m.name NOT LIKE 'sqlite%'`
		indexes = `SELECT tbl_name || '.' || name || CASE WHEN sql LIKE '%UNIQUE%' THEN ' unique' ELSE '' END
				|| CASE WHEN sql LIKE '% WHERE %' THEN ' partial' ELSE '' END
			FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL AND tbl_name NOT LIKE 'goose%'`
	}
	// The two databases call their types differently; what counts is what the program reads.
	kindOf := strings.NewReplacer("INTEGER", "number", "integer", "number", "bigint", "number", "boolean", "number",
		"TEXT", "text", "uuid", "text")
	return schema{Columns: lines(t, db, columns, kindOf), Indexes: lines(t, db, indexes, kindOf)}
}

func lines(t *testing.T, db *sql.DB, query string, replace *strings.Replacer) []string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer func() { _ = rows.Close() }()
	var all []string
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		all = append(all, replace.Replace(line))
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	return all
}

// TestTheAuditIsAppendOnly shows that the databases themselves refuse to change an entry.
func TestTheAuditIsAppendOnly(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, k kind) {
		url := k.fresh(t)
		ledger := open(t, url, storetest.Options{Now: time.Now, NewID: storetest.NewID})
		installation, err := ledger.Installation(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := ledger.AppendAudit(t.Context(), automation.AuditEntry{OwnerID: installation.LocalOwnerID, Action: "delete"}); err != nil {
			t.Fatal(err)
		}
		_, err = raw(t, k, url).ExecContext(t.Context(), `UPDATE audit SET action = 'get'`)
		if err == nil || !strings.Contains(err.Error(), "append-only") {
			t.Errorf("changing an entry: %v", err)
		}
	})
}
