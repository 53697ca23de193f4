package store_test

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/pgtest"
	"github.com/errandhq/errand/internal/store"
	"github.com/errandhq/errand/internal/storetest"
)

func options(url string) store.Options {
	return store.Options{URL: url, Now: time.Now, NewID: storetest.NewID, Logger: slog.New(slog.DiscardHandler)}
}

func TestOpenAtOnce(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, k kind) {
		url := k.fresh(t)
		const servers = 4
		ids := make([]string, servers)
		var starts sync.WaitGroup
		for i := range servers {
			starts.Go(func() {
				s, err := store.Open(t.Context(), options(url))
				if err != nil {
					t.Errorf("Open: %v", err)
					return
				}
				installation, err := s.Installation(t.Context())
				if err = errors.Join(err, s.Close()); err != nil {
					t.Error(err)
				}
				ids[i] = installation.ID
			})
		}
		starts.Wait()
		for _, id := range ids {
			if id == "" || id != ids[0] {
				t.Fatalf("the servers found the installations %v, want the same one", ids)
			}
		}
		var owners int
		if err := raw(t, k, url).QueryRowContext(t.Context(), `SELECT count(*) FROM owners`).Scan(&owners); err != nil || owners != 1 {
			t.Errorf("%d owners were made, %v, want 1", owners, err)
		}
	})
}

func TestOpenNewerSchema(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, k kind) {
		url := k.fresh(t)
		s, err := store.Open(t.Context(), options(url))
		if err = errors.Join(err, s.Close()); err != nil {
			t.Fatal(err)
		}
		exec(t, raw(t, k, url), `INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, true)`)
		_, err = store.Open(t.Context(), options(url))
		if automation.CodeOf(err) != automation.CodeStoreUnavailable || !strings.Contains(err.Error(), "99999") {
			t.Errorf("Open of a newer schema: %v, want a refusal that names its version", err)
		}
	})
}

func TestOpenRefused(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		url  string
		want automation.Code
	}{
		"other database":    {"mysql://root:hunter2@localhost/errand", automation.CodeValidationFailed},
		"unreadable URL":    {"postgres://u:hunter2@localhost:port/errand", automation.CodeValidationFailed},
		"nobody there":      {"postgres://u:hunter2@127.0.0.1:1/errand?connect_timeout=5", automation.CodeStoreUnavailable},
		"no password file":  {"postgres://u@127.0.0.1:1/errand?passfile=/no/such/file", automation.CodeValidationFailed},
		"missing directory": {filepath.Join(t.TempDir(), "no", "errand.db"), automation.CodeStoreUnavailable},
		"a directory":       {t.TempDir(), automation.CodeStoreUnavailable},
	} {
		_, err := store.Open(t.Context(), options(tc.url))
		if automation.CodeOf(err) != tc.want {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error tells the password: %v", name, err)
		}
	}
}

func TestOpenTellsOfMigrations(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, k kind) {
		o := options(k.fresh(t))
		for _, want := range []bool{true, false} {
			var told bytes.Buffer
			o.Logger = slog.New(slog.NewTextHandler(&told, nil))
			s, err := store.Open(t.Context(), o)
			if err = errors.Join(err, s.Close()); err != nil {
				t.Fatal(err)
			}
			if got := strings.Contains(told.String(), "database migrated"); got != want {
				t.Errorf("told of migrations: %v, want %v:\n%s", got, want, told.String())
			}
		}
	})
}

func TestSQLiteFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := "a b?c#d%41ü&'=.db"
	if runtime.GOOS == "windows" {
		name = "a b#d%41ü&'=.db"
	}
	s, err := store.Open(t.Context(), options(filepath.Join(dir, name)))
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	if _, err := s.Lease(t.Context(), "written", "ahead", time.Minute); err != nil {
		t.Fatalf("Lease: %v", err)
	}
	want := map[string]fs.FileMode{name: 0o600, name + "-wal": 0o600, name + "-shm": 0o600}
	if diff := cmp.Diff(want, files(t, dir)); diff != "" {
		t.Errorf("the files of an open database (-want +got):\n%s", diff)
	}
	if err := s.Checkpoint(t.Context()); err != nil {
		t.Errorf("Checkpoint: %v", err)
	}
	ahead, err := os.Stat(filepath.Join(dir, name+"-wal"))
	if err != nil || ahead.Size() != 0 {
		t.Errorf("after a checkpoint %d bytes are written ahead, %v", ahead.Size(), err)
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Errorf("Close, twice: %v", err)
	}
	if diff := cmp.Diff(map[string]fs.FileMode{name: 0o600}, files(t, dir)); diff != "" {
		t.Errorf("the files of a closed database (-want +got):\n%s", diff)
	}
	for what, err := range map[string]error{
		"Checkpoint": s.Checkpoint(t.Context()), "TouchMachine": s.TouchMachine(t.Context(), storetest.NewID(), time.Now()),
	} {
		if automation.CodeOf(err) != automation.CodeStoreUnavailable {
			t.Errorf("%s of a closed store: %v, want store_unavailable", what, err)
		}
	}
}

func files(t *testing.T, dir string) map[string]fs.FileMode {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	modes := map[string]fs.FileMode{}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			t.Fatal(err)
		}
		modes[entry.Name()] = info.Mode().Perm()
	}
	return modes
}

// TestPostgresConnectionsLost ends all connections of a store, as a restart of PostgreSQL does: calls say that the
// database is unavailable, if anything, and soon work again.
func TestPostgresConnectionsLost(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	s := open(t, url, storetest.Options{Now: time.Now, NewID: storetest.NewID})
	admin := raw(t, kind{driver: "pgx"}, url)
	for range 3 {
		if err := s.Ping(t.Context()); err != nil {
			t.Fatalf("Ping: %v", err)
		}
		exec(t, admin, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
		for {
			_, err := s.Lease(t.Context(), "name", "holder", time.Minute)
			if err == nil {
				break
			}
			if automation.CodeOf(err) != automation.CodeStoreUnavailable {
				t.Fatalf("Lease without a connection: %v", err)
			}
			if t.Context().Err() != nil {
				t.Fatal("the store does not find back to the database")
			}
		}
	}
}
