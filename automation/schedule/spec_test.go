package schedule_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/automation/schedule"
	"github.com/errandhq/errand/internal/strictjson"
)

const saved = "2026-12-01T10:30:15.5Z"

// TestRefused holds every refusal to its place and to what it says to write instead.
func TestRefused(t *testing.T) {
	t.Parallel()
	utc := func(cron string) schedule.Spec { return schedule.Spec{Cron: cron, Timezone: "UTC"} }
	in := func(zone string) schedule.Spec { return schedule.Spec{Cron: "0 9 * * *", Timezone: zone} }
	every := func(text string) schedule.Spec { return schedule.Spec{Every: text} }
	once := func(text string) schedule.Spec { return schedule.Spec{At: text} }
	tests := []struct {
		spec schedule.Spec
		want []string // "path: part of the message", in order
	}{
		// Fields that others have.
		{utc("0 30 9 * * MON-FRI"), []string{"cron: write `30 9 * * MON-FRI`"}},
		{utc("0 0 12 ? * MON *"), []string{"cron: write `0 12 ? * MON`"}},
		{utc("0 9 * * 1 2027"), []string{`cron: there is no year: write ` + "`0 9 * * 1`"}},
		{utc("1 2 3 4 5 6 7 8"), []string{"cron: has 8 fields; write five fields"}},
		{utc("   "), []string{"cron: is empty; write five fields"}},
		{utc("0 9 * * 1 # every week"), []string{`cron: has a comment, "# every week"`}},
		{utc("CRON_TZ=Asia/Tokyo 0 9 * * *"), []string{`cron: write "timezone": "Asia/Tokyo" and "cron": "0 9 * * *"`}},
		{utc("@every 1h30m"), []string{`cron: write "every": "1h30m"`}},
		{utc("@every"), []string{`cron: write "every": "5m"`}},
		{utc("@Daily"), []string{"cron: is written in lower case: @daily"}},
		{utc("@daily 5"), []string{"cron: more after the @daily"}},
		{utc("@fortnightly"), []string{"cron: write @hourly, @daily"}},
		{utc("@reboot"), []string{"cron: @reboot is not a time"}},
		// Items that others have.
		{utc("0 9 ? * *"), []string{`cron: the day of month "?" has a ?; write *`}},
		{utc("0 9 15W * *"), []string{`cron: the day of month "15W" is not supported; write a day such as 15`}},
		{utc("0 9 LW * *"), []string{`cron: the day of month "LW" is not supported; write L`}},
		{utc("0 9 L-3 * *"), []string{`cron: the day of month "L-3" is not supported; write L`}},
		{utc("0 9 * * L"), []string{"cron: write SATL"}},
		{utc("0 9 * L *"), []string{`cron: the month "L" is neither`}},
		{utc("H H * * *"), []string{`cron: the minute "H" has an H`, `cron: the hour "H" has an H`}},
		{utc("H/15 * * * *"), []string{`cron: the minute "H/15" has an H`}},
		{utc("0 1~5 * * *"), []string{"cron: use jitterMs"}},
		{utc("0 9 1#2 * *"), []string{"cron: for the day of week only, as in MON#2"}},
		{utc("0 9 * * MON#0"), []string{"cron: from 1 to 5"}},
		{utc("0 9 * * MON#"), []string{"cron: from 1 to 5"}},
		{utc("0 9 * * MON#+1"), []string{"cron: from 1 to 5"}},
		{utc("0 9 * * MON-FRI#2"), []string{"cron: write one day and a number"}},
		{utc("0 9 * * MON#1-3"), []string{"cron: write one day and a number"}},
		{utc("0 9 * * 8#1"), []string{"cron: out of range"}},
		{utc("0 9 * * MON-FRIL"), []string{"cron: L follows one day"}},
		{utc("0 9 * * *L"), []string{"cron: L follows one day"}},
		{utc("0 9 * * XL"), []string{`cron: the day of week "XL" is neither a number`}},
		// Values.
		{utc("60 24 32 13 8"), []string{
			`cron: the minute "60" is out of range; it goes from 0 to 59`, `cron: the hour "24"`,
			`cron: the day of month "32"`, `cron: the month "13"`, `cron: the day of week "8" is out of range; it goes from 0 to 7`,
		}},
		{utc("0 0 0 0 *"), []string{`cron: the day of month "0"`, `cron: the month "0"`}},
		{utc("99999999999999999999 * * * *"), []string{"cron: out of range"}},
		{utc("0x1 1.5 +1 １ *"), []string{
			`cron: the minute "0x1" is not a number`, `cron: the hour "1.5"`, `cron: the day of month "+1"`, `cron: the month "１"`,
		}},
		{utc("* * * JUNE MONDAY"), []string{"cron: did you mean JUN?", "cron: did you mean MON?"}},
		{utc("* * MON * *"), []string{`cron: the day of month "MON" is not a number from 1 to 31`}},
		{utc("0 9 * * MON,FRIX"), []string{"cron: did you mean FRI?"}},
		// Lists, ranges, steps.
		{utc("1,,2 * * * *"), []string{`cron: the minute "1,,2" has an empty item`}},
		{utc(", * * * *"), []string{"cron: empty item"}},
		{utc("1, * * * *"), []string{"cron: empty item"}},
		{utc("5-1 22-2 * NOV-FEB FRI-MON"), []string{
			"cron: starts after its end; write 5-59,0-1", "cron: write 22-23,0-2", "cron: write 11-12,1-2", "cron: write 5-6,0-1",
		}},
		{utc("0 9 * * SAT-SUN"), []string{"cron: write 6-7"}},
		{utc("0 23-0 * * SAT-MON"), []string{"cron: write 23,0", "cron: write 6,0-1"}},
		{utc("1-2-3 -5 5- *-5 *"), []string{"cron: malformed", "cron: malformed", "cron: malformed", "cron: malformed"}},
		{utc("** *5 * * *"), []string{"cron: malformed", "cron: malformed"}},
		{utc("*/0 0/0 * * *"), []string{"cron: the step 0", "cron: the step 0"}},
		{utc("*/ 5/5/5 */-1 */x *"), []string{"cron: a step is", "cron: a step is", "cron: a step is", "cron: a step is"}},
		{utc("*/99999999999999999999 * * * *"), []string{"cron: too large a step"}},
		{utc("/5 * * * *"), []string{`cron: the minute "/5" is not a number`}},
		// Characters.
		{utc("0 9 * * *\n"), []string{"cron: a character that cannot be seen"}},
		{utc("0\u00a09 * * *"), []string{"cron: a character that cannot be seen"}},
		{utc("0 9 * * \u200b1"), []string{"cron: a character that cannot be seen"}},
		{utc("0 9 * * \xff"), []string{"cron: a character that cannot be seen"}},
		{utc("0 9 * * 1;"), []string{`cron: the day of week "1;"`}},
		{utc(strings.Repeat("1,", 600) + "1 * * * *"), []string{"cron: is 1209 bytes; an expression may have 1000"}},
		// Never.
		{utc("0 0 30 2 *"), []string{"cron: never fires"}},
		{utc("0 0 31 4,6,9,11 *"), []string{"cron: never fires"}},
		{utc("0 0 */30 2 MON#5,TUE"), nil}, // 1 February
		{utc("0 0 30 FEB */2"), []string{"cron: never fires"}},
		// Every match is in the hour that is skipped on the second Sunday of March.
		{schedule.Spec{Cron: "*/30 2 * 3 SUN#2", Timezone: "America/New_York"}, []string{"cron: never fires"}},
		{schedule.Spec{Cron: "30 2 * 3 SUN#2", Timezone: "America/New_York"}, nil},
		// Zones.
		{schedule.Spec{Cron: "0 9 * * *"}, []string{"timezone: is required with cron"}},
		{in("Europe/Paradise"), []string{`timezone: "Europe/Paradise" is not a known zone`}},
		{in("europe/berlin"), []string{`timezone: did you mean "Europe/Berlin"?`}},
		{in("America/New York"), []string{`timezone: did you mean "America/New_York"?`}},
		{in("utc"), []string{`timezone: did you mean "UTC"?`}},
		{in("+02:00"), []string{"timezone: is an offset, not a zone"}},
		{in("UTC+2"), []string{"timezone: is an offset, not a zone"}},
		{in("Local"), []string{"timezone: whichever machine reads it"}},
		{in("localtime"), []string{"timezone: whichever machine reads it"}},
		{in("right/Europe/Berlin"), []string{"timezone: not a zone of the IANA database"}},
		{in("../zoneinfo/UTC"), []string{"timezone: is not a known zone"}},
		{in("Europe//Berlin"), []string{"timezone: is not a known zone"}},
		{in("/etc/localtime"), []string{"timezone: is not a known zone"}},
		{in("Europe"), []string{"timezone: is not a known zone"}},
		{in(strings.Repeat("x", 101)), []string{"timezone: is 101 bytes"}},
		{in("Etc/GMT+5"), nil},
		// every.
		{every("90"), []string{"every: has no unit; write a duration such as 90m"}},
		{every("5 minutes"), []string{"every: is not a duration"}},
		{every("+5m"), []string{"every: is not a duration"}},
		{every("7d"), []string{"every: write 168h"}},
		{every("99999999999999d"), []string{"every: is not a duration"}},
		{every("999999999h"), []string{"every: is not a duration"}},
		{every("0s"), []string{"every: less than a second"}},
		{every("-5m"), []string{"every: less than a second"}},
		{every("999ms"), []string{"every: less than a second"}},
		{every("1500ms"), []string{"every: not a whole number of seconds"}},
		{every("1.5h"), nil},
		{every("1s"), nil},
		{schedule.Spec{Every: "5m", Timezone: "UTC"}, []string{"timezone: is not for every"}},
		{schedule.Spec{Every: "5", Anchor: "noon"}, []string{"every: has no unit", `anchor: "noon" is not an instant`}},
		{schedule.Spec{Every: "5m", Anchor: "2026-12-01T00:00:00"}, []string{"anchor: write one in RFC 3339"}},
		{schedule.Spec{Cron: "0 9 * * *", Timezone: "UTC", Anchor: "2026-12-01T00:00:00Z"}, []string{"anchor: is for every only"}},
		// at.
		{once("tomorrow"), []string{"at: write an RFC 3339 instant"}},
		{once("2026-12-02"), []string{"at: write an RFC 3339 instant"}},
		{once("2026-02-30T00:00:00Z"), []string{"at: is not a time"}},
		{once("2026-12-02 07:00"), []string{"at: is not a time"}},
		{once("2026-12-02T7:00"), []string{"at: is not a time"}},
		{once("2026-12-02T07:00"), []string{"timezone: is required, since at is a local time"}},
		{once("2026-12-01T10:30:15Z"), []string{"at: is not in the future"}},
		{once("2026-12-01T10:30:15.9Z"), []string{"at: is not in the future"}},
		{once("2026-12-01T10:30:16Z"), nil},
		{schedule.Spec{At: "2026-12-01T11:30", Timezone: "Europe/Berlin"}, []string{"at: 2026-12-01T10:30:00Z is not in the future"}},
		{schedule.Spec{At: "2026-12-02T07:00:00Z", Timezone: "UTC"}, []string{"timezone: is for a local time"}},
		{schedule.Spec{At: "7", Timezone: "x"}, []string{`timezone: "x" is not a known zone`, "at: is not a time"}},
		// Kinds, and everything at once.
		{schedule.Spec{}, []string{": has no time; a schedule has exactly one of cron (with timezone), every and at"}},
		{schedule.Spec{Timezone: "UTC"}, []string{"cron: is missing or empty; write five fields"}},
		{schedule.Spec{Anchor: "2026-12-01T00:00:00Z"}, []string{": has no time"}},
		{schedule.Spec{Cron: "61 * * * *", Timezone: "x", Every: "5", Anchor: "y", At: "z"}, []string{
			": has cron and every and at", `timezone: "x"`, "cron: out of range", "every: has no unit", `anchor: "y"`, "at: is not a time",
		}},
	}
	now := at(t, saved)
	for _, c := range tests {
		_, _, err := schedule.Parse(c.spec, now, now)
		checkRefused(t, c.spec, err, c.want)
	}
}

func checkRefused(t *testing.T, spec schedule.Spec, err error, want []string) {
	t.Helper()
	var invalid *schedule.InvalidError
	if errors.As(err, &invalid) != (len(want) > 0) {
		t.Errorf("%+v: %v, want %q", spec, err, want)
		return
	}
	if invalid == nil {
		return
	}
	var got []string
	for _, v := range invalid.Violations {
		got = append(got, v.Path+": "+v.Message)
	}
	if !slices.EqualFunc(got, want, says) {
		t.Errorf("%+v:\n got %q\nwant %q", spec, got, want)
	}
}

// says reports whether a violation is at the place, and says the words, of a "path: words".
func says(violation, want string) bool {
	path, words, _ := strings.Cut(want, ": ")
	message, ok := strings.CutPrefix(violation, path+": ")
	return ok && strings.Contains(message, words)
}

func TestRestore(t *testing.T) {
	t.Parallel()
	created := at(t, saved)
	for _, spec := range []schedule.Spec{
		{At: "2026-12-01T10:30:15Z"},
		{Cron: "0 0 30 2 *", Timezone: "UTC"},
	} {
		timing, err := schedule.Restore(spec, created)
		if err != nil {
			t.Errorf("%+v: %v", spec, err)
		}
		if next, ok := timing.Next(created); ok {
			t.Errorf("%+v fires at %v", spec, next)
		}
	}
	spec := schedule.Spec{Cron: "0 9 * *", Timezone: "UTC"}
	_, err := schedule.Restore(spec, created)
	if err == nil || !strings.HasPrefix(err.Error(), "the schedule is not valid: cron has 4 of five fields") {
		t.Errorf("the error reads %v", err)
	}
	checkRefused(t, spec, err, []string{"cron: has 4 of five fields"})
}

func TestDescribe(t *testing.T) {
	t.Parallel()
	berlin := func(cron string) schedule.Spec { return schedule.Spec{Cron: cron, Timezone: "Europe/Berlin"} }
	tests := []struct {
		spec schedule.Spec
		want string
	}{
		{schedule.Spec{Cron: "* * * * *", Timezone: "America/Los_Angeles"}, "every minute"},
		{berlin("0 9 * * 1-5"), "every weekday at 09:00 in Europe/Berlin"},
		{schedule.Spec{Cron: "30 8 * * MON#1", Timezone: "Europe/London"}, "on the first Monday of each month at 08:30 in Europe/London"},
		{berlin("0 17 * * FRIL"), "on the last Friday of each month at 17:00 in Europe/Berlin"},
		{berlin("*/15 * * * *"), "every 15 minutes in Europe/Berlin"},
		{berlin("*/45 * * * *"), "at minutes 0 and 45 of every hour in Europe/Berlin"},
		{berlin("@hourly"), "every hour in Europe/Berlin"},
		{berlin("30 * * * *"), "at minute 30 of every hour in Europe/Berlin"},
		{berlin("@daily"), "every day at 00:00 in Europe/Berlin"},
		{berlin("@weekly"), "every Sunday at 00:00 in Europe/Berlin"},
		{berlin("@monthly"), "on the 1st of each month at 00:00 in Europe/Berlin"},
		{berlin("@yearly"), "on the 1st of January at 00:00 in Europe/Berlin"},
		{berlin("0 */2 * * *"), "every 2 hours in Europe/Berlin"},
		{berlin("30 */6 * * *"), "every 6 hours at minute 30 in Europe/Berlin"},
		{berlin("0,30 0,12 * * *"), "every day at 00:00, 00:30, 12:00 and 12:30 in Europe/Berlin"},
		{berlin("0 9-17 * * *"), "every hour from 09:00 to 17:00 in Europe/Berlin"},
		{berlin("*/5 9-17 * * MON-FRI"), "every weekday, every 5 minutes from 09:00 to 17:55, in Europe/Berlin"},
		{berlin("* 3 * * *"), "every minute from 03:00 to 03:59 in Europe/Berlin"},
		{berlin("5/20 3,5,9,11 * * 6,0"), "every Saturday and Sunday, at minutes 5, 25 and 45 of hours 3, 5, 9 and 11, in Europe/Berlin"},
		{berlin("0 0 1,15,22-24 * *"), "on the 1st, 15th and 22nd to 24th of each month at 00:00 in Europe/Berlin"},
		{berlin("0 0 11-12,L * *"), "on the 11th, 12th and the last day of each month at 00:00 in Europe/Berlin"},
		{berlin("0 0 * 6-8 *"), "every day in June to August at 00:00 in Europe/Berlin"},
		{berlin("*/15 * * 6 *"), "every day in June, every 15 minutes, in Europe/Berlin"},
		{berlin("0 9 * 6 MON"), "every Monday in June at 09:00 in Europe/Berlin"},
		{berlin("0 9 1-7 * MON"), "on the 1st to 7th of each month, and on every Monday, at 09:00 in Europe/Berlin"},
		{berlin("0 9 1 6 MON"), "on the 1st of June, and on every Monday in June, at 09:00 in Europe/Berlin"},
		{berlin("0 0 */2 * 3"), "on every Wednesday, where it is the 1st, 3rd and so on to 31st of each month, at 00:00 in Europe/Berlin"},
		{berlin("0 0 1-31 * 4"), "every day at 00:00 in Europe/Berlin"},
		{berlin("0 9 * * 0-6"), "every day at 09:00 in Europe/Berlin"},
		{berlin("0 9 * * 7,TUE#2"), "on every Sunday and the second Tuesday of each month at 09:00 in Europe/Berlin"},
		{berlin("0 9 * * MON#1,wed#1,TUE#5"), "on the first Monday and Wednesday of each month and the fifth Tuesday of each month at 09:00 in Europe/Berlin"},
		{berlin("0 9 * 2 SATL,7L"), "on the last Saturday and Sunday of February at 09:00 in Europe/Berlin"},
		{schedule.Spec{Every: "90m"}, "every 90 minutes"},
		{schedule.Spec{Every: "1h30m"}, "every 90 minutes"},
		{schedule.Spec{Every: "1h"}, "every hour"},
		{schedule.Spec{Every: "60s"}, "every minute"},
		{schedule.Spec{Every: "61s"}, "every 61 seconds"},
		{schedule.Spec{Every: "24h", Anchor: "2026-12-01T01:00:00+01:00"}, "every 24 hours, counted from 1 December 2026 at 00:00 in UTC"},
		{schedule.Spec{At: "2026-12-02T07:00", Timezone: "Europe/Berlin"}, "once, on 2 December 2026 at 07:00 in Europe/Berlin"},
		{schedule.Spec{At: "2026-12-02T07:00:05+01:00"}, "once, on 2 December 2026 at 06:00:05 in UTC"},
	}
	for _, c := range tests {
		if got := parse(t, c.spec, at(t, saved)).Describe(); got != c.want {
			t.Errorf("%+v:\n got %q\nwant %q", c.spec, got, c.want)
		}
	}
	now := at(t, saved)
	never := schedule.Timing{}
	if got := never.Describe(); got != "never" {
		t.Errorf("the zero timing is %q", got)
	}
	if _, ok := never.Latest(now, now.AddDate(1, 0, 0)); ok || never.Count(now, now.AddDate(1, 0, 0)) != 0 {
		t.Error("the zero timing fires")
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	berlin := func(cron string) schedule.Spec { return schedule.Spec{Cron: cron, Timezone: "Europe/Berlin"} }
	utc := func(cron string) schedule.Spec { return schedule.Spec{Cron: cron, Timezone: "UTC"} }
	tests := []struct {
		spec schedule.Spec
		want []string
	}{
		{utc("0 9 * * 1-5"), nil},
		{utc("*/15 */6 * */3 *"), nil},
		{utc("5/20 * * * *"), nil}, // 5, 25, 45, and 5 again: even
		{utc("9-17/2 9-17/3 * * *"), nil},
		{utc("*/45 * * * *"), []string{`cron: the step of the minute "*/45" does not divide its range: it selects 0 and 45`}},
		{utc("0 */5 * * *"), []string{`cron: the step of the hour "*/5"`}},
		{utc("0 0 */2 * *"), []string{"cron: begins again at 1"}},
		{utc("0 0 * * 1/2"), []string{"cron: it selects 1, 3, 5 and 7, and begins again at 1"}},
		{utc("30/20 * * * *"), []string{"cron: it selects 30 and 50, and begins again at 30"}},
		{utc("*/100 * * * *"), []string{"cron: it selects only 0"}},
		{utc("10-40/7 * * * *"), []string{"cron: it selects 10, 17 and so on to 38"}},
		{utc("0 9 1-7 * MON"), []string{"cron: fires when the day of month OR the day of week matches: on the 1st to 7th of each month, and on every Monday;"}},
		{utc("0 0 1-31 * 4"), []string{"cron: which together is every day;"}},
		{utc("30 2 * * *"), nil},
		// Fixed-time: what happens and when, for two years.
		{berlin("30 2 * * *"), []string{
			"cron: on 28 March 2027 02:30 does not exist in Europe/Berlin, where the clocks go from 02:00 to 03:00: it fires at 03:00 (2027-03-28T01:00:00Z)",
			"cron: on 31 October 2027 02:30 comes twice in Europe/Berlin, where the clocks go back from 03:00 to 02:00: it fires at the first of the two",
			"cron: on 26 March 2028 02:30 does not exist", "cron: on 29 October 2028 02:30 comes twice",
		}},
		{berlin("0 3 * * *"), nil}, // right after
		{berlin("0 2 * 3 *"), []string{"cron: on 28 March 2027", "cron: on 26 March 2028"}},
		{berlin("0 2 * * MON"), nil},
		{schedule.Spec{Cron: "30 0 * * *", Timezone: "Africa/Casablanca"}, nil},
		// Not fixed-time.
		{berlin("*/20 2 * 1-5 *"), []string{
			"cron: on 28 March 2027 02:00 does not exist in Europe/Berlin, where the clocks go from 02:00 to 03:00: such times do not fire on that day",
			"cron: on 26 March 2028",
		}},
		{berlin("* 2 * 10 *"), []string{"cron: it fires at both", "cron: it fires at both"}},
		{berlin("*/20 * * * *"), nil}, // it just continues
		{berlin("15 * * * *"), nil},
		// Local times.
		{schedule.Spec{At: "2027-03-14T02:30", Timezone: "America/New_York"}, []string{
			"at: 14 March 2027 at 02:30 does not exist in America/New_York; it fires at 03:00 (2027-03-14T07:00:00Z)",
		}},
		{schedule.Spec{At: "2027-11-07T01:59:59", Timezone: "America/New_York"}, []string{
			"at: 7 November 2027 at 01:59:59 comes twice in America/New_York; it fires at the first of the two (2027-11-07T05:59:59Z)",
		}},
		{schedule.Spec{At: "2027-11-07T02:00", Timezone: "America/New_York"}, nil},
		{schedule.Spec{At: "2027-11-07T00:59", Timezone: "America/New_York"}, nil},
		{schedule.Spec{At: "2027-03-14T03:00", Timezone: "America/New_York"}, nil},
		{schedule.Spec{Every: "7h"}, nil},
	}
	now := at(t, saved)
	for _, c := range tests {
		_, warnings, err := schedule.Parse(c.spec, now, now)
		if err != nil {
			t.Errorf("%+v: %v", c.spec, err)
		}
		var got []string
		for _, w := range warnings {
			got = append(got, w.Path+": "+w.Message)
		}
		if !slices.EqualFunc(got, c.want, says) {
			t.Errorf("%+v:\n got %q\nwant %q", c.spec, got, c.want)
		}
	}
}

func TestEveryAndAt(t *testing.T) {
	t.Parallel()
	tests := []struct {
		why         string
		spec        schedule.Spec
		after, next string
	}{
		{"from the creation, cut to the second", schedule.Spec{Every: "90m"}, saved, "2026-12-01T12:00:15Z 2026-12-01T13:30:15Z"},
		{"strictly after", schedule.Spec{Every: "90m"}, "2026-12-01T12:00:15Z", "2026-12-01T13:30:15Z"},
		{"within the second before", schedule.Spec{Every: "20s"}, "2026-12-01T12:00:14.999999Z", "2026-12-01T12:00:15Z"},
		{"an anchor in the past", schedule.Spec{Every: "2h", Anchor: "2020-01-01T00:30:00.9Z"}, saved, "2026-12-01T12:30:00Z 2026-12-01T14:30:00Z"},
		{"an anchor in the future", schedule.Spec{Every: "24h", Anchor: "2027-06-01T06:00:00+02:00"}, saved, "2026-12-02T04:00:00Z"},
		{"across a change of clocks", schedule.Spec{Every: "24h", Anchor: "2027-03-27T08:00:00Z"}, "2027-03-27T00:00:00Z", "2027-03-27T08:00:00Z 2027-03-28T08:00:00Z"},
		{"an instant", schedule.Spec{At: "2026-12-02T07:00:00.999+01:00"}, saved, "2026-12-02T06:00:00Z"},
		{"a local time", schedule.Spec{At: "2026-12-02T07:00", Timezone: "Asia/Kathmandu"}, saved, "2026-12-02T01:15:00Z"},
		{"a local time in a gap", schedule.Spec{At: "2027-09-05T00:10", Timezone: "America/Santiago"}, saved, "2027-09-05T04:00:00Z"},
		{"a local time that comes twice", schedule.Spec{At: "2027-10-31T02:30", Timezone: "Europe/Berlin"}, saved, "2027-10-31T00:30:00Z"},
		{"a local time just before it comes twice", schedule.Spec{At: "2027-10-31T01:59:59", Timezone: "Europe/Berlin"}, saved, "2027-10-30T23:59:59Z"},
		{"a local time just after it came twice", schedule.Spec{At: "2027-10-31T03:00", Timezone: "Europe/Berlin"}, saved, "2027-10-31T02:00:00Z"},
	}
	for _, c := range tests {
		timing := parse(t, c.spec, at(t, saved))
		var want []time.Time
		for text := range strings.FieldsSeq(c.next) {
			want = append(want, at(t, text))
		}
		after := at(t, c.after)
		got := timing.Between(after, after.AddDate(1, 0, 0), len(want))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.why, diff)
		}
		last := want[len(want)-1]
		if n := timing.Count(after, last); n != int64(len(want)) {
			t.Errorf("%s: counted %d of %d", c.why, n, len(want))
		}
		if latest, ok := timing.Latest(after, last.Add(500*time.Millisecond)); !ok || !latest.Equal(last) {
			t.Errorf("%s: the latest is %v, want %v", c.why, latest, last)
		}
		if latest, ok := timing.Latest(last, last.Add(500*time.Millisecond)); ok {
			t.Errorf("%s: nothing is after the last, but %v", c.why, latest)
		}
	}
}

// TestEnds looks at the ends of time, where nothing may overflow.
func TestEnds(t *testing.T) {
	t.Parallel()
	now := at(t, saved)
	first, last := time.Date(-5000, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(200_000, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, spec := range []schedule.Spec{
		{Cron: "* * * * *", Timezone: "Europe/Berlin"},
		{Cron: "0 9 29 2 *", Timezone: "America/New_York"},
		{Every: "1s"},
		{Every: "2000000h", Anchor: "9999-12-31T23:59:59Z"},
		{At: "9999-12-31T23:59:59Z"},
	} {
		timing := parse(t, spec, now)
		if next, ok := timing.Next(first); !ok || next.Year() < 1 {
			t.Errorf("%+v: the first instant is %v", spec, next)
		}
		latest, ok := timing.Latest(now, last)
		if !ok || latest.Year() < 9990 || latest.Year() > 9999 {
			t.Errorf("%+v: the last instant is %v", spec, latest)
		}
		if next, ok := timing.Next(latest); ok {
			t.Errorf("%+v: %v is after the last instant, %v", spec, next, latest)
		}
		if _, ok := timing.Next(last); ok {
			t.Errorf("%+v fires after the last year", spec)
		}
		if n := timing.Count(last, first); n != 0 {
			t.Errorf("%+v: counted %d backwards", spec, n)
		}
		if n := timing.Count(first, last); n < 1 {
			t.Errorf("%+v: counted %d in all", spec, n)
		}
	}
	_, _, err := schedule.Parse(schedule.Spec{Every: "1s"}, now, time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC))
	checkRefused(t, schedule.Spec{Every: "1s"}, err, []string{"every: no instant before the year 10000"})
	if got := parse(t, schedule.Spec{Every: "1s"}, now).Count(now, now.Add(30*24*time.Hour)); got != 30*24*3600 {
		t.Errorf("counted %d seconds in 30 days", got)
	}
}

func TestEqual(t *testing.T) {
	t.Parallel()
	now := at(t, saved)
	cronIn := func(cron, zone string) schedule.Spec { return schedule.Spec{Cron: cron, Timezone: zone} }
	tests := []struct {
		a, b schedule.Spec
		want bool
	}{
		{cronIn("0 9 * * 1-5", "Europe/Berlin"), cronIn("00  09 * * MON-FRI", "Europe/Berlin"), true},
		{cronIn("@daily", "UTC"), cronIn("0 0 * * *", "UTC"), true},
		{cronIn("0 9 * * *", "Europe/Berlin"), cronIn("0 9 * * *", "Europe/Paris"), false},
		{cronIn("0 9 * * *", "UTC"), cronIn("0 10 * * *", "UTC"), false},
		{cronIn("0 9 */1 * MON", "UTC"), cronIn("0 9 1-31 * MON", "UTC"), false}, // AND, OR
		{cronIn("0 9 * * *", "UTC"), cronIn("0 9 1-31 * MON", "UTC"), true},
		{cronIn("0 9 * * 0-7", "UTC"), cronIn("0 9 */1,L * *", "UTC"), true},
		{cronIn("0 9 1 * 0-6", "UTC"), cronIn("0 9 1 * *", "UTC"), false},
		{cronIn("0 9 1 * *", "UTC"), cronIn("0 9 1 * */1,FRIL", "UTC"), true},
		{cronIn("0 0-23 * * *", "Europe/Berlin"), cronIn("0 * * * *", "Europe/Berlin"), false}, // fixed-time or not
		{schedule.Spec{Every: "90m"}, schedule.Spec{Every: "1h30m"}, true},
		{schedule.Spec{Every: "90m"}, schedule.Spec{Every: "90m", Anchor: "2026-12-01T10:30:15Z"}, true},
		{schedule.Spec{Every: "1h"}, schedule.Spec{Every: "1h", Anchor: "2020-01-01T00:30:15Z"}, true},
		{schedule.Spec{Every: "1h"}, schedule.Spec{Every: "1h", Anchor: "2020-01-01T00:30:16Z"}, false},
		{schedule.Spec{Every: "1h"}, cronIn("@hourly", "UTC"), false},
		{schedule.Spec{At: "2026-12-02T07:00:00Z"}, schedule.Spec{At: "2026-12-02T07:00", Timezone: "UTC"}, true},
		{schedule.Spec{At: "2026-12-02T07:00:00Z"}, schedule.Spec{At: "2026-12-02T07:00:01Z"}, false},
	}
	for _, c := range tests {
		a, b := parse(t, c.a, now), parse(t, c.b, now)
		if a.Equal(b) != c.want || b.Equal(a) != c.want {
			t.Errorf("%+v and %+v: equal is not %v", c.a, c.b, c.want)
		}
		if !a.Equal(a) || a.Equal(schedule.Timing{}) || a.Spec() != c.a {
			t.Errorf("%+v is not itself", c.a)
		}
	}
}

func TestInput(t *testing.T) {
	t.Parallel()
	type input struct {
		schedule.SpecInput
		schedule.PolicyInput
	}
	decode := func(text string) (input, []string) {
		var in input
		var found []string
		for _, v := range strictjson.Unmarshal([]byte(text), &in) {
			found = append(found, v.Path+": "+v.Message)
		}
		return in, found
	}

	in, found := decode(`{"cron":"0 9 * * 1-5","timezone":"Europe/Berlin","every":null,"maxOccurrences":10,
		"overlap":"queue_one","catchUp":"all","catchUpWindowMs":60000,"jitterMs":500}`)
	if found != nil {
		t.Fatal(found)
	}
	if want := (schedule.Spec{Cron: "0 9 * * 1-5", Timezone: "Europe/Berlin"}); in.Spec() != want {
		t.Errorf("read %+v", in.Spec())
	}
	want := schedule.Policy{
		Overlap: schedule.OverlapQueueOne, CatchUp: schedule.CatchUpAll, CatchUpWindow: time.Minute,
		Jitter: 500 * time.Millisecond, MaxOccurrences: 10,
	}
	if in.Policy() != want {
		t.Errorf("read %+v", in.Policy())
	}

	in, found = decode(`{"every":"1h","maxOccurrences":null,"overlap":null,"catchUp":null,"catchUpWindowMs":null,"jitterMs":null}`)
	if found != nil || in.Policy() != schedule.DefaultPolicy() {
		t.Errorf("null is not the default: %+v %q", in.Policy(), found)
	}
	if want := (schedule.Policy{Overlap: "queue", CatchUp: "latest", CatchUpWindow: 24 * time.Hour}); in.Policy() != want {
		t.Errorf("the defaults are %+v", in.Policy())
	}

	if _, found = decode(`{"overlap":5}`); len(found) != 1 || !says(found[0], "overlap: must be a string") {
		t.Errorf("a number as overlap: %q", found)
	}
	_, found = decode(`{"cron":"","at":" ","Cron":"x","every":90,"maxOccurrences":0,"overlap":"Skip","catchUp":"last",
		"catchUpWindowMs":31622400001,"jitterMs":-1}`)
	for i, want := range []string{
		"cron: is empty", "at: is empty", `Cron: did you mean "cron"?`, "every: must be a string", "maxOccurrences: is 0; write a number from 1",
		`overlap: write one of ["queue" "parallel" "skip" "queue_one" "cancel_running"]`, `catchUp: write one of ["latest" "all" "none"]`,
		"catchUpWindowMs: to 31622400000 (366 days)", "jitterMs: is -1; write a number from 0 to 86400000 (24 hours)",
	} {
		if i >= len(found) || !says(found[i], want) {
			t.Fatalf("got %q, want %q at %d", found, want, i)
		}
	}
}
