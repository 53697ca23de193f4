package schedule

import (
	"math/bits"
	"time"
)

// table is a cron expression as sets. It knows dates and times of day, not zones: its times are local, counted in
// seconds as if the local clock were UTC's.
type table struct {
	minutes uint64 // bit 0 to 59
	hours   uint64 // bit 0 to 23
	months  uint64 // bit 1 to 12

	days    uint64 // bit 1 to 31
	lastDay bool   // the last day of the month, beside days

	weekdays uint64    // bit 0 (Sunday) to 6, every one in the month
	nth      [6]uint64 // nth[n]: the weekdays whose nth in the month is meant, n from 1 to 5
	last     uint64    // the weekdays whose last in the month is meant

	// starDay and starWeekday are set when the field begins with *: then a day must match both fields.
	starDay, starWeekday bool
	// fixed is set when neither the minute nor the hour begins with *.
	fixed bool
}

const (
	allMinutes  = 1<<60 - 1
	allHours    = 1<<24 - 1
	allMonths   = 1<<13 - 2
	allDays     = 1<<32 - 2
	allWeekdays = 1<<7 - 1

	// calendarYears is after how many years dates and weekdays repeat.
	calendarYears = 400
)

// daysIn returns the matching days of a month, bit 1 to 31. first is the number of its first day since 1970-01-01,
// length how many it has.
func (t *table) daysIn(first int64, length int) uint64 {
	month := uint64(1)<<(length+1) - 2
	days := t.days & month
	if t.lastDay {
		days |= 1 << length
	}
	if t.weekdays == allWeekdays && t.starWeekday {
		return days
	}
	weekdays := t.weekdaysIn(first, length)
	if t.eitherDay() {
		return days | weekdays
	}
	return days & weekdays
}

// normal returns a table that has the same matches and is the same for many ways to write them.
func (t *table) normal() table {
	n := *t
	either := t.eitherDay()
	if either && (n.days == allDays || n.weekdays == allWeekdays) {
		n.days, n.weekdays, either = allDays, allWeekdays, false
	}
	if n.days == allDays {
		n.lastDay = false
	}
	if n.weekdays == allWeekdays {
		n.nth, n.last = [6]uint64{}, 0
	}
	n.starDay, n.starWeekday = !either, false
	return n
}

// eitherDay reports whether a match of one of the two day fields suffices.
func (t *table) eitherDay() bool { return !t.starDay && !t.starWeekday }

// weekdaysIn returns the days of a month that the day of week selects.
func (t *table) weekdaysIn(first int64, length int) uint64 {
	const everySeven = 1 | 1<<7 | 1<<14 | 1<<21 | 1<<28
	month := uint64(1)<<(length+1) - 2
	weekday := int(floorMod(first+int64(time.Thursday), 7)) // of the first day
	var days uint64
	for w := range 7 {
		bit := uint64(1) << w
		firstOf := 1 + (w-weekday+7)%7
		each := uint64(everySeven) << firstOf & month
		if t.weekdays&bit != 0 {
			days |= each
		}
		for n := 1; n <= 5; n++ {
			if t.nth[n]&bit != 0 {
				days |= 1 << (firstOf + 7*(n-1)) & month
			}
		}
		if t.last&bit != 0 {
			days |= 1 << (bits.Len64(each) - 1)
		}
	}
	return days
}

// month is a month with what the calendar needs of it.
type month struct {
	year   int
	number time.Month
	first  int64 // its first day, in days since 1970-01-01
	length int
}

func monthOf(year int, number time.Month) month {
	first := dayNumber(year, number)
	next := dayNumber(year, number+1)
	return month{year: year, number: number, first: first, length: int(next - first)}
}

// next returns the following month.
func (m month) next() month {
	if m.number == time.December {
		return monthOf(m.year+1, time.January)
	}
	return monthOf(m.year, m.number+1)
}

// dayNumber returns the first day of a month in days since 1970-01-01.
func dayNumber(year int, number time.Month) int64 {
	return time.Date(year, number, 1, 0, 0, 0, 0, time.UTC).Unix() / daySeconds
}

// next returns the first match at or after the local time from. It looks calendarYears ahead, month by month.
func (t *table) next(from int64) (int64, bool) {
	minute := ceilDiv(from, minuteSeconds)
	day := floorDiv(minute, dayMinutes)
	date := wall(day * daySeconds)
	m := monthOf(date.Year(), date.Month())
	above := date.Day() // days from here on are still to come
	if t.matchesDay(m, date.Day()) {
		if at, ok := t.timeFrom(int(minute - day*dayMinutes)); ok {
			return (day*dayMinutes + int64(at)) * minuteSeconds, true
		}
		above++
	}
	for last := m.year + calendarYears; m.year <= last; m = m.next() {
		if t.months&(1<<m.number) != 0 {
			if days := t.daysIn(m.first, m.length) >> above << above; days != 0 {
				at, _ := t.timeFrom(0)
				day := m.first + int64(bits.TrailingZeros64(days)) - 1
				return (day*dayMinutes + int64(at)) * minuteSeconds, true
			}
		}
		above = 0
	}
	return 0, false
}

func (t *table) matchesDay(m month, day int) bool {
	return t.months&(1<<m.number) != 0 && t.daysIn(m.first, m.length)&(1<<day) != 0
}

// matches reports whether the local time is a match.
func (t *table) matches(local int64) bool {
	next, ok := t.next(local)
	return ok && next == local
}

// within reports whether there is a match from the local time from to before the local time to.
func (t *table) within(from, to int64) bool {
	next, ok := t.next(from)
	return ok && next < to
}

// timeFrom returns the first time of day that matches and is not before minute, both in minutes.
func (t *table) timeFrom(minute int) (int, bool) {
	hour := minute / 60
	if t.hours&(1<<hour) != 0 {
		if rest := t.minutes >> (minute % 60); rest != 0 {
			return minute + bits.TrailingZeros64(rest), true
		}
	}
	later := t.hours >> (hour + 1) << (hour + 1)
	if later == 0 {
		return 0, false
	}
	return bits.TrailingZeros64(later)*60 + bits.TrailingZeros64(t.minutes), true
}

// count returns how many matches there are from the local time from to before the local time to.
func (t *table) count(from, to int64) int64 {
	first, last := ceilDiv(from, minuteSeconds), ceilDiv(to, minuteSeconds)
	if first >= last {
		return 0
	}
	firstDay, lastDay := floorDiv(first, dayMinutes), floorDiv(last, dayMinutes)
	perDay := int64(bits.OnesCount64(t.minutes)) * int64(bits.OnesCount64(t.hours))
	n := t.countDays(firstDay, lastDay) * perDay
	// The first day is counted whole, the last one not at all.
	n -= t.countDays(firstDay, firstDay+1) * t.timesBefore(first-firstDay*dayMinutes)
	n += t.countDays(lastDay, lastDay+1) * t.timesBefore(last-lastDay*dayMinutes)
	return n
}

// countDays returns how many days match from the day first to before the day last.
func (t *table) countDays(first, last int64) int64 {
	if first >= last {
		return 0
	}
	date := wall(first * daySeconds)
	var n int64
	for m := monthOf(date.Year(), date.Month()); m.first < last; m = m.next() {
		if t.months&(1<<m.number) == 0 {
			continue
		}
		days := t.daysIn(m.first, m.length)
		if before := first - m.first; before > 0 {
			days = days >> (before + 1) << (before + 1)
		}
		if until := last - m.first; until < int64(m.length) {
			days &= 1<<(until+1) - 1
		}
		n += int64(bits.OnesCount64(days))
	}
	return n
}

// timesBefore returns how many times of day match before the minute of the day.
func (t *table) timesBefore(minute int64) int64 {
	hour := minute / 60
	n := bits.OnesCount64(t.hours&(1<<hour-1)) * bits.OnesCount64(t.minutes)
	if t.hours&(1<<hour) != 0 {
		n += bits.OnesCount64(t.minutes & (1<<(minute%60) - 1))
	}
	return int64(n)
}

func floorDiv(a, b int64) int64 {
	if a < 0 {
		return -((-a + b - 1) / b)
	}
	return a / b
}

func ceilDiv(a, b int64) int64 { return floorDiv(a+b-1, b) }

func floorMod(a, b int64) int64 { return a - floorDiv(a, b)*b }
