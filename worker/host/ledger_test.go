//go:build unix

package host_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
)

// ledger is a control plane on a real socket: the machine API over runs in memory, moved by the product's own
// state machine.
type ledger struct {
	t      *testing.T
	server *httptest.Server

	mu       sync.Mutex
	changed  chan struct{} // closed at every change
	runs     map[string]*automation.Run
	steps    map[automation.StepRef]automation.ConcreteStep
	results  map[automation.StepRef]json.RawMessage
	hellos   []automation.Hello
	begins   []automation.BeginRequest
	finishes []automation.FinishRequest
	streams  map[chan automation.Event]struct{}
	hook     hook
	queue    string
}

// hook may do something else with a request than to serve it.
type hook func(w http.ResponseWriter, r *http.Request, serve http.HandlerFunc)

const pingEvery = 50 * time.Millisecond

func newLedger(t *testing.T) *ledger {
	t.Helper()
	l := &ledger{
		t: t, changed: make(chan struct{}), queue: "queue-1",
		runs:    map[string]*automation.Run{},
		steps:   map[automation.StepRef]automation.ConcreteStep{},
		results: map[automation.StepRef]json.RawMessage{},
		streams: map[chan automation.Event]struct{}{},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/machine/hello", l.hello)
	mux.HandleFunc("POST /v1/machine/steps/begin", l.begin)
	mux.HandleFunc("POST /v1/machine/steps/finish", l.finish)
	mux.HandleFunc("GET /v1/machine/events", l.events)
	l.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.mu.Lock()
		hook := l.hook
		l.mu.Unlock()
		if hook == nil {
			mux.ServeHTTP(w, r)
			return
		}
		hook(w, r, mux.ServeHTTP)
	}))
	t.Cleanup(func() {
		l.server.CloseClientConnections()
		l.server.Close()
	})
	return l
}

// intercept puts a hook before every request; nil removes it.
func (l *ledger) intercept(h hook) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hook = h
}

// down makes the control plane unreachable, also on its open streams.
func (l *ledger) down() {
	l.intercept(func(http.ResponseWriter, *http.Request, http.HandlerFunc) { panic(http.ErrAbortHandler) })
	l.server.CloseClientConnections()
}

func (l *ledger) up() { l.intercept(nil) }

// lose serves the next request of a path and loses its answer.
func (l *ledger) lose(path string) {
	var once sync.Once
	l.intercept(func(w http.ResponseWriter, r *http.Request, serve http.HandlerFunc) {
		lost := false
		if r.URL.Path == path {
			once.Do(func() { lost = true })
		}
		if !lost {
			serve(w, r)
			return
		}
		serve(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	})
}

// add stores a run of one step.
func (l *ledger) add(step automation.ConcreteStep) automation.StepRef {
	l.mu.Lock()
	defer l.mu.Unlock()
	ref := automation.StepRef{RunID: step.RunID, StepID: step.StepID}
	l.runs[step.RunID] = &automation.Run{
		ID: step.RunID, Status: automation.RunPending, Generation: 1,
		Steps: []automation.StepRecord{{ID: step.StepID, Kind: step.Kind, Status: automation.StepPending}},
	}
	l.steps[ref] = step
	return ref
}

// change does something to a run under the ledger's lock and tells those who wait for it.
func (l *ledger) change(runID string, do func(*automation.Run)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	do(l.runs[runID])
	l.notify()
}

// notify wakes everything that waits; the caller has l.mu.
func (l *ledger) notify() {
	close(l.changed)
	l.changed = make(chan struct{})
	for _, run := range l.runs {
		for _, end := range run.OpenEnds() {
			for stream := range l.streams {
				select {
				case stream <- end:
				default:
				}
			}
		}
	}
}

// cancel records a cancel and pushes the end of what executes.
func (l *ledger) cancel(runID string) {
	l.change(runID, func(r *automation.Run) {
		if _, err := r.Cancel("test", false, time.Now()); err != nil {
			l.t.Errorf("cancel: %v", err)
		}
	})
}

// push sends an event to every stream.
func (l *ledger) push(e automation.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for stream := range l.streams {
		stream <- e
	}
}

// await blocks until the ledger satisfies a condition, which is evaluated under its lock.
func (l *ledger) await(what string, condition func() bool) {
	l.t.Helper()
	deadline := time.After(patience)
	for {
		l.mu.Lock()
		changed, ok := l.changed, condition()
		l.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			l.t.Fatalf("in vain waited for: %s", what)
		}
	}
}

// step returns the record of a step.
func (l *ledger) step(ref automation.StepRef) automation.StepRecord {
	l.mu.Lock()
	defer l.mu.Unlock()
	return *l.runs[ref.RunID].Step(ref.StepID)
}

func (l *ledger) awaitStatus(ref automation.StepRef, status automation.StepStatus) automation.StepRecord {
	l.t.Helper()
	l.await(fmt.Sprintf("step %s to be %s", ref.Key(), status), func() bool {
		return l.runs[ref.RunID].Step(ref.StepID).Status == status
	})
	return l.step(ref)
}

func (l *ledger) hello(w http.ResponseWriter, r *http.Request) {
	var h automation.Hello
	if !l.read(w, r, &h) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	answer := automation.HelloAnswer{MachineID: "machine-1", Namespace: "test", TaskQueue: l.queue}
	for _, held := range h.Held {
		verdict := automation.VerdictForget
		if run, ok := l.runs[held.RunID]; ok {
			verdict = run.HeldVerdict(held, false)
		}
		answer.Held = append(answer.Held, automation.HeldAnswer{StepRef: held.StepRef, Execution: held.Execution, Verdict: verdict})
	}
	l.hellos = append(l.hellos, h)
	l.notify()
	writeJSON(w, http.StatusOK, answer)
}

func (l *ledger) begin(w http.ResponseWriter, r *http.Request) {
	var request automation.BeginRequest
	if !l.read(w, r, &request) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begins = append(l.begins, request)
	run, ok := l.runs[request.RunID]
	if !ok {
		refuse(w, http.StatusNotFound, automation.CodeNotFound, "there is no such run")
		return
	}
	answer, err := run.Begin(request, false, time.Now())
	if err != nil {
		refuse(w, automation.CodeOf(err).Status(), automation.CodeOf(err), err.Error())
		return
	}
	if answer.Decision == automation.BeginRun {
		step := l.steps[request.StepRef]
		answer.Step = &step
	}
	l.notify()
	writeJSON(w, http.StatusOK, answer)
}

func (l *ledger) finish(w http.ResponseWriter, r *http.Request) {
	var request automation.FinishRequest
	if !l.read(w, r, &request) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.finishes = append(l.finishes, request)
	run, ok := l.runs[request.RunID]
	if !ok {
		refuse(w, http.StatusNotFound, automation.CodeNotFound, "there is no such run")
		return
	}
	answer, err := run.Finish(request, time.Now())
	if err != nil {
		refuse(w, automation.CodeOf(err).Status(), automation.CodeOf(err), err.Error())
		return
	}
	if answer.Accepted && answer.Outcome.Final() {
		l.results[request.StepRef] = request.Result
	}
	l.notify()
	writeJSON(w, http.StatusOK, answer)
}

func (l *ledger) events(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	// The first ping comes before the stream counts as connected: until then the client's transport may open
	// it again by itself.
	if writeEvent(w, automation.Event{Kind: automation.EventPing}) != nil {
		return
	}
	stream := make(chan automation.Event, 64)
	l.mu.Lock()
	l.streams[stream] = struct{}{}
	for _, run := range l.runs {
		for _, end := range run.OpenEnds() {
			stream <- end
		}
	}
	close(l.changed)
	l.changed = make(chan struct{})
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.streams, stream)
	}()
	ping := time.NewTicker(pingEvery)
	defer ping.Stop()
	for {
		event := automation.Event{Kind: automation.EventPing}
		select {
		case <-ping.C:
		case event = <-stream:
		case <-r.Context().Done():
			return
		}
		if writeEvent(w, event) != nil {
			return
		}
	}
}

func writeEvent(w http.ResponseWriter, e automation.Event) error {
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, "event: %s\ndata: %s\n\n", e.Kind, text); err != nil {
		return err
	}
	return http.NewResponseController(w).Flush()
}

// connected waits until a worker listens to events.
func (l *ledger) connected() {
	l.t.Helper()
	l.await("a worker to listen to events", func() bool { return len(l.streams) > 0 })
}

func (l *ledger) beginsOf(ref automation.StepRef) []automation.BeginRequest {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.begins), func(b automation.BeginRequest) bool { return b.StepRef != ref })
}

func (l *ledger) finishesOf(ref automation.StepRef) []automation.FinishRequest {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.finishes), func(f automation.FinishRequest) bool { return f.StepRef != ref })
}

func (l *ledger) read(w http.ResponseWriter, r *http.Request, into any) bool {
	if err := json.NewDecoder(r.Body).Decode(into); err != nil {
		refuse(w, http.StatusBadRequest, automation.CodeValidationFailed, err.Error())
		return false
	}
	return true
}

func refuse(w http.ResponseWriter, status int, code automation.Code, message string) {
	writeJSON(w, status, map[string]any{"error": map[string]any{"code": code, "message": message}})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(v); err != nil {
		panic(http.ErrAbortHandler)
	}
}
