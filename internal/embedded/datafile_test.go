package embedded_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/internal/embedded"
)

// stoppedServer makes a directory whose server had an open workflow "before" and was stopped in order.
func stoppedServer(t *testing.T) (dir string, before identity) {
	t.Helper()
	dir = t.TempDir()
	server := start(t, embedded.Options{Dir: dir})
	before = identityOf(t, server)
	startWorkflow(t, server, openWorkflow("before"))
	server.Stop()
	return dir, before
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func writeFile(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// execSQL changes a data file behind the server's back.
func execSQL(t *testing.T, path, statement string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(testContext(t), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// editRecord changes what is recorded about the data file.
func editRecord(t *testing.T, dir string, edit func(map[string]any)) {
	t.Helper()
	path := filepath.Join(dir, "version.json")
	record := make(map[string]any)
	if err := json.Unmarshal(readFile(t, path), &record); err != nil {
		t.Fatal(err)
	}
	edit(record)
	content, err := json.Marshal(record)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, path, content)
}

func TestUnusableFileIsSetAside(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(t *testing.T, dir, path string){
		"not a database": func(t *testing.T, _, path string) {
			writeFile(t, path, bytes.Repeat([]byte("not a database\n"), 1000))
		},
		"cut off": func(t *testing.T, _, path string) {
			execSQL(t, path, "PRAGMA wal_checkpoint(TRUNCATE)")
			if err := os.Truncate(path, 3*4096); err != nil {
				t.Fatal(err)
			}
		},
		"damaged in the middle by a crash": func(t *testing.T, dir, path string) {
			crash(t, startChild(t, dir))
			execSQL(t, path, "PRAGMA wal_checkpoint(TRUNCATE)")
			content := readFile(t, path)
			for page := 40; page < len(content)/4096-1; page++ {
				copy(content[page*4096:], bytes.Repeat([]byte{0x55}, 4096))
			}
			writeFile(t, path, content)
		},
		"tables of another version": func(t *testing.T, _, path string) {
			execSQL(t, path, "ALTER TABLE executions DROP COLUMN db_record_version")
		},
		"missing table": func(t *testing.T, _, path string) {
			execSQL(t, path, "DROP TABLE shards")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, before := stoppedServer(t)
			path := filepath.Join(dir, "temporal.db")
			spoil(t, dir, path)
			spoiled := readFile(t, path)

			log := newRecorder()
			server := start(t, embedded.Options{Dir: dir, Logger: slog.New(log)})
			if server.SetAside() == "" {
				t.Fatal("the file was not set aside")
			}
			if !bytes.Equal(readFile(t, server.SetAside()), spoiled) {
				t.Error("what was set aside is not the unusable file")
			}
			if after := identityOf(t, server); after.Namespace == before.Namespace || after.Cluster == before.Cluster {
				t.Errorf("the fresh file has ids of the old one: %+v, before %+v", after, before)
			}
			startWorkflow(t, server, openWorkflow("before"))
			warnings := log.atLeast(slog.LevelWarn)
			if !slices.ContainsFunc(warnings, func(w string) bool {
				return strings.Contains(w, "could not be used") && strings.Contains(w, server.SetAside())
			}) {
				t.Errorf("warnings: %q, want one that names the file", warnings)
			}
			server.Stop()

			server = start(t, embedded.Options{Dir: dir})
			checkOpen(t, server, "before")
			if path := server.SetAside(); path != "" {
				t.Errorf("the fresh file was set aside at its second start as %s", path)
			}
		})
	}
}

// Damage in a place that the start does not look at shows at work. It must not survive an orderly stop.
func TestDamageFoundAtWork(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := start(t, embedded.Options{Dir: dir})
	c := dial(t, server)
	execSQL(t, filepath.Join(dir, "temporal.db"), `
		PRAGMA writable_schema = ON;
		UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master WHERE type = 'index' AND tbl_name = 'namespaces' LIMIT 1)
			WHERE type = 'table' AND name = 'current_executions';
		PRAGMA schema_version = 10000;`)
	ctx, cancel := context.WithTimeout(testContext(t), time.Second)
	defer cancel()
	if _, err := c.ExecuteWorkflow(ctx, openWorkflow("new"), "Nothing"); err == nil {
		t.Fatal("a workflow was started in a damaged table")
	}
	c.Close()
	server.Stop()

	if server = start(t, embedded.Options{Dir: dir}); server.SetAside() == "" {
		t.Error("the damaged file is still in use")
	}
	startWorkflow(t, server, openWorkflow("new"))
}

// Deleting the main file is how people reset Temporal; what SQLite left beside it must not leak into the fresh file.
func TestDeletedFile(t *testing.T) {
	t.Parallel()
	dir, before := stoppedServer(t)
	if err := os.Remove(filepath.Join(dir, "temporal.db")); err != nil {
		t.Fatal(err)
	}
	server := start(t, embedded.Options{Dir: dir})
	if after := identityOf(t, server); after.Namespace == before.Namespace {
		t.Error("the namespace survived the deletion of the file")
	}
	startWorkflow(t, server, openWorkflow("before"))
}

// What is wrong around the file and not in it is an error: a fresh file would be no cure.
func TestUnreachableFileStays(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "temporal.db")
	if err := os.MkdirAll(filepath.Join(path, "something"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := embedded.Start(testContext(t), embedded.Options{Dir: dir}); err == nil {
		t.Fatal("started on a directory in the place of the file")
	}
	if _, err := os.Stat(filepath.Join(path, "something")); err != nil {
		t.Errorf("what was in the place of the file is gone: %v", err)
	}
}

func TestBackupOncePerVersion(t *testing.T) {
	t.Parallel()
	dir, before := stoppedServer(t)
	path := filepath.Join(dir, "temporal.db")
	restartFrom := func(version string) string {
		editRecord(t, dir, func(record map[string]any) { record["serverVersion"] = version })
		server := start(t, embedded.Options{Dir: dir})
		checkOpen(t, server, "before")
		if after := identityOf(t, server); after != before {
			t.Errorf("the ids changed from %+v to %+v", before, after)
		}
		server.Stop()
		backups, err := filepath.Glob(filepath.Join(dir, "backup", "from-"+version+"-to-*", "temporal.db"))
		if err != nil || len(backups) != 1 {
			t.Fatalf("backups of the file of version %s: %q (%v), want one", version, backups, err)
		}
		return backups[0]
	}

	if _, err := os.Stat(filepath.Join(dir, "backup")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a backup without a change of version (%v)", err)
	}
	execSQL(t, path, "PRAGMA wal_checkpoint(TRUNCATE)")
	content := readFile(t, path)
	backup := restartFrom("1.30.9")
	if !bytes.Equal(readFile(t, backup), content) {
		t.Error("the backup differs from the file before the start")
	}
	restartFrom("1.30.9")
	if !bytes.Equal(readFile(t, backup), content) {
		t.Error("a second start from the same version replaced the backup")
	}
	next := restartFrom("1.31.2")
	if _, err := os.Stat(backup); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the backup before the last one is still there (%v)", err)
	}

	// The backup is of use only if a server runs on it.
	restored := t.TempDir()
	writeFile(t, filepath.Join(restored, "temporal.db"), readFile(t, next))
	if wal, err := os.ReadFile(next + "-wal"); err == nil {
		writeFile(t, filepath.Join(restored, "temporal.db-wal"), wal)
	}
	server := start(t, embedded.Options{Dir: restored})
	checkOpen(t, server, "before")
	if diff := cmp.Diff(before, identityOf(t, server)); diff != "" {
		t.Errorf("the restored file has other ids (-want +got):\n%s", diff)
	}
}

func TestFilesArePrivate(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "temporal")
	start(t, embedded.Options{Dir: dir})
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s is open to others: %s", entry.Name(), info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
