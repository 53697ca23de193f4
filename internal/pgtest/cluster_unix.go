//go:build unix

package pgtest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// startLimit bounds initdb and the start together: a second or two on an
	// idle computer.
	startLimit = 2 * time.Minute
	// readyInterval is how often the start asks whether the server answers.
	readyInterval = 10 * time.Millisecond
	// socketPathLimit is the shortest limit of the supported platforms (macOS:
	// 104 bytes with the final NUL).
	socketPathLimit = 103
)

// supervisor runs the server ($1, in directory $2) until its standard input
// ends, which the kernel sees to when the test process dies by whatever cause.
// It holds the lock of the directory on descriptor 3 meanwhile. The server
// itself is ended at once and without ceremony: its data is discarded.
const supervisor = `
exec 4<&0
"$1" -D "$2/data" >>"$2/log" 2>&1 3<&- 4<&- &
server=$!
{ read -r _; kill -QUIT "$server"; } <&4 3<&- &
watcher=$!
wait "$server"
kill "$watcher" 2>/dev/null
rm -rf "$2"
`

// configuration trades durability for speed and keeps the server off the
// network. Shared memory lives in files of the data directory, so that nothing
// outside of it is left behind when everything is killed at once.
const configuration = `
listen_addresses = ''
unix_socket_directories = '%s'
unix_socket_permissions = 0700
max_connections = 300
shared_buffers = 64MB
dynamic_shared_memory_type = mmap
fsync = off
synchronous_commit = off
full_page_writes = off
wal_level = minimal
max_wal_senders = 0
logging_collector = off
log_min_messages = warning
timezone = 'UTC'
`

// start makes and starts the cluster of this process.
func start() (*cluster, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()

	in, err := Locate(ctx)
	if err != nil {
		return nil, err
	}
	owner, err := serverUser()
	if err != nil {
		return nil, err
	}
	base, err := baseDir(owner)
	if err != nil {
		return nil, err
	}
	reap(base, time.Now())
	home, err := makeHome(base, owner)
	if err != nil {
		return nil, err
	}
	c, err := home.launch(ctx, in)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(home.dir))
	}

	return c, nil
}

// serverUser is whom the server runs as: nil for the user of this process,
// another one for root, as whom PostgreSQL refuses to run.
func serverUser() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil //nolint:nilnil // no credential is how os/exec says "as this user"
	}
	for _, name := range []string{"postgres", "nobody", "daemon"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(uidErr, gidErr); err != nil {
			return nil, fmt.Errorf("reading the ids of user %s: %w", name, err)
		}

		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}

	return nil, errors.New("PostgreSQL does not run as root, and none of the users postgres, nobody and daemon exists: " +
		"run the tests as another user")
}

// baseDir picks the temporary directory for the cluster: one whose path leaves
// room for a socket and that the server's user can reach.
func baseDir(owner *syscall.Credential) (string, error) {
	sample := filepath.Join(dirPrefix+"4294967295", ".s.PGSQL.5432")
	for _, dir := range []string{os.TempDir(), "/tmp"} {
		dir, err := filepath.EvalSymlinks(dir)
		if err != nil || len(filepath.Join(dir, sample)) > socketPathLimit {
			continue
		}
		if owner == nil || searchableByAll(dir) {
			return dir, nil
		}
	}

	return "", fmt.Errorf("neither %s nor /tmp can hold a PostgreSQL socket: the path is too long or not reachable for the server's user", os.TempDir())
}

// searchableByAll reports whether every user may enter dir.
func searchableByAll(dir string) bool {
	const othersMayEnter = 0o001
	for {
		info, err := os.Stat(dir)
		if err != nil || info.Mode().Perm()&othersMayEnter == 0 {
			return false
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return true
		}
		dir = parent
	}
}

// home is the directory of one cluster, locked by this process.
type home struct {
	dir   string
	owner *syscall.Credential
	lock  *os.File
}

// command prepares a program of PostgreSQL: as the server's user, in the
// cluster's directory, with none of the caller's PG… variables.
func (h *home) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = h.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "HOME=" + h.dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: h.owner}

	return cmd
}

// launch initializes the data directory, starts the server under its
// supervisor and waits until it answers.
func (h *home) launch(ctx context.Context, in Installation) (*cluster, error) {
	initdb := h.command(ctx, filepath.Join(in.BinDir, "initdb"),
		"--pgdata", filepath.Join(h.dir, "data"), "--username", superuser, "--auth", "trust", "--no-sync", "--no-instructions",
		"--encoding", "UTF8", "--locale", "C", "--locale-provider", "icu", "--icu-locale", "en-US")
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("running initdb: %w\n%s", err, out)
	}
	if err := h.configure(); err != nil {
		return nil, err
	}
	s, err := h.supervise(ctx, filepath.Join(in.BinDir, "postgres"))
	if err != nil {
		return nil, err
	}
	admin, err := sql.Open("pgx", databaseURL(h.dir, "postgres"))
	if err != nil {
		return nil, fmt.Errorf("preparing the connection to the cluster: %w", err)
	}
	c := &cluster{dir: h.dir, admin: admin, server: s}
	if err := awaitReady(ctx, admin, s.ended); err != nil {
		return nil, fmt.Errorf("waiting for the server: %w\n%s", err, s.log())
	}

	return c, nil
}

func (h *home) configure() error {
	file, err := os.OpenFile(filepath.Join(h.dir, "data", "postgresql.auto.conf"), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return fmt.Errorf("configuring the server: %w", err)
	}
	_, err = fmt.Fprintf(file, configuration, h.dir)
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("configuring the server: %w", err)
	}

	return nil
}

// server is the running PostgreSQL with what this process holds of it.
type server struct {
	// lifeline is this process's end of the supervisor's input. It stays open, and
	// the cluster alive, until the process is gone.
	lifeline io.WriteCloser
	logFile  *os.File
	ended    <-chan struct{} // closed when the server has ended by itself
}

// supervise starts the server at path under its supervisor.
func (h *home) supervise(ctx context.Context, path string) (*server, error) {
	log, err := os.OpenFile(filepath.Join(h.dir, "log"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("creating the server's log: %w", err)
	}
	if err := h.chown(log); err != nil {
		return nil, err
	}
	// The supervisor outlives the start.
	cmd := h.command(context.WithoutCancel(ctx), "/bin/sh", "-c", supervisor, "errand-test-postgres", path, h.dir)
	cmd.ExtraFiles = []*os.File{h.lock}
	// A session of its own: an interrupt from the terminal is not for it.
	cmd.SysProcAttr.Setsid = true
	lifeline, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("connecting the supervisor: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the supervisor: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // the log tells more than the exit code
		close(ended)
	}()

	return &server{lifeline: lifeline, logFile: log, ended: ended}, nil
}

func (h *home) chown(file *os.File) error {
	if h.owner == nil {
		return nil
	}
	if err := file.Chown(int(h.owner.Uid), int(h.owner.Gid)); err != nil {
		return fmt.Errorf("handing %s to the server's user: %w", file.Name(), err)
	}

	return nil
}

func awaitReady(ctx context.Context, db *sql.DB, ended <-chan struct{}) error {
	tick := time.NewTicker(readyInterval)
	defer tick.Stop()
	for {
		err := db.PingContext(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-ended:
			return errors.New("the server ended by itself")
		case <-tick.C:
		}
	}
}

// log returns the last part of what the server has written, also after the
// supervisor has removed the file.
func (s *server) log() string {
	const shown = 8 << 10
	info, err := s.logFile.Stat()
	if err != nil {
		return "(no log: " + err.Error() + ")"
	}
	from := max(0, info.Size()-shown)
	text := make([]byte, info.Size()-from)
	n, err := s.logFile.ReadAt(text, from)
	if err != nil && !errors.Is(err, io.EOF) {
		return "(no log: " + err.Error() + ")"
	}

	return "the server's log:\n" + strings.TrimSpace(string(text[:n]))
}
