package schedule_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/automation/schedule"
)

// The second opinion: expressions that are made at random and known as their meaning, beside their text, and a
// scan that looks at every minute of real time and asks what a clock on the wall shows. It shares nothing with the
// package.

// naiveExpression is an expression and what it means.
type naiveExpression struct {
	text                     string
	minute, hour, day, month func(int) bool
	weekday                  func(day, length int, weekday time.Weekday) bool
	lastDay                  bool
	starDay, starWeekday     bool
	fixed                    bool
}

// matches reports whether the clock shows a match.
func (e naiveExpression) matches(clock time.Time) bool {
	return e.minute(clock.Minute()) && e.hour(clock.Hour()) && e.matchesDay(clock)
}

func (e naiveExpression) matchesDay(clock time.Time) bool {
	year, month, dayOfMonth := clock.Date()
	if !e.month(int(month)) {
		return false
	}
	length := time.Date(year, month+1, 0, 0, 0, 0, 0, time.UTC).Day()
	day := e.day(dayOfMonth) || e.lastDay && dayOfMonth == length
	weekday := e.weekday(dayOfMonth, length, clock.Weekday())
	if e.starDay || e.starWeekday {
		return day && weekday
	}
	return day || weekday
}

// randomExpression returns an expression. near is a time of day that is made likely, so that firings fall where
// clocks change.
func randomExpression(rng *rand.Rand, near time.Time) naiveExpression {
	var e naiveExpression
	var minute, hour, day, month string
	minute, e.minute = randomField(rng, 0, 59, nil, near.Minute())
	hour, e.hour = randomField(rng, 0, 23, nil, near.Hour())
	day, e.day = randomField(rng, 1, 31, nil, near.Day())
	if rng.IntN(3) > 0 {
		day, e.day = "*", func(int) bool { return true }
	}
	month, e.month = "*", func(int) bool { return true }
	if rng.IntN(4) == 0 {
		month, e.month = randomField(rng, 1, 12,
			strings.Fields("JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC"), int(near.Month()))
	}
	if rng.IntN(12) == 0 {
		e.lastDay = true
		if day == "*" {
			day, e.day = "l", func(int) bool { return false }
		} else {
			day += ",L"
		}
	}
	weekday := randomWeekday(rng, &e)
	e.starDay, e.starWeekday = day[0] == '*', weekday[0] == '*'
	e.fixed = minute[0] != '*' && hour[0] != '*'
	e.text = strings.Join([]string{minute, hour, day, month, weekday}, " ")
	return e
}

func randomWeekday(rng *rand.Rand, e *naiveExpression) string {
	names := strings.Fields("SUN MON TUE WED THU FRI SAT")
	switch rng.IntN(8) {
	case 0:
		w, n := rng.IntN(7), 1+rng.IntN(5)
		e.weekday = func(day, _ int, weekday time.Weekday) bool { return int(weekday) == w && (day+6)/7 == n }
		return fmt.Sprintf("%s#%d", names[w], n)
	case 1:
		w := rng.IntN(8)
		e.weekday = func(day, length int, weekday time.Weekday) bool {
			return int(weekday) == w%7 && day+7 > length
		}
		return fmt.Sprintf("%dL", w)
	case 2, 3:
		text, set := randomField(rng, 0, 7, nil, rng.IntN(7))
		e.weekday = func(_, _ int, weekday time.Weekday) bool {
			return set(int(weekday)) || weekday == time.Sunday && set(7)
		}
		return text
	}
	e.weekday = func(int, int, time.Weekday) bool { return true }
	return "*"
}

// randomField returns a field of one to three items, and the set that it means.
func randomField(rng *rand.Rand, low, high int, names []string, near int) (string, func(int) bool) {
	var items []string
	var sets []func(int) bool
	name := func(v int) string {
		if names != nil && rng.IntN(2) == 0 {
			return strings.ToLower(names[v-low])
		}
		return fmt.Sprint(v)
	}
	for range 1 + rng.IntN(3)*rng.IntN(2) {
		a := low + rng.IntN(high-low+1)
		if rng.IntN(2) == 0 {
			a = near
		}
		b, n := a+rng.IntN(high-a+1), 1+rng.IntN(20)
		switch rng.IntN(7) {
		case 0:
			items, sets = append(items, "*"), append(sets, func(int) bool { return true })
		case 1:
			items = append(items, fmt.Sprintf("*/%d", n))
			sets = append(sets, func(v int) bool { return (v-low)%n == 0 })
		case 2:
			items = append(items, fmt.Sprintf("%s/%d", name(a), n))
			sets = append(sets, func(v int) bool { return v >= a && (v-a)%n == 0 })
		case 3:
			items = append(items, fmt.Sprintf("%s-%s", name(a), name(b)))
			sets = append(sets, func(v int) bool { return v >= a && v <= b })
		case 4:
			items = append(items, fmt.Sprintf("%s-%s/%d", name(a), name(b), n))
			sets = append(sets, func(v int) bool { return v >= a && v <= b && (v-a)%n == 0 })
		default:
			items = append(items, name(a))
			sets = append(sets, func(v int) bool { return v == a })
		}
	}
	return strings.Join(items, ","), func(v int) bool {
		return slices.ContainsFunc(sets, func(set func(int) bool) bool { return set(v) })
	}
}

// walk is every minute of a stretch of real time, with what the clock shows then, as a time in UTC.
type walk struct {
	real, shown []time.Time
	minutes     []int // of shown, from a day before the first on
}

func walkTime(from, until time.Time, zone *time.Location) walk {
	var w walk
	for t := from; !t.After(until); t = t.Add(time.Minute) {
		local := t.In(zone)
		clock := time.Date(local.Year(), local.Month(), local.Day(), local.Hour(), local.Minute(), 0, 0, time.UTC)
		w.real, w.shown = append(w.real, t.UTC()), append(w.shown, clock)
		w.minutes = append(w.minutes, 1440+int(clock.Sub(w.shown[0])/time.Minute))
	}
	return w
}

// firings are the minutes of a walk at which an expression fires.
func (w walk) firings(e naiveExpression) []time.Time {
	var list []time.Time
	seen := make([]bool, 2*len(w.shown)+4*1440)
	for i, clock := range w.shown {
		fires := e.matches(clock)
		if e.fixed {
			fires = fires && !seen[w.minutes[i]]
			seen[w.minutes[i]] = true
			for skipped := w.minutes[max(i-1, 0)] + 1; skipped < w.minutes[i]; skipped++ {
				clock := w.shown[0].Add(time.Duration(skipped-1440) * time.Minute)
				fires = fires || e.matches(clock) && !seen[skipped]
				seen[skipped] = true
			}
		}
		if fires {
			list = append(list, w.real[i])
		}
	}
	return list
}

// TestAgainstNaiveScan compares next, count and latest with the scan, around the changes of the clocks of many
// zones, from bases at random.
func TestAgainstNaiveScan(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(27, 1))
	compared := 0
	for _, change := range clockChanges(t) {
		w := walkTime(change.at.Add(-4*24*time.Hour), change.at.Add(5*24*time.Hour), change.zone)
		until := w.real[len(w.real)-1]
		for range 24 {
			near := change.at.In(change.zone).Add(time.Duration(rng.IntN(240)-180) * time.Minute)
			e := randomExpression(rng, near)
			timing, _, err := schedule.Parse(schedule.Spec{Cron: e.text, Timezone: change.zone.String()}, w.real[0], w.real[0])
			if err != nil {
				if e.fires() {
					t.Fatalf("%s: %v", e.text, err)
				}
				continue
			}
			naive := w.firings(e)
			for range 4 {
				// Not within the first two days: the scan has to know what the clock has shown before.
				base := w.real[2880].Add(time.Duration(rng.Int64N(int64(until.Sub(w.real[2880])))))
				compared += compare(t, e, timing, naive, base, until)
			}
		}
	}
	if compared < 10_000 {
		t.Errorf("compared only %d firings", compared)
	}
}

// compare compares what comes after base and not after until, and returns how many firings that is.
func compare(t *testing.T, e naiveExpression, timing schedule.Timing, naive []time.Time, base, until time.Time) int {
	t.Helper()
	want := naive[len(naive):]
	if i := slices.IndexFunc(naive, base.Before); i >= 0 {
		want = naive[i:]
	}
	got := timing.Between(base, until, len(want)+1)
	if !slices.EqualFunc(got, want, time.Time.Equal) {
		t.Fatalf("%q in %s after %s:\n got %v\nwant %v", e.text, timing.Spec().Timezone, base, got, want)
	}
	if n := timing.Count(base, until); n != int64(len(want)) {
		t.Fatalf("%q in %s from %s to %s: counted %d, want %d", e.text, timing.Spec().Timezone, base, until, n, len(want))
	}
	latest, ok := timing.Latest(base, until)
	if ok != (len(want) > 0) || ok && !latest.Equal(want[len(want)-1]) {
		t.Fatalf("%q in %s from %s to %s: the latest is %v %v, want that of %v", e.text, timing.Spec().Timezone, base,
			until, latest, ok, want)
	}
	return len(want)
}

// fires reports whether some date matches.
func (e naiveExpression) fires() bool {
	for day := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC); day.Year() < 2427; day = day.AddDate(0, 0, 1) {
		if e.matchesDay(day) {
			return true
		}
	}
	return false
}

type clockChange struct {
	zone *time.Location
	at   time.Time
}

// clockChanges are those of the zones of the table, and the odd ones of the past.
func clockChanges(t *testing.T) []clockChange {
	t.Helper()
	var list []clockChange
	seen := map[string]bool{}
	add := func(name string, from time.Time, most int) {
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		_, before := from.In(zone).Zone()
		for day := from; day.Before(from.AddDate(1, 0, 0)) && most > 0; day = day.Add(24 * time.Hour) {
			_, offset := day.In(zone).Zone()
			if offset != before {
				list = append(list, clockChange{zone, day.Add(-12 * time.Hour)})
				most--
			}
			before = offset
		}
	}
	for _, c := range zoneCases {
		if !seen[c.zone] {
			add(c.zone, time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC), 2)
		}
		seen[c.zone] = true
	}
	add("Pacific/Apia", time.Date(2011, 12, 1, 0, 0, 0, 0, time.UTC), 1)
	add("Pacific/Kwajalein", time.Date(1993, 8, 1, 0, 0, 0, 0, time.UTC), 1)
	add("Asia/Kathmandu", time.Date(1985, 12, 1, 0, 0, 0, 0, time.UTC), 1)
	add("Europe/Berlin", time.Date(2060, 1, 1, 0, 0, 0, 0, time.UTC), 2)
	if len(list) != 2*len(seen)+5 {
		t.Fatalf("found %d changes of the clocks in %d zones", len(list), len(seen))
	}
	return list
}

// TestRarePatterns compares firings that are years apart with a scan day by day.
func TestRarePatterns(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(27, 2))
	from := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	for _, days := range []string{
		"29 2 *", "29 2 */7", "*/28 2 */6", "*/30 * MON#5", "* 2 SUN#5", "L 2 */7", "* 2 SUNL", "29 2 MON#1", "31 */2 */7",
	} {
		text := fmt.Sprintf("%d %d %s", rng.IntN(60), rng.IntN(24), days)
		timing := cron(t, text, "America/New_York", from)
		calendars, zone := timing.Calendars()
		after := from
		for day := from; day.Year() < 2095; day = day.AddDate(0, 0, 1) {
			minute := time.Date(day.Year(), day.Month(), day.Day(), calendars[0].Hours[0], calendars[0].Minutes[0], 0, 0, zone)
			if !naiveDays(days, day) {
				continue
			}
			got, ok := timing.Next(after)
			if !ok || got.In(zone).Format(time.DateOnly) != minute.Format(time.DateOnly) {
				t.Fatalf("%q after %s: got %v, want %v", text, after, got, minute)
			}
			after = got
		}
	}
}

// naiveDays reports whether a day is one of the patterns of TestRarePatterns.
func naiveDays(pattern string, day time.Time) bool {
	d, w := day.Day(), day.Weekday()
	february := day.Month() == time.February
	last := day.AddDate(0, 0, 1).Day() == 1
	switch pattern {
	case "29 2 *":
		return february && d == 29
	case "29 2 */7":
		return february && d == 29 && w == time.Sunday
	case "*/28 2 */6":
		return february && (d == 1 || d == 29) && (w == time.Sunday || w == time.Saturday)
	case "*/30 * MON#5":
		return d == 31 && w == time.Monday
	case "* 2 SUN#5":
		return february && d == 29 && w == time.Sunday
	case "L 2 */7":
		return february && last && w == time.Sunday
	case "* 2 SUNL":
		return february && w == time.Sunday && day.AddDate(0, 0, 7).Month() == time.March
	case "29 2 MON#1":
		return february && (d == 29 || d <= 7 && w == time.Monday)
	case "31 */2 */7":
		return d == 31 && int(day.Month())%2 == 1 && w == time.Sunday
	}
	panic(pattern)
}

// TestCalendars compares the plain sets with a scan of every day that they speak of.
func TestCalendars(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(27, 3))
	now := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	for range 20 {
		e := randomExpression(rng, now.Add(time.Duration(rng.IntN(1e6))*time.Minute))
		timing, _, err := schedule.Parse(schedule.Spec{Cron: e.text, Timezone: "Asia/Kathmandu"}, now, now)
		if err != nil {
			continue
		}
		calendars, zone := timing.Calendars()
		if zone.String() != "Asia/Kathmandu" {
			t.Fatalf("the zone is %s", zone)
		}
		for day := time.Date(schedule.CalendarFirstYear, 1, 1, 0, 0, 0, 0, time.UTC); day.Year() <= schedule.CalendarLastYear; day = day.AddDate(0, 0, 1) {
			clock := day.Add(time.Duration(rng.IntN(1440)) * time.Minute)
			if got := slices.ContainsFunc(calendars, func(c schedule.Calendar) bool { return inCalendar(c, clock) }); got != e.matches(clock) {
				t.Fatalf("%q at %s: %v, want %v, from %+v", e.text, clock, got, !got, calendars)
			}
		}
	}
}

func inCalendar(c schedule.Calendar, clock time.Time) bool {
	return among(c.Years, clock.Year()) && among(c.Months, clock.Month()) && among(c.Days, clock.Day()) &&
		among(c.Weekdays, clock.Weekday()) && among(c.Hours, clock.Hour()) && among(c.Minutes, clock.Minute())
}

func among[T comparable](list []T, v T) bool { return list == nil || slices.Contains(list, v) }

// TestForOtherEngines shows what an engine with calendars, intervals and instants of its own is given.
func TestForOtherEngines(t *testing.T) {
	t.Parallel()
	now := at(t, saved)
	zero := []int{0}
	tests := []struct {
		cron string
		want []schedule.Calendar
	}{
		{"* * * * *", []schedule.Calendar{{}}},
		{"0 9 * * 1-2", []schedule.Calendar{{Weekdays: []time.Weekday{1, 2}, Hours: []int{9}, Minutes: zero}}},
		{"0 * 13 JUN 5", []schedule.Calendar{
			{Months: []time.Month{6}, Days: []int{13}, Minutes: zero},
			{Months: []time.Month{6}, Weekdays: []time.Weekday{5}, Minutes: zero},
		}},
		{"0 * */20 * 5", []schedule.Calendar{{Days: []int{1, 21}, Weekdays: []time.Weekday{5}, Minutes: zero}}},
		{"0 * * * MON#2", []schedule.Calendar{
			{Days: []int{8, 9, 10, 11, 12, 13, 14}, Weekdays: []time.Weekday{1}, Minutes: zero},
		}},
		{"0 * L 4,5 *", []schedule.Calendar{
			{Months: []time.Month{5}, Days: []int{31}, Minutes: zero},
			{Months: []time.Month{4}, Days: []int{30}, Minutes: zero},
		}},
	}
	for _, c := range tests {
		got, zone := cron(t, c.cron, "Asia/Tokyo", now).Calendars()
		if diff := cmp.Diff(c.want, got); diff != "" || zone.String() != "Asia/Tokyo" {
			t.Errorf("%s in %s (-want +got):\n%s", c.cron, zone, diff)
		}
	}
	// The last day of February depends on the year.
	february, _ := cron(t, "0 0 L 2 *", "UTC", now).Calendars()
	if len(february) != 2 || !slices.Contains(february[0].Years, 2028) || slices.Contains(february[0].Years, 2100) ||
		!slices.Contains(february[1].Years, 2100) || slices.Contains(february[1].Years, 2028) {
		t.Errorf("the ends of February are %+v", february)
	}

	every := parse(t, schedule.Spec{Every: "90m", Anchor: "2026-12-01T01:00:00.5+01:00"}, now)
	length, anchor, ok := every.Interval()
	if !ok || length != 90*time.Minute || !anchor.Equal(at(t, "2026-12-01T00:00:00Z")) {
		t.Errorf("every %v from %v, %v", length, anchor, ok)
	}
	once := parse(t, schedule.Spec{At: "2026-12-02T07:00:00Z"}, now)
	if instant, ok := once.Instant(); !ok || !instant.Equal(at(t, "2026-12-02T07:00:00Z")) {
		t.Errorf("at %v, %v", instant, ok)
	}
	// Each timing is one of the three.
	for _, timing := range []schedule.Timing{every, once, cron(t, "@daily", "UTC", now), {}} {
		calendars, _ := timing.Calendars()
		_, _, interval := timing.Interval()
		_, instant := timing.Instant()
		_, never := timing.Next(now)
		if n := len(calendars); n > 0 && (interval || instant) || n == 0 && interval == instant && never {
			t.Errorf("%+v is %d calendars, an interval: %v, an instant: %v", timing.Spec(), n, interval, instant)
		}
	}
}
