package host

import (
	"context"
	"errors"

	"github.com/errandhq/errand/activities/machine"
	"github.com/errandhq/errand/automation"
)

// cancelledResult is reported for an execution that was ended before a program of it ran here.
func cancelledResult() machine.Result {
	return machine.Result{
		Outcome: automation.OutcomeCancelled,
		Err: &automation.StepError{
			Code: automation.StepErrCancelled, Message: "the step was cancelled; no program of it was running on the machine",
		},
	}
}

// acquire returns the entry of a step for use until [Host.release].
func (h *Host) acquire(ref automation.StepRef) *step {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, ok := h.steps[ref]
	if !ok {
		s = newStep(ref)
		path := h.records.path(ref)
		if _, suspect := h.suspects[path]; suspect {
			delete(h.suspects, path)
			s.suspect = path
			h.clear(s, s.record)
		} else if r := h.records.load(ref); r != nil {
			s.adopt(*r)
		}
		h.steps[ref] = s
	}
	s.refs.Add(1)
	return s
}

func (h *Host) release(s *step) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.refs.Add(-1) == 0 && s.idle() {
		delete(h.steps, s.ref)
	}
}

// launch starts execution n of a step in the slot that the caller has taken, and reports whether it did. It
// does not when the ledger has ended n meanwhile, when a higher number is known, or when the worker drains.
func (h *Host) launch(s *step, n int64, concrete automation.ConcreteStep) (*execution, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stale(n) {
		h.log.Info("An execution that is no longer wanted was discarded.", "step", s.ref.Key(), "execution", n)
		return nil, false
	}
	if !h.programs.enter() {
		return nil, false
	}
	e := &execution{number: n, done: make(chan struct{})}
	s.seen, s.exec = n, e
	s.record = record{
		StepRef: s.ref, Execution: n, Kind: concrete.Kind, Digest: digestOf(concrete), BootID: h.o.BootID,
		Tombstone: s.record.Tombstone,
	}
	err := h.records.save(s.record)
	s.refs.Add(1)
	go h.supervise(s, e, concrete, err)
	return e, true
}

// supervise sees an execution from its start to its result, whether or not an attempt waits for it.
func (h *Host) supervise(s *step, e *execution, concrete automation.ConcreteStep, intent error) {
	defer h.release(s)
	defer h.programs.leave()
	defer func() { <-h.slots }()
	if intent != nil {
		// Without an intent a crash would leave a program that nobody knows of.
		h.log.Error("A step cannot be recorded and is not started.", "step", s.ref.Key(), "error", intent)
		h.conclude(s, e, machine.Result{Outcome: automation.OutcomeFailed, Err: &automation.StepError{
			Code:    automation.StepErrSpawnFailed,
			Message: "the machine could not write its record of the step, so the program was not started: " + intent.Error(),
		}})
		return
	}
	h.log.Info("Starting a step.", "step", s.ref.Key(), "execution", e.number, "kind", concrete.Kind)
	program := h.o.Runner.Start(concrete)
	s.mu.Lock()
	e.program = program
	reason := e.reason
	if info, ok := program.Process(); ok && s.exec == e {
		s.record.Process = &info
		h.saveRecord(s)
	}
	s.mu.Unlock()
	if reason != "" {
		program.End(reason)
	}
	h.conclude(s, e, program.Wait())
}

// conclude records how an execution ended and begins to report it.
func (h *Host) conclude(s *step, e *execution, result machine.Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.result = result
	if s.exec == e {
		s.record.Result = &recordedResult{Outcome: result.Outcome, Data: result.Data, Err: result.Err}
		h.saveRecord(s)
	}
	close(e.done)
	h.log.Info("A step has ended.", "step", s.ref.Key(), "execution", e.number, "outcome", result.Outcome)
	h.deliver(s, e)
}

// saveRecord writes the record of a step whose program or result exists already: the disk is behind then, and
// the protocol goes on from memory. The caller has s.mu.
func (h *Host) saveRecord(s *step) {
	if err := h.records.save(s.record); err != nil {
		h.log.Error("A step record could not be written; a crash of the worker now would lose it.", "step", s.ref.Key(), "error", err)
	}
}

// dropRecord removes the record of a step. The caller has s.mu.
func (h *Host) dropRecord(s *step) {
	s.record = record{StepRef: s.ref, Tombstone: s.record.Tombstone}
	if err := h.records.remove(s.ref); err != nil {
		h.log.Error("A step record could not be removed.", "step", s.ref.Key(), "error", err)
	}
}

// endExecution begins to end an execution's program, if it runs. The caller has s.mu.
func (h *Host) endExecution(e *execution, reason machine.EndReason) {
	if e.isDone() || e.reason != "" {
		return
	}
	e.reason = reason
	if e.program != nil {
		e.program.End(reason)
	}
}

// end does what the ledger's word about execution n asks for: a tombstone, the end of the program, and the
// confirmation that n is cancelled, also when nothing of it is here.
func (h *Host) end(ref automation.StepRef, n int64) {
	s := h.acquire(ref)
	defer h.release(s)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = max(s.seen, n)
	fresh := n > s.record.Tombstone
	s.record.Tombstone = max(s.record.Tombstone, n)
	e := s.exec
	switch {
	case e != nil && e.number > n:
		h.log.Debug("The end of an execution that a later one has replaced was ignored.", "step", ref.Key(), "execution", n)
	case e != nil && e.number == n:
		if fresh {
			h.log.Info("The ledger ended a step.", "step", ref.Key(), "execution", n)
			h.saveRecord(s)
		}
		h.endExecution(e, machine.EndCancelled)
		if e.isDone() {
			h.deliver(s, e)
		}
	case e != nil && !e.isDone():
		h.endExecution(e, machine.EndCancelled)
		h.confirmAfter(s, e.done, n)
	case !s.isCleared():
		h.saveRecord(s)
		h.confirmAfter(s, s.cleared, n)
	default:
		h.confirm(s, n)
	}
}

// confirmAfter confirms the end of execution n once blocked is closed. The caller has s.mu.
func (h *Host) confirmAfter(s *step, blocked <-chan struct{}, n int64) {
	if n <= s.confirming {
		return
	}
	s.confirming = n
	s.refs.Add(1)
	h.background.Go(func() {
		defer h.release(s)
		select {
		case <-blocked:
		case <-h.life.Done():
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.exec == nil || s.exec.number < n {
			h.confirm(s, n)
		}
	})
}

// confirm reports execution n as cancelled although no program of it was here. The caller has s.mu.
func (h *Host) confirm(s *step, n int64) {
	result := cancelledResult()
	e := ended(n, result)
	s.exec = e
	s.record = record{
		StepRef: s.ref, Execution: n, BootID: h.o.BootID, Tombstone: s.record.Tombstone,
		Result: &recordedResult{Outcome: result.Outcome, Err: result.Err},
	}
	h.saveRecord(s)
	h.deliver(s, e)
}

// deliver begins to report the result of an execution that has ended, or hurries the effort that is under
// way, and returns it. The caller has s.mu.
func (h *Host) deliver(s *step, e *execution) *delivery {
	if d := e.delivery; d != nil && !isClosed(d.settled) {
		select {
		case d.kick <- struct{}{}:
		default:
		}
		return d
	}
	d := &delivery{kick: make(chan struct{}, 1), settled: make(chan struct{})}
	e.delivery = d
	if h.deliveries.enter() {
		s.refs.Add(1)
		go h.report(s, e, d)
	}
	return d
}

// report calls finish until the ledger has answered. What it could not deliver when the worker leaves stays
// in the record.
func (h *Host) report(s *step, e *execution, d *delivery) {
	defer h.release(s)
	defer h.deliveries.leave()
	request := automation.FinishRequest{
		StepRef: s.ref, Execution: e.number, Outcome: e.result.Outcome, Result: e.result.Data, Error: e.result.Err,
	}
	pause := h.newBackoff()
	for {
		ctx, cancel := context.WithTimeout(h.life, h.o.Timing.Call)
		answer, err := h.o.ControlPlane.Finish(ctx, request)
		cancel()
		if err == nil || isFinal(err) {
			h.settle(s, e, d, answer, err)
			return
		}
		if h.life.Err() != nil {
			return
		}
		wait := pause.next()
		h.log.Warn("The result of a step could not be reported; it is kept and sent again.",
			"step", s.ref.Key(), "execution", e.number, "error", err, "retry_in", wait)
		if !h.pause(h.life, wait, d.kick) {
			return
		}
	}
}

// settle takes the ledger's answer to a result.
func (h *Host) settle(s *step, e *execution, d *delivery, answer automation.FinishAnswer, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer close(d.settled)
	d.answer, d.err = answer, err
	current := s.exec == e
	switch {
	case err != nil && !isNotFound(err):
		h.log.Error("The ledger refused the result of a step.", "step", s.ref.Key(), "execution", e.number, "error", err)
	case err != nil || !answer.Accepted:
		h.log.Info("The ledger does not want the result of a step; it is forgotten.", "step", s.ref.Key(), "execution", e.number)
		if current {
			s.exec = nil
			h.dropRecord(s)
		}
	default:
		e.acked = true
		if !current {
			return
		}
		now := h.o.Now()
		s.record.AcknowledgedAt = &now
		h.saveRecord(s)
		if !e.result.Outcome.Final() {
			s.exec = nil
		}
	}
}

// recover takes over the records of earlier workers. What a dead worker of this boot had started is ended in
// the background, before its step may start again; results that nobody acknowledged are held.
func (h *Host) recover() error {
	records, unreadable, err := h.records.all()
	if err != nil {
		return err
	}
	for _, path := range unreadable {
		h.log.Error("A step record cannot be read; it counts as a program that may still be running.", "file", path)
		h.suspects[path] = struct{}{}
	}
	for _, r := range records {
		switch {
		case r.AcknowledgedAt != nil:
		case r.Result != nil:
			h.hold(r)
		case r.BootID != h.o.BootID:
			if err := h.records.remove(r.StepRef); err != nil {
				return err
			}
		default:
			h.clear(h.hold(r), r)
		}
	}
	return nil
}

// hold makes the entry of a step from its record, with the reference that keeps an unacknowledged one.
func (h *Host) hold(r record) *step {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := newStep(r.StepRef)
	s.adopt(r)
	h.steps[r.StepRef] = s
	return s
}

// clear ends what a dead worker had started for a step. Until that is done no attempt of it proceeds.
func (h *Host) clear(s *step, r record) {
	s.cleared = make(chan struct{})
	s.refs.Add(1)
	h.background.Go(func() {
		defer h.release(s)
		pause := h.newBackoff()
		for {
			n, err := h.o.Runner.EndLeftover(r.StepRef, r.Process)
			if err == nil {
				h.log.Warn("The worker before this one died during a step; what it left running was ended.",
					"step", r.Key(), "execution", r.Execution, "processes", n)
				break
			}
			wait := pause.next()
			h.log.Error("A program of a dead worker could not be ended; its step waits.",
				"step", r.Key(), "execution", r.Execution, "error", err, "retry_in", wait)
			if !h.pause(h.life, wait, nil) {
				return
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		h.cleared(s)
	})
}

// cleared goes on with a step after nothing is left of what a dead worker had started for it. The caller has
// s.mu.
func (h *Host) cleared(s *step) {
	defer close(s.cleared)
	if s.suspect != "" {
		if err := h.records.setAside(s.suspect); err != nil {
			h.log.Error("An unreadable step record is overwritten.", "file", s.suspect, "error", err)
		}
		return
	}
	// An end that the dead worker had not confirmed comes again with the next connection.
	h.dropRecord(s)
}

// isFinal reports whether a call was refused in a way that trying again cannot change.
func isFinal(err error) bool {
	refusal, ok := errors.AsType[*RefusalError](err)
	return ok && refusal.Final()
}

func isNotFound(err error) bool {
	refusal, ok := errors.AsType[*RefusalError](err)
	return ok && refusal.Code == automation.CodeNotFound
}
