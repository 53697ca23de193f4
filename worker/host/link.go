package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/errandhq/errand/activities/machine"
	"github.com/errandhq/errand/automation"
)

// queue is where the machine's tasks are, as the control plane said at the last hello.
type queue struct {
	namespace string
	taskQueue string
	machineID string
}

// keepLink says hello and listens to the event stream, again and again, until the host leaves.
func (h *Host) keepLink() {
	pause := h.newReconnectBackoff()
	said := ""
	for h.life.Err() == nil {
		err := h.link(func() {
			pause.reset()
			said = ""
		})
		h.setConnected(false)
		switch {
		case h.life.Err() != nil || h.revoked.Load():
			return
		case isRevoked(err):
			h.revoke()
			return
		}
		wait := pause.next()
		reason := Reason(err)
		level := slog.LevelWarn
		if reason == said {
			level = slog.LevelDebug // said once; a machine may be away for days
		}
		said = reason
		h.log.Log(h.life, level, "There is no connection to the control plane; programs go on, and it is tried again.",
			"reason", reason, "error", err, "retry_in", wait)
		h.pause(h.life, wait, nil)
	}
}

// revoke ends every program and makes the worker leave: the key opens nothing any more, and will not again. What
// the programs did is kept in the records, for a machine that is enrolled again.
func (h *Host) revoke() {
	if h.revoked.Swap(true) {
		return
	}
	h.log.Error("This machine was revoked: its programs are ended and its worker leaves.")
	h.endAll(machine.EndCancelled)
	h.drain()
	h.hurryOnce.Do(func() { close(h.hurry) })
}

// link is one connection: hello, then events until the stream breaks. It always returns an error; alive is
// called with every event.
func (h *Host) link(alive func()) error {
	ctx, cancel := context.WithTimeout(h.life, h.o.Timing.Call)
	answer, err := h.o.ControlPlane.Hello(ctx, automation.Hello{
		Instance: h.instance, Version: h.o.Version, Platform: h.o.Platform, Labels: h.o.Labels,
		Concurrency: h.o.Concurrency, Held: h.heldForHello(),
	})
	cancel()
	if err != nil {
		return fmt.Errorf("saying hello: %w", err)
	}
	h.applyHello(answer)
	h.setConnected(true)
	h.log.Info("Connected to the control plane.", "machine", answer.MachineID, "queue", answer.TaskQueue)
	err = h.o.ControlPlane.Events(h.life, func(e automation.Event) {
		alive()
		h.handle(e)
	})
	return fmt.Errorf("listening to events: %w", err)
}

// heldForHello returns every execution that the machine holds and that is not acknowledged.
func (h *Host) heldForHello() []automation.Held {
	h.mu.Lock()
	defer h.mu.Unlock()
	var held []automation.Held
	for _, s := range h.steps {
		s.mu.Lock()
		if one := s.held(); one != nil && !s.exec.acked {
			held = append(held, *one)
		}
		s.mu.Unlock()
	}
	return held
}

// applyHello does what the ledger says about the executions that the machine holds, and sends every result
// that is not acknowledged.
func (h *Host) applyHello(answer automation.HelloAnswer) {
	for _, a := range answer.Held {
		switch a.Verdict {
		case automation.VerdictKeep, automation.VerdictFinish:
			// What is finished is sent below; what runs goes on.
		case automation.VerdictEnd:
			h.end(a.StepRef, a.Execution)
		case automation.VerdictForget:
			h.forget(a.StepRef, a.Execution)
		}
	}
	h.sendResults()
	next := queue{namespace: answer.Namespace, taskQueue: answer.TaskQueue, machineID: answer.MachineID}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.queue != next {
		h.queue = next
		close(h.queueChanged)
		h.queueChanged = make(chan struct{})
	}
}

// forget drops a result that the ledger does not want. A program that runs is not ended by this word.
func (h *Host) forget(ref automation.StepRef, n int64) {
	s := h.acquire(ref)
	defer h.release(s)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.exec != nil && s.exec.number == n && s.exec.isDone() {
		s.exec = nil
		h.dropRecord(s)
	}
}

// sendResults begins, or hurries, the report of every result that is not acknowledged.
func (h *Host) sendResults() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.steps {
		s.mu.Lock()
		if s.exec != nil && s.exec.isDone() && !s.exec.acked {
			h.deliver(s, s.exec)
		}
		s.mu.Unlock()
	}
}

// handle acts on an event.
func (h *Host) handle(e automation.Event) {
	switch e.Kind {
	case automation.EventEnd:
		h.end(e.StepRef, e.Execution)
	case automation.EventRevoked:
		h.revoke()
	case automation.EventPing:
		go h.sayAlive()
	}
}

// sayAlive answers a ping of the control plane. One that does not arrive is made up for by the next.
func (h *Host) sayAlive() {
	ctx, cancel := context.WithTimeout(h.life, h.o.Timing.Call)
	defer cancel()
	if err := h.o.ControlPlane.Alive(ctx); err != nil && h.life.Err() == nil {
		h.log.Debug("A ping was not answered.", "error", err)
	}
}

// endAll begins to end every program.
func (h *Host) endAll(reason machine.EndReason) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.steps {
		s.mu.Lock()
		if s.exec != nil {
			h.endExecution(s.exec, reason)
		}
		s.mu.Unlock()
	}
}

// keepPolling takes tasks from the queue that the last hello named until the drain begins.
func (h *Host) keepPolling() {
	pause := h.newBackoff()
	for h.draining.Err() == nil {
		at, changed := h.currentQueue()
		if at.taskQueue == "" {
			select {
			case <-changed:
			case <-h.draining.Done():
			}
			continue
		}
		if err := h.poll(at, changed, pause.reset); err != nil {
			wait := pause.next()
			h.log.Warn("No steps can be taken from Temporal.", "queue", at.taskQueue, "error", err, "retry_in", wait)
			h.pause(h.draining, wait, changed)
		}
	}
}

func (h *Host) currentQueue() (queue, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.queue, h.queueChanged
}

// errGaveUp is what the SDK's worker could not overcome.
var errGaveUp = errors.New("the worker gave up polling")

// poll is one session with Temporal. It ends with the drain, when the queue has changed, or with an error.
func (h *Host) poll(at queue, changed <-chan struct{}, started func()) error {
	session, endSession := context.WithCancel(h.life)
	defer endSession()
	fatal := make(chan error, 1)
	ctx, cancel := context.WithTimeout(h.draining, h.o.Timing.Call)
	w, err := h.o.Temporal.Dial(ctx, WorkerOptions{
		Namespace: at.namespace, TaskQueue: at.taskQueue, Identity: "machine/" + at.machineID,
		Concurrency: h.o.Concurrency,
		StopTimeout: max(h.o.Drain, 0) + h.o.Timing.EndWithin + h.o.Timing.SettleWithin,
		Execute: func(ctx context.Context, a Attempt, in automation.StepInput) (automation.StepVerdict, error) {
			return h.execute(ctx, session, a, in)
		},
		OnFatal: func(err error) {
			select {
			case fatal <- err:
			default:
			}
		},
	})
	cancel()
	if err != nil {
		return err
	}
	if err := w.Start(); err != nil {
		return err
	}
	started()
	h.log.Info("Taking steps.", "queue", at.taskQueue, "concurrency", h.o.Concurrency)
	select {
	case err = <-fatal:
		err = fmt.Errorf("%w: %w", errGaveUp, err)
		endSession() // attempts detach, so that Stop does not wait for programs
	case <-changed:
		endSession()
	case <-h.draining.Done():
	}
	w.Stop()
	return err
}
