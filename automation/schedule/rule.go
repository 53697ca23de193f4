package schedule

import "time"

// rule is one of the three ways to give instants. Times are Unix seconds; instants are from firstInstant to
// lastInstant.
type rule interface {
	// next returns the first instant after the given time.
	next(after int64) (int64, bool)
	// latest returns the last instant after the one time and not after the other.
	latest(after, until int64) (int64, bool)
	// count returns how many instants there are after the one time and not after the other.
	count(after, until int64) int64
	// describe says it in words.
	describe() string
	// equal reports whether the other rule has the same instants by construction.
	equal(other rule) bool
}

// cronRule is a cron expression in a zone.
type cronRule struct {
	table table
	zone  *time.Location
}

func (c *cronRule) next(after int64) (int64, bool) {
	now := max(after, firstInstant-1) + 1
	limit := min(lastInstant, now+(calendarYears+1)*366*daySeconds)
	for now <= limit {
		s := spanAt(c.zone, now)
		from, skipped := c.localFrom(s, now)
		if skipped {
			return now, true
		}
		local, ok := c.table.next(from)
		if !ok {
			return 0, false
		}
		if t := local - s.offset; t < s.end {
			return t, t <= limit
		}
		// Far from now the clock shows later times than now, whatever the offset, and no match before local: the
		// spans until shortly before it need no look.
		if s.end-now > maxShift {
			now = max(s.end, local-maxShift)
		} else {
			now = s.end
		}
	}
	return 0, false
}

// localFrom returns the local time from which matches count at the instant now and later in its span. skipped is
// true when now ends a gap that had a match, which makes now a firing of a fixed-time schedule.
func (c *cronRule) localFrom(s span, now int64) (from int64, skipped bool) {
	from = now + s.offset
	if !c.table.fixed || now-s.start > maxShift {
		return from, false
	}
	shown := shownBefore(c.zone, s)
	if now == s.start && shown < from && c.table.within(shown, from) {
		return from, true
	}
	return max(from, shown), false
}

func (c *cronRule) count(after, until int64) int64 {
	var n int64
	until = min(until, lastInstant)
	for now := max(after, firstInstant-1) + 1; now <= until; {
		s := spanAt(c.zone, now)
		next := min(s.end, until+1)
		from, skipped := c.localFrom(s, now)
		if skipped && !c.table.matches(from) {
			n++
		}
		n += c.table.count(from, next+s.offset)
		now = next
	}
	return n
}

// latest looks back from until in steps that double, then halves the last step.
func (c *cronRule) latest(after, until int64) (int64, bool) {
	known, ok := c.next(after)
	if !ok || known > until {
		return 0, false
	}
	late := until // no instant is after late and not after until
	for step := int64(minuteSeconds); until-step > known; step *= 2 {
		if t, ok := c.next(until - step); ok && t <= until {
			known = t
			break
		}
		late = until - step
	}
	for known < late {
		middle := known + (late-known)/2
		if t, ok := c.next(middle); ok && t <= until {
			known = t
		} else {
			late = middle
		}
	}
	return known, true
}

func (c *cronRule) equal(other rule) bool {
	o, ok := other.(*cronRule)
	return ok && c.table.normal() == o.table.normal() && c.zone.String() == o.zone.String()
}

// everyRule is all instants that are a multiple of every away from anchor, in seconds.
type everyRule struct {
	every, anchor int64
	anchored      bool // the author gave the anchor
}

func (e *everyRule) next(after int64) (int64, bool) {
	after = max(after, firstInstant-1)
	t := e.anchor + (floorDiv(after-e.anchor, e.every)+1)*e.every
	return t, t <= lastInstant
}

func (e *everyRule) latest(after, until int64) (int64, bool) {
	t := e.anchor + floorDiv(min(until, lastInstant)-e.anchor, e.every)*e.every
	return t, t > after
}

func (e *everyRule) count(after, until int64) int64 {
	after, until = max(after, firstInstant-1), min(until, lastInstant)
	if until <= after {
		return 0
	}
	return floorDiv(until-e.anchor, e.every) - floorDiv(after-e.anchor, e.every)
}

func (e *everyRule) equal(other rule) bool {
	o, ok := other.(*everyRule)
	return ok && e.every == o.every && floorMod(e.anchor-o.anchor, e.every) == 0
}

// atRule is one instant.
type atRule struct {
	at   int64
	zone *time.Location // in which it is described
}

func (a *atRule) next(after int64) (int64, bool) { return a.at, a.at > after }

func (a *atRule) latest(after, until int64) (int64, bool) {
	return a.at, a.at > after && a.at <= until
}

func (a *atRule) count(after, until int64) int64 {
	if _, ok := a.latest(after, until); ok {
		return 1
	}
	return 0
}

func (a *atRule) equal(other rule) bool {
	o, ok := other.(*atRule)
	return ok && a.at == o.at
}
