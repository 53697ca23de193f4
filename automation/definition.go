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
	Script string `json:"script" doc:"the human text"`
	// Compiled is nil for a draft, which is stored but not executable.
	Compiled *Plan `json:"compiled,omitempty" doc:"the plan; absent for a draft"`
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
	ID          string   `json:"id" doc:"the id of the automation"`
	OwnerID     string   `json:"-"`
	Version     int64    `json:"version" doc:"counts the changes of the definition"`
	Name        string   `json:"name" doc:"what people call it"`
	Description string   `json:"description" doc:"more about it"`
	Enabled     bool     `json:"enabled" doc:"whether runs may be admitted"`
	MachineID   string   `json:"machineId" doc:"the machine that executes it"`
	Workflow    Workflow `json:"workflow" doc:"the text and the plan; listings leave the plan out"`
	// Schedules and Webhooks are its triggers, in the order of their creation.
	Schedules []Schedule `json:"-"`
	Webhooks  []Webhook  `json:"-"`
	CreatedAt time.Time  `json:"createdAt" doc:"when it was created"`
	UpdatedAt time.Time  `json:"updatedAt" doc:"when its definition was changed last"`
}
