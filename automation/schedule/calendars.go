package schedule

import (
	"slices"
	"time"
)

// The years for which [Calendar.Years] lists leap years and others.
const (
	CalendarFirstYear = 2000
	CalendarLastYear  = 2100
)

// Calendar is a set of local times: those whose every part is in the list of that part. A list that is nil stands
// for all values. Seconds are always 0.
type Calendar struct {
	Years    []int // from CalendarFirstYear to CalendarLastYear
	Months   []time.Month
	Days     []int // of the month
	Weekdays []time.Weekday
	Hours    []int
	Minutes  []int
}

// Calendars returns the local times of a cron timing as plain sets, for engines that know neither the day rule nor
// L and #, and the zone of these times. A local time matches when it is in one of them, at least; a time in two of
// them is still one. It returns nil for every and at; see [Timing.Interval] and [Timing.Instant].
//
// The sets say nothing of gaps and overlaps, which each engine treats in its own way. Where there is one within
// the zone, only [Timing.Next] is right.
func (t Timing) Calendars() ([]Calendar, *time.Location) {
	c, ok := t.rule.(*cronRule)
	if !ok {
		return nil, nil
	}
	var list []Calendar
	for _, days := range c.table.dateSets() {
		cal := days.calendar()
		if c.table.minutes != allMinutes {
			cal.Minutes = values(c.table.minutes)
		}
		if c.table.hours != allHours {
			cal.Hours = values(c.table.hours)
		}
		list = append(list, cal)
	}
	return list, c.zone
}

// dateSet is a set of dates by month, day, weekday and kind of year.
type dateSet struct {
	months   uint64
	days     uint64
	weekdays uint64
	years    yearKind
}

// yearKind is a set of two: leap years and common years.
type yearKind uint8

const (
	leapYears yearKind = 1 << iota
	commonYears
	everyYear = leapYears | commonYears
)

func (d dateSet) and(o dateSet) dateSet {
	return dateSet{d.months & o.months, d.days & o.days, d.weekdays & o.weekdays, d.years & o.years}
}

func (d dateSet) empty() bool {
	return d.months == 0 || d.days == 0 || d.weekdays == 0 || d.years == 0
}

// dateSets returns sets of dates that together are the days of the table.
func (t *table) dateSets() []dateSet {
	months := dateSet{t.months, allDays, allWeekdays, everyYear}
	var sets []dateSet
	add := func(d dateSet) {
		if d = d.and(months); !d.empty() && !slices.Contains(sets, d) {
			sets = append(sets, d)
		}
	}
	days, weekdays := t.daySets(), t.weekdaySets()
	if t.eitherDay() {
		for _, d := range slices.Concat(days, weekdays) {
			add(d)
		}
		return sets
	}
	for _, d := range days {
		for _, w := range weekdays {
			add(d.and(w))
		}
	}
	return sets
}

func (t *table) daySets() []dateSet {
	sets := []dateSet{{allMonths, t.days, allWeekdays, everyYear}}
	if t.lastDay {
		sets = append(sets, monthEnds(1, allWeekdays)...)
	}
	return sets
}

func (t *table) weekdaySets() []dateSet {
	sets := []dateSet{{allMonths, allDays, t.weekdays, everyYear}}
	for n := 1; n <= 5; n++ {
		if t.nth[n] != 0 {
			week := uint64(1<<7-1) << (7*n - 6)
			sets = append(sets, dateSet{allMonths, week, t.nth[n], everyYear})
		}
	}
	if t.last != 0 {
		sets = append(sets, monthEnds(7, t.last)...)
	}
	return sets
}

// monthEnds returns the last days of each month, by its length, that are one of the weekdays.
func monthEnds(days int, weekdays uint64) []dateSet {
	const february = 1 << time.February
	const thirty = 1<<time.April | 1<<time.June | 1<<time.September | 1<<time.November
	ending := func(length int) uint64 { return (uint64(1)<<days - 1) << (length - days + 1) }
	return []dateSet{
		{allMonths &^ (thirty | february), ending(31), weekdays, everyYear},
		{thirty, ending(30), weekdays, everyYear},
		{february, ending(29), weekdays, leapYears},
		{february, ending(28), weekdays, commonYears},
	}
}

func (d dateSet) calendar() Calendar {
	var c Calendar
	if d.years != everyYear {
		for year := CalendarFirstYear; year <= CalendarLastYear; year++ {
			leap := monthOf(year, time.February).length == 29
			if leap == (d.years == leapYears) {
				c.Years = append(c.Years, year)
			}
		}
	}
	if d.months != allMonths {
		for _, m := range values(d.months) {
			c.Months = append(c.Months, time.Month(m))
		}
	}
	if d.days != allDays {
		c.Days = values(d.days)
	}
	if d.weekdays != allWeekdays {
		for _, w := range values(d.weekdays) {
			c.Weekdays = append(c.Weekdays, time.Weekday(w))
		}
	}
	return c
}
