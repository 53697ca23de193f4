package automation

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/errandhq/errand/automation/schedule"
	"github.com/errandhq/errand/internal/strictjson"
)

// ScheduleInput is a schedule as it is sent. null means default.
type ScheduleInput struct {
	schedule.SpecInput
	schedule.PolicyInput
	Input   json.RawMessage `json:"input,omitempty" doc:"the input of its runs, any JSON value; default null"`
	Enabled *bool           `json:"enabled" doc:"whether it fires; default true"`
}

// UnmarshalStrict implements [strictjson.Unmarshaler]. It refuses what can be refused without knowing the time; see
// [schedule.Restore].
func (in *ScheduleInput) UnmarshalStrict(v strictjson.Value) {
	type members ScheduleInput // without this method
	if v.Decode((*members)(in)) {
		CheckSchedule(v, in.Spec(), in.Input)
	}
}

// CheckSchedule reports what is wrong with a schedule in its object, apart from what depends on the time.
func CheckSchedule(v strictjson.Value, spec schedule.Spec, input json.RawMessage) {
	if len(input) > MaxInputBytes {
		v.ReportMember("input", "is %d bytes; a run input is at most %d: pass a path or a URL instead of the data",
			len(input), MaxInputBytes)
	}
	_, err := schedule.Restore(spec, time.Time{})
	var invalid *schedule.InvalidError
	if !errors.As(err, &invalid) {
		return
	}
	for _, violation := range invalid.Violations {
		if violation.Path == "" {
			v.Report("%s", violation.Message)
			continue
		}
		v.ReportMember(violation.Path, "%s", violation.Message)
	}
}

// Definition returns the schedule with its defaults applied.
func (in ScheduleInput) Definition() ScheduleDefinition {
	d := ScheduleDefinition{Spec: in.Spec(), Policy: in.Policy(), Input: in.Input, Enabled: true}
	if len(d.Input) == 0 {
		d.Input = json.RawMessage("null")
	}
	if in.Enabled != nil {
		d.Enabled = *in.Enabled
	}
	return d
}

// ScheduleInputs is a list of new schedules, at most [MaxSchedules]. null is the empty list.
type ScheduleInputs []ScheduleInput

// UnmarshalStrict implements [strictjson.Unmarshaler].
func (in *ScheduleInputs) UnmarshalStrict(v strictjson.Value) {
	*in = nil
	if v.IsNull() {
		return
	}
	v.Decode((*[]ScheduleInput)(in))
	if n := len(*in); n > MaxSchedules {
		v.Report("holds %d schedules; an automation may have %d", n, MaxSchedules)
	}
}

// Definitions returns the schedules with their defaults applied.
func (in ScheduleInputs) Definitions() []ScheduleDefinition {
	var all []ScheduleDefinition
	for _, one := range in {
		all = append(all, one.Definition())
	}
	return all
}

// ScheduleChanges are changes of an automation's schedules. Those that it does not name stay as they are.
type ScheduleChanges struct {
	Add    ScheduleInputs   `json:"add,omitempty" doc:"new schedules, as for create"`
	Update []ScheduleChange `json:"update,omitempty" doc:"changes of schedules, by id"`
	Remove []string         `json:"remove,omitempty" doc:"ids of schedules to remove"`
}

// UnmarshalStrict implements [strictjson.Unmarshaler].
func (c *ScheduleChanges) UnmarshalStrict(v strictjson.Value) {
	type members ScheduleChanges // without this method
	decodeChanges(v, (*members)(c))
}

// decodeChanges reads what is added, updated and removed of a list. That update takes no whole list is easily
// overlooked by those who know create.
func decodeChanges(v strictjson.Value, into any) {
	if v.Kind() == '[' {
		v.Report(`must be an object {"add": […], "update": […], "remove": […]}, not the list that create takes`)
		return
	}
	v.Decode(into)
}

// ScheduleChange changes one schedule. An absent member keeps what is there, null means default. cron, every or at
// of another kind than before replaces all that said when it fires.
type ScheduleChange struct {
	ID             string                                     `json:"id" strict:"required" doc:"the id of the schedule"`
	Cron           strictjson.Optional[schedule.Text]         `json:"cron,omitzero" doc:"five fields or @daily and the like"`
	Timezone       strictjson.Optional[schedule.Text]         `json:"timezone,omitzero" doc:"IANA name, such as Europe/Berlin"`
	Every          strictjson.Optional[schedule.Text]         `json:"every,omitzero" doc:"a duration of whole seconds, such as 90m"`
	Anchor         strictjson.Optional[schedule.Text]         `json:"anchor,omitzero" doc:"RFC 3339 instant that every is aligned to"`
	At             strictjson.Optional[schedule.Text]         `json:"at,omitzero" doc:"the one instant, or a local time with timezone"`
	MaxOccurrences strictjson.Optional[schedule.Occurrences]  `json:"maxOccurrences,omitzero" doc:"how many runs are admitted in all, those before included; null: no limit"`
	Overlap        strictjson.Optional[schedule.Overlap]      `json:"overlap,omitzero" enum:"queue,parallel,skip,queue_one,cancel_running" doc:"what a firing does while earlier runs are unfinished"`
	CatchUp        strictjson.Optional[schedule.CatchUp]      `json:"catchUp,omitzero" enum:"latest,all,none" doc:"which missed instants are caught up"`
	CatchUpWindow  strictjson.Optional[schedule.WindowMillis] `json:"catchUpWindowMs,omitzero" doc:"how late a missed instant may be and still be caught up"`
	Jitter         strictjson.Optional[schedule.JitterMillis] `json:"jitterMs,omitzero" doc:"delays each admission by a stable amount below this"`
	Input          json.RawMessage                            `json:"input,omitempty" doc:"the input of its runs"`
	Enabled        strictjson.Optional[bool]                  `json:"enabled,omitzero" doc:"whether it fires; true also resumes one that an operator has paused"`
}

// UnmarshalStrict implements [strictjson.Unmarshaler].
func (c *ScheduleChange) UnmarshalStrict(v strictjson.Value) {
	type members ScheduleChange // without this method
	if v.Decode((*members)(c)) && len(c.Input) > MaxInputBytes {
		v.ReportMember("input", "is %d bytes; a run input is at most %d: pass a path or a URL instead of the data",
			len(c.Input), MaxInputBytes)
	}
}

// spec returns when the changed schedule fires.
func (c ScheduleChange) spec(before schedule.Spec) schedule.Spec {
	spec := before
	kinds := []struct {
		given strictjson.Optional[schedule.Text]
		had   string
	}{{c.Cron, before.Cron}, {c.Every, before.Every}, {c.At, before.At}}
	for _, kind := range kinds {
		if kind.given.Present && !kind.given.Null && kind.had == "" {
			spec = schedule.Spec{}
		}
	}
	for _, member := range []struct {
		given strictjson.Optional[schedule.Text]
		into  *string
	}{{c.Cron, &spec.Cron}, {c.Timezone, &spec.Timezone}, {c.Every, &spec.Every}, {c.Anchor, &spec.Anchor}, {c.At, &spec.At}} {
		if member.given.Present {
			*member.into = string(member.given.Value)
		}
	}
	return spec
}

// policy returns the policy of the changed schedule.
func (c ScheduleChange) policy(p schedule.Policy) schedule.Policy {
	defaults := schedule.DefaultPolicy()
	if c.MaxOccurrences.Present {
		p.MaxOccurrences = int64(c.MaxOccurrences.Value)
	}
	if c.Overlap.Present {
		p.Overlap = orDefault(c.Overlap, defaults.Overlap)
	}
	if c.CatchUp.Present {
		p.CatchUp = orDefault(c.CatchUp, defaults.CatchUp)
	}
	if c.CatchUpWindow.Present {
		window := orDefault(c.CatchUpWindow, schedule.WindowMillis(defaults.CatchUpWindow.Milliseconds()))
		p.CatchUpWindow = time.Duration(window) * time.Millisecond
	}
	if c.Jitter.Present {
		p.Jitter = time.Duration(c.Jitter.Value) * time.Millisecond
	}
	return p
}

func orDefault[T any](given strictjson.Optional[T], otherwise T) T {
	if given.Null {
		return otherwise
	}
	return given.Value
}

// apply makes the change to one schedule.
func (c ScheduleChange) apply(d *ScheduleDefinition) {
	d.Spec, d.Policy = c.spec(d.Spec), c.policy(d.Policy)
	if len(c.Input) > 0 {
		d.Input = c.Input
	}
	if c.Enabled.Present {
		d.Enabled = c.Enabled.Null || c.Enabled.Value
		d.Resume = d.Enabled
	}
}

// Apply makes the changes to a definition that is saved at the time now, and returns warnings about new and changed
// timings. Every path begins with path. Error: validation_failed; the definition is unspecified then.
func (c *ScheduleChanges) Apply(d *Definition, path string, now time.Time) ([]Violation, error) {
	var found scheduleFindings
	named := map[string]bool{}
	for i, change := range c.Update {
		at := fmt.Sprintf("%s.update[%d]", path, i)
		target := found.named(d, named, at+".id", change.ID)
		if target < 0 {
			continue
		}
		before := d.Schedules[target].Spec
		change.apply(&d.Schedules[target])
		if spec := d.Schedules[target].Spec; spec != before {
			found.timing(at, spec, now)
		}
	}
	removed := map[string]bool{}
	for i, id := range c.Remove {
		if found.named(d, named, fmt.Sprintf("%s.remove[%d]", path, i), id) >= 0 {
			removed[id] = true
		}
	}
	d.Schedules = slices.DeleteFunc(d.Schedules, func(s ScheduleDefinition) bool { return removed[s.ID] })
	for i, added := range c.Add.Definitions() {
		found.timing(fmt.Sprintf("%s.add[%d]", path, i), added.Spec, now)
		d.Schedules = append(d.Schedules, added)
	}
	if n := len(d.Schedules); n > MaxSchedules {
		found.refuse(path+".add", fmt.Sprintf("makes %d schedules; an automation may have %d", n, MaxSchedules))
	}
	if len(found.violations) > 0 {
		return nil, Invalid(found.violations...)
	}
	return found.warnings, nil
}

// scheduleFindings collects what is said of several schedules.
type scheduleFindings struct{ violations, warnings []Violation }

func (f *scheduleFindings) refuse(path, message string) {
	f.violations = append(f.violations, Violation{Path: path, Message: message})
}

// named returns the position of a schedule that a change names, once; or -1.
func (f *scheduleFindings) named(d *Definition, named map[string]bool, path, id string) int {
	at := slices.IndexFunc(d.Schedules, func(s ScheduleDefinition) bool { return id != "" && s.ID == id })
	switch {
	case at < 0:
		f.refuse(path, "names no schedule of this automation")
	case named[id]:
		f.refuse(path, "names a schedule that is updated or removed already")
		return -1
	}
	named[id] = true
	return at
}

// timing checks a new timing.
func (f *scheduleFindings) timing(path string, spec schedule.Spec, now time.Time) {
	_, warnings, err := schedule.Parse(spec, now, now)
	f.warnings = append(f.warnings, below(path, warnings)...)
	if invalid, ok := errors.AsType[*schedule.InvalidError](err); ok {
		f.violations = append(f.violations, below(path, invalid.Violations)...)
	}
}

// below puts what was said of an object to where the object is.
func below(path string, said []Violation) []Violation {
	var all []Violation
	for _, v := range said {
		at := path
		if v.Path != "" {
			at = strictjson.PathMember(path, v.Path)
		}
		all = append(all, Violation{Path: at, Message: v.Message})
	}
	return all
}

// CheckTimings returns what is wrong with new schedules that are saved at the time now, and warnings about them, with
// places in the list at path.
func CheckTimings(path string, schedules []ScheduleDefinition, now time.Time) (violations, warnings []Violation) {
	var found scheduleFindings
	for i, d := range schedules {
		if d.ID == "" {
			found.timing(strictjson.PathElement(path, i), d.Spec, now)
		}
	}
	return found.violations, found.warnings
}
