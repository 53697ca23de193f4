//go:build unix

package host_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/errandhq/errand/activities/machine"
	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/worker/host"
)

// childVariable makes the test binary a worker that executes one step, until somebody kills it.
const childVariable = "HOST_TEST_CHILD"

// child is what such a worker is given.
type child struct {
	Server, State, Boot string
	Ref                 automation.StepRef
}

func TestMain(m *testing.M) {
	text := os.Getenv(childVariable)
	if text == "" {
		os.Exit(m.Run())
	}
	if err := runChild(text); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func runChild(text string) error {
	var c child
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	if err := os.Unsetenv(childVariable); err != nil {
		return err
	}
	temporal := newTemporal()
	o, err := hostOptions(c.Server, c.State, c.Boot, temporal)
	if err != nil {
		return err
	}
	h, err := host.Open(o)
	if err != nil {
		return err
	}
	go func() {
		for {
			temporal.mu.Lock()
			changed, workers := temporal.changed, temporal.workers
			temporal.mu.Unlock()
			if len(workers) > 0 {
				workers[0].attempt(nil, automation.StepInput{RunID: c.Ref.RunID, StepID: c.Ref.StepID, Generation: 1})
				return
			}
			<-changed
		}
	}()
	return h.Run(context.Background())
}

// spawn starts a worker in a process of its own that executes a step.
func (w *world) spawn(ref automation.StepRef) *exec.Cmd {
	w.t.Helper()
	text, err := json.Marshal(child{Server: w.ledger.server.URL, State: w.state, Boot: w.boot, Ref: ref})
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.CommandContext(w.t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	return cmd
}

// kill kills a worker as a crash would.
func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("the killed worker ended well")
	}
}

func newHTTPClient() *http.Client { return &http.Client{Transport: &http.Transport{}} }

func mkfifo(t *testing.T, path string) {
	t.Helper()
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
}

// patientRunner lets programs clean up for as long as a test may take.
func patientRunner(t *testing.T) host.Runner {
	t.Helper()
	r, err := machine.New(machine.Options{Actions: noActions{}, Environ: os.Environ(), Grace: patience})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A worker is killed while its program runs: the next one ends all of it before the step starts again.
func TestKilledWorkerLeavesNothingToTheNext(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	mkfifo(t, filepath.Join(w.files, "tree.gate"))
	// Each start first looks whether anything of an earlier one is alive; a zombie that nobody reaps is not.
	ref := w.sh("tree", `
for pid in $(cat $FILES/all 2>/dev/null); do
  if kill -0 $pid 2>/dev/null && ! grep -q ') Z ' /proc/$pid/stat 2>/dev/null; then echo $pid >>$FILES/survivors; fi
done
echo "$ERRAND_IDEMPOTENCY_KEY" >>$FILES/keys
trap "" TERM
sleep 300 & echo $! >>$FILES/all
setsid sleep 300 & echo $! >>$FILES/all
sh -c 'trap "" TERM; sleep 300 & echo $! >>$FILES/all; wait; sleep 300' & echo $! >>$FILES/all
echo $$ >>$FILES/all
read line <$FILES/tree.gate
`)
	cmd := w.spawn(ref)
	w.running("tree", 1)
	w.eventually("the whole tree to run", func() bool {
		text, err := os.ReadFile(filepath.Join(w.files, "all"))
		return err == nil && len(strings.Fields(string(text))) == 5
	})
	kill(t, cmd)
	w.start()
	a := w.attempt(ref)
	w.running("tree", 2)
	w.open("tree")
	a.completed()
	if text, err := os.ReadFile(filepath.Join(w.files, "survivors")); err == nil {
		t.Errorf("alive when the step started again: %s", text)
	}
	keys, err := os.ReadFile(filepath.Join(w.files, "keys"))
	if want := strings.Repeat(ref.Key()+"\n", 2); err != nil || string(keys) != want {
		t.Errorf("keys %q, %v; want %q", keys, err, want)
	}
	if step := w.ledger.step(ref); step.Attempt != 2 {
		t.Errorf("execution %d", step.Attempt)
	}
}

// A worker is killed with a result that nobody acknowledged: the next one sends it, and nothing runs again.
func TestKilledWorkerLeavesItsResult(t *testing.T) {
	t.Parallel()
	for _, boot := range []string{"boot-1", "boot-2"} {
		t.Run(boot, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			ref := w.sh("result", "echo precious")
			tried := make(chan struct{}, 1)
			w.ledger.intercept(func(rw http.ResponseWriter, r *http.Request, serve http.HandlerFunc) {
				if r.URL.Path == "/v1/machine/steps/finish" {
					select {
					case tried <- struct{}{}:
					default:
					}
					panic(http.ErrAbortHandler)
				}
				serve(rw, r)
			})
			cmd := w.spawn(ref)
			<-tried
			kill(t, cmd)
			w.ledger.up()
			w.boot = boot
			w.start()
			w.ledger.awaitStatus(ref, automation.StepCompleted)
			w.attempt(ref).completed()
			if n := len(w.starts("result")); n != 1 {
				t.Errorf("%d starts", n)
			}
			if got := string(w.ledger.results[ref]); !strings.Contains(got, "precious") {
				t.Errorf("result %s", got)
			}
		})
	}
}

// The run is cancelled while its worker is dead: the next worker ends the program and confirms.
func TestCancelOfADeadWorkersStepIsConfirmed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ref := w.gated("orphan")
	cmd := w.spawn(ref)
	pid := w.running("orphan", 1)
	kill(t, cmd)
	w.ledger.cancel(ref.RunID)
	if !alive(pid) {
		t.Fatal("the program did not outlive its worker")
	}
	w.start()
	w.ledger.awaitStatus(ref, automation.StepCancelled)
	if alive(pid) {
		t.Error("confirmed as cancelled while the program is alive")
	}
}

// writeRecord puts a record into the state directory as an earlier worker would have left it.
func (w *world) writeRecord(ref automation.StepRef, members map[string]any) string {
	w.t.Helper()
	record := map[string]any{"runId": ref.RunID, "stepId": ref.StepID, "execution": 1, "bootId": w.boot}
	maps.Copy(record, members)
	text, err := json.Marshal(record)
	if err != nil {
		w.t.Fatal(err)
	}
	path := w.recordPath(ref)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		w.t.Fatal(err)
	}
	return path
}

// recordPath finds out where a worker keeps the record of a step: a worker that executed it has one there.
func (w *world) recordPath(ref automation.StepRef) string {
	w.t.Helper()
	probe := newWorld(w.t)
	step := shellStep("probe", probe.files, "true")
	step.RunID, step.StepID = ref.RunID, ref.StepID
	probe.ledger.add(step)
	running := probe.start()
	probe.attempt(ref).completed()
	running.stopNow()
	files, err := filepath.Glob(filepath.Join(probe.state, "steps", "*.json"))
	if err != nil || len(files) != 1 {
		w.t.Fatalf("records %v, %v", files, err)
	}
	if err := os.MkdirAll(filepath.Join(w.state, "steps"), 0o700); err != nil {
		w.t.Fatal(err)
	}
	return filepath.Join(w.state, "steps", filepath.Base(files[0]))
}

func exists(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Stat(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return err == nil
}

func TestRecordsOfEarlierWorkers(t *testing.T) {
	t.Parallel()
	now := time.Now()
	tests := map[string]struct {
		members map[string]any
		kept    bool // the record, after the start
		ended   int  // leftovers that were looked for
	}{
		"an intent of an earlier boot": {members: map[string]any{"bootId": "boot-0"}},
		"an intent of this boot":       {members: map[string]any{}, ended: 1},
		"a program of this boot": {ended: 1, members: map[string]any{
			"process": map[string]any{"pid": 1 << 30, "pgid": 1 << 30, "startTime": "then"},
		}},
		"a result of this boot":         {kept: true, members: map[string]any{"result": map[string]any{"outcome": "completed"}}},
		"acknowledged eight days ago":   {members: map[string]any{"acknowledgedAt": now.Add(-8 * 24 * time.Hour)}},
		"acknowledged six days ago":     {members: map[string]any{"acknowledgedAt": now.Add(-6 * 24 * time.Hour)}, kept: true},
		"acknowledged, of earlier boot": {members: map[string]any{"acknowledgedAt": now, "bootId": "boot-0"}, kept: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			ref := w.sh("later", "true")
			path := w.writeRecord(ref, test.members)
			if at, ok := test.members["acknowledgedAt"].(time.Time); ok {
				if err := os.Chtimes(path, at, at); err != nil {
					t.Fatal(err)
				}
			}
			o := w.options()
			runner := &stubbornRunner{Runner: o.Runner}
			running := w.start(func(n *host.Options) { *n = o; n.Runner = runner })
			w.temporal.worker(t, 1)
			if test.kept {
				running.stopNow() // the sweep is over then
				if !exists(t, path) {
					t.Error("the record is gone")
				}
				return
			}
			w.eventually("the record to be removed", func() bool { return !exists(t, path) })
			w.attempt(ref).completed()
			if n := runner.count(); n != test.ended {
				t.Errorf("%d times leftovers were looked for, want %d", n, test.ended)
			}
		})
	}
}

// A record that cannot be read counts as a program that may be running: whatever has the step's key in its
// environment is ended before the step starts again.
func TestUnreadableRecordCountsAsAnIntent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ref := w.gated("damaged")
	cmd := w.spawn(ref)
	pid := w.running("damaged", 1)
	kill(t, cmd)
	records, err := filepath.Glob(filepath.Join(w.state, "steps", "*.json"))
	if err != nil || len(records) != 1 {
		t.Fatalf("records %v, %v", records, err)
	}
	if err := os.WriteFile(records[0], []byte(`{"runId":"run-dam`), 0o600); err != nil {
		t.Fatal(err)
	}
	w.start()
	a := w.attempt(ref)
	w.running("damaged", 2)
	if alive(pid) {
		t.Error("the earlier program is alive")
	}
	w.open("damaged")
	a.completed()
	if !exists(t, records[0]+".unreadable") {
		t.Error("the unreadable record was not kept for a look")
	}
}

// An abandoned temporary file is no record and goes away.
func TestHalfWrittenRecordIsRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	steps := filepath.Join(w.state, "steps")
	if err := os.MkdirAll(steps, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(steps, ".new-123")
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.start()
	if exists(t, path) {
		t.Error("the file is still there")
	}
}

// The leftovers of a dead worker cannot be ended at first: their step waits until they are.
func TestStepWaitsUntilItsLeftoversAreGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ref := w.sh("stubborn", "true")
	w.writeRecord(ref, nil)
	o := w.options()
	stubborn := &stubbornRunner{Runner: o.Runner, failures: 3}
	w.start(func(n *host.Options) { *n = o; n.Runner = stubborn })
	w.attempt(ref).completed()
	if stubborn.startedEarly || stubborn.failures != 0 {
		t.Errorf("started early %t, %d tries left", stubborn.startedEarly, stubborn.failures)
	}
}
