package schedule

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxClockTimes is how many times of day a description lists.
const maxClockTimes = 6

func (e *everyRule) describe() string {
	text := "every " + duration(e.every)
	if e.anchored {
		text += ", counted from " + moment(wall(e.anchor)) + " in UTC"
	}
	return text
}

// duration returns a number of seconds in the largest unit that it is a whole number of, without "1".
func duration(seconds int64) string {
	unit, n := "second", seconds
	switch {
	case seconds%3600 == 0:
		unit, n = "hour", seconds/3600
	case seconds%60 == 0:
		unit, n = "minute", seconds/60
	}
	if n == 1 {
		return unit
	}
	return fmt.Sprintf("%d %ss", n, unit)
}

func (a *atRule) describe() string {
	return fmt.Sprintf("once, on %s in %s", moment(instant(a.at).In(a.zone)), a.zone)
}

// moment returns a date and a time of day, with seconds only when there are some.
func moment(t time.Time) string {
	if t.Second() != 0 {
		return t.Format("2 January 2006 at 15:04:05")
	}
	return t.Format("2 January 2006 at 15:04")
}

func (c *cronRule) describe() string {
	days := c.table.describeDays()
	times, clock := c.table.describeTimes()
	in := " in " + c.zone.String()
	switch {
	case days.all && c.table.minutes == allMinutes && c.table.hours == allHours:
		return times // the same in any zone
	case days.all && !clock:
		return times + in
	case !clock:
		return days.text + ", " + times + "," + in
	case days.clauses:
		return days.text + ", " + times + in
	}
	return days.text + " " + times + in
}

// describeTimes says the times of day. clock is true when it lists them, as in "at 09:00".
func (t *table) describeTimes() (text string, clock bool) {
	minutes, hours := values(t.minutes), values(t.hours)
	allDay := t.hours == allHours
	stepMinutes, stepHours := evenStep(minutes, 60), evenStep(hours, 24)
	consecutive := hours[len(hours)-1]-hours[0] == len(hours)-1
	first := fmt.Sprintf("%02d:%02d", hours[0], minutes[0])
	last := fmt.Sprintf("%02d:%02d", hours[len(hours)-1], minutes[len(minutes)-1])
	switch {
	case allDay && stepMinutes > 0:
		return "every " + duration(int64(stepMinutes)*60), false
	case allDay:
		return fmt.Sprintf("at %s %s of every hour", plural("minute", minutes), numbers(minutes)), false
	case len(minutes)*len(hours) <= maxClockTimes && (stepHours == 0 || len(hours) <= 2):
		return "at " + clockTimes(hours, minutes), true
	case len(minutes) == 1 && stepHours > 1:
		text = fmt.Sprintf("every %d hours", stepHours)
		if minutes[0] != 0 {
			text += " at minute " + strconv.Itoa(minutes[0])
		}
		return text, false
	case len(minutes) == 1 && consecutive:
		return fmt.Sprintf("every hour from %s to %s", first, last), false
	case stepMinutes > 0 && consecutive:
		return fmt.Sprintf("every %s from %s to %s", duration(int64(stepMinutes)*60), first, last), false
	}
	return fmt.Sprintf("at %s %s of %s %s", plural("minute", minutes), numbers(minutes), plural("hour", hours),
		numbers(hours)), false
}

// evenStep returns n when the values are all multiples of n below cycle, and cycle is one too; 0 otherwise.
func evenStep(list []int, cycle int) int {
	if list[0] != 0 || cycle%len(list) != 0 {
		return 0
	}
	step := cycle / len(list)
	for i, v := range list {
		if v != i*step {
			return 0
		}
	}
	return step
}

func clockTimes(hours, minutes []int) string {
	var times []string
	for _, h := range hours {
		for _, m := range minutes {
			times = append(times, fmt.Sprintf("%02d:%02d", h, m))
		}
	}
	return enumerate(times)
}

// dayWords says on which days a schedule fires.
type dayWords struct {
	text    string
	all     bool // every day
	clauses bool // text is more than one clause
}

func (t *table) describeDays() dayWords {
	allDays := t.days&allDays == allDays
	allWeek := t.weekdays == allWeekdays
	either := t.eitherDay()
	months := "each month"
	in := ""
	if t.months != allMonths {
		months = monthList(t.months)
		in = " in " + months
	}
	switch {
	case either && (allDays || allWeek), allDays && allWeek:
		return dayWords{text: "every day" + in, all: in == ""}
	case either:
		text := fmt.Sprintf("on %s of %s, and on %s", t.monthDays(), months, t.weekDays(months, in))
		return dayWords{text: text, clauses: true}
	case allWeek:
		return dayWords{text: fmt.Sprintf("on %s of %s", t.monthDays(), months)}
	case allDays && t.nth == [6]uint64{} && t.last == 0:
		return dayWords{text: t.weekDays(months, in)}
	case allDays:
		return dayWords{text: "on " + t.weekDays(months, in)}
	}
	text := fmt.Sprintf("on %s, where it is %s of %s", t.weekDays(months, in), t.monthDays(), months)
	return dayWords{text: text, clauses: true}
}

// monthDays says the days of the month: "the 1st to 7th and the last day".
func (t *table) monthDays() string {
	parts := runs(values(t.days), ordinal)
	if t.lastDay {
		parts = append(parts, "the last day")
	}
	if t.days != 0 {
		parts[0] = "the " + parts[0]
	}
	return enumerate(parts)
}

// weekDays says the days of the week: "every Monday in June", "the first Monday of each month".
func (t *table) weekDays(months, in string) string {
	var parts []string
	switch t.weekdays {
	case 0:
	case 1<<time.Monday | 1<<time.Tuesday | 1<<time.Wednesday | 1<<time.Thursday | 1<<time.Friday:
		parts = append(parts, "every weekday"+in)
	default:
		parts = append(parts, "every "+enumerate(weekdayList(t.weekdays))+in)
	}
	for n, word := range []string{1: "first", 2: "second", 3: "third", 4: "fourth", 5: "fifth"} {
		if t.nth[n] != 0 {
			parts = append(parts, fmt.Sprintf("the %s %s of %s", word, enumerate(weekdayList(t.nth[n])), months))
		}
	}
	if t.last != 0 {
		parts = append(parts, fmt.Sprintf("the last %s of %s", enumerate(weekdayList(t.last)), months))
	}
	return enumerate(parts)
}

// weekdayList returns the names of weekdays, Monday first.
func weekdayList(set uint64) []string {
	var names []string
	for i := range 7 {
		if day := time.Weekday((i + 1) % 7); set&(1<<day) != 0 {
			names = append(names, day.String())
		}
	}
	return names
}

func monthList(set uint64) string {
	return enumerate(runs(values(set), func(n int) string { return time.Month(n).String() }))
}

// numbers lists numbers, runs of three and more as ranges.
func numbers(list []int) string { return enumerate(runs(list, strconv.Itoa)) }

// runs lists values in ascending order: runs of three and more as ranges, a step by its first two and its last.
func runs(list []int, name func(int) string) []string {
	if n := len(list); n >= minStepped && list[1]-list[0] > 1 && evenlySpaced(list) {
		return []string{fmt.Sprintf("%s, %s and so on to %s", name(list[0]), name(list[1]), name(list[n-1]))}
	}
	var parts []string
	for len(list) > 0 {
		n := 1
		for n < len(list) && list[n] == list[0]+n {
			n++
		}
		if n >= 3 {
			parts = append(parts, name(list[0])+" to "+name(list[n-1]))
		} else {
			n = 1
			parts = append(parts, name(list[0]))
		}
		list = list[n:]
	}
	return parts
}

// minStepped is how many evenly spaced values are not listed one by one.
const minStepped = 5

func evenlySpaced(list []int) bool {
	for i := 2; i < len(list); i++ {
		if list[i]-list[i-1] != list[1]-list[0] {
			return false
		}
	}
	return true
}

// enumerate returns "a", "a and b", "a, b and c".
func enumerate(parts []string) string {
	if len(parts) < 2 {
		return strings.Join(parts, "")
	}
	last := len(parts) - 1
	return strings.Join(parts[:last], ", ") + " and " + parts[last]
}

func plural(word string, list []int) string {
	if len(list) == 1 {
		return word
	}
	return word + "s"
}

func ordinal(n int) string {
	suffix := "th"
	if !slices.Contains([]int{11, 12, 13}, n%100) {
		switch n % 10 {
		case 1:
			suffix = "st"
		case 2:
			suffix = "nd"
		case 3:
			suffix = "rd"
		}
	}
	return strconv.Itoa(n) + suffix
}
