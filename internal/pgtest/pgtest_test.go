//go:build unix

package pgtest_test

import (
	"bufio"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/errandhq/errand/internal/pgtest"
)

// patience bounds every wait of these tests.
const patience = time.Minute

func open(t *testing.T, databaseURL string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })

	return db
}

func mustExec(t *testing.T, db *sql.DB, statement string) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func query[T any](t *testing.T, db *sql.DB, statement string) T {
	t.Helper()
	var got T
	if err := db.QueryRowContext(t.Context(), statement).Scan(&got); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}

	return got
}

func TestDatabasesAreIsolated(t *testing.T) {
	t.Parallel()
	first, second := open(t, pgtest.Database(t)), open(t, pgtest.Database(t))

	mustExec(t, first, "CREATE TABLE kept (n int)")
	const tables = "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'"
	if got := query[int](t, first, tables); got != 1 {
		t.Errorf("the first database has %d tables, want 1", got)
	}
	if got := query[int](t, second, tables); got != 0 {
		t.Errorf("the second database has %d tables, want 0", got)
	}
}

func TestClusterIsAsPromised(t *testing.T) {
	t.Parallel()
	db := open(t, pgtest.Database(t))

	if got := query[int](t, db, "SELECT current_setting('server_version_num')::int"); got < pgtest.MinVersion*10000 {
		t.Errorf("server_version_num = %d, want at least version %d", got, pgtest.MinVersion)
	}
	if got := query[string](t, db, "SHOW listen_addresses"); got != "" {
		t.Errorf("listen_addresses = %q, want no TCP", got)
	}
	if got := query[string](t, db, "SHOW server_encoding"); got != "UTF8" {
		t.Errorf("server_encoding = %q, want UTF8", got)
	}
	if !query[bool](t, db, "SELECT 'a' < 'B'") {
		t.Error("text sorts by bytes, want the order of a language")
	}
}

func TestDatabaseIsDroppedWithOpenConnections(t *testing.T) {
	t.Parallel()
	var name string
	t.Run("the user", func(t *testing.T) {
		// Left open on purpose.
		db, err := sql.Open("pgx", pgtest.Database(t))
		if err != nil {
			t.Fatal(err)
		}
		name = query[string](t, db, "SELECT current_database()")
	})

	db := open(t, pgtest.Database(t))
	if n := query[int](t, db, "SELECT count(*) FROM pg_database WHERE datname = '"+name+"'"); n != 0 {
		t.Errorf("database %s still exists after its test", name)
	}
}

func TestManyTestsAtOnce(t *testing.T) {
	t.Parallel()
	for i := range 30 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			db := open(t, pgtest.Database(t))
			mustExec(t, db, "CREATE TABLE t (n int)")
			mustExec(t, db, fmt.Sprintf("INSERT INTO t VALUES (%d)", i))
			if got := query[int](t, db, "SELECT sum(n) FROM t"); got != i {
				t.Errorf("read %d, want %d", got, i)
			}
		})
	}
}

// TestKilledProcessLeavesNothing starts itself again as a test process of its
// own and kills that.
func TestKilledProcessLeavesNothing(t *testing.T) {
	const childMark = "ERRAND_PGTEST_CHILD"
	if os.Getenv(childMark) != "" {
		fmt.Println("url " + pgtest.Database(t))
		select {} // until killed
	}
	t.Parallel()

	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), childMark+"=1")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	dir := clusterDir(t, bufio.NewScanner(stdout))
	server := postmaster(t, dir)
	if !alive(server) {
		t.Fatalf("the server, process %d, is not there before the kill", server)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()

	waitFor(t, "the server to end", func() bool { return !alive(server) })
	waitFor(t, "the cluster's directory to go", func() bool {
		_, err := os.Stat(dir)

		return errors.Is(err, os.ErrNotExist)
	})
}

// clusterDir reads the directory of the child's cluster from its output.
func clusterDir(t *testing.T, lines *bufio.Scanner) string {
	t.Helper()
	for lines.Scan() {
		text, found := strings.CutPrefix(lines.Text(), "url ")
		if !found {
			continue
		}
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}

		return u.Query().Get("host")
	}
	t.Fatalf("the child ended without a database: %v", lines.Err())

	return ""
}

func postmaster(t *testing.T, dir string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "data", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil {
		t.Fatal(err)
	}

	return pid
}

func alive(pid int) bool {
	return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-deadline:
			t.Fatalf("gave up waiting for %s", what)
		case <-tick.C:
		}
	}
}

func TestReapRemovesOnlyAbandonedDirectories(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	living, lock, err := pgtest.MakeHome(base)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	dead, lost, err := pgtest.MakeHome(base)
	if err != nil {
		t.Fatal(err)
	}
	if err := lost.Close(); err != nil {
		t.Fatal(err)
	}
	unlocked := filepath.Join(base, "errand-pg-1")
	if err := os.Mkdir(unlocked, 0o700); err != nil {
		t.Fatal(err)
	}

	pgtest.Reap(base, time.Now())
	wantDirs(t, map[string]bool{living: true, dead: false, unlocked: true})
	pgtest.Reap(base, time.Now().Add(time.Hour))
	wantDirs(t, map[string]bool{living: true, dead: false, unlocked: false})
}

func wantDirs(t *testing.T, want map[string]bool) {
	t.Helper()
	for dir, stays := range want {
		if _, err := os.Stat(dir); (err == nil) != stays {
			t.Errorf("%s: exists = %t, want %t", dir, err == nil, stays)
		}
	}
}
