package catalog

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/strictjson"
)

const (
	// MaxWait bounds how long a call may wait for a run, in milliseconds: below the idle limits of proxies.
	MaxWait = 55_000
	// maxKeyLength bounds an idempotency key, in characters.
	maxKeyLength = 255
	// maxReasonLength bounds the reason of a cancel, in characters.
	maxReasonLength = 500
)

// PageInput selects a page of a list. It is embedded in the inputs of commands that list something.
type PageInput struct {
	Limit  *int   `json:"limit,omitempty" doc:"at most this many, 1 to 200; default 50"`
	Cursor string `json:"cursor,omitempty" doc:"next_cursor of the page before"`
}

func (in PageInput) violations() []automation.Violation {
	var v violations
	v.limit("limit", in.Limit)
	return v
}

// size applies the default to a limit that was checked.
func (in PageInput) size() int {
	if in.Limit == nil {
		return automation.DefaultPageSize
	}
	return *in.Limit
}

// ListInput selects automations.
type ListInput struct {
	Enabled   *bool   `json:"enabled,omitempty" doc:"only enabled, or only disabled, automations"`
	MachineID *string `json:"machine_id,omitempty" doc:"only automations that target this machine"`
	Query     string  `json:"query,omitempty" doc:"only automations whose name contains this text, in any case"`
	PageInput
}

func (in ListInput) violations() []automation.Violation {
	v := violations(in.PageInput.violations())
	v.filterID("machine_id", in.MachineID)
	v.length("query", in.Query, automation.MaxNameLength)
	return v
}

// GetInput names an automation.
type GetInput struct {
	AutomationID string `json:"automation_id" strict:"required" doc:"the id of the automation"`
	IncludeRuns  bool   `json:"include_runs,omitempty" doc:"also return its latest runs, without outputs"`
	RunsLimit    *int   `json:"runs_limit,omitempty" doc:"at most this many runs, 1 to 200; default 50"`
}

func (in GetInput) violations() []automation.Violation {
	var v violations
	v.id("automation_id", in.AutomationID)
	v.limit("runs_limit", in.RunsLimit)
	return v
}

// RunNowInput asks for a run.
type RunNowInput struct {
	AutomationID   string          `json:"automation_id" strict:"required" doc:"the id of the automation"`
	Input          json.RawMessage `json:"input,omitempty" doc:"the run's input, any JSON value; default null"`
	IdempotencyKey string          `json:"idempotency_key,omitempty" doc:"a repeat with the same key returns the same run"`
	WaitMs         int             `json:"wait_ms,omitempty" doc:"wait for the run to end, at most this long, 0 to 55000"`
}

func (in RunNowInput) violations() []automation.Violation {
	var v violations
	v.id("automation_id", in.AutomationID)
	v.key(in.IdempotencyKey)
	v.wait(in.WaitMs)
	if len(in.Input) > automation.MaxInputBytes {
		v.add("input", "is %d bytes; a run input is at most %d: pass a path or a URL instead of the data",
			len(in.Input), automation.MaxInputBytes)
	}
	return v
}

// RunInput names a run.
type RunInput struct {
	RunID  string `json:"run_id" strict:"required" doc:"the id of the run"`
	WaitMs int    `json:"wait_ms,omitempty" doc:"wait for the run to end, at most this long, 0 to 55000"`
}

func (in RunInput) violations() []automation.Violation {
	var v violations
	v.id("run_id", in.RunID)
	v.wait(in.WaitMs)
	return v
}

// RunsInput selects runs.
type RunsInput struct {
	AutomationID *string                 `json:"automation_id,omitempty" doc:"only runs of this automation"`
	MachineID    *string                 `json:"machine_id,omitempty" doc:"only runs on this machine"`
	Status       *automation.RunStatus   `json:"status,omitempty" enum:"pending,running,completed,failed,cancelled" doc:"pending, running, completed, failed or cancelled"`
	Trigger      *automation.TriggerKind `json:"trigger,omitempty" enum:"manual,schedule,webhook" doc:"manual, schedule or webhook"`
	Since        *string                 `json:"since,omitempty" doc:"only runs created at or after this RFC 3339 time"`
	Until        *string                 `json:"until,omitempty" doc:"only runs created before this RFC 3339 time"`
	PageInput
}

func (in RunsInput) violations() []automation.Violation {
	v := violations(in.PageInput.violations())
	v.filterID("automation_id", in.AutomationID)
	v.filterID("machine_id", in.MachineID)
	if in.Status != nil && !slices.Contains(runStatuses, *in.Status) {
		v.add("status", "%q is not a status; use pending, running, completed, failed or cancelled", *in.Status)
	}
	if in.Trigger != nil && !slices.Contains(triggerKinds, *in.Trigger) {
		v.add("trigger", "%q is not a trigger; use manual, schedule or webhook", *in.Trigger)
	}
	v.instant("since", in.Since)
	v.instant("until", in.Until)
	return v
}

// CancelInput names a run to cancel.
type CancelInput struct {
	RunID  string `json:"run_id" strict:"required" doc:"the id of the run"`
	Reason string `json:"reason,omitempty" doc:"why, for whoever reads the run later"`
	Force  bool   `json:"force,omitempty" doc:"end the run at once, without waiting for the machine to confirm"`
}

func (in CancelInput) violations() []automation.Violation {
	var v violations
	v.id("run_id", in.RunID)
	v.length("reason", in.Reason, maxReasonLength)
	return v
}

// CancelRunsInput selects the runs to cancel.
type CancelRunsInput struct {
	AutomationID *string `json:"automation_id,omitempty" doc:"runs of this automation, also of one that was deleted"`
	MachineID    *string `json:"machine_id,omitempty" doc:"runs on this machine; with automation_id only those that are both"`
	Reason       string  `json:"reason,omitempty" doc:"why, for whoever reads the runs later"`
}

func (in CancelRunsInput) violations() []automation.Violation {
	var v violations
	v.filterID("automation_id", in.AutomationID)
	v.filterID("machine_id", in.MachineID)
	if in.AutomationID == nil && in.MachineID == nil {
		v.add("automation_id", "is required, or machine_id, or both: they say which runs")
	}
	v.length("reason", in.Reason, maxReasonLength)
	return v
}

// RetryInput names a finished run to repeat.
type RetryInput struct {
	RunID          string  `json:"run_id" strict:"required" doc:"the id of the finished run"`
	FromStep       *string `json:"from_step,omitempty" doc:"the first step to execute again; default: the first that did not complete"`
	IdempotencyKey string  `json:"idempotency_key,omitempty" doc:"a repeat with the same key returns the same run"`
}

func (in RetryInput) violations() []automation.Violation {
	var v violations
	v.id("run_id", in.RunID)
	if in.FromStep != nil && *in.FromStep == "" {
		v.add("from_step", "is empty; leave it out to start at the first step that did not complete")
	}
	v.key(in.IdempotencyKey)
	return v
}

var (
	runStatuses = []automation.RunStatus{
		automation.RunPending, automation.RunRunning, automation.RunCompleted, automation.RunFailed, automation.RunCancelled,
	}
	triggerKinds = []automation.TriggerKind{
		automation.TriggerManual, automation.TriggerSchedule, automation.TriggerWebhook,
	}
)

// orEmpty returns what a filter says, or the zero value for none.
func orEmpty[T any](filter *T) T {
	if filter == nil {
		var none T
		return none
	}
	return *filter
}

// notNull returns a list that is [] and not null in JSON when it is empty.
func notNull[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// violations collects what is wrong with an input.
type violations []automation.Violation

func (v *violations) add(path, format string, args ...any) {
	*v = append(*v, automation.Violation{Path: path, Message: fmt.Sprintf(format, args...)})
}

var uuidPattern = strictjson.Pattern(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

func (v *violations) id(path, id string) {
	if !uuidPattern(id) {
		v.add(path, "is not an id: ids are UUIDs in lower case, as the commands print them")
	}
}

// filterID checks an id that selects, when there is one. An empty one selects nothing: it is the mistake of a
// script whose variable is not set.
func (v *violations) filterID(path string, id *string) {
	if id != nil {
		v.id(path, *id)
	}
}

func (v *violations) limit(path string, limit *int) {
	if limit != nil && (*limit < 1 || *limit > automation.MaxPageSize) {
		v.add(path, "must be 1 to %d", automation.MaxPageSize)
	}
}

func (v *violations) wait(ms int) {
	if ms < 0 || ms > MaxWait {
		v.add("wait_ms", "must be 0 to %d; for longer, ask again", MaxWait)
	}
}

func (v *violations) key(key string) { v.length("idempotency_key", key, maxKeyLength) }

func (v *violations) length(path, text string, limit int) {
	if utf8.RuneCountInString(text) > limit {
		v.add(path, "is longer than %d characters", limit)
	}
}

func (v *violations) instant(path string, text *string) {
	if text == nil {
		return
	}
	if _, err := time.Parse(time.RFC3339Nano, *text); err != nil {
		v.add(path, "is not an RFC 3339 time such as 2026-12-01T09:00:00Z")
	}
}

// instantOf parses a time that was checked; nil for none.
func instantOf(text *string) *time.Time {
	if text == nil {
		return nil
	}
	t, err := time.Parse(time.RFC3339Nano, *text)
	if err != nil {
		return nil
	}
	return &t
}

// CreateInput is the definition of an automation.
type CreateInput struct {
	automation.DefinitionInput
	IdempotencyKey string `json:"idempotency_key,omitempty" doc:"a repeat with the same key returns the same automation"`

	definition automation.Definition
	warnings   []automation.Violation
}

// decodeCreate decodes a definition by every rule of the format.
func decodeCreate(input []byte) (CreateInput, error) {
	var in CreateInput
	refused, warnings := strictjson.Decode(input, &in)
	var v violations
	v.key(in.IdempotencyKey)
	if refused = append(refused, v...); len(refused) > 0 {
		return in, automation.Invalid(refused...)
	}
	in.definition, in.warnings = in.Definition(), warnings
	return in, nil
}
