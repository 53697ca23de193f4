package schedule

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"time"
)

const (
	// OnTime is how late an instant may be decided without being missed.
	OnTime = 60 * time.Second
	// MaxCursorAhead is how far a cursor may be ahead of the time before it is set back.
	MaxCursorAhead = 5 * time.Minute
	// MaxAdmissions is how many instants one decision admits. It is more than can be due on time: one a second.
	MaxAdmissions = 100
)

// Reason says why a firing was dropped.
type Reason string

// The reasons.
const (
	// ReasonOverlap: an earlier run of the schedule was unfinished.
	ReasonOverlap Reason = "overlap"
	// ReasonMissed: the instant was missed, and the catch-up policy leaves it.
	ReasonMissed Reason = "missed"
	// ReasonOutsideWindow: the instant was missed by more than the catch-up window.
	ReasonOutsideWindow Reason = "outside_window"
	// ReasonMaxOccurrences: all occurrences had been admitted.
	ReasonMaxOccurrences Reason = "max_occurrences"
	// ReasonMachineRevoked: the automation's machine is revoked.
	ReasonMachineRevoked Reason = "machine_revoked"
	// ReasonNotExecutable: the automation has no plan that can be executed.
	ReasonNotExecutable Reason = "not_executable"
)

// Instant is a firing that is to be admitted, or the one that comes next.
type Instant struct {
	// At is the instant: the run's scheduledAt.
	At time.Time
	// JitteredAt is when it is due.
	JitteredAt time.Time
	// Late is set when it was missed and is caught up.
	Late bool
	// CancelsEarlier is set when all unfinished runs of the schedule that were admitted before, those of this
	// decision included, are to be cancelled.
	CancelsEarlier bool
}

// Drop is a range of firings that are not admitted.
type Drop struct {
	// From and To are the first and the last instant of the range; they are equal for a single one.
	From, To time.Time
	// Count is how many firings were dropped, at least 1.
	Count  int64
	Reason Reason
}

// Decision is what is to happen at once, in one transaction.
type Decision struct {
	// Admit are the firings to admit, in order.
	Admit []Instant
	// CancelRuns are the ids of [State.Unfinished] to cancel first.
	CancelRuns []string
	// Drops are the firings to record as dropped, in order.
	Drops []Drop

	// Cursor, Occurrences, Status and StatusReason are the schedule's from now on.
	Cursor       time.Time
	Occurrences  int64
	Status       Status
	StatusReason string

	// CursorReset is set when the cursor was so far ahead of the time that it was set back to it: something to log.
	CursorReset bool
	// More is set when MaxAdmissions were reached: decide again at once.
	More bool
	// Next is the firing after the cursor, nil when there is none or the schedule does not fire. Its At is the
	// schedule's next run.
	Next *Instant
	// NextWake is when to decide again: the time Next is due, or now when there is more; zero with a nil Next.
	NextWake time.Time
}

// Decide settles every instant after the schedule's cursor that is due at the time now. It takes a time that grows
// with the logarithm of the backlog, or with its years, and lists no more than it admits.
func Decide(s State, now time.Time) Decision {
	p := &planner{state: s, now: now, decision: Decision{
		Cursor: s.Cursor, Occurrences: s.Occurrences, Status: s.Status, StatusReason: s.StatusReason,
	}}
	if !s.Fires() {
		return p.decision
	}
	if s.Cursor.After(now.Add(MaxCursorAhead)) {
		p.decision.Cursor, p.decision.CursorReset = now, true
	}
	p.settle()
	p.finish()
	return p.decision
}

// planner makes one decision.
type planner struct {
	state    State
	now      time.Time
	decision Decision
}

// settle admits or drops everything that is due. What is due is cut in ranges, oldest first: missed and to be
// dropped at once; then those that are admitted unless something speaks against it.
func (p *planner) settle() {
	d := &p.decision
	last, ok := p.latestDue(p.now)
	if !ok {
		return
	}
	candidates := d.Cursor // those after it, up to last
	if missed, ok := p.latestDue(p.now.Add(-OnTime - 1)); ok {
		candidates = p.dropMissed(missed, last)
	}
	p.admit(candidates, last)
}

// latestDue returns the last instant after the cursor that was due at the time at. Jittered times are in the order
// of their instants, and each is before the next instant, so only the last instant until then may not have been due.
func (p *planner) latestDue(at time.Time) (time.Time, bool) {
	cursor := p.decision.Cursor
	last, ok := p.state.Timing.Latest(cursor, at)
	if ok && p.state.JitteredAt(last).After(at) {
		return p.state.Timing.Latest(cursor, last.Add(-time.Second))
	}
	return last, ok
}

// dropMissed drops of the missed instants, of which missed is the last, those that are not caught up, and returns
// the time after which instants are left to be admitted.
func (p *planner) dropMissed(missed, last time.Time) time.Time {
	cursor := p.decision.Cursor
	policy := p.state.Policy
	if policy.CatchUp == CatchUpNone {
		p.drop(cursor, missed, ReasonMissed)
		return missed
	}
	left := cursor
	if outside, ok := p.latestDue(p.now.Add(-max(policy.CatchUpWindow, OnTime) - 1)); ok {
		p.drop(cursor, outside, ReasonOutsideWindow)
		left = outside
	}
	switch {
	case policy.CatchUp == CatchUpAll:
		return left
	case missed.Before(last):
		p.drop(left, missed, ReasonMissed)
		return missed
	}
	if before, ok := p.state.Timing.Latest(left, missed.Add(-time.Second)); ok {
		p.drop(left, before, ReasonMissed)
		left = before
	}
	return left
}

// drop records the instants after one time, up to the instant last.
func (p *planner) drop(after, last time.Time, reason Reason) {
	first, ok := p.state.Timing.Next(after)
	if !ok || first.After(last) {
		return
	}
	count := p.state.Timing.Count(after, last)
	for _, taken := range p.state.Taken {
		// A run may stem from an instant that the schedule had before it got another timing.
		if taken.After(after) && !taken.After(last) {
			count -= p.state.Timing.Count(taken.Add(-time.Second), taken)
		}
	}
	if count > 0 {
		p.decision.Drops = append(p.decision.Drops, Drop{From: first, To: last, Count: count, Reason: reason})
	}
}

// admit admits the instants after one time, up to the instant last, until something speaks against the next one.
// Whatever does, speaks against all others too.
func (p *planner) admit(after, last time.Time) {
	d := &p.decision
	for after.Before(last) {
		at, _ := p.state.Timing.Next(after) // last, at the latest
		if slices.ContainsFunc(p.state.Taken, at.Equal) {
			after = at
			continue
		}
		if reason := p.refusal(); reason != "" {
			p.drop(after, last, reason)
			after = last
			break
		}
		if len(d.Admit) == MaxAdmissions {
			d.More = true
			break
		}
		due := p.state.JitteredAt(at)
		d.Admit = append(d.Admit, Instant{
			At: at, JitteredAt: due,
			Late:           p.now.Sub(due) > OnTime,
			CancelsEarlier: p.state.Policy.Overlap == OverlapCancelRunning,
		})
		d.Occurrences++
		after = at
	}
	d.Cursor = after
	if len(d.Admit) > 0 && p.state.Policy.Overlap == OverlapCancelRunning {
		for _, run := range p.state.Unfinished {
			d.CancelRuns = append(d.CancelRuns, run.ID)
		}
	}
}

// refusal returns why the next firing is dropped, or "".
func (p *planner) refusal() Reason {
	d, s := &p.decision, &p.state
	if s.exhausted(d.Occurrences) {
		return ReasonMaxOccurrences
	}
	if s.Blocked != "" {
		return s.Blocked
	}
	unfinished, waiting := len(s.Unfinished)+len(d.Admit), len(d.Admit)
	for _, run := range s.Unfinished {
		if !run.Begun {
			waiting++
		}
	}
	switch {
	case s.Policy.Overlap == OverlapSkip && unfinished > 0,
		s.Policy.Overlap == OverlapQueueOne && waiting > 0:
		return ReasonOverlap
	}
	return ""
}

// finish ends a schedule that has nothing to come, and says when it goes on otherwise.
func (p *planner) finish() {
	d, s := &p.decision, &p.state
	if s.exhausted(d.Occurrences) {
		d.Status, d.StatusReason = StatusFinished, exhaustedReason(s.Policy.MaxOccurrences)
		return
	}
	next, ok := s.Timing.Next(d.Cursor)
	if !ok {
		d.Status, d.StatusReason = StatusFinished, nothingLeft
		return
	}
	d.Next = &Instant{At: next, JitteredAt: s.JitteredAt(next)}
	d.NextWake = d.Next.JitteredAt
	if d.More {
		d.NextWake = p.now
	}
}

const nothingLeft = "no instant is left"

func exhaustedReason(most int64) string {
	if most == 1 {
		return "its one occurrence has been admitted"
	}
	return fmt.Sprintf("all %d occurrences have been admitted", most)
}

// JitteredAt returns when an instant of the schedule is due: at the instant itself or later, by less than the
// jitter and less than the gap to the next instant. It depends on nothing but these and the schedule's id.
func (s State) JitteredAt(at time.Time) time.Time {
	within := s.Policy.Jitter
	if within <= 0 {
		return at
	}
	if next, ok := s.Timing.Next(at); ok {
		within = min(within, next.Sub(at))
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", s.ID, at.Unix()))
	millis := int64(binary.BigEndian.Uint32(sum[:4])) % max(within.Milliseconds(), 1)
	return at.Add(time.Duration(millis) * time.Millisecond)
}
