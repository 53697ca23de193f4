package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/automation/schedule"
	"github.com/errandhq/errand/internal/strictjson"
)

const (
	// shownDrops is how many ranges of dropped firings get returns.
	shownDrops = 50
	// upcoming is how many next instants of each schedule get returns.
	upcoming = 5
	// MaxPreview bounds how many instants a preview returns.
	MaxPreview = 100
	// defaultPreview is how many it returns when nothing is said.
	defaultPreview = 10
)

// ScheduleResult is a schedule as commands return it.
type ScheduleResult struct {
	ID string `json:"id"`
	schedule.Spec
	MaxOccurrences  *int64           `json:"maxOccurrences" doc:"how many runs are admitted in all; null: no limit"`
	Overlap         schedule.Overlap `json:"overlap" enum:"queue,parallel,skip,queue_one,cancel_running"`
	CatchUp         schedule.CatchUp `json:"catchUp" enum:"latest,all,none"`
	CatchUpWindowMs int64            `json:"catchUpWindowMs"`
	JitterMs        int64            `json:"jitterMs"`
	Input           json.RawMessage  `json:"input"`
	Enabled         bool             `json:"enabled"`
	Occurrences     int64            `json:"occurrences" doc:"how many runs were admitted"`
	Status          schedule.Status  `json:"status" enum:"active,paused,finished"`
	StatusReason    *string          `json:"statusReason" doc:"why it is paused or finished"`
	NextRunAt       *time.Time       `json:"nextRunAt" doc:"the instant that fires next; null when it does not fire"`
	LastRunAt       *time.Time       `json:"lastRunAt" doc:"the instant of the run that was admitted last"`
	Description     string           `json:"description" doc:"when it fires, in words"`
	Next            []time.Time      `json:"next,omitempty" doc:"the next instants, without jitter; get only"`
}

func presentSchedules(a automation.Automation) []ScheduleResult {
	results := make([]ScheduleResult, 0, len(a.Schedules))
	for _, s := range a.Schedules {
		shown := presentSchedule(s)
		// Nobody should take what is disabled for active. The ledger keeps the two apart, since enabling must not
		// resume what an operator has paused.
		if reason := disabled(a, s); reason != "" && s.Status == schedule.StatusActive {
			shown.Status, shown.StatusReason = schedule.StatusPaused, &reason
		}
		results = append(results, shown)
	}
	return results
}

// disabled says why an active schedule does not fire, or nothing.
func disabled(a automation.Automation, s automation.Schedule) string {
	switch {
	case !a.Enabled:
		return "the automation is disabled"
	case !s.Enabled:
		return "the schedule is disabled"
	}
	return ""
}

func presentSchedule(s automation.Schedule) ScheduleResult {
	result := ScheduleResult{
		ID: s.ID, Spec: s.Spec, Overlap: s.Policy.Overlap, CatchUp: s.Policy.CatchUp,
		CatchUpWindowMs: s.Policy.CatchUpWindow.Milliseconds(), JitterMs: s.Policy.Jitter.Milliseconds(),
		Input: s.Input, Enabled: s.Enabled, Occurrences: s.Occurrences, Status: s.Status,
		NextRunAt: s.NextRunAt, LastRunAt: s.LastRunAt,
	}
	if s.Policy.MaxOccurrences > 0 {
		result.MaxOccurrences = &s.Policy.MaxOccurrences
	}
	if s.StatusReason != "" {
		result.StatusReason = &s.StatusReason
	}
	if timing, err := schedule.Restore(s.Spec, s.CreatedAt); err == nil { // it was accepted when it was saved
		result.Description = timing.Describe()
	}
	return result
}

// addUpcoming adds the next instants of each schedule that fires, as many as it may still admit.
func addUpcoming(results []ScheduleResult, schedules []automation.Schedule) {
	for i, s := range schedules {
		timing, err := schedule.Restore(s.Spec, s.CreatedAt)
		if err != nil || s.NextRunAt == nil {
			continue
		}
		limit := upcoming
		if most := s.Policy.MaxOccurrences; most > 0 {
			limit = int(min(int64(upcoming), most-s.Occurrences))
		}
		results[i].Next = instantsAfter(timing, s.NextRunAt.Add(-time.Second), limit)
	}
}

// instantsAfter returns the first instants after a time, at most limit.
func instantsAfter(timing schedule.Timing, after time.Time, limit int) []time.Time {
	all := []time.Time{}
	for len(all) < limit {
		next, ok := timing.Next(after)
		if !ok {
			break
		}
		all = append(all, next)
		after = next
	}
	return all
}

// ScheduleDocument is what the author of a schedule decides, in the format of create.
type ScheduleDocument struct {
	schedule.Spec
	MaxOccurrences  int64            `json:"maxOccurrences,omitempty"`
	Overlap         schedule.Overlap `json:"overlap"`
	CatchUp         schedule.CatchUp `json:"catchUp"`
	CatchUpWindowMs int64            `json:"catchUpWindowMs"`
	JitterMs        int64            `json:"jitterMs,omitempty"`
	Input           json.RawMessage  `json:"input,omitempty"`
	Enabled         bool             `json:"enabled"`
}

func scheduleDocuments(schedules []automation.ScheduleDefinition) []ScheduleDocument {
	var documents []ScheduleDocument
	for _, d := range schedules {
		document := ScheduleDocument{
			Spec: d.Spec, MaxOccurrences: d.Policy.MaxOccurrences, Overlap: d.Policy.Overlap, CatchUp: d.Policy.CatchUp,
			CatchUpWindowMs: d.Policy.CatchUpWindow.Milliseconds(), JitterMs: d.Policy.Jitter.Milliseconds(), Enabled: d.Enabled,
		}
		if string(d.Input) != "null" {
			document.Input = d.Input
		}
		documents = append(documents, document)
	}
	return documents
}

func scheduleDefinitions(schedules []automation.Schedule) []automation.ScheduleDefinition {
	var definitions []automation.ScheduleDefinition
	for _, s := range schedules {
		definitions = append(definitions, s.ScheduleDefinition)
	}
	return definitions
}

// nameSchedules gives schedules that were sent without ids the ids of stored ones that fire at the same times, so that
// those keep what was counted.
func nameSchedules(stored []automation.Schedule, sent []automation.ScheduleDefinition) []automation.ScheduleDefinition {
	named := slices.Clone(sent)
	for _, s := range stored {
		same := func(d automation.ScheduleDefinition) bool { return d.ID == "" && d.Spec == s.Spec }
		if i := slices.IndexFunc(named, same); i >= 0 {
			named[i].ID = s.ID
		}
	}
	return named
}

// inStoredOrder puts schedules that are stored first, in their order, and new ones after them.
func inStoredOrder(stored []automation.Schedule, named []automation.ScheduleDefinition) []automation.ScheduleDefinition {
	place := func(d automation.ScheduleDefinition) int {
		i := slices.IndexFunc(stored, func(s automation.Schedule) bool { return s.ID == d.ID })
		if i < 0 {
			return len(stored)
		}
		return i
	}
	ordered := slices.Clone(named)
	slices.SortStableFunc(ordered, func(a, b automation.ScheduleDefinition) int { return place(a) - place(b) })
	return ordered
}

// PreviewInput is a schedule, and which of its instants are wanted.
type PreviewInput struct {
	schedule.SpecInput
	schedule.PolicyInput
	Input   json.RawMessage `json:"input,omitempty" doc:"as for create; it changes no instant"`
	Enabled *bool           `json:"enabled" doc:"as for create; a preview takes it for true"`
	From    *string         `json:"from" doc:"RFC 3339 time after which instants are listed; default now"`
	Count   *int            `json:"count" doc:"how many instants, 1 to 100; default 10"`
}

// UnmarshalStrict implements [strictjson.Unmarshaler].
func (in *PreviewInput) UnmarshalStrict(v strictjson.Value) {
	type members PreviewInput // without this method
	if v.Decode((*members)(in)) {
		automation.CheckSchedule(v, in.Spec(), in.Input)
	}
}

func (in PreviewInput) violations() []automation.Violation {
	var v violations
	v.instant("from", in.From)
	if in.Count != nil && (*in.Count < 1 || *in.Count > MaxPreview) {
		v.add("count", "must be 1 to %d", MaxPreview)
	}
	return v
}

// PreviewResult says when a schedule would fire.
type PreviewResult struct {
	Instants    []time.Time            `json:"instants" doc:"when it fires, without jitter"`
	Description string                 `json:"description" doc:"when it fires, in words"`
	Warnings    []automation.Violation `json:"warnings" doc:"what its author may not have meant"`
}

func preview(_ context.Context, s *Service, _ Principal, in PreviewInput) (PreviewResult, error) {
	now := s.Now()
	timing, warnings, err := schedule.Parse(in.Spec(), now, now)
	if invalid, ok := errors.AsType[*schedule.InvalidError](err); ok {
		return PreviewResult{}, automation.Invalid(invalid.Violations...)
	}
	from, count := now, defaultPreview
	if given := instantOf(in.From); given != nil {
		from = *given
	}
	if in.Count != nil {
		count = *in.Count
	}
	if most := in.Policy().MaxOccurrences; most > 0 {
		count = int(min(int64(count), most))
	}
	result := PreviewResult{
		Instants: instantsAfter(timing, from, count), Description: timing.Describe(), Warnings: []automation.Violation{},
	}
	result.Warnings = append(result.Warnings, warnings...)
	return result, nil
}
