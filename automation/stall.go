package automation

import (
	"cmp"
	"slices"
	"time"
)

// StalledAfter is how long the next step of a run may be dispatched and not begin, while its machine is online and
// has free slots, before its task is taken for lost.
const StalledAfter = 5 * time.Minute

// next returns the step that is dispatched to the machine and has not begun; nil when there is none, or when the
// step waits for a retry, which is the engine's business.
func (r *Run) next() *StepRecord {
	if r.Status.Finished() || r.CancelRequestedAt != nil {
		return nil
	}
	for i := range r.Steps {
		switch r.Steps[i].Status {
		case StepCompleted:
		case StepPending:
			return &r.Steps[i]
		case StepRunning, StepFailed, StepCancelled, StepSkipped:
			return nil
		}
	}
	return nil
}

// Stall records that the task of a step is taken for lost and is dispatched again; false when the step has begun,
// or nothing is to be dispatched, or this was recorded less than [StalledAfter] ago.
func (r *Run) Stall(stepID string, generation int64, now time.Time) bool {
	step := r.next()
	if step == nil || step.ID != stepID || generation != r.Generation || r.stalledLately(now) {
		return false
	}
	r.StalledAt = &now
	return true
}

func (r *Run) stalledLately(now time.Time) bool {
	return r.StalledAt != nil && now.Sub(*r.StalledAt) < StalledAfter
}

// MachineQueueLook is what one look sees of a machine that is online: its load, and the oldest of the runs that wait
// for it, in any order.
type MachineQueueLook struct {
	Machine MachineLoad
	Waiting []Run
}

// StalledStep is a step whose task is taken for lost.
type StalledStep struct {
	StepRef
	Generation int64
}

// StallWatch finds tasks that were lost between the engine and a machine, by looking again and again. A machine that
// works through a long queue has free slots at many a look, but it takes the run that waits longest; so tasks count as
// lost only where the same run has been the first to be served, and a slot free, at every look for [StalledAfter].
// The zero value is ready.
type StallWatch struct {
	heads map[string]queueHead // by machine
}

// queueHead is the run that a machine ought to serve first, and since when it has been that with a slot free.
type queueHead struct {
	StepRef
	since time.Time
}

// Look takes the present state of all machines that are online and have runs waiting, and returns the steps whose
// tasks are lost: each run at most once in [StalledAfter]. Machines that are missing from it start anew next time.
func (w *StallWatch) Look(looks []MachineQueueLook, now time.Time) []StalledStep {
	heads := make(map[string]queueHead, len(looks))
	var stalled []StalledStep
	for _, look := range looks {
		waiting := slices.DeleteFunc(slices.Clone(look.Waiting), func(r Run) bool { return r.next() == nil })
		free := look.Machine.Online(now) && look.Machine.RunningSteps < look.Machine.Concurrency
		if !free || len(waiting) == 0 {
			continue
		}
		slices.SortFunc(waiting, func(a, b Run) int {
			return cmp.Or(a.idleSince().Compare(b.idleSince()), cmp.Compare(a.ID, b.ID))
		})
		head := queueHead{StepRef: waiting[0].nextRef(), since: now}
		if before, known := w.heads[look.Machine.ID]; known && before.StepRef == head.StepRef {
			head = before
		}
		heads[look.Machine.ID] = head
		if now.Sub(head.since) < StalledAfter {
			continue
		}
		for i := range waiting {
			r := &waiting[i]
			if now.Sub(r.idleSince()) >= StalledAfter && !r.stalledLately(now) {
				stalled = append(stalled, StalledStep{StepRef: r.nextRef(), Generation: r.Generation})
			}
		}
	}
	w.heads = heads
	return stalled
}

func (r *Run) nextRef() StepRef { return StepRef{RunID: r.ID, StepID: r.next().ID} }
