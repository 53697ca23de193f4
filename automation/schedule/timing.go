package schedule

import "time"

// Timing lists the instants of one schedule. It is immutable; the zero Timing has no instants.
type Timing struct {
	rule rule
	spec Spec
}

// Spec returns what the timing was made from.
func (t Timing) Spec() Spec { return t.spec }

// Next returns the first instant strictly after a time; false when there is none. It takes microseconds, for
// patterns that match once in decades too.
func (t Timing) Next(after time.Time) (time.Time, bool) {
	if t.rule == nil {
		return time.Time{}, false
	}
	next, ok := t.rule.next(seconds(after))
	if !ok {
		return time.Time{}, false
	}
	return instant(next), true
}

// Between returns the first instants strictly after one time and not after another, at most limit of them.
func (t Timing) Between(after, until time.Time, limit int) []time.Time {
	var list []time.Time
	for len(list) < limit {
		next, ok := t.Next(after)
		if !ok || next.After(until) {
			break
		}
		list = append(list, next)
		after = next
	}
	return list
}

// Count returns how many instants are strictly after one time and not after another, without listing them.
func (t Timing) Count(after, until time.Time) int64 {
	if t.rule == nil {
		return 0
	}
	return t.rule.count(seconds(after), seconds(until))
}

// Latest returns the last instant that is strictly after one time and not after another; false when there is none.
func (t Timing) Latest(after, until time.Time) (time.Time, bool) {
	if t.rule == nil {
		return time.Time{}, false
	}
	latest, ok := t.rule.latest(seconds(after), seconds(until))
	if !ok {
		return time.Time{}, false
	}
	return instant(latest), true
}

// Equal reports whether two timings have the same instants by construction. An edit that leaves the timing equal is
// not a change of timing.
func (t Timing) Equal(other Timing) bool {
	if t.rule == nil || other.rule == nil {
		return t.rule == nil && other.rule == nil
	}
	return t.rule.equal(other.rule)
}

// Describe says the timing in words, such as "every weekday at 09:00 in Europe/Berlin".
func (t Timing) Describe() string {
	if t.rule == nil {
		return "never"
	}
	return t.rule.describe()
}

// Interval returns the duration and the anchor of a timing that was given as every.
func (t Timing) Interval() (every time.Duration, anchor time.Time, ok bool) {
	e, ok := t.rule.(*everyRule)
	if !ok {
		return 0, time.Time{}, false
	}
	return time.Duration(e.every) * time.Second, instant(e.anchor), true
}

// Instant returns the one instant of a timing that was given as at.
func (t Timing) Instant() (time.Time, bool) {
	a, ok := t.rule.(*atRule)
	if !ok {
		return time.Time{}, false
	}
	return instant(a.at), true
}

func instant(unix int64) time.Time { return time.Unix(unix, 0).UTC() }

// seconds returns the Unix time of t, cut to the second and to where instants are. Since instants are whole
// seconds, one is after t exactly when it is after the result.
func seconds(t time.Time) int64 {
	return min(max(t.Unix(), firstInstant-1), lastInstant)
}
