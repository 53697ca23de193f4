package catalog

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/strictjson"
)

// UpdateInput changes an automation. An absent member keeps what is there, null means default.
type UpdateInput struct {
	AutomationID    string                                          `json:"automation_id" strict:"required" doc:"the id of the automation"`
	ExpectedVersion *int64                                          `json:"expected_version,omitempty" doc:"refuse the change when the automation is at another version"`
	Name            *automation.NameText                            `json:"name,omitempty" doc:"what people call it, 1 to 200 characters"`
	Description     strictjson.Optional[automation.DescriptionText] `json:"description,omitzero" doc:"at most 4000 characters; null: empty"`
	Enabled         strictjson.Optional[bool]                       `json:"enabled,omitzero" doc:"whether runs may be admitted; null: true"`
	MachineID       strictjson.Optional[automation.MachineRef]      `json:"machine_id,omitzero" doc:"the machine that executes it; null: as for create"`
	Workflow        strictjson.Optional[automation.WorkflowInput]   `json:"workflow,omitzero" doc:"script and compiled, replaced together; null: an empty draft"`
	Schedules       *automation.ScheduleChanges                     `json:"schedules,omitempty" doc:"schedules to add, update and remove; the others stay as they are"`
	Webhooks        *automation.WebhookChanges                      `json:"webhooks,omitempty" doc:"webhooks to add, update and remove; the others stay as they are"`

	warnings []automation.Violation
}

func decodeUpdate(input []byte) (UpdateInput, error) {
	var in UpdateInput
	refused, warnings := strictjson.Decode(input, &in)
	v := violations(refused)
	v.id("automation_id", in.AutomationID)
	v.version(in.ExpectedVersion)
	if len(v) > 0 {
		return in, automation.Invalid(v...)
	}
	in.warnings = warnings
	return in, nil
}

func (v *violations) version(expected *int64) {
	if expected != nil && *expected < 1 {
		v.add("expected_version", "must be 1 or more")
	}
}

// apply makes the change to a definition that is saved at the time now, and returns warnings about it; machineID is
// what a null machine means. Error: validation_failed.
func (in UpdateInput) apply(d *automation.Definition, machineID string, now time.Time) ([]automation.Violation, error) {
	if in.Name != nil {
		d.Name = string(*in.Name)
	}
	if in.Description.Present {
		d.Description = string(in.Description.Value)
	}
	if in.Enabled.Present {
		d.Enabled = in.Enabled.Null || in.Enabled.Value
	}
	if in.MachineID.Present {
		d.MachineID = string(in.MachineID.Value)
		if in.MachineID.Null {
			d.MachineID = machineID
		}
	}
	if in.Workflow.Present {
		d.Workflow = in.Workflow.Value.Workflow()
	}
	if in.Webhooks != nil {
		if err := in.Webhooks.Apply(d, "webhooks"); err != nil {
			return nil, err
		}
	}
	if in.Schedules != nil {
		return in.Schedules.Apply(d, "schedules", now)
	}
	return nil, nil
}

func update(ctx context.Context, s *Service, p Principal, in UpdateInput) (AutomationResult, error) {
	machineID := ""
	if in.MachineID.Null {
		var err error
		if machineID, err = s.defaultMachine(ctx, p); err != nil {
			return AutomationResult{}, machineMember(err)
		}
	}
	var about []automation.Violation
	changed, err := s.Ledger.UpdateAutomation(ctx, p.OwnerID, in.AutomationID, orEmpty(in.ExpectedVersion),
		func(d *automation.Definition) (err error) {
			about, err = in.apply(d, machineID, s.Now())
			return err
		})
	if err != nil {
		return AutomationResult{}, machineMember(err)
	}
	result := s.present(changed)
	result.Warnings = slices.Concat(in.warnings, about)
	return result, nil
}

// machineMember names the machine of a definition as this command's input does.
func machineMember(err error) error {
	var refusal *automation.Error
	if !errors.As(err, &refusal) || refusal.Code != automation.CodeValidationFailed {
		return err
	}
	renamed := slices.Clone(refusal.Details)
	for i := range renamed {
		if renamed[i].Path == "machineId" {
			renamed[i].Path = "machine_id"
		}
	}
	return automation.Invalid(renamed...)
}

// DeleteInput names an automation to delete.
type DeleteInput struct {
	AutomationID    string `json:"automation_id" strict:"required" doc:"the id of the automation"`
	ExpectedVersion *int64 `json:"expected_version,omitempty" doc:"refuse when the automation is at another version"`
	CancelRuns      bool   `json:"cancel_runs,omitempty" doc:"also cancel its unfinished runs; default false: they go on"`
}

func (in DeleteInput) violations() []automation.Violation {
	var v violations
	v.id("automation_id", in.AutomationID)
	v.version(in.ExpectedVersion)
	return v
}

// DeleteResult says what was deleted and how many of its runs are unfinished.
type DeleteResult struct {
	AutomationID   string `json:"automation_id" doc:"the automation that was deleted"`
	Deleted        bool   `json:"deleted" doc:"true"`
	UnfinishedRuns int    `json:"unfinished_runs" doc:"how many of its runs have not ended"`
	Hinted
}

func remove(ctx context.Context, s *Service, p Principal, in DeleteInput) (DeleteResult, error) {
	if err := s.Ledger.DeleteAutomation(ctx, p.OwnerID, in.AutomationID, orEmpty(in.ExpectedVersion)); err != nil {
		return DeleteResult{}, err
	}
	// The automation is gone: what follows must not be left half-done because the caller left.
	ctx = context.WithoutCancel(ctx)
	if in.CancelRuns {
		selection := automation.RunSelection{AutomationID: in.AutomationID}
		if _, err := s.cancelAll(ctx, p, selection, "its automation was deleted"); err != nil {
			return DeleteResult{}, err
		}
	}
	_, unfinished, err := s.Ledger.UnfinishedRuns(ctx, p.OwnerID, in.AutomationID, 1)
	if err != nil {
		return DeleteResult{}, err
	}
	return DeleteResult{AutomationID: in.AutomationID, Deleted: true, UnfinishedRuns: unfinished}, nil
}

// MachinesInput selects machines.
type MachinesInput struct {
	PageInput
}

// MachineResult is a machine as commands return it.
type MachineResult struct {
	ID           string            `json:"id"`
	Name         string            `json:"name"`
	State        string            `json:"state"`
	Online       bool              `json:"online"`
	LastSeenAt   *time.Time        `json:"lastSeenAt,omitempty"`
	RunningSteps int               `json:"runningSteps"`
	PendingRuns  int               `json:"pendingRuns"`
	Concurrency  int               `json:"concurrency"`
	Version      string            `json:"version"`
	Platform     string            `json:"platform"`
	Labels       map[string]string `json:"labels"`
	// Host is where the worker that said hello last runs.
	Host      string     `json:"host,omitempty"`
	CreatedAt time.Time  `json:"createdAt"`
	RevokedAt *time.Time `json:"revokedAt,omitempty"`
}

// MachinesResult is a page of machines.
type MachinesResult struct {
	Machines   []MachineResult `json:"machines" doc:"oldest first"`
	NextCursor string          `json:"next_cursor,omitempty" doc:"there are more: give it as cursor"`
}

func machines(ctx context.Context, s *Service, p Principal, in MachinesInput) (MachinesResult, error) {
	page, next, err := s.Ledger.Machines(ctx, p.OwnerID, in.size(), in.Cursor)
	if err != nil {
		return MachinesResult{}, err
	}
	result := MachinesResult{Machines: make([]MachineResult, 0, len(page)), NextCursor: next}
	for _, m := range page {
		result.Machines = append(result.Machines, s.presentMachine(m))
	}
	return result, nil
}

func (s *Service) presentMachine(m automation.MachineLoad) MachineResult {
	labels := m.Labels
	if labels == nil {
		labels = map[string]string{}
	}
	host := ""
	if m.Instance != nil {
		host = m.Instance.Host
	}
	return MachineResult{
		ID: m.ID, Name: m.Name, State: string(m.State), Online: m.Online(s.Now()), LastSeenAt: m.LastSeenAt,
		RunningSteps: m.RunningSteps, PendingRuns: m.PendingRuns, Concurrency: m.Concurrency,
		Version: m.Version, Platform: m.Platform, Labels: labels, Host: host, CreatedAt: m.CreatedAt, RevokedAt: m.RevokedAt,
	}
}
