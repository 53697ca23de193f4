package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/buildinfo"
	"github.com/errandhq/errand/internal/identity"
	"github.com/errandhq/errand/internal/lockfile"
	"github.com/errandhq/errand/internal/machinestate"
)

const (
	// workerOrphanExit is how long a worker that lost its control plane waits for the next start of it.
	workerOrphanExit = 10 * time.Minute
	// watchEvery is how often the lock of a worker that this process did not start is looked at.
	watchEvery = time.Second
	// restartFirst and restartMax bound the pause before a worker that ended is started again.
	restartFirst = time.Second
	restartMax   = 30 * time.Second
	// stableAfter is how long a worker must have run for its end to count as the first of a series.
	stableAfter = time.Minute
	// versionWithin is how long the program errand may take to say its version.
	versionWithin = 10 * time.Second
	// maxWorkerLog is the size from which the worker's log is begun anew at a start; one older one is kept.
	maxWorkerLog = 10 << 20
)

// machineProcess keeps the worker of this machine running, as a process in its own session: it outlives this
// control plane, and a worker that an earlier one started is taken over.
type machineProcess struct {
	app     *App
	program string
	dir     string
	done    chan struct{}

	mu       sync.Mutex
	stopping bool
	spawned  *spawned // the last worker that this process started, or nil

	watched bool // whether watch was started, which closes done
	halt    context.CancelFunc
}

// prepareMachine finds the worker's program and enrols this machine where needed.
func (a *App) prepareMachine(ctx context.Context) error {
	program, err := findErrand(ctx)
	if err != nil {
		return err
	}
	dir := machinestate.Dir(a.settings.DataDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the machine's state directory: %w", err)
	}
	fresh, err := a.enrolMachine(ctx, dir)
	if err != nil {
		return err
	}
	a.machine = &machineProcess{app: a, program: program, dir: dir, done: make(chan struct{}), halt: func() {}}
	if fresh {
		// A worker that runs from before signs as a machine that the ledger does not know.
		a.machine.tellToStop()
	}
	return nil
}

// startMachine starts to watch this machine's worker.
func (a *App) startMachine(background context.Context) {
	watching, halt := context.WithCancel(background)
	a.machine.halt, a.machine.watched = halt, true
	go a.machine.watch(watching)
}

// findErrand finds the program errand beside this one, else on PATH, and makes sure that it is of this build.
func findErrand(ctx context.Context) (string, error) {
	name := "errand"
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	own, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding this program: %w", err)
	}
	path := filepath.Join(filepath.Dir(own), name)
	if _, err := os.Stat(path); err != nil {
		if path, err = exec.LookPath(name); err != nil {
			return "", fmt.Errorf("the program errand, which runs steps, is neither in %s nor on PATH: install it beside errandd",
				filepath.Dir(own))
		}
	}
	asking, cancel := context.WithTimeout(ctx, versionWithin)
	defer cancel()
	output, err := exec.CommandContext(asking, path, "version").Output()
	if err != nil {
		return "", fmt.Errorf("asking %s for its version: %w", path, err)
	}
	var answer struct {
		Result struct {
			Version string `json:"version"`
		} `json:"result"`
	}
	if err := json.Unmarshal(bytes.TrimSpace(output), &answer); err != nil {
		return "", fmt.Errorf("%s is not the program errand of this build: %w", path, err)
	}
	if answer.Result.Version != buildinfo.Version() {
		return "", fmt.Errorf("%s is of build %s and errandd of build %s: install both from one build",
			path, answer.Result.Version, buildinfo.Version())
	}
	return path, nil
}

// enrolMachine makes this machine known to the ledger, by the protocol that every machine uses, unless it is
// known already. It runs before the control plane serves, so that the first automation finds a machine. fresh
// reports whether the machine has a new identity.
func (a *App) enrolMachine(ctx context.Context, dir string) (fresh bool, err error) {
	enrolled, found, err := machinestate.Load(dir)
	if err != nil {
		return false, err
	}
	if found {
		machine, err := a.ledger.Machine(ctx, enrolled.MachineID)
		switch {
		case automation.CodeOf(err) == automation.CodeNotFound:
		case err != nil:
			return false, err
		case machine.State == automation.MachineRevoked:
			return false, nil // the watch says so, and serves again when it is enrolled anew
		default:
			return false, checkDeviceKey(dir, machine)
		}
	}
	key, err := identity.LoadOrCreateKey(dir)
	if err != nil {
		return false, fmt.Errorf("%w; to start with a new key, remove the directory %s", err, dir)
	}
	code, _, err := a.enroller.NewCode(ctx, a.install.LocalOwnerID, "")
	if err != nil {
		return false, err
	}
	proof, err := identity.EnrolmentProof(key, code, a.now())
	if err != nil {
		return false, err
	}
	machine, err := a.enroller.Enroll(ctx, identity.Enrolment{
		Code: code, PublicKey: key.Public(), Proof: proof, Name: hostName(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH, Version: buildinfo.Version(),
	})
	if err != nil {
		return false, fmt.Errorf("enrolling this machine: %w", err)
	}
	a.logger.Info("this machine is enrolled", "machine", machine.ID, "name", machine.Name)
	return true, machinestate.Save(dir, machinestate.Enrolled{MachineID: machine.ID, ServerURL: a.localURL()})
}

// checkDeviceKey refuses to start with a key that the ledger will not accept: the worker would try for ever.
func checkDeviceKey(dir string, machine automation.Machine) error {
	const advice = "restore it from a backup, or remove the directory %s to enrol this machine as a new one " +
		"(runs that wait for the old one then have to be cancelled)"
	path := filepath.Join(dir, identity.DeviceKeyFile)
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("the device key of this machine is missing: %w; "+advice, err, dir)
	}
	key, err := identity.LoadOrCreateKey(dir)
	if err != nil {
		return fmt.Errorf("%w; "+advice, err, dir)
	}
	if string(key.Public()) != machine.PublicKey {
		return fmt.Errorf("the device key in %s is not the one that this machine was enrolled with; "+advice, path, dir)
	}
	return nil
}

func hostName() string {
	name, err := os.Hostname()
	if err != nil || name == "" {
		return "this machine"
	}
	return name
}

// watch keeps a worker running until ctx ends, which leaves the worker alone.
func (m *machineProcess) watch(ctx context.Context) {
	defer close(m.done)
	pause := restartFirst
	for ctx.Err() == nil {
		if m.awaitActive(ctx); ctx.Err() != nil {
			return
		}
		began := time.Now()
		err := m.attend(ctx)
		if ctx.Err() != nil || m.isStopping() {
			return
		}
		if time.Since(began) > stableAfter {
			pause = restartFirst
		}
		m.app.logger.Warn("this machine's worker has ended; it is started again", "error", err, "pause", pause, "log", m.logPath())
		wait(ctx, pause)
		pause = min(2*pause, restartMax)
	}
}

// awaitActive returns when this machine is not revoked, or when ctx ends. A revoked one is not enrolled anew by
// itself: somebody had a reason.
func (m *machineProcess) awaitActive(ctx context.Context) {
	said := false
	for ctx.Err() == nil {
		enrolled, found, err := machinestate.Load(m.dir)
		if err != nil || !found {
			return // the worker says what is wrong
		}
		machine, err := m.app.ledger.Machine(ctx, enrolled.MachineID)
		if err != nil || machine.State == automation.MachineActive {
			return
		}
		if !said {
			said = true
			m.app.logger.Warn("this machine was revoked, so its worker is not started; to use it again, make a code for it with "+
				"enroll-code and give errand machine enroll", "machine", machine.ID, "server", m.app.localURL())
		}
		wait(ctx, restartFirst)
	}
}

// attend waits for the end of the worker that runs, or of one that it starts.
func (m *machineProcess) attend(ctx context.Context) error {
	lock := machinestate.LockPath(m.dir)
	if pid, running, err := lockfile.Probe(lock); err != nil {
		return err
	} else if running {
		m.app.logger.Info("this machine's worker is running already", "pid", pid)
		for running && ctx.Err() == nil {
			wait(ctx, watchEvery)
			if _, running, err = lockfile.Probe(lock); err != nil {
				return err
			}
		}
		return nil
	}
	return m.spawn(ctx)
}

// spawn starts a worker and waits for its end, or for the end of ctx.
func (m *machineProcess) spawn(ctx context.Context) error {
	log, err := m.openLog()
	if err != nil {
		return err
	}
	defer log.Close()                            // the worker has its own copy
	command := exec.Command(m.program, "worker", //nolint:noctx // it must outlive this process
		"--server", m.app.localURL(),
		"--exit-when-orphaned", workerOrphanExit.String(),
		"--log-format", "json", "--log-level", m.app.settings.LogLevel)
	command.Dir = m.dir
	command.Env = workerEnviron(os.Environ(), m.app.settings.DataDir)
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = ownSession()
	child, err := m.startUnlessStopping(command)
	if err != nil || child == nil {
		return err
	}
	m.app.logger.Info("this machine's worker is started", "pid", command.Process.Pid, "log", m.logPath())
	go func() {
		child.err = command.Wait()
		close(child.ended)
	}()
	select {
	case <-child.ended:
		return child.err
	case <-ctx.Done():
		return nil
	}
}

// spawned is a worker that this process started.
type spawned struct {
	process *os.Process
	ended   chan struct{}
	err     error // how it ended, once it has
}

// startUnlessStopping starts a worker; none once a stop has begun, which would not find it.
func (m *machineProcess) startUnlessStopping(command *exec.Cmd) (*spawned, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopping {
		return nil, nil //nolint:nilnil // nothing is started, and nothing is wrong
	}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", m.program, err)
	}
	m.spawned = &spawned{process: command.Process, ended: make(chan struct{})}
	return m.spawned, nil
}

// endSpawned ends a worker that was started a moment ago and does not hold its lock yet.
func (m *machineProcess) endSpawned(ctx context.Context) {
	m.mu.Lock()
	child := m.spawned
	m.mu.Unlock()
	if child == nil || child.process.Signal(syscall.SIGTERM) != nil {
		return // there is none, or it has ended
	}
	select {
	case <-child.ended:
	case <-ctx.Done():
	}
}

// workerEnviron is this process's environment without its settings: a machine holds no credential of the database
// or of Temporal.
func workerEnviron(own []string, dataDir string) []string {
	environ := slices.DeleteFunc(slices.Clone(own), func(variable string) bool {
		return strings.HasPrefix(variable, "ERRAND_") || strings.HasPrefix(variable, "TEMPORAL_")
	})
	return append(environ, "ERRAND_DATA_DIR="+dataDir)
}

func (m *machineProcess) logPath() string { return filepath.Join(m.app.settings.DataDir, "worker.log") }

func (m *machineProcess) openLog() (io.WriteCloser, error) {
	if info, err := os.Stat(m.logPath()); err == nil && info.Size() > maxWorkerLog {
		if err := os.Rename(m.logPath(), m.logPath()+".1"); err != nil {
			return nil, fmt.Errorf("setting the worker's log aside: %w", err)
		}
	}
	log, err := os.OpenFile(m.logPath(), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the worker's log: %w", err)
	}
	return log, nil
}

func (m *machineProcess) isStopping() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stopping
}

// stop ends the watch. With drain it also tells the worker to stop and waits until it is gone or ctx ends;
// without, the worker goes on and waits for the next control plane.
func (m *machineProcess) stop(ctx context.Context, drain bool) {
	m.mu.Lock()
	m.stopping = true
	m.mu.Unlock()
	if drain {
		m.drain(ctx)
	}
	m.halt()
	if m.watched {
		<-m.done
	}
}

// tellToStop tells a worker that runs to stop, and reports whether one does.
func (m *machineProcess) tellToStop() bool {
	pid, running, err := lockfile.Probe(machinestate.LockPath(m.dir))
	if err != nil || !running || pid == 0 {
		return false
	}
	process, err := os.FindProcess(pid)
	if err == nil {
		err = process.Signal(syscall.SIGTERM)
	}
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		m.app.logger.Warn("this machine's worker could not be told to stop", "pid", pid, "error", err)
		return false
	}
	return true
}

func (m *machineProcess) drain(ctx context.Context) {
	if !m.tellToStop() {
		m.endSpawned(ctx)
		return
	}
	m.app.logger.Info("waiting up to 30 seconds for the steps of this machine's worker; a second signal does not wait")
	running, err := true, error(nil)
	for running && err == nil && ctx.Err() == nil {
		wait(ctx, watchEvery/10)
		_, running, err = lockfile.Probe(machinestate.LockPath(m.dir))
	}
}

// wait returns after a pause, or when ctx ends.
func wait(ctx context.Context, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
