package schedule

import (
	"fmt"
	"time"
)

// transitionYears is how far ahead warnings look for changes of the clocks.
const transitionYears = 2

// warnAbout adds the warnings about an accepted timing that is saved at the time now.
func (p *specParser) warnAbout(timing Timing, now time.Time) {
	c, ok := timing.rule.(*cronRule)
	if !ok {
		return
	}
	if c.table.eitherDay() {
		either := "fires when the day of month OR the day of week matches"
		if days := c.table.describeDays(); days.clauses {
			either += ": " + days.text
		} else {
			either += ", which together is " + days.text
		}
		p.warn("cron", "%s; to restrict one of them only, write * in the other", either)
	}
	until := now.AddDate(transitionYears, 0, 0).Unix()
	for _, change := range c.clockChanges(now.Unix(), until) {
		p.warn("cron", "%s", change)
	}
}

// clockChanges says, for every change of the zone's clocks after one time and not after another, what becomes of
// matches that the change skips or repeats. A schedule that fires in every hour of the day needs no such warning
// unless it is fixed-time: it just continues.
func (c *cronRule) clockChanges(after, until int64) []string {
	if !c.table.fixed && c.table.hours == allHours {
		return nil
	}
	var texts []string
	for s := spanAt(c.zone, after); s.end <= until; {
		s = spanAt(c.zone, s.end)
		from, shown := s.start+s.offset, shownBefore(c.zone, s)
		switch {
		case shown < from && c.table.within(shown, from):
			match, _ := c.table.next(shown)
			texts = append(texts, c.gapText(s, wall(match), wall(shown), wall(from)))
		case shown > from && c.table.within(from, shown):
			match, _ := c.table.next(from)
			texts = append(texts, c.overlapText(wall(match), wall(shown), wall(from)))
		}
	}
	return texts
}

func (c *cronRule) gapText(s span, match, shown, from time.Time) string {
	text := fmt.Sprintf("on %s %s does not exist in %s, where the clocks go from %s to %s",
		match.Format("2 January 2006"), match.Format("15:04"), c.zone, shown.Format("15:04"), from.Format("15:04"))
	if c.table.fixed {
		return fmt.Sprintf("%s: it fires at %s (%s)", text, from.Format("15:04"), instant(s.start).Format(time.RFC3339))
	}
	return text + ": such times do not fire on that day"
}

func (c *cronRule) overlapText(match, shown, from time.Time) string {
	text := fmt.Sprintf("on %s %s comes twice in %s, where the clocks go back from %s to %s",
		match.Format("2 January 2006"), match.Format("15:04"), c.zone, shown.Format("15:04"), from.Format("15:04"))
	if c.table.fixed {
		return text + ": it fires at the first of the two"
	}
	return text + ": it fires at both"
}

// warnLocal warns about a local time, in seconds, that does not exist or comes twice.
func (p *specParser) warnLocal(zone *time.Location, local int64) {
	at := firstShown(zone, local)
	s := spanAt(zone, at)
	if shown := at + s.offset; shown != local {
		p.warn("at", "%s does not exist in %s; it fires at %s (%s)", moment(wall(local)), zone,
			wall(shown).Format("15:04"), instant(at).Format(time.RFC3339))
		return
	}
	if s.end-at > maxShift {
		return
	}
	if after := spanAt(zone, s.end); local-after.offset >= after.start {
		p.warn("at", "%s comes twice in %s; it fires at the first of the two (%s)", moment(wall(local)), zone,
			instant(at).Format(time.RFC3339))
	}
}
