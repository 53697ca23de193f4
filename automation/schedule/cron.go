package schedule

import (
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// maxCronBytes bounds a cron expression. Every list of values of all five fields is shorter.
const maxCronBytes = 1_000

// fieldKind is one of the five fields of an expression.
type fieldKind struct {
	name     string
	min, max int
	cycle    int      // after how many values the field begins again, at most
	names    []string // names of the values from min on
}

var (
	minuteField  = fieldKind{name: "minute", min: 0, max: 59, cycle: 60}
	hourField    = fieldKind{name: "hour", min: 0, max: 23, cycle: 24}
	dayField     = fieldKind{name: "day of month", min: 1, max: 31, cycle: 31}
	monthField   = fieldKind{name: "month", min: 1, max: 12, cycle: 12, names: monthNames}
	weekdayField = fieldKind{name: "day of week", min: 0, max: 7, cycle: 7, names: weekdayNames}

	monthNames   = []string{"JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"}
	weekdayNames = []string{"SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"}
)

var nicknames = map[string]string{
	"@hourly":   "0 * * * *",
	"@daily":    "0 0 * * *",
	"@midnight": "0 0 * * *",
	"@weekly":   "0 0 * * 0",
	"@monthly":  "0 0 1 * *",
	"@yearly":   "0 0 1 1 *",
	"@annually": "0 0 1 1 *",
}

const cronForm = "write five fields (minute, hour, day of month, month, day of week), such as `0 9 * * 1-5`"

// cronParser reads one expression and notes everything that is wrong with it.
type cronParser struct {
	problems []string
	warnings []string
}

func (p *cronParser) refuse(format string, args ...any) {
	p.problems = append(p.problems, fmt.Sprintf(format, args...))
}

func (p *cronParser) warn(format string, args ...any) {
	p.warnings = append(p.warnings, fmt.Sprintf(format, args...))
}

// parse returns the expression as sets; it is meaningless when there are problems.
func (p *cronParser) parse(text string) table {
	text = strings.Trim(text, " \t")
	if text == "" {
		p.refuse("is empty; %s", cronForm)
		return table{}
	}
	if len(text) > maxCronBytes {
		p.refuse("is %d bytes; an expression may have %d", len(text), maxCronBytes)
		return table{}
	}
	if !utf8.ValidString(text) || strings.ContainsFunc(text, unseen) {
		p.refuse("has a character that cannot be seen, in %q; separate the fields by spaces", text)
		return table{}
	}
	if text[0] == '@' {
		full, ok := nicknames[text]
		if !ok {
			p.nickname(text)
			return table{}
		}
		text = full
	}
	fields := strings.FieldsFunc(text, separates)
	if !p.checkFields(fields) {
		return table{}
	}
	return p.table(fields)
}

// separates reports whether r stands between fields.
func separates(r rune) bool { return r == ' ' || r == '\t' }

// unseen reports whether r is a character that looks like a space, or like nothing, and does not separate fields.
func unseen(r rune) bool {
	return !separates(r) && (unicode.IsSpace(r) || !unicode.IsGraphic(r))
}

// nickname says what to write instead of one that is not known.
func (p *cronParser) nickname(text string) {
	name, rest, _ := strings.Cut(text, " ")
	switch lower := strings.ToLower(name); {
	case nicknames[lower] != "" && rest == "":
		p.refuse("%q is written in lower case: %s", text, lower)
	case nicknames[lower] != "":
		p.refuse("%q has more after the %s; write one or the other", text, lower)
	case lower == "@every":
		every := strings.TrimSpace(rest)
		if _, err := parseEvery(every); err != nil {
			every = "5m"
		}
		p.refuse("%q is not a cron expression; leave cron out and write \"every\": %q", text, every)
	case lower == "@reboot":
		p.refuse("@reboot is not a time; %s, or leave the schedule out and run the automation when the machine starts", cronForm)
	default:
		p.refuse("%q is not known; write @hourly, @daily, @midnight, @weekly, @monthly, @yearly or @annually, or %s",
			text, cronForm)
	}
}

// checkFields reports whether there are five fields, and else says what to write instead.
func (p *cronParser) checkFields(fields []string) bool {
	first := fields[0]
	if zone, ok := strings.CutPrefix(strings.TrimPrefix(first, "CRON_"), "TZ="); ok {
		p.refuse("%q does not belong in cron; write \"timezone\": %q and \"cron\": %q",
			first, zone, strings.Join(fields[1:], " "))
		return false
	}
	n := len(fields)
	for i, f := range fields {
		if f[0] == '#' {
			p.refuse("has a comment, %q; leave it out (# is for the day of week only, as in MON#2)",
				strings.Join(fields[i:], " "))
			return false
		}
	}
	switch {
	case n == 5:
		return true
	case n < 5:
		p.refuse("has %d of five fields; %s", n, cronForm)
	case n > 7:
		p.refuse("has %d fields; %s", n, cronForm)
	case n == 6 && isYear(fields[5]):
		p.refuse("has 6 fields; there is no year: write `%s`, or for a single time leave cron out and use \"at\"",
			strings.Join(fields[:5], " "))
	default:
		p.refuse("has %d fields; there are no seconds and no years: write `%s`, and for seconds leave cron out and "+
			"use \"every\", such as \"20s\"", n, strings.Join(fields[1:6], " "))
	}
	return false
}

func isYear(field string) bool {
	n, err := strconv.Atoi(field[:min(len(field), 4)])
	return err == nil && n >= 1970
}

func (p *cronParser) table(fields []string) table {
	star := func(i int) bool { return fields[i][0] == '*' }
	t := table{
		starDay:     star(2),
		starWeekday: star(4),
		fixed:       !star(0) && !star(1),
	}
	t.minutes = p.field(minuteField, fields[0], nil)
	t.hours = p.field(hourField, fields[1], nil)
	t.days = p.field(dayField, fields[2], func(item string) bool { return p.lastDay(item, &t) })
	t.months = p.field(monthField, fields[3], nil)
	weekdays := p.field(weekdayField, fields[4], func(item string) bool { return p.weekdayOfMonth(item, &t) })
	t.weekdays = foldSunday(weekdays)
	return t
}

// foldSunday makes 7 another name of 0.
func foldSunday(weekdays uint64) uint64 {
	return weekdays&allWeekdays | weekdays>>7&1
}

// field reads a list of items. special reads what only this field knows, and returns false for anything else.
func (p *cronParser) field(kind fieldKind, text string, special func(item string) bool) uint64 {
	var set uint64
	for item := range strings.SplitSeq(text, ",") {
		switch {
		case item == "":
			p.refuse("the %s %q has an empty item in its list; write values between its commas", kind.name, text)
			return 0
		case p.unsupported(kind, item):
		case special != nil && special(item):
		default:
			set |= p.item(kind, item)
		}
	}
	return set
}

// unsupported refuses what other programs know, and says what to write instead.
func (p *cronParser) unsupported(kind fieldKind, item string) bool {
	switch {
	case strings.Contains(item, "?"):
		p.refuse("the %s %q has a ?; write *", kind.name, item)
	case strings.Contains(item, "#") && kind.name != weekdayField.name:
		p.refuse("the %s %q has a #, which is for the day of week only, as in MON#2", kind.name, item)
	case strings.Contains(item, "~"):
		p.refuse("the %s %q has a ~; write one value, and use jitterMs to spread firings", kind.name, item)
	case item[0] == 'H' && (len(item) == 1 || strings.ContainsAny(item[1:2], "(/")):
		p.refuse("the %s %q has an H; write a value, and use jitterMs to spread firings", kind.name, item)
	default:
		return false
	}
	return true
}

// lastDay reads L, and refuses what is like it.
func (p *cronParser) lastDay(item string, t *table) bool {
	upper := strings.ToUpper(item)
	switch {
	case upper == "L":
		t.lastDay = true
	case upper == "LW":
		p.refuse("the day of month %q is not supported; write L for the last day of the month, or for the last Friday "+
			"write FRIL as the day of week", item)
	case strings.HasSuffix(upper, "W"):
		p.refuse("the day of month %q is not supported; write a day such as 15, or a day of week such as MON#3", item)
	case strings.HasPrefix(upper, "L-"), strings.HasPrefix(upper, "L/"):
		p.refuse("the day of month %q is not supported; write L for the last day of the month, or days such as 28", item)
	default:
		return false
	}
	return true
}

// weekdayOfMonth reads MON#2 and FRIL.
func (p *cronParser) weekdayOfMonth(item string, t *table) bool {
	name, nth, hash := strings.Cut(item, "#")
	upper := strings.ToUpper(item)
	switch {
	case hash && strings.ContainsAny(nth, "#-/*L") || hash && strings.ContainsAny(name, "-/*"):
		p.refuse("the day of week %q is malformed; write one day and a number from 1 to 5, such as MON#2", item)
	case hash:
		n, err := strconv.Atoi(nth)
		if err != nil || !digits(nth) || n < 1 || n > 5 {
			p.refuse("the day of week %q is malformed; the number after # is from 1 to 5, such as MON#2", item)
			return true
		}
		if day, ok := p.value(weekdayField, item, name); ok {
			t.nth[n] |= foldSunday(1 << day)
		}
	case upper == "L":
		p.refuse("the day of week %q needs a day; write SATL for the last Saturday of the month, or SAT for every one", item)
	case strings.HasSuffix(upper, "L") && !strings.ContainsAny(item, "-/*"):
		if day, ok := p.value(weekdayField, item, item[:len(item)-1]); ok {
			t.last |= foldSunday(1 << day)
		}
	case strings.HasSuffix(upper, "L"):
		p.refuse("the day of week %q is malformed; L follows one day, such as FRIL for the last Friday of the month", item)
	default:
		return false
	}
	return true
}

// item reads *, a, a-b, each with an optional step.
func (p *cronParser) item(kind fieldKind, item string) uint64 {
	base, step, stepped := strings.Cut(item, "/")
	by := 1
	if stepped {
		var ok bool
		if by, ok = p.step(kind, item, step); !ok {
			return 0
		}
	}
	low, high, ok := p.bounds(kind, item, base, stepped)
	if !ok {
		return 0
	}
	var set uint64
	var values []int
	for v := low; v <= high; v += by {
		set |= 1 << v
		values = append(values, v)
	}
	if by > 1 {
		p.uneven(kind, item, values, by, high, strings.Contains(base, "-"))
	}
	return set
}

func (p *cronParser) step(kind fieldKind, item, step string) (int, bool) {
	by, err := strconv.Atoi(step)
	switch {
	case !digits(step):
		p.refuse("the %s %q is malformed; a step is one number, such as */5", kind.name, item)
	case err != nil:
		p.refuse("the %s %q has too large a step; the field goes from %d to %d", kind.name, item, kind.min, kind.max)
	case by == 0:
		p.refuse("the %s %q has the step 0; a step is at least 1", kind.name, item)
	default:
		return by, true
	}
	return 0, false
}

// bounds returns the first and the last value of a range.
func (p *cronParser) bounds(kind fieldKind, item, base string, stepped bool) (low, high int, ok bool) {
	if base == "*" {
		if kind.name == weekdayField.name {
			return 0, 6, true
		}
		return kind.min, kind.max, true
	}
	from, to, ranged := strings.Cut(base, "-")
	if strings.Contains(base, "*") || ranged && (from == "" || to == "" || strings.Contains(to, "-")) {
		p.refuse("the %s %q is malformed; write *, a value, a range such as %d-%d, or a list of these",
			kind.name, item, kind.min+1, kind.min+5)
		return 0, 0, false
	}
	low, ok = p.value(kind, item, from)
	high = low
	switch {
	case ranged:
		var okTo bool
		high, okTo = p.value(kind, item, to)
		ok = ok && okTo
	case stepped:
		high = kind.max
	}
	if ok && low > high {
		p.refuse("the %s %q starts after its end; write %s", kind.name, item, unwrapped(kind, low, high))
		return 0, 0, false
	}
	return low, high, ok
}

// unwrapped returns the two ranges that a range across the end of the field stands for.
func unwrapped(kind fieldKind, low, high int) string {
	span := func(from, to int) string {
		if from == to {
			return strconv.Itoa(from)
		}
		return fmt.Sprintf("%d-%d", from, to)
	}
	if kind.name == weekdayField.name {
		if high == 0 {
			return span(low, 7)
		}
		return span(low, 6) + "," + span(0, high)
	}
	return span(low, kind.max) + "," + span(kind.min, high)
}

// value reads one number or name.
func (p *cronParser) value(kind fieldKind, item, text string) (int, bool) {
	if digits(text) {
		n, err := strconv.Atoi(text)
		if err != nil || n < kind.min || n > kind.max {
			p.refuse("the %s %q is out of range; it goes from %d to %d", kind.name, item, kind.min, kind.max)
			return 0, false
		}
		return n, true
	}
	upper := strings.ToUpper(text)
	if i := slices.Index(kind.names, upper); i >= 0 {
		return kind.min + i, true
	}
	if i := slices.IndexFunc(kind.names, func(name string) bool { return strings.HasPrefix(upper, name) }); i >= 0 {
		p.refuse("the %s %q is not a name; did you mean %s?", kind.name, item, kind.names[i])
		return 0, false
	}
	if kind.names != nil {
		p.refuse("the %s %q is neither a number from %d to %d nor one of %s to %s", kind.name, item,
			kind.min, kind.max, kind.names[0], kind.names[len(kind.names)-1])
		return 0, false
	}
	p.refuse("the %s %q is not a number from %d to %d", kind.name, item, kind.min, kind.max)
	return 0, false
}

func digits(text string) bool {
	return text != "" && strings.Trim(text, "0123456789") == ""
}

// uneven warns about a step after which the distances are not equal.
func (p *cronParser) uneven(kind fieldKind, item string, values []int, by, high int, ranged bool) {
	first, last := values[0], values[len(values)-1]
	switch {
	case len(values) == 1:
		p.warn("the step of the %s %q does not divide its range: it selects only %d", kind.name, item, first)
	case ranged:
		if (high-first)%by != 0 && (high-first+1)%by != 0 {
			p.warn("the step of the %s %q does not divide its range: it selects %s", kind.name, item, numbers(values))
		}
	case first+kind.cycle-last != by:
		p.warn("the step of the %s %q does not divide its range: it selects %s, and begins again at %d",
			kind.name, item, numbers(values), first)
	}
}

// values returns the positions of the bits that are set.
func values(set uint64) []int {
	list := make([]int, 0, bits.OnesCount64(set))
	for ; set != 0; set &= set - 1 {
		list = append(list, bits.TrailingZeros64(set))
	}
	return list
}

// parseEvery reads a duration of whole seconds, at least one.
func parseEvery(text string) (int64, error) {
	const form = "write a duration such as 90m, 20s or 1h30m"
	d, err := time.ParseDuration(text)
	switch {
	case err != nil && strings.HasSuffix(text, "d") && digits(strings.TrimSuffix(text, "d")):
		days, err := strconv.Atoi(strings.TrimSuffix(text, "d"))
		if err != nil || days > 100_000 {
			return 0, fmt.Errorf("%q is not a duration; %s", text, form)
		}
		return 0, fmt.Errorf("%q is not a duration, since days differ in length; write %dh, or use cron for a time of day",
			text, days*24)
	case err != nil && digits(text):
		return 0, fmt.Errorf("%q has no unit; %s", text, form)
	case err != nil || text[0] == '+':
		return 0, fmt.Errorf("%q is not a duration; %s", text, form)
	case d < time.Second:
		return 0, fmt.Errorf("%q is less than a second; %s", text, form)
	case d%time.Second != 0:
		return 0, fmt.Errorf("%q is not a whole number of seconds; %s", text, form)
	}
	return int64(d / time.Second), nil
}
