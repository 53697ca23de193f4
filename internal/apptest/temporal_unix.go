//go:build unix

package apptest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
)

// Temporal is a Temporal server in a process of its own, with an address, certificates and data that stay the same
// over its starts. Its one namespace is "default" and has no search attributes of ours to begin with.
type Temporal struct {
	tb      testing.TB
	program string
	dir     string
	address string
	mark    string
	process *child
}

// NewTemporal prepares a Temporal server without starting it. It ends with the test.
func NewTemporal(tb testing.TB) *Temporal {
	tb.Helper()
	program, err := temporalProgram()
	if err != nil {
		tb.Fatalf("preparing a Temporal server: %v", err)
	}
	guard, err := guard()
	if err != nil {
		tb.Fatalf("preparing to end what a killed test leaves behind: %v", err)
	}
	t := &Temporal{
		tb: tb, program: program, dir: tb.TempDir(), address: freeAddress(tb),
		mark: guard.mark + "." + strconv.FormatInt(servers.Add(1), 10),
	}
	tb.Cleanup(t.close)
	return t
}

// temporalProgram returns tools/temporalserver: that of ERRAND_TEST_BIN_DIR if there is one, else one that is built
// once per test process.
var temporalProgram = sync.OnceValues(func() (string, error) {
	const name = "temporalserver"
	if dir := os.Getenv(binDirVariable); dir != "" {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return filepath.Abs(path)
		}
	}
	guard, err := guard()
	if err != nil {
		return "", err
	}
	path := filepath.Join(guard.dir, name)
	build := exec.Command("go", "build", "-o", path, "github.com/errandhq/errand/tools/"+name)
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w\n%s", name, err, output)
	}
	return path, nil
})

// Start starts the server, which must not be running, and waits until it serves.
func (t *Temporal) Start() {
	t.tb.Helper()
	if t.process != nil && t.process.running() {
		t.tb.Fatalf("Temporal is running already, as pid %d", t.process.pid())
	}
	before := len(t.log())
	process, err := startChild(t.program, t.logPath(), t.dir,
		[]string{"PATH=" + os.Getenv("PATH"), markVariable + "=" + t.mark}, "-dir", filepath.Join(t.dir, "server"), "-listen", t.address)
	if err != nil {
		t.tb.Fatal(err)
	}
	t.process = process
	Eventually(t.tb, patience, "Temporal serves", func() (string, bool) {
		log := t.log()[before:]
		if !process.running() {
			t.tb.Fatalf("Temporal has ended with exit code %d:\n%s", process.exitCode(), log)
		}
		// Its first and only line of standard output comes when it serves.
		return string(log), bytes.Contains(log, []byte(`{"address":"`+t.address+`"`))
	})
}

// Kill sends SIGKILL to the server and waits for its end.
func (t *Temporal) Kill() {
	t.tb.Helper()
	if err := t.process.stop(syscall.SIGKILL, patience); err != nil {
		t.tb.Fatalf("killing Temporal: %v", err)
	}
}

// Forget removes everything that the server, which must not be running, knows: the next start makes a new cluster's data
// at the same address, with the same certificates.
func (t *Temporal) Forget() {
	t.tb.Helper()
	if err := os.RemoveAll(filepath.Join(t.dir, "server", "data")); err != nil {
		t.tb.Fatal(err)
	}
}

// Address returns where the server is, or will be.
func (t *Temporal) Address() string { return t.address }

// CertificateFile returns the path of a file for clients: ca.pem, client.pem or client.key. The server writes them at
// its first start.
func (t *Temporal) CertificateFile(name string) string {
	return filepath.Join(t.dir, "server", "certificates", name)
}

// Env returns the variables with which errandd uses this server.
func (t *Temporal) Env() map[string]string {
	return map[string]string{
		"ERRAND_TEMPORAL_ADDRESS":          t.address,
		"TEMPORAL_NAMESPACE":               "default",
		"TEMPORAL_TLS_SERVER_CA_CERT_PATH": t.CertificateFile("ca.pem"),
		"TEMPORAL_TLS_CLIENT_CERT_PATH":    t.CertificateFile("client.pem"),
		"TEMPORAL_TLS_CLIENT_KEY_PATH":     t.CertificateFile("client.key"),
	}
}

func (t *Temporal) logPath() string { return filepath.Join(t.dir, "log") }

func (t *Temporal) log() []byte {
	log, err := os.ReadFile(t.logPath())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.tb.Fatal(err)
	}
	return log
}

// close ends the server, and shows its log when the test has failed.
func (t *Temporal) close() {
	if t.process == nil {
		return
	}
	if err := endMarked(t.mark); err != nil {
		t.tb.Errorf("ending Temporal: %v", err)
	}
	<-t.process.ended
	if log := t.log(); t.tb.Failed() && len(log) > 0 {
		t.tb.Logf("%s:\n%s", t.logPath(), log[max(0, len(log)-shownLog):])
	}
}

// Launch starts errandd, which must not be running, and waits until it serves, which it does without being ready while
// an external Temporal does not answer. [Server.Restart] waits for readiness too.
func (s *Server) Launch() {
	s.tb.Helper()
	if s.Running() {
		s.tb.Fatalf("errandd is running already, as pid %d", s.PID())
	}
	environment := append(s.Environment(), "ERRAND_LISTEN="+s.listen)
	if s.Options.DatabaseURL != "" {
		environment = append(environment, "ERRAND_DATABASE_URL="+s.Options.DatabaseURL)
	}
	args := slices.Clone(s.Options.Args)
	if s.Options.NoLocalWorker {
		args = append(args, "--no-local-worker")
	}
	daemon, err := startChild(filepath.Join(s.bin, "errandd"), s.LogPath(), s.Options.Dir, environment, args...)
	if err != nil {
		s.tb.Fatal(err)
	}
	s.daemon, s.wanted = daemon, true
	s.Await(patience, "server.json is written", func() (string, bool) {
		file, err := s.runtimeFile()
		return fmt.Sprintf("pid %d, error %v", file.PID, err), err == nil && file.PID == daemon.pid()
	})
}
