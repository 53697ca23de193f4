package schedule

import (
	"fmt"
	"strings"
	"time"

	"github.com/errandhq/errand/internal/strictjson"
)

// Violation is one thing that is wrong with a schedule. Its path is relative to the schedule's object.
type Violation = strictjson.Violation

// Warning is something that its author may not have meant, in a schedule that is accepted.
type Warning = strictjson.Violation

// InvalidError refuses a schedule.
type InvalidError struct {
	// Violations are everything that is wrong; each says what to write instead.
	Violations []Violation
}

// Error returns the violations in one line.
func (e *InvalidError) Error() string {
	texts := make([]string, len(e.Violations))
	for i, v := range e.Violations {
		texts[i] = strings.TrimSpace(v.Path + " " + v.Message)
	}
	return "the schedule is not valid: " + strings.Join(texts, "; ")
}

// Spec says when a schedule fires, as its author wrote it. Exactly one of Cron, Every and At is not empty.
type Spec struct {
	// Cron is five fields or a nickname; it needs a Timezone.
	Cron string `json:"cron,omitempty"`
	// Timezone is an IANA name: the zone of Cron, or of an At that is a local time.
	Timezone string `json:"timezone,omitempty"`
	// Every is a duration of whole seconds, such as 90m.
	Every string `json:"every,omitempty"`
	// Anchor is an RFC 3339 instant that Every is aligned to; empty is the schedule's creation.
	Anchor string `json:"anchor,omitempty"`
	// At is an RFC 3339 instant, or a local time such as 2026-12-02T07:00 with a Timezone.
	At string `json:"at,omitempty"`
}

// SpecInput is the members of a [Spec] as they are sent, made to be embedded in the input of a command. null is the
// same as absent.
type SpecInput struct {
	Cron     *Text `json:"cron" doc:"five fields (minute, hour, day of month, month, day of week) or @daily and the like; needs timezone"`
	Timezone *Text `json:"timezone" doc:"IANA name, such as Europe/Berlin; for cron, and for an at that is a local time"`
	Every    *Text `json:"every" doc:"a duration of whole seconds, such as 90m, 20s or 1h30m"`
	Anchor   *Text `json:"anchor" doc:"RFC 3339 instant that every is aligned to; default: the creation of the schedule"`
	At       *Text `json:"at" doc:"RFC 3339 instant, or a local time such as 2026-12-02T07:00 with timezone; fires once"`
}

// Spec returns what was sent.
func (in SpecInput) Spec() Spec {
	return Spec{
		Cron:     in.Cron.value(),
		Timezone: in.Timezone.value(),
		Every:    in.Every.value(),
		Anchor:   in.Anchor.value(),
		At:       in.At.value(),
	}
}

// Text is a member of a [SpecInput]: a string that is not empty.
type Text string

// UnmarshalStrict implements [strictjson.Unmarshaler].
func (t *Text) UnmarshalStrict(v strictjson.Value) {
	if v.Decode((*string)(t)) && strings.TrimSpace(string(*t)) == "" {
		v.Report("is empty; leave it out or give it a value")
	}
}

func (t *Text) value() string {
	if t == nil {
		return ""
	}
	return string(*t)
}

// Parse returns the timing of a schedule that is saved at the time now and was created at the time created, with
// warnings about it. The error is an [*InvalidError] with all violations: what [Restore] refuses, an instant that is
// not in the future, and an expression that never fires. A schedule that is saved again with the spec it has is
// restored, not parsed: its one instant may be past by then.
func Parse(spec Spec, created, now time.Time) (Timing, []Warning, error) {
	p := &specParser{spec: spec, created: created}
	timing := p.parse()
	if len(p.violations) == 0 {
		p.checkFires(timing, now)
	}
	if len(p.violations) > 0 {
		return Timing{}, nil, &InvalidError{Violations: p.violations}
	}
	p.warnAbout(timing, now)
	return timing, p.warnings, nil
}

// Restore returns the timing of a schedule that was accepted before, created at the time created. Unlike [Parse] it
// takes one that will not fire again. The error is an [*InvalidError].
func Restore(spec Spec, created time.Time) (Timing, error) {
	p := &specParser{spec: spec, created: created}
	timing := p.parse()
	if len(p.violations) > 0 {
		return Timing{}, &InvalidError{Violations: p.violations}
	}
	return timing, nil
}

// specParser turns a spec into a timing and notes everything that is wrong.
type specParser struct {
	spec       Spec
	created    time.Time
	violations []Violation
	warnings   []Warning
}

func (p *specParser) refuse(path, format string, args ...any) {
	p.violations = append(p.violations, Violation{Path: path, Message: fmt.Sprintf(format, args...)})
}

func (p *specParser) warn(path, format string, args ...any) {
	p.warnings = append(p.warnings, Warning{Path: path, Message: fmt.Sprintf(format, args...)})
}

func (p *specParser) parse() Timing {
	p.checkKind()
	zone := p.zone()
	timing := Timing{spec: p.spec}
	if p.spec.Cron != "" {
		if r := p.cron(zone); r != nil {
			timing.rule = r
		}
	}
	if p.spec.Every != "" || p.spec.Anchor != "" {
		timing.rule = p.every()
	}
	if p.spec.At != "" {
		timing.rule = p.at(zone)
	}
	return timing
}

// checkKind refuses anything but exactly one kind of timing, and members that belong to another.
func (p *specParser) checkKind() {
	var kinds []string
	for _, kind := range []struct{ name, value string }{
		{"cron", p.spec.Cron}, {"every", p.spec.Every}, {"at", p.spec.At},
	} {
		if kind.value != "" {
			kinds = append(kinds, kind.name)
		}
	}
	const choice = "exactly one of cron (with timezone), every and at"
	switch {
	case len(kinds) > 1:
		p.refuse("", "has %s; a schedule has %s", strings.Join(kinds, " and "), choice)
		return
	case len(kinds) == 0 && p.spec.Timezone != "":
		p.refuse("cron", "is missing or empty; %s", cronForm)
		return
	case len(kinds) == 0:
		p.refuse("", "has no time; a schedule has %s", choice)
		return
	}
	if p.spec.Every == "" && p.spec.Anchor != "" {
		p.refuse("anchor", "is for every only; leave it out")
	}
	switch {
	case p.spec.Cron != "" && p.spec.Timezone == "":
		p.refuse("timezone", "is required with cron; write an IANA name, such as Europe/Berlin, or UTC")
	case p.spec.Every != "" && p.spec.Timezone != "":
		p.refuse("timezone", "is not for every, whose length is the same in any zone; leave it out")
	}
}

// zone returns the zone of the spec, UTC when there is none or a wrong one.
func (p *specParser) zone() *time.Location {
	if p.spec.Timezone == "" {
		return time.UTC
	}
	zone, err := loadZone(p.spec.Timezone)
	if err != nil {
		p.refuse("timezone", "%v", err)
		return time.UTC
	}
	return zone
}

func (p *specParser) cron(zone *time.Location) rule {
	var parser cronParser
	table := parser.parse(p.spec.Cron)
	for _, problem := range parser.problems {
		p.refuse("cron", "%s", problem)
	}
	for _, warning := range parser.warnings {
		p.warn("cron", "%s", warning)
	}
	return &cronRule{table: table, zone: zone}
}

func (p *specParser) every() rule {
	r := &everyRule{every: 1, anchor: p.created.Unix()}
	if p.spec.Every != "" {
		every, err := parseEvery(p.spec.Every)
		if err != nil {
			p.refuse("every", "%v", err)
		} else {
			r.every = every
		}
	}
	if p.spec.Anchor != "" {
		anchor, ok := parseInstant(p.spec.Anchor)
		if !ok {
			p.refuse("anchor", "%q is not an instant; write one in RFC 3339, such as 2026-12-01T00:00:00Z", p.spec.Anchor)
		}
		r.anchor, r.anchored = anchor.Unix(), true
	}
	return r
}

func (p *specParser) at(zone *time.Location) rule {
	const form = "write an RFC 3339 instant such as 2026-12-02T07:00:00Z, or a local time such as 2026-12-02T07:00 with timezone"
	text := p.spec.At
	if instant, ok := parseInstant(text); ok {
		if p.spec.Timezone != "" && p.spec.Cron == "" {
			p.refuse("timezone", "is for a local time; leave it out, or leave the offset out of at")
		}
		return &atRule{at: instant.Unix(), zone: time.UTC}
	}
	local, ok := parseLocal(text)
	first := firstShown(zone, local.Unix())
	switch {
	case !ok || !isInstant(first):
		p.refuse("at", "%q is not a time; %s", text, form)
	case p.spec.Timezone == "":
		p.refuse("timezone", "is required, since at is a local time; write an IANA name such as Europe/Berlin, or give at "+
			"an offset, such as %sZ", local.Format("2006-01-02T15:04:05"))
	default:
		p.warnLocal(zone, local.Unix())
	}
	return &atRule{at: first, zone: zone}
}

// parseInstant reads a time in RFC 3339, as strictly as JSON does.
func parseInstant(text string) (time.Time, bool) {
	var t time.Time
	err := t.UnmarshalText([]byte(text))
	return t, err == nil && isInstant(t.Unix())
}

// isInstant reports whether a Unix time can be an instant.
func isInstant(unix int64) bool { return unix >= firstInstant && unix <= lastInstant }

// parseLocal reads a date and a time of day without an offset.
func parseLocal(text string) (time.Time, bool) {
	for _, layout := range []string{"2006-01-02T15:04:05", "2006-01-02T15:04"} {
		// The package time takes a fraction and hours of one digit that the layout does not have.
		if t, err := time.Parse(layout, text); err == nil && len(text) == len(layout) {
			return t, true
		}
	}
	return time.Time{}, false
}

// checkFires refuses a timing without an instant after now.
func (p *specParser) checkFires(timing Timing, now time.Time) {
	if _, ok := timing.Next(now); ok {
		return
	}
	switch timing.rule.(type) {
	case *cronRule:
		p.refuse("cron", "%q never fires: no such date or time comes in the next %d years; write one that exists",
			p.spec.Cron, calendarYears)
	case *atRule:
		at, _ := timing.Instant()
		p.refuse("at", "%s is not in the future, since it is %s; choose a later time",
			at.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	default:
		p.refuse("every", "has no instant before the year 10000; write a shorter duration")
	}
}
