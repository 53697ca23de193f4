package gateway

import (
	"context"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// poll is one open poll. It is ended by cancelling its context with errPollEnded.
type poll struct {
	machine  string
	instance string // the worker's instance key as Temporal knows it, or ""
	cancel   context.CancelCauseFunc
}

// pollEnded is the cause of a context that the gateway ended: its poll is answered empty.
type pollEnded struct{}

// Error says what happened, for a log.
func (pollEnded) Error() string { return "the gateway ended the poll" }

// pollRegistry knows the open polls, so that they can be counted and ended.
type pollRegistry struct {
	perMachine int

	mu      sync.Mutex
	drained bool
	open    map[*poll]struct{}
	counts  map[string]int
}

func newPollRegistry(perMachine int) *pollRegistry {
	return &pollRegistry{perMachine: perMachine, open: map[*poll]struct{}{}, counts: map[string]int{}}
}

// begin registers a poll. The returned context ends with the caller's or by [pollRegistry.end]; done must be
// called when the poll is answered.
func (r *pollRegistry) begin(ctx context.Context, machine, instance string) (_ context.Context, done func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.drained {
		return nil, nil, status.Error(codes.Unavailable, "the control plane is stopping")
	}
	if r.counts[machine] >= r.perMachine {
		return nil, nil, status.Errorf(codes.ResourceExhausted, "the machine has %d open polls, more are not allowed", r.perMachine)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	p := &poll{machine: machine, instance: instance, cancel: cancel}
	r.open[p] = struct{}{}
	r.counts[machine]++
	return ctx, func() { r.done(p) }, nil
}

func (r *pollRegistry) done(p *poll) {
	p.cancel(nil)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, p)
	if r.counts[p.machine]--; r.counts[p.machine] == 0 {
		delete(r.counts, p.machine)
	}
}

// end ends the polls that match with an empty answer.
func (r *pollRegistry) end(match func(*poll) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for p := range r.open {
		if match(p) {
			p.cancel(pollEnded{})
		}
	}
}

func (r *pollRegistry) drain() {
	r.mu.Lock()
	r.drained = true
	r.mu.Unlock()
	r.end(func(*poll) bool { return true })
}

func (r *pollRegistry) draining() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.drained
}

// OpenPolls returns how many polls of machines are open.
func (g *Gateway) OpenPolls() int {
	g.polls.mu.Lock()
	defer g.polls.mu.Unlock()
	return len(g.polls.open)
}
