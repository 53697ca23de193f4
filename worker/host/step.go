package host

import (
	"sync"
	"sync/atomic"

	"github.com/errandhq/errand/activities/machine"
	"github.com/errandhq/errand/automation"
)

// step is what the host knows of one step while anything concerns it: an attempt, a program, or a result that
// is not acknowledged. Otherwise its record on disk is all there is.
type step struct {
	ref automation.StepRef
	// refs counts who uses the entry. It is raised under Host.mu or by one who holds a reference.
	refs atomic.Int64
	// flight is taken by the one attempt that asks the ledger about this step.
	flight chan struct{}
	// cleared is closed when nothing is left of what a dead worker had started for this step.
	cleared chan struct{}
	// suspect is the path of the step's record when that could not be read.
	suspect string

	mu     sync.Mutex
	record record
	// seen is the highest execution that an answer of the ledger has named: nothing starts for it or a lower
	// one again.
	seen int64
	exec *execution
	// confirming is the highest execution whose end is to be confirmed once the program that blocks it is gone.
	confirming int64
}

// execution is one numbered execution that the machine holds: a program that runs, or a result.
type execution struct {
	number int64
	// done is closed when the program is gone and result is set.
	done   chan struct{}
	result machine.Result

	// The rest is guarded by step.mu.
	program  machine.Execution
	reason   machine.EndReason // why it is ended from outside, or ""
	acked    bool
	delivery *delivery
}

// delivery is one effort to have a result acknowledged.
type delivery struct {
	kick    chan struct{} // a token in it ends the pause between two tries
	settled chan struct{} // closed when answer or err is set
	answer  automation.FinishAnswer
	err     error
}

func newStep(ref automation.StepRef) *step {
	s := &step{ref: ref, flight: make(chan struct{}, 1), cleared: make(chan struct{})}
	s.record.StepRef = ref
	close(s.cleared)
	return s
}

// ended returns an execution whose result is there.
func ended(number int64, result machine.Result) *execution {
	e := &execution{number: number, done: make(chan struct{}), result: result}
	close(e.done)
	return e
}

// adopt takes over what the disk knows of the step.
func (s *step) adopt(r record) {
	s.record = r
	if r.Result == nil {
		return
	}
	result := machine.Result{Outcome: r.Result.Outcome, Data: r.Result.Data, Err: r.Result.Err}
	if r.AcknowledgedAt != nil && !result.Outcome.Final() {
		return
	}
	s.seen = r.Execution
	s.exec = ended(r.Execution, result)
	s.exec.acked = r.AcknowledgedAt != nil
}

// stale reports whether execution n must not start any more: the ledger has ended it, or has named a higher
// one since. The caller has s.mu.
func (s *step) stale(n int64) bool { return n <= s.record.Tombstone || n <= s.seen }

// held returns what the machine holds of the step, or nil. The caller has s.mu.
func (s *step) held() *automation.Held {
	if s.exec == nil {
		return nil
	}
	state := automation.HeldRunning
	if s.exec.isDone() {
		state = automation.HeldFinished
	}
	return &automation.Held{StepRef: s.ref, Execution: s.exec.number, State: state}
}

// idle reports whether the entry can be dropped once nobody uses it.
func (s *step) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return (s.exec == nil || s.exec.acked) && s.isCleared()
}

func (s *step) isCleared() bool { return isClosed(s.cleared) }

func (e *execution) isDone() bool { return isClosed(e.done) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// gate counts who is inside and lets nobody in once it is closed.
type gate struct {
	mu     sync.Mutex
	closed bool
	inside int
	empty  chan struct{} // closed while nobody is inside
}

func newGate() *gate {
	g := &gate{empty: make(chan struct{})}
	close(g.empty)
	return g
}

// enter reports whether the gate was open.
func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	if g.inside == 0 {
		g.empty = make(chan struct{})
	}
	g.inside++
	return true
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
	if g.inside == 0 {
		close(g.empty)
	}
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

// whenEmpty returns a channel that is closed when nobody is inside.
func (g *gate) whenEmpty() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.empty
}
