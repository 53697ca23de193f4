package automation

import "time"

// Limits of the texts of an automation.
const (
	MaxNameLength        = 200
	MaxDescriptionLength = 4_000
	MaxScriptTextBytes   = 64 << 10
)

// Workflow is what an automation does: the human text and the plan that was compiled from it.
type Workflow struct {
	Script string `json:"script"`
	// Compiled is nil for a draft, which is stored but not executable.
	Compiled *Plan `json:"compiled,omitempty"`
}

// Definition is the part of an automation that a user writes. It is global: it captures nothing of the
// process that created it.
type Definition struct {
	Name        string
	Description string
	Enabled     bool
	// MachineID is empty when the author left the choice to the control plane.
	MachineID string
	Workflow  Workflow
	// Schedules and Webhooks are its triggers. One without an id is new; one whose id is no longer there is removed.
	Schedules []ScheduleDefinition
	Webhooks  []WebhookDefinition
}

// Automation is a stored definition with what the control plane knows about it.
type Automation struct {
	ID          string   `json:"id"`
	OwnerID     string   `json:"-"`
	Version     int64    `json:"version"`
	Name        string   `json:"name"`
	Description string   `json:"description"`
	Enabled     bool     `json:"enabled"`
	MachineID   string   `json:"machineId"`
	Workflow    Workflow `json:"workflow"`
	// Schedules and Webhooks are its triggers, in the order of their creation.
	Schedules []Schedule `json:"-"`
	Webhooks  []Webhook  `json:"-"`
	CreatedAt time.Time  `json:"createdAt"`
	UpdatedAt time.Time  `json:"updatedAt"`
}
