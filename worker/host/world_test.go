//go:build unix

package host_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/errandhq/errand/activities/machine"
	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/worker/host"
)

// patience is how long a test waits for what must happen. It is no measure of anything.
const patience = 30 * time.Second

// quick makes a host retry and beat often, so that tests are short.
var quick = host.Timing{
	HeartbeatEvery: 5 * time.Millisecond, HeartbeatTimeout: patience,
	RetryFirst: 5 * time.Millisecond, RetryMax: 20 * time.Millisecond, Call: 5 * time.Second,
	EndWithin: 10 * time.Second, SettleWithin: 5 * time.Second,
}

// world is a ledger, a Temporal and a machine with programs that leave marks.
type world struct {
	t        *testing.T
	ledger   *ledger
	temporal *temporalFake
	state    string
	files    string
	boot     string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{
		t: t, ledger: newLedger(t), temporal: newTemporal(), state: filepath.Join(t.TempDir(), "state"),
		files: t.TempDir(), boot: "boot-1",
	}
}

// hostOptions are those of every worker on the machine with the given state directory.
func hostOptions(server, state, boot string, temporal host.TemporalDialer) (host.Options, error) {
	controlPlane, err := host.NewControlPlane(server, newHTTPClient(), 2*time.Second)
	if err != nil {
		return host.Options{}, err
	}
	runner, err := machine.New(machine.Options{
		Actions: noActions{}, Environ: os.Environ(), Grace: 200 * time.Millisecond,
		Home: func() (string, error) { return os.TempDir(), nil },
	})
	return host.Options{
		StateDir: state, BootID: boot, Hostname: "test", Version: "v0",
		ControlPlane: controlPlane, Temporal: temporal, Runner: runner,
		Now: time.Now, NewID: uuid.NewString, Random: rand.Float64, Timing: quick,
	}, err
}

type noActions struct{}

func (noActions) Run(context.Context, automation.ConcreteStep) (json.RawMessage, error) {
	return nil, &automation.StepError{Code: automation.StepErrTransportUnavailable, Message: "nobody answers"}
}

// options returns those of a worker, changed by each of the given functions.
func (w *world) options(change ...func(*host.Options)) host.Options {
	w.t.Helper()
	o, err := hostOptions(w.ledger.server.URL, w.state, w.boot, w.temporal)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, c := range change {
		c(&o)
	}
	return o
}

// worker is a host that runs.
type worker struct {
	*host.Host
	done chan struct{}
	err  error // of Run, set before done is closed
}

// start runs a host until the end of the test, at the latest.
func (w *world) start(change ...func(*host.Options)) *worker {
	w.t.Helper()
	h, err := host.Open(w.options(change...))
	if err != nil {
		w.t.Fatal(err)
	}
	running := &worker{Host: h, done: make(chan struct{})}
	go func() {
		defer close(running.done)
		running.err = h.Run(context.Background())
	}()
	w.t.Cleanup(running.stopNow)
	return running
}

// stopNow ends the worker and its programs without a drain.
func (r *worker) stopNow() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	r.Stop(ctx)
	<-r.done
}

// sh stores a run of one shell step. The source finds its files in $FILES; it marks its start there.
func (w *world) sh(name, source string) automation.StepRef {
	w.t.Helper()
	return w.ledger.add(shellStep(name, w.files, source))
}

func shellStep(name, files, source string) automation.ConcreteStep {
	// Processes are found by their step's key, so no two tests may share one.
	unique := sha256.Sum256([]byte(files))
	return automation.ConcreteStep{
		RunID: "run-" + name + "-" + hex.EncodeToString(unique[:8]), StepID: "only", Kind: automation.KindScript, Runtime: automation.RuntimeShell,
		Source: "echo $$ >>$FILES/" + name + ".starts\n" + source,
		Env:    map[string]string{"FILES": files}, TimeoutMs: 60_000, MaxOutputBytes: 1 << 16, Leftovers: automation.LeftoversEnd,
	}
}

// gated stores a run of a step that works until its gate is opened.
func (w *world) gated(name string) automation.StepRef {
	w.t.Helper()
	if err := syscall.Mkfifo(filepath.Join(w.files, name+".gate"), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return w.sh(name, "read line <$FILES/"+name+".gate\necho $line\n")
}

// open lets a gated step that has started go on to its end.
func (w *world) open(name string) {
	w.t.Helper()
	w.eventually("the gate of "+name+" to be waited for", func() bool {
		f, err := os.OpenFile(filepath.Join(w.files, name+".gate"), os.O_WRONLY|syscall.O_NONBLOCK, 0)
		if errors.Is(err, syscall.ENXIO) {
			return false
		}
		if err != nil {
			w.t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		if _, err := f.WriteString("opened\n"); err != nil {
			w.t.Fatal(err)
		}
		return true
	})
}

// starts returns the process number of every start of a step's program.
func (w *world) starts(name string) []int {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(w.files, name+".starts"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.t.Fatal(err)
	}
	var pids []int
	for field := range strings.FieldsSeq(string(text)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			w.t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// running waits for the nth start of a step's program and returns its process number.
func (w *world) running(name string, nth int) int {
	w.t.Helper()
	w.eventually(fmt.Sprintf("start %d of %s", nth, name), func() bool { return len(w.starts(name)) >= nth })
	return w.starts(name)[nth-1]
}

// alive reports whether a process runs. One that is dead but that nobody has reaped, as happens to orphans in
// a container without an init, does not.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return runtime.GOOS != "linux"
	}
	return !strings.Contains(string(stat), ") Z ")
}

// eventually waits for a condition that nothing announces.
func (w *world) eventually(what string, condition func() bool) {
	w.t.Helper()
	eventually(w.t, what, condition)
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("in vain waited for: %s", what)
		}
	}
}

// temporalFake stands for Temporal behind the gateway: it makes attempts when a test asks for them.
type temporalFake struct {
	mu      sync.Mutex
	workers []*workerFake
	changed chan struct{}
	// dial and start decide about the nth call, from 1; nil means success.
	dial, start func(n int) error
	dials       int
}

func newTemporal() *temporalFake { return &temporalFake{changed: make(chan struct{})} }

type workerFake struct {
	temporal *temporalFake
	o        host.WorkerOptions
	attempts sync.WaitGroup
	ctx      context.Context
	cancel   context.CancelCauseFunc
	stopped  chan struct{}
	once     sync.Once
}

var errShutdown = errors.New("the worker has shut down")

func (f *temporalFake) Dial(_ context.Context, o host.WorkerOptions) (host.TemporalWorker, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dials++
	if f.dial != nil {
		if err := f.dial(f.dials); err != nil {
			return nil, err
		}
	}
	w := &workerFake{temporal: f, o: o, stopped: make(chan struct{})}
	w.ctx, w.cancel = context.WithCancelCause(context.Background())
	return w, nil
}

func (w *workerFake) Start() error {
	f := w.temporal
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.start != nil {
		if err := f.start(f.dials); err != nil {
			return err
		}
	}
	f.workers = append(f.workers, w)
	close(f.changed)
	f.changed = make(chan struct{})
	return nil
}

func (w *workerFake) Stop() {
	w.once.Do(func() { close(w.stopped) })
	returned := make(chan struct{})
	go func() {
		w.attempts.Wait()
		close(returned)
	}()
	select {
	case <-returned:
	case <-time.After(w.o.StopTimeout):
	}
	w.cancel(errShutdown)
}

// worker waits for the nth worker that has started, from 1.
func (f *temporalFake) worker(t *testing.T, nth int) *workerFake {
	t.Helper()
	deadline := time.After(patience)
	for {
		f.mu.Lock()
		changed, workers := f.changed, f.workers
		f.mu.Unlock()
		if len(workers) >= nth {
			return workers[nth-1]
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("worker %d did not start", nth)
		}
	}
}

// attempt is one attempt under way.
type attempt struct {
	t       *testing.T
	cancel  context.CancelCauseFunc
	done    chan struct{}
	verdict automation.StepVerdict
	err     error

	mu    sync.Mutex
	beat  error // what Temporal answers to a heartbeat
	beats int
}

// attempt has the latest worker execute a step.
func (w *world) attempt(ref automation.StepRef) *attempt {
	w.t.Helper()
	w.temporal.worker(w.t, 1)
	w.temporal.mu.Lock()
	latest := w.temporal.workers[len(w.temporal.workers)-1]
	w.temporal.mu.Unlock()
	w.ledger.mu.Lock()
	generation := int64(1)
	if run, ok := w.ledger.runs[ref.RunID]; ok {
		generation = run.Generation
	}
	w.ledger.mu.Unlock()
	return latest.attempt(w.t, automation.StepInput{RunID: ref.RunID, StepID: ref.StepID, Generation: generation})
}

func (w *workerFake) attempt(t *testing.T, in automation.StepInput) *attempt {
	a := &attempt{t: t, done: make(chan struct{})}
	var ctx context.Context
	ctx, a.cancel = context.WithCancelCause(w.ctx)
	w.attempts.Go(func() {
		defer close(a.done)
		defer a.cancel(nil)
		a.verdict, a.err = w.o.Execute(ctx, host.Attempt{Heartbeat: a.heartbeat}, in)
	})
	return a
}

func (a *attempt) heartbeat(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	a.beats++
	return a.beat
}

// answerBeats sets what Temporal answers to heartbeats from now on.
func (a *attempt) answerBeats(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.beat = err
}

func (a *attempt) beatCount() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.beats
}

// wait returns when the attempt has its answer.
func (a *attempt) wait() {
	a.t.Helper()
	select {
	case <-a.done:
	case <-time.After(patience):
		a.t.Fatal("the attempt got no answer")
	}
}

// pending reports whether the attempt still waits.
func (a *attempt) pending() bool {
	select {
	case <-a.done:
		return false
	default:
		return true
	}
}
