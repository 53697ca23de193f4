package schedule

import "time"

// Status is whether a schedule fires.
type Status string

// The statuses.
const (
	StatusActive   Status = "active"
	StatusPaused   Status = "paused"
	StatusFinished Status = "finished"
	// StatusRemoved is a tombstone: nothing of the schedule fires again, and its runs keep their order.
	StatusRemoved Status = "removed"
)

// State is what is known of a schedule when it is decided.
type State struct {
	ID     string
	Timing Timing
	Policy Policy

	Status Status
	// StatusReason says why the schedule is paused or finished; empty for an active one.
	StatusReason string
	// Disabled is set when the schedule or its automation is disabled: it does not fire, whatever its status.
	Disabled bool

	// Cursor is the time up to which every instant has been settled: the schedule's creation, at first.
	Cursor time.Time
	// Occurrences is how many runs were admitted; it never goes back.
	Occurrences int64

	// Unfinished are the schedule's runs that have not ended, needed for the overlap policies that look at them:
	// skip, queue_one and cancel_running.
	Unfinished []Run
	// Blocked is ReasonMachineRevoked or ReasonNotExecutable when no run can be admitted; else empty.
	Blocked Reason
	// Taken are the times after the cursor, or after now, that runs of the schedule have as their instant already,
	// each once. There are some only where the cursor is or was ahead of now, because a clock was set back.
	Taken []time.Time
}

// Run is an unfinished run of a schedule.
type Run struct {
	ID string
	// Begun is set when its first step has begun; until then it waits: for its machine, or for an earlier run.
	Begun bool
}

// Fires reports whether the schedule is active and enabled.
func (s State) Fires() bool { return s.Status == StatusActive && !s.Disabled }

// Apply returns the state after a decision was carried out.
func (s State) Apply(d Decision) State {
	s.Cursor, s.Occurrences, s.Status, s.StatusReason = d.Cursor, d.Occurrences, d.Status, d.StatusReason
	return s
}

// New returns the state of a schedule that is created at a time.
func New(id string, timing Timing, policy Policy, created time.Time) State {
	return State{ID: id, Timing: timing, Policy: policy, Status: StatusActive, Cursor: created}
}

// The changes below come after decisions that settle what is due until then, in the transaction of the change:
// decide until there is no more, then change. A firing whose jittered time is still to come is not due: pausing,
// disabling or another timing gives it up.

// Pause stops an active schedule, with a reason for people; a paused one gets the reason.
func (s State) Pause(reason string) State {
	if s.Status == StatusActive || s.Status == StatusPaused {
		s.Status, s.StatusReason = StatusPaused, reason
	}
	return s
}

// Resume lets a paused schedule fire again, from now on.
func (s State) Resume(now time.Time) State {
	if s.Status == StatusPaused {
		s.Status, s.StatusReason, s.Cursor = StatusActive, "", now
	}
	return s
}

// Disable stops the schedule whatever its status, until it is enabled.
func (s State) Disable() State {
	s.Disabled = true
	return s
}

// Enable lets a disabled schedule fire again if its status does, from now on.
func (s State) Enable(now time.Time) State {
	if s.Disabled {
		s.Disabled, s.Cursor = false, now
	}
	return s
}

// Retime gives the schedule another timing, from now on; a finished one with occurrences left becomes active again.
// A timing that is equal to the one it has changes nothing else, so that saving a schedule unchanged loses nothing.
func (s State) Retime(t Timing, now time.Time) State {
	same := s.Timing.Equal(t)
	s.Timing = t
	if same || s.Status == StatusRemoved {
		return s
	}
	s.Cursor = now
	return s.reactivate(now)
}

// SetPolicy gives the schedule another policy. The cursor stays, except when a finished schedule becomes active
// again because maxOccurrences was raised or lifted: it fires from now on. Lowering maxOccurrences to what has been
// admitted, or below, finishes the schedule.
func (s State) SetPolicy(p Policy, now time.Time) State {
	s.Policy = p
	if s.exhausted(s.Occurrences) && (s.Status == StatusActive || s.Status == StatusPaused) {
		s.Status, s.StatusReason = StatusFinished, exhaustedReason(p.MaxOccurrences)
		return s
	}
	return s.reactivate(now)
}

// Remove leaves a tombstone.
func (s State) Remove() State {
	s.Status, s.StatusReason = StatusRemoved, ""
	return s
}

// reactivate lets a finished schedule fire again, from now on, if it has something left to fire.
func (s State) reactivate(now time.Time) State {
	if s.Status != StatusFinished || s.exhausted(s.Occurrences) {
		return s
	}
	if _, ok := s.Timing.Next(now); ok {
		s.Status, s.StatusReason, s.Cursor = StatusActive, "", now
	}
	return s
}

// exhausted reports whether a number of runs is all that the policy allows.
func (s State) exhausted(occurrences int64) bool {
	return s.Policy.MaxOccurrences > 0 && occurrences >= s.Policy.MaxOccurrences
}
