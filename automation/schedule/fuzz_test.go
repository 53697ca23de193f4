package schedule_test

import (
	"errors"
	"slices"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/errandhq/errand/automation/schedule"
	"github.com/errandhq/errand/internal/strictjson"
)

// FuzzCron holds the parser to its promises for any expression: it refuses with words for people, or returns a
// timing whose instants, counts, sets and description agree with one another.
func FuzzCron(f *testing.F) {
	cases := loadCases(f)
	for _, c := range cases.Valid {
		f.Add(c.Cron, c.Timezone, c.From.Unix())
	}
	for _, c := range cases.Invalid {
		f.Add(c.Cron, "Europe/Berlin", int64(1_800_000_000))
	}
	for _, cron := range []string{
		"0 9 * * FRIL,1#2,7", "0 9 LW * *", "H 1~5 ? * *", "5/7,1-9/2 * L JAN-MAR/2 *", "*/30 2 * 3 SUN#2", "@Daily", "@every 9s",
		"0 0 12 ? * MON 2027", "0 9 29 2 */7",
	} {
		f.Add(cron, "America/New_York", int64(1_805_000_000))
	}
	f.Fuzz(func(t *testing.T, expression, zone string, unix int64) {
		base := time.Unix(unix%(1<<38), 0).UTC()
		timing, _, err := schedule.Parse(schedule.Spec{Cron: expression, Timezone: zone}, base, base)
		if err != nil {
			checkWords(t, err)
			return
		}
		checkTiming(t, timing, base)
	})
}

// FuzzSpec holds every spec that JSON can say to the same.
func FuzzSpec(f *testing.F) {
	for _, spec := range []string{
		`{"cron":"0 9 * * 1-5","timezone":"Europe/Berlin"}`, `{"every":"1h30m","anchor":"2026-12-01T00:00:00+01:00"}`,
		`{"at":"2026-12-02T07:00:00Z"}`, `{"at":"2027-03-14T02:30","timezone":"America/New_York"}`,
		`{"cron":"","timezone":null,"at":"x"}`, `{"every":"1500ms"}`, `{"every":90}`, `{"at":"9999-12-31T23:59:59-23:59"}`,
		`{"at":"0001-01-01T00:00","timezone":"Asia/Tokyo"}`, `{"every":"1s","anchor":"0000-01-01T00:00:00Z"}`,
	} {
		f.Add([]byte(spec), int64(1_800_000_000))
	}
	f.Fuzz(func(t *testing.T, data []byte, unix int64) {
		var in schedule.SpecInput
		if strictjson.Unmarshal(data, &in) != nil {
			return
		}
		base := time.Unix(unix%(1<<38), 0).UTC()
		timing, _, err := schedule.Parse(in.Spec(), base, base)
		if err != nil {
			checkWords(t, err)
			return
		}
		checkTiming(t, timing, base)
		again, err := schedule.Restore(timing.Spec(), base)
		if err != nil || !again.Equal(timing) {
			t.Errorf("%+v was accepted, and then: %v", in.Spec(), err)
		}
	})
}

// checkWords checks that an error lists violations in words.
func checkWords(t *testing.T, err error) {
	t.Helper()
	var invalid *schedule.InvalidError
	if !errors.As(err, &invalid) || len(invalid.Violations) == 0 {
		t.Fatalf("refused without a violation: %v", err)
	}
	for _, v := range invalid.Violations {
		if v.Message == "" || !utf8.ValidString(v.Message) {
			t.Errorf("refused with the message %q", v.Message)
		}
	}
}

// checkTiming checks that what a timing says of its first instants after base agrees.
func checkTiming(t *testing.T, timing schedule.Timing, base time.Time) {
	t.Helper()
	if timing.Describe() == "" {
		t.Error("it has no description")
	}
	calendars, zone := timing.Calendars()
	after := base
	for i := range 5 {
		next, ok := timing.Next(after)
		if !ok {
			if i == 0 {
				t.Fatal("it was accepted and never fires")
			}
			break
		}
		if !next.After(after) {
			t.Fatalf("%v is not after %v", next, after)
		}
		if n := timing.Count(base, next); n != int64(i)+1 {
			t.Errorf("counted %d instants, not %d, from %v to %v", n, i+1, base, next)
		}
		if latest, ok := timing.Latest(base, next.Add(time.Second-1)); !ok || !latest.Equal(next) {
			t.Errorf("the latest until %v is %v", next, latest)
		}
		if zone != nil {
			clock := next.In(zone)
			shown := time.Date(clock.Year(), clock.Month(), clock.Day(), clock.Hour(), clock.Minute(), 0, 0, time.UTC)
			start, _ := clock.ZoneBounds()
			inYears := shown.Year() >= schedule.CalendarFirstYear && shown.Year() <= schedule.CalendarLastYear
			if inYears && !start.Equal(clock) && !slices.ContainsFunc(calendars, func(c schedule.Calendar) bool { return inCalendar(c, shown) }) {
				t.Errorf("%v is not in %+v", clock, calendars)
			}
		}
		after = next
	}
}
