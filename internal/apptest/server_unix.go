//go:build unix

package apptest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/errandhq/errand/internal/machinestate"
	"github.com/errandhq/errand/internal/runtimefile"
)

// Options say how a [Server] is started. The zero value is the embedded default.
type Options struct {
	// Dir holds everything of the installation: data, home and logs. Default: a temporary one.
	Dir string
	// DatabaseURL is a PostgreSQL to use instead of the embedded database.
	DatabaseURL string
	// NoLocalWorker leaves the worker to [Server.StartWorker]. A machine that is to be enrolled needs one start
	// with a local worker before.
	NoLocalWorker bool
	// Env are more variables, which errandd, its worker and command lines see.
	Env map[string]string
	// Args are more arguments of errandd.
	Args []string
}

// Server is one installation: a data directory and an address that stay the same over any number of starts of
// errandd. Its methods fail the test when something does not happen in time.
type Server struct {
	// Options are those of the next start.
	Options Options

	tb     testing.TB
	bin    string
	listen string
	mark   string
	daemon *child
	wanted bool   // whether errandd is meant to run
	worker *child // started by hand; nil when there was none
	closed bool
}

// servers counts the installations of this process.
var servers atomic.Int64

// New prepares an installation without starting anything.
func New(tb testing.TB, o Options) *Server {
	tb.Helper()
	bin := Binaries(tb)
	guard, err := guard()
	if err != nil {
		tb.Fatalf("preparing to end what a killed test leaves behind: %v", err)
	}
	if o.Dir == "" {
		o.Dir = tb.TempDir()
	}
	s := &Server{
		Options: o, tb: tb, bin: bin, listen: freeAddress(tb),
		mark: guard.mark + "." + strconv.FormatInt(servers.Add(1), 10),
	}
	for _, dir := range []string{s.Home(), s.path("tmp")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			tb.Fatal(err)
		}
	}
	tb.Cleanup(s.Close)
	return s
}

// Start prepares an installation and starts errandd.
func Start(tb testing.TB, o Options) *Server {
	tb.Helper()
	s := New(tb, o)
	s.Restart()
	return s
}

// freeAddress picks a loopback port below those that systems hand out by themselves, so that nobody takes it
// while errandd is down.
func freeAddress(tb testing.TB) string {
	tb.Helper()
	const first, count, tries = 20_000, 10_000, 100
	for range tries {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(first+rand.IntN(count)))
		listener, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		if err := listener.Close(); err != nil {
			tb.Fatal(err)
		}
		return address
	}
	tb.Fatal("no free port was found")
	return ""
}

func (s *Server) path(elements ...string) string {
	return filepath.Join(append([]string{s.Options.Dir}, elements...)...)
}

// DataDir returns the data directory.
func (s *Server) DataDir() string { return s.path("data") }

// Home returns the home directory that programs find in HOME.
func (s *Server) Home() string { return s.path("home") }

// LogPath returns the file that holds what errandd wrote, over all starts.
func (s *Server) LogPath() string { return s.path("errandd.log") }

// WorkerLogPath returns the file that holds what a worker wrote that was started by hand.
func (s *Server) WorkerLogPath() string { return s.path("worker-by-hand.log") }

// LocalWorkerLogPath returns the file that holds what the worker wrote that errandd started.
func (s *Server) LocalWorkerLogPath() string { return filepath.Join(s.DataDir(), "worker.log") }

// URL returns the address of the API.
func (s *Server) URL() string { return "http://" + s.listen }

// Environment returns the variables that command lines run with, and nothing else.
func (s *Server) Environment() []string {
	variables := map[string]string{
		"PATH":            s.bin + string(os.PathListSeparator) + os.Getenv("PATH"),
		"HOME":            s.Home(),
		"TMPDIR":          s.path("tmp"),
		"XDG_CACHE_HOME":  filepath.Join(s.Home(), ".cache"),
		"XDG_CONFIG_HOME": filepath.Join(s.Home(), ".config"),
		"XDG_DATA_HOME":   filepath.Join(s.Home(), ".local", "share"),
		"XDG_STATE_HOME":  filepath.Join(s.Home(), ".local", "state"),
		"LANG":            "C.UTF-8",
		"TZ":              "UTC",
		"ERRAND_DATA_DIR": s.DataDir(),
		markVariable:      s.mark,
	}
	maps.Copy(variables, s.Options.Env)
	environment := make([]string, 0, len(variables))
	for name, value := range variables {
		environment = append(environment, name+"="+value)
	}
	slices.Sort(environment)
	return environment
}

// Restart starts errandd, which must not be running, and returns how long it took until /readyz answered 200.
// It then waits until the machine is enrolled, unless there is no local worker.
func (s *Server) Restart() time.Duration {
	s.tb.Helper()
	if s.Running() {
		s.tb.Fatalf("errandd is running already, as pid %d", s.PID())
	}
	environment := append(s.Environment(), "ERRAND_LISTEN="+s.listen)
	if s.Options.DatabaseURL != "" {
		environment = append(environment, "ERRAND_DATABASE_URL="+s.Options.DatabaseURL)
	}
	args := s.Options.Args
	if s.Options.NoLocalWorker {
		args = append(slices.Clone(args), "--no-local-worker")
	}
	began := time.Now()
	daemon, err := startChild(filepath.Join(s.bin, "errandd"), s.LogPath(), s.Options.Dir, environment, args...)
	if err != nil {
		s.tb.Fatal(err)
	}
	s.daemon, s.wanted = daemon, true
	s.Await(patience, "errandd is ready", func() (string, bool) { return s.probeReady() })
	took := time.Since(began)
	s.Await(patience, "server.json is written", func() (string, bool) {
		file, err := s.runtimeFile()
		return fmt.Sprintf("pid %d, error %v", file.PID, err), err == nil && file.PID == daemon.pid()
	})
	if !s.Options.NoLocalWorker {
		s.Await(patience, "this machine is enrolled", func() (string, bool) {
			_, found, err := machinestate.Load(s.stateDir())
			return fmt.Sprint(err), found
		})
	}
	return took
}

// Await is [Eventually] in this installation: when errandd has ended although nobody stopped it, the test fails at
// once and says so.
func (s *Server) Await(within time.Duration, what string, condition func() (seen string, ok bool)) {
	s.tb.Helper()
	Eventually(s.tb, within, what, func() (string, bool) {
		s.checkRunning()
		return condition()
	})
}

func (s *Server) checkRunning() {
	s.tb.Helper()
	if s.wanted && !s.daemon.running() {
		s.tb.Fatalf("errandd, pid %d, has ended by itself or by a signal from elsewhere: %s", s.PID(), s.daemon.command.ProcessState)
	}
}

func (s *Server) probeReady() (string, bool) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL()+"/readyz", nil)
	if err != nil {
		return err.Error(), false
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err.Error(), false
	}
	body, err := io.ReadAll(response.Body)
	return fmt.Sprintf("%s %s", response.Status, body), errors.Join(err, response.Body.Close()) == nil && response.StatusCode == http.StatusOK
}

// runtimeFile reads server.json.
func (s *Server) runtimeFile() (runtimefile.File, error) {
	return runtimefile.Read(filepath.Join(s.DataDir(), "server.json"))
}

// Running reports whether errandd runs.
func (s *Server) Running() bool { return s.daemon != nil && s.daemon.running() }

// PID returns the process of errandd.
func (s *Server) PID() int { return s.daemon.pid() }

// Terminate sends SIGTERM to errandd and waits for its end. It leaves the worker running.
func (s *Server) Terminate() {
	s.tb.Helper()
	s.stop(syscall.SIGTERM)
}

// Interrupt sends SIGINT to errandd, as Ctrl-C does, and waits for its end, before which it drains the worker.
func (s *Server) Interrupt() {
	s.tb.Helper()
	s.stop(syscall.SIGINT)
}

// Kill sends SIGKILL to errandd and waits for its end.
func (s *Server) Kill() {
	s.tb.Helper()
	s.stop(syscall.SIGKILL)
}

func (s *Server) stop(signal syscall.Signal) {
	s.tb.Helper()
	if s.daemon == nil {
		s.tb.Fatal("errandd was never started")
	}
	s.checkRunning()
	s.wanted = false
	if err := s.daemon.stop(signal, patience); err != nil {
		s.tb.Fatalf("stopping errandd: %v", err)
	}
	if code := s.daemon.exitCode(); code != 0 && signal != syscall.SIGKILL {
		s.tb.Errorf("errandd has ended with exit code %d after %s", code, signal)
	}
}

// Close ends everything that was started, without ceremony, and shows the logs of a test that failed. It is
// called at the end of the test by itself; a second call does nothing.
func (s *Server) Close() {
	s.tb.Helper()
	if s.closed {
		return
	}
	s.closed = true
	if err := endMarked(s.mark); err != nil {
		s.tb.Errorf("ending what the test started: %v", err)
	}
	for _, c := range []*child{s.daemon, s.worker} {
		if c != nil {
			<-c.ended
		}
	}
	if s.tb.Failed() {
		s.showLogs()
	}
}

// shownLog bounds how much of a log is shown, in bytes.
const shownLog = 16 << 10

func (s *Server) showLogs() {
	for _, path := range []string{s.LogPath(), s.LocalWorkerLogPath(), s.WorkerLogPath()} {
		content, err := os.ReadFile(path)
		if err != nil || len(content) == 0 {
			continue
		}
		cut := ""
		if len(content) > shownLog {
			content, cut = content[len(content)-shownLog:], " (its end)"
		}
		s.tb.Logf("%s%s:\n%s", path, cut, content)
	}
}
