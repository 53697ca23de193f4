//go:build unix

package host_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/lockfile"
	"github.com/errandhq/errand/worker/host"
)

// completed checks that the attempt answered with a completed step.
func (a *attempt) completed() {
	a.t.Helper()
	a.wait()
	if a.err != nil || a.verdict != (automation.StepVerdict{Outcome: automation.OutcomeCompleted}) {
		a.t.Fatalf("verdict %+v, error %v; want completed", a.verdict, a.err)
	}
}

// failed checks that the attempt answered with an application error of the type and whether it is final.
func (a *attempt) failed(errType string, final bool) *temporal.ApplicationError {
	a.t.Helper()
	a.wait()
	app, ok := errors.AsType[*temporal.ApplicationError](a.err)
	if !ok || app.Type() != errType || app.NonRetryable() != final {
		a.t.Fatalf("verdict %+v, error %v; want an application error of type %s, final %t", a.verdict, a.err, errType, final)
	}
	return app
}

func TestStepRunsOnceAndIsReported(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ref := w.sh("hello", "echo hello; echo oops >&2")
	w.start()
	w.attempt(ref).completed()
	step := w.ledger.step(ref)
	if step.Status != automation.StepCompleted || step.Attempt != 1 {
		t.Errorf("the ledger has %+v", step)
	}
	if got := string(w.ledger.results[ref]); !strings.Contains(got, `"stdout":"hello\n"`) {
		t.Errorf("result %s", got)
	}
	// Another attempt, as after a reset in Temporal, executes nothing.
	w.attempt(ref).completed()
	if n := len(w.starts("hello")); n != 1 {
		t.Errorf("%d starts", n)
	}
}

func TestRecordsArePrivateAndKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ref := w.sh("kept", "true")
	w.start()
	w.attempt(ref).completed()
	files, err := filepath.Glob(filepath.Join(w.state, "steps", "*.json"))
	if err != nil || len(files) != 1 {
		t.Fatalf("records %v, %v", files, err)
	}
	info, err := os.Stat(files[0])
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	w.eventually("the acknowledgement in the record", func() bool {
		text, err := os.ReadFile(files[0])
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(text), "acknowledgedAt")
	})
}

func TestFailureIsFinalAndSaysNothingPrivate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ref := w.sh("fails", "echo secret; exit 3")
	w.start()
	err := w.attempt(ref).failed("nonzero_exit", true)
	if strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), ref.StepID) {
		t.Errorf("message %q", err.Error())
	}
	if step := w.ledger.step(ref); step.Status != automation.StepFailed || step.Error.Code != automation.StepErrNonzeroExit {
		t.Errorf("the ledger has %+v", step)
	}
	w.attempt(ref).failed("nonzero_exit", true) // done, with the recorded error
}

func TestLostAttemptLeavesTheProgramToTheNext(t *testing.T) {
	t.Parallel()
	losses := map[string]struct {
		answer  error
		timeout time.Duration // of heartbeats
	}{
		"timed out":  {answer: serviceerror.NewNotFound("invalid activityID or activity already timed out"), timeout: patience},
		"paused":     {answer: activity.ErrActivityPaused, timeout: patience},
		"reset":      {answer: activity.ErrActivityReset, timeout: patience},
		"no contact": {answer: serviceerror.NewUnavailable("connection refused"), timeout: 50 * time.Millisecond},
	}
	for name, loss := range losses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			ref := w.gated("long")
			w.start(func(o *host.Options) { o.Timing.HeartbeatTimeout = loss.timeout })
			first := w.attempt(ref)
			pid := w.running("long", 1)
			first.answerBeats(loss.answer)
			first.failed("attempt_detached", false)
			second := w.attempt(ref)
			w.ledger.await("the second begin", func() bool { return len(w.ledger.begins) == 2 })
			if !alive(pid) {
				t.Fatal("the program did not outlive its attempt")
			}
			w.open("long")
			second.completed()
			if n := len(w.starts("long")); n != 1 {
				t.Errorf("%d starts", n)
			}
			held := w.ledger.beginsOf(ref)[1].Held
			want := &automation.Held{StepRef: ref, Execution: 1, State: automation.HeldRunning}
			if diff := cmp.Diff(want, held); diff != "" {
				t.Errorf("the second begin held (-want +got):\n%s", diff)
			}
		})
	}
}

func TestShortHeartbeatTroubleIsBorne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ref := w.gated("borne")
	w.start(func(o *host.Options) { o.Timing.HeartbeatTimeout = patience })
	a := w.attempt(ref)
	w.running("borne", 1)
	a.answerBeats(serviceerror.NewUnavailable("connection refused"))
	beats := a.beatCount()
	w.eventually("heartbeats to go on", func() bool { return a.beatCount() > beats+3 })
	if !a.pending() {
		t.Fatal("the attempt was given up although Temporal bears that silence")
	}
	a.answerBeats(nil)
	w.open("borne")
	a.completed()
}

func TestLostAnswerOfBeginCostsNoSecondProgram(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ref := w.sh("lost", "true")
	w.ledger.lose("/v1/machine/steps/begin")
	w.start()
	w.attempt(ref).completed()
	begins := w.ledger.beginsOf(ref)
	if len(begins) != 2 || begins[0].RequestID == "" || begins[0].RequestID != begins[1].RequestID {
		t.Errorf("begins %+v", begins)
	}
	if n := len(w.starts("lost")); n != 1 || w.ledger.step(ref).Attempt != 1 {
		t.Errorf("%d starts, execution %d", n, w.ledger.step(ref).Attempt)
	}
}

func TestTwoAttemptsAtOnceShareOneProgram(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ref := w.gated("shared")
	begun := make(chan struct{}, 3)
	w.ledger.intercept(func(rw http.ResponseWriter, r *http.Request, serve http.HandlerFunc) {
		if r.URL.Path != "/v1/machine/steps/begin" {
			serve(rw, r)
			return
		}
		answer := httptest.NewRecorder()
		serve(answer, r)
		begun <- struct{}{}
		if len(begun) == 1 {
			// The answer is on its way for a while, in which nobody else may ask.
			select {
			case <-time.After(100 * time.Millisecond):
			case <-r.Context().Done():
			}
			if len(begun) != 1 {
				t.Error("a second attempt asked while the first had no answer")
			}
		}
		rw.WriteHeader(answer.Code)
		if _, err := rw.Write(answer.Body.Bytes()); err != nil {
			t.Error(err)
		}
	})
	w.start()
	attempts := []*attempt{w.attempt(ref), w.attempt(ref), w.attempt(ref)}
	w.ledger.await("three begins", func() bool { return len(w.ledger.begins) == 3 })
	w.open("shared")
	for _, a := range attempts {
		a.completed()
	}
	if n := len(w.starts("shared")); n != 1 {
		t.Errorf("%d starts", n)
	}
}

// awaitTombstone waits until the worker has acted on the end of a step's execution.
func (w *world) awaitTombstone() {
	w.t.Helper()
	w.eventually("a tombstone", func() bool {
		files, err := filepath.Glob(filepath.Join(w.state, "steps", "*.json"))
		if err != nil {
			w.t.Fatal(err)
		}
		for _, file := range files {
			if text, err := os.ReadFile(file); err == nil && strings.Contains(string(text), `"tombstone":`) {
				return true
			}
		}
		return false
	})
}

func TestEndThatOvertakesItsRunDiscardsIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ref := w.sh("late", "true")
	release := make(chan struct{})
	w.ledger.intercept(func(rw http.ResponseWriter, r *http.Request, serve http.HandlerFunc) {
		if r.URL.Path != "/v1/machine/steps/begin" {
			serve(rw, r)
			return
		}
		answer := httptest.NewRecorder()
		serve(answer, r)
		<-release
		rw.WriteHeader(answer.Code)
		if _, err := rw.Write(answer.Body.Bytes()); err != nil {
			t.Error(err)
		}
	})
	w.start()
	w.ledger.connected()
	a := w.attempt(ref)
	w.ledger.awaitStatus(ref, automation.StepRunning)
	w.ledger.cancel(ref.RunID)
	w.awaitTombstone()
	w.ledger.awaitStatus(ref, automation.StepCancelled)
	close(release)
	a.wait()
	if a.err != nil || a.verdict.Outcome != automation.OutcomeCancelled {
		t.Errorf("verdict %+v, error %v", a.verdict, a.err)
	}
	if n := len(w.starts("late")); n != 0 {
		t.Errorf("%d starts after the end", n)
	}
}

func TestEndDuringTheRunEndsTheProgram(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ref := w.sh("ended", "trap '' TERM\nsleep 300 &\necho $! >>$FILES/child\nwait\nsleep 300")
	w.start()
	w.ledger.connected()
	a := w.attempt(ref)
	pid := w.running("ended", 1)
	w.ledger.cancel(ref.RunID)
	a.wait()
	if a.err != nil || a.verdict.Outcome != automation.OutcomeCancelled {
		t.Errorf("verdict %+v, error %v", a.verdict, a.err)
	}
	if alive(pid) {
		t.Error("the program is alive")
	}
	if status := w.ledger.step(ref).Status; status != automation.StepCancelled {
		t.Errorf("the step is %s", status)
	}
}

func TestEndOfWhatNobodyHoldsIsConfirmed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ref := w.sh("nowhere", "true")
	w.start()
	w.ledger.connected()
	w.ledger.change(ref.RunID, func(r *automation.Run) {
		// The answer of this begin reached nobody.
		if _, err := r.Begin(automation.BeginRequest{StepRef: ref, Generation: 1}, false, time.Now()); err != nil {
			t.Error(err)
		}
	})
	w.ledger.cancel(ref.RunID)
	if step := w.ledger.awaitStatus(ref, automation.StepCancelled); step.Attempt != 1 {
		t.Errorf("execution %d", step.Attempt)
	}
}

func TestRealCancelEndsTheProgramAndKeepsBeating(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ref := w.sh("cleans", "trap 'read line <$FILES/cleans.gate; echo clean; exit 0' TERM\nwhile :; do sleep 0.01; done")
	mkfifo(t, filepath.Join(w.files, "cleans.gate"))
	o := w.options()
	slow := patientRunner(t)
	w.start(func(n *host.Options) { *n = o; n.Runner = slow })
	a := w.attempt(ref)
	w.running("cleans", 1)
	a.answerBeats(temporal.NewCanceledError())
	beats := a.beatCount()
	w.eventually("heartbeats during the clean-up", func() bool { return a.beatCount() > beats+5 })
	w.open("cleans")
	a.wait()
	if a.err != nil || a.verdict.Outcome != automation.OutcomeCancelled {
		t.Errorf("verdict %+v, error %v", a.verdict, a.err)
	}
	if got := string(w.ledger.finishesOf(ref)[0].Result); !strings.Contains(got, "clean") {
		t.Errorf("result %s", got)
	}
}

func TestCancelBeforeBeginIsACancel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ref := w.sh("never", "true")
	w.start()
	w.ledger.connected()
	w.ledger.down()
	a := w.attempt(ref)
	a.answerBeats(temporal.NewCanceledError())
	a.wait()
	if !temporal.IsCanceledError(a.err) {
		t.Errorf("verdict %+v, error %v", a.verdict, a.err)
	}
}

func TestFinishIsRetriedWhileTheControlPlaneIsAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ref := w.gated("patient")
	running := w.start()
	a := w.attempt(ref)
	pid := w.running("patient", 1)
	w.ledger.down()
	w.open("patient")
	w.eventually("the end of the program", func() bool { return !alive(pid) })
	w.eventually("the result to be held", func() bool {
		held := running.Status().Held
		return len(held) == 1 && held[0].State == automation.HeldFinished
	})
	w.ledger.up()
	a.completed()
	if n := len(w.starts("patient")); n != 1 {
		t.Errorf("%d starts", n)
	}
}

func TestLostAcknowledgementIsHarmless(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ref := w.sh("twice", "true")
	w.ledger.lose("/v1/machine/steps/finish")
	w.start()
	w.attempt(ref).completed()
	if n := len(w.ledger.finishesOf(ref)); n != 2 {
		t.Errorf("%d finishes", n)
	}
}

func TestAcknowledgedResultThatTheLedgerLostIsSentAgain(t *testing.T) {
	t.Parallel()
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %t", restart), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			ref := w.sh("forgotten", "echo once")
			first := w.start()
			w.attempt(ref).completed()
			if restart {
				first.stopNow()
			}
			w.ledger.add(shellStep("forgotten", w.files, "echo once")) // as it was before the run
			if restart {
				w.start()
				w.temporal.worker(t, 2)
			}
			w.attempt(ref).completed()
			if step := w.ledger.step(ref); step.Status != automation.StepCompleted || step.Attempt != 1 {
				t.Errorf("the ledger has %+v", step)
			}
			if n := len(w.starts("forgotten")); n != 1 {
				t.Errorf("%d starts", n)
			}
		})
	}
}

// An attempt is told to attach to a program whose result was acknowledged while it asked, by a ledger that
// has lost it again.
func TestResultIsSentAgainToWhoeverAsksForIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ref := w.gated("again")
	w.start()
	first := w.attempt(ref)
	w.running("again", 1)
	asked, release := make(chan struct{}, 1), make(chan struct{})
	w.ledger.intercept(func(rw http.ResponseWriter, r *http.Request, serve http.HandlerFunc) {
		if r.URL.Path == "/v1/machine/steps/begin" {
			asked <- struct{}{}
			<-release
		}
		serve(rw, r)
	})
	second := w.attempt(ref)
	<-asked
	w.open("again")
	first.completed()
	w.ledger.add(shellStep("again", w.files, "")) // as it was before the run
	close(release)
	second.completed()
	if step := w.ledger.step(ref); step.Status != automation.StepCompleted || step.Attempt != 1 || len(w.starts("again")) != 1 {
		t.Errorf("the ledger has %+v after %d starts", step, len(w.starts("again")))
	}
}

func TestTransientOutcomeIsTriedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ref := w.ledger.add(automation.ConcreteStep{
		RunID: "run-action", StepID: "only", Kind: automation.KindAction, ActionID: "some.thing", TimeoutMs: 1000,
	})
	w.start()
	w.temporal.worker(t, 1)
	err := w.attempt(ref).failed("transient", false)
	if delay := err.NextRetryDelay(); delay <= 0 || delay > time.Second {
		t.Errorf("next retry in %v", delay)
	}
	w.attempt(ref).failed("transient", false)
	if step := w.ledger.step(ref); step.Attempt != 2 || step.Status != automation.StepRunning {
		t.Errorf("the ledger has %+v", step)
	}
}

func TestSupersededCallLeavesTheProgram(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ref := w.gated("moved")
	w.start()
	first := w.attempt(ref)
	pid := w.running("moved", 1)
	first.answerBeats(serviceerror.NewNotFound("workflow execution already completed"))
	first.wait()
	w.ledger.change(ref.RunID, func(r *automation.Run) { r.Generation = 2 })
	old := w.temporal.worker(t, 1).attempt(t, automation.StepInput{RunID: ref.RunID, StepID: ref.StepID, Generation: 1})
	old.wait()
	if old.err != nil || old.verdict.Stopped != automation.StopSuperseded {
		t.Errorf("verdict %+v, error %v", old.verdict, old.err)
	}
	if !alive(pid) {
		t.Fatal("the superseded call ended the program")
	}
	next := w.attempt(ref)
	w.open("moved")
	next.completed()
	if n := len(w.starts("moved")); n != 1 {
		t.Errorf("%d starts", n)
	}
}

func TestStopEndsTheHeldProgram(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ref := w.gated("stopped")
	w.start()
	w.ledger.connected()
	first := w.attempt(ref)
	pid := w.running("stopped", 1)
	first.answerBeats(serviceerror.NewNotFound("gone"))
	first.wait()
	w.ledger.mu.Lock() // the event does not arrive: only the answer to begin says it
	if _, err := w.ledger.runs[ref.RunID].Cancel("test", false, time.Now()); err != nil {
		t.Error(err)
	}
	w.ledger.mu.Unlock()
	a := w.attempt(ref)
	a.wait()
	if a.err != nil || a.verdict.Stopped != automation.StopCancelled {
		t.Errorf("verdict %+v, error %v", a.verdict, a.err)
	}
	if alive(pid) {
		t.Error("the program is alive")
	}
	w.ledger.awaitStatus(ref, automation.StepCancelled)
}

func TestRevokedMachineEndsItsPrograms(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ref := w.gated("revoked")
	worker := w.start()
	w.ledger.connected()
	w.attempt(ref)
	pid := w.running("revoked", 1)
	w.ledger.push(automation.Event{Kind: automation.EventRevoked})
	w.eventually("the end of the program", func() bool { return !alive(pid) })
	w.leaves(worker)
}

func TestRevokedWhileAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ref := w.gated("revoked")
	worker := w.start()
	w.ledger.connected()
	w.attempt(ref)
	pid := w.running("revoked", 1)
	w.ledger.intercept(func(rw http.ResponseWriter, _ *http.Request, _ http.HandlerFunc) {
		refuse(rw, 409, automation.CodeMachineRevoked, "the machine has been revoked")
	})
	w.ledger.server.CloseClientConnections()
	w.eventually("the end of the program", func() bool { return !alive(pid) })
	w.leaves(worker)

	// A machine that was enrolled again reports what became of the step.
	w.ledger.intercept(nil)
	w.start()
	w.ledger.awaitStatus(ref, automation.StepCancelled)
}

// leaves waits for a worker to leave because its machine was revoked.
func (w *world) leaves(worker *worker) {
	w.t.Helper()
	select {
	case <-worker.done:
	case <-time.After(patience):
		w.t.Fatal("the worker of a revoked machine stays")
	}
	if !errors.Is(worker.err, host.ErrRevoked) {
		w.t.Errorf("the worker left with %v", worker.err)
	}
}

func TestProgramSlotsAreKeptByDetachedPrograms(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, two := w.gated("one"), w.sh("two", "true")
	w.start(func(o *host.Options) { o.Concurrency = 1 })
	first := w.attempt(one)
	pid := w.running("one", 1)
	first.answerBeats(serviceerror.NewNotFound("gone"))
	first.wait()
	w.ledger.intercept(func(rw http.ResponseWriter, r *http.Request, serve http.HandlerFunc) {
		serve(rw, r)
		if len(w.ledger.beginsOf(two)) > 0 && alive(pid) {
			t.Error("the second step began although its slot was taken")
		}
	})
	other := w.attempt(two)
	held := w.attempt(one) // needs no slot
	w.ledger.await("the begin of the held step", func() bool {
		return len(w.ledger.begins) > 1 && w.ledger.begins[len(w.ledger.begins)-1].StepRef == one
	})
	w.open("one")
	held.completed()
	other.completed()
}

// The ledger has gone on to a later execution: the result of the earlier one does not count, and the step is
// executed under a new number.
func TestResultThatDoesNotCountIsFollowedByAnotherBegin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ref := w.gated("overtaken")
	w.start()
	a := w.attempt(ref)
	w.running("overtaken", 1)
	w.ledger.change(ref.RunID, func(r *automation.Run) { r.Step(ref.StepID).Attempt = 5 })
	w.open("overtaken")
	w.running("overtaken", 2)
	w.open("overtaken")
	a.completed()
	if step := w.ledger.step(ref); step.Attempt != 6 {
		t.Errorf("execution %d", step.Attempt)
	}
}

// The ledger wants an execution although the machine holds an earlier one: two never run at once.
func TestEarlierProgramIsGoneBeforeTheNextStarts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ref := w.gated("double")
	w.start()
	first := w.attempt(ref)
	pid := w.running("double", 1)
	w.ledger.intercept(func(rw http.ResponseWriter, r *http.Request, serve http.HandlerFunc) {
		if r.URL.Path != "/v1/machine/steps/begin" {
			serve(rw, r)
			return
		}
		w.ledger.mu.Lock()
		defer w.ledger.mu.Unlock()
		step := w.ledger.steps[ref]
		w.ledger.runs[ref.RunID].Step(ref.StepID).Attempt = 7
		writeJSON(rw, http.StatusOK, automation.BeginAnswer{Decision: automation.BeginRun, Execution: 7, Step: &step})
	})
	second := w.attempt(ref)
	w.running("double", 2)
	if alive(pid) {
		t.Error("the earlier program is alive")
	}
	w.ledger.up()
	w.open("double")
	first.completed()
	second.completed()
}

// The end names a later execution than the one that runs, whose begin was answered to nobody.
func TestEndOfALaterExecutionEndsTheEarlierProgram(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ref := w.gated("behind")
	w.start()
	w.ledger.connected()
	w.attempt(ref)
	pid := w.running("behind", 1)
	w.ledger.change(ref.RunID, func(r *automation.Run) { r.Step(ref.StepID).Attempt = 9 })
	w.ledger.cancel(ref.RunID)
	w.ledger.awaitStatus(ref, automation.StepCancelled)
	if alive(pid) {
		t.Error("confirmed while the earlier program is alive")
	}
}

func TestHelloEndsAndForgetsWhatDoesNotCount(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	runs, over := w.gated("runs"), w.gated("over")
	running := w.start()
	w.ledger.connected()
	w.attempt(runs)
	w.attempt(over)
	pid := w.running("runs", 1)
	w.running("over", 1)
	w.ledger.intercept(func(rw http.ResponseWriter, r *http.Request, serve http.HandlerFunc) {
		if r.URL.Path != "/v1/machine/hello" && r.URL.Path != "/v1/machine/events" {
			panic(http.ErrAbortHandler)
		}
		serve(rw, r)
	})
	w.open("over")
	w.eventually("a result to be held", func() bool {
		return slices.ContainsFunc(running.Status().Held, func(h automation.Held) bool { return h.State == automation.HeldFinished })
	})
	for _, ref := range []automation.StepRef{runs, over} {
		w.ledger.change(ref.RunID, func(r *automation.Run) { r.Step(ref.StepID).Attempt = 5 })
	}
	w.ledger.server.CloseClientConnections()
	w.eventually("the program to be ended", func() bool { return !alive(pid) })
	w.eventually("the result to be forgotten", func() bool {
		return !slices.ContainsFunc(running.Status().Held, func(h automation.Held) bool { return h.StepRef == over })
	})
}

func TestReconnectAppliesWhatTheLedgerSays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ended, kept := w.gated("ended"), w.gated("kept")
	w.start()
	w.ledger.connected()
	endedAttempt, keptAttempt := w.attempt(ended), w.attempt(kept)
	endedPID, keptPID := w.running("ended", 1), w.running("kept", 1)
	w.ledger.down()
	w.ledger.mu.Lock()
	if _, err := w.ledger.runs[ended.RunID].Cancel("test", false, time.Now()); err != nil {
		t.Error(err)
	}
	w.ledger.mu.Unlock()
	w.ledger.up()
	w.ledger.await("a second hello", func() bool { return len(w.ledger.hellos) >= 2 })
	w.ledger.awaitStatus(ended, automation.StepCancelled)
	endedAttempt.wait()
	if alive(endedPID) || !alive(keptPID) {
		t.Errorf("ended alive %t, kept alive %t", alive(endedPID), alive(keptPID))
	}
	w.open("kept")
	keptAttempt.completed()
	w.ledger.mu.Lock()
	defer w.ledger.mu.Unlock()
	last := w.ledger.hellos[len(w.ledger.hellos)-1]
	if len(last.Held) != 2 || last.Concurrency != host.DefaultConcurrency || last.Instance.Start != 1 {
		t.Errorf("hello %+v", last)
	}
}

func TestRefusalsAndTroubleOfBegin(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		answer func(http.ResponseWriter)
		code   string // of the final error; "" when the call is tried again
	}{
		"not found":    {code: "not_found", answer: func(w http.ResponseWriter) { refuse(w, 404, automation.CodeNotFound, "no such run") }},
		"conflict":     {code: "machine_revoked", answer: func(w http.ResponseWriter) { refuse(w, 409, automation.CodeMachineRevoked, "revoked") }},
		"bad":          {code: "validation_failed", answer: func(w http.ResponseWriter) { refuse(w, 400, automation.CodeValidationFailed, "bad") }},
		"clock skew":   {answer: func(w http.ResponseWriter) { refuse(w, 401, automation.CodeUnauthorized, "your clock is wrong") }},
		"busy":         {answer: func(w http.ResponseWriter) { refuse(w, 429, automation.CodeRateLimited, "slowly") }},
		"database":     {answer: func(w http.ResponseWriter) { refuse(w, 503, automation.CodeStoreUnavailable, "no database") }},
		"proxy's page": {answer: func(w http.ResponseWriter) { http.Error(w, "<h1>Not here</h1>", http.StatusNotFound) }},
		"broken JSON":  {answer: func(w http.ResponseWriter) { _, _ = w.Write([]byte(`{"decision":`)) }},
		"no step":      {answer: func(w http.ResponseWriter) { _, _ = w.Write([]byte(`{"decision":"run","execution":1}`)) }},
		"a new word":   {answer: func(w http.ResponseWriter) { _, _ = w.Write([]byte(`{"decision":"wonder","execution":1}`)) }},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			ref := w.sh("asked", "true")
			var once sync.Once
			w.ledger.intercept(func(rw http.ResponseWriter, r *http.Request, serve http.HandlerFunc) {
				first := false
				if r.URL.Path == "/v1/machine/steps/begin" {
					once.Do(func() { first = true })
				}
				if first {
					test.answer(rw)
					return
				}
				serve(rw, r)
			})
			w.start()
			a := w.attempt(ref)
			if test.code == "" {
				a.completed()
				return
			}
			a.failed(test.code, true)
			if n := len(w.starts("asked")); n != 0 {
				t.Errorf("%d starts", n)
			}
		})
	}
}

func TestResultOfAForgottenRunIsForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ref := w.gated("gone")
	running := w.start()
	a := w.attempt(ref)
	w.running("gone", 1)
	w.ledger.mu.Lock()
	delete(w.ledger.runs, ref.RunID)
	w.ledger.mu.Unlock()
	w.open("gone")
	a.failed("not_found", true)
	if held := running.Status().Held; len(held) != 0 {
		t.Errorf("held %+v", held)
	}
}

func TestDrainWaitsForPrograms(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ref := w.gated("drained")
	running := w.start(func(o *host.Options) { o.Drain = patience })
	a := w.attempt(ref)
	w.running("drained", 1)
	go running.Stop(t.Context())
	w.eventually("the drain to begin", func() bool { return running.Status().Draining })
	refused := w.sh("refused", "true")
	w.attempt(refused).failed("worker_stopping", false)
	if n := len(w.ledger.beginsOf(refused)); n != 0 {
		t.Errorf("%d begins while stopping", n)
	}
	w.open("drained")
	a.completed()
	<-running.done
	if running.err != nil || len(w.starts("refused")) != 0 {
		t.Errorf("Run returned %v; %d starts of the refused step", running.err, len(w.starts("refused")))
	}
}

func TestDrainInterruptsWhatDoesNotEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ref := w.gated("cut")
	running := w.start(func(o *host.Options) { o.Drain = -1 })
	a := w.attempt(ref)
	pid := w.running("cut", 1)
	running.Stop(t.Context())
	err := a.failed("interrupted", false)
	if err.NextRetryDelay() <= 0 || alive(pid) {
		t.Errorf("next retry in %v, alive %t", err.NextRetryDelay(), alive(pid))
	}
	if step := w.ledger.step(ref); step.Status != automation.StepRunning || step.RetryAt == nil {
		t.Errorf("the ledger has %+v", step)
	}
	w.start()
	w.temporal.worker(t, 2)
	next := w.attempt(ref)
	w.running("cut", 2)
	w.open("cut")
	next.completed()
	if step := w.ledger.step(ref); step.Attempt != 2 {
		t.Errorf("execution %d", step.Attempt)
	}
}

func TestDrainWithoutAControlPlaneKeepsTheResult(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ref := w.gated("kept")
	running := w.start(func(o *host.Options) { o.Drain, o.Timing.SettleWithin = -1, 20*time.Millisecond })
	a := w.attempt(ref)
	w.running("kept", 1)
	w.ledger.down()
	running.Stop(t.Context())
	a.failed("attempt_detached", false)
	w.ledger.up()
	w.start()
	w.ledger.await("the interrupted outcome", func() bool { return w.ledger.runs[ref.RunID].Step(ref.StepID).RetryAt != nil })
}

func TestOneWorkerPerStateDirectory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.start()
	_, err := host.Open(w.options())
	held, ok := errors.AsType[*lockfile.HeldError](err)
	if !ok || held.PID != os.Getpid() || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Fatalf("a second worker got %v", err)
	}
	first.stopNow()
	if second := w.start(); second.Instance().Start != 2 || second.Instance().DirectoryID != first.Instance().DirectoryID {
		t.Errorf("instances %+v, then %+v", first.Instance(), second.Instance())
	}
}

func TestDamagedIdentityIsReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.start()
	first.stopNow()
	if err := os.WriteFile(filepath.Join(w.state, "instance.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	second := w.start()
	if second.Instance().DirectoryID == first.Instance().DirectoryID || second.Instance().Start != 1 {
		t.Errorf("instances %+v, then %+v", first.Instance(), second.Instance())
	}
}

func TestTemporalIsReachedAgainAndAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.temporal.dial = func(n int) error {
		if n == 1 {
			return errors.New("nobody listens")
		}
		return nil
	}
	w.temporal.start = func(n int) error {
		if n == 2 {
			return errors.New("not now")
		}
		return nil
	}
	ref := w.gated("survivor")
	w.start()
	first := w.temporal.worker(t, 1)
	if first.o.TaskQueue != "queue-1" || first.o.Namespace != "test" || first.o.Identity != "machine/machine-1" {
		t.Errorf("options %+v", first.o)
	}
	a := w.attempt(ref)
	w.running("survivor", 1)
	first.o.OnFatal(errors.New("invalid argument"))
	a.failed("attempt_detached", false)
	w.temporal.worker(t, 2)
	next := w.attempt(ref)
	w.open("survivor")
	next.completed()
	if n := len(w.starts("survivor")); n != 1 {
		t.Errorf("%d starts", n)
	}
}

func TestChangedQueueIsFollowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	first := w.temporal.worker(t, 1)
	w.ledger.connected()
	w.ledger.mu.Lock()
	w.ledger.queue = "queue-2"
	w.ledger.mu.Unlock()
	w.ledger.server.CloseClientConnections()
	if second := w.temporal.worker(t, 2); second.o.TaskQueue != "queue-2" {
		t.Errorf("queue %s", second.o.TaskQueue)
	}
	<-first.stopped
}

func TestOrphanLeavesOnlyWithoutAProgram(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ref := w.gated("busy")
	const orphanExit = 500 * time.Millisecond
	running := w.start(func(o *host.Options) {
		o.OrphanExit, o.Timing.SettleWithin = orphanExit, 20*time.Millisecond
	})
	w.ledger.connected()
	w.attempt(ref)
	w.running("busy", 1)
	w.ledger.down()
	w.eventually("the connection to be noticed as lost", func() bool { return !running.Status().Connected })
	select {
	case <-running.done:
		t.Fatal("the worker left its program alone")
	case <-time.After(2 * orphanExit): // the span in which it would have left
	}
	if running.Status().Draining {
		t.Fatal("the worker is about to leave its program alone")
	}
	w.open("busy")
	<-running.done
	if !errors.Is(running.err, host.ErrOrphaned) {
		t.Errorf("Run returned %v", running.err)
	}
}

func TestConnectedWorkerIsNoOrphan(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	running := w.start(func(o *host.Options) { o.OrphanExit = 300 * time.Millisecond })
	w.ledger.connected()
	select {
	case <-running.done:
		t.Fatal("the worker left a control plane that is there")
	case <-time.After(600 * time.Millisecond): // the span in which it would have left
	}
}

func TestStepThatCannotBeRecordedIsNotStarted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ref := w.sh("unrecorded", "true")
	w.start()
	w.temporal.worker(t, 1)
	steps := filepath.Join(w.state, "steps")
	if err := os.RemoveAll(steps); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(steps, nil, 0o600); err != nil { // root ignores permissions, a file it cannot
		t.Fatal(err)
	}
	w.attempt(ref).failed("spawn_failed", true)
	if n := len(w.starts("unrecorded")); n != 0 {
		t.Errorf("%d starts", n)
	}
}

func TestRequiredOptionsAreAskedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.options()
	o.Runner = nil
	if _, err := host.Open(o); err == nil {
		t.Error("a host without a runner was opened")
	}
}
