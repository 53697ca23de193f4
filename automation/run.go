package automation

import (
	"encoding/json"
	"time"
)

// RunStatus is where a run stands. A run is pending until its first step begins.
type RunStatus string

// The statuses of a run.
const (
	RunPending   RunStatus = "pending"
	RunRunning   RunStatus = "running"
	RunCompleted RunStatus = "completed"
	RunFailed    RunStatus = "failed"
	RunCancelled RunStatus = "cancelled"
)

// Finished reports whether the status is terminal. A terminal status is written once.
func (s RunStatus) Finished() bool {
	return s == RunCompleted || s == RunFailed || s == RunCancelled
}

// StepStatus is where a step stands.
type StepStatus string

// The statuses of a step. Skipped means never begun because the run ended.
const (
	StepPending   StepStatus = "pending"
	StepRunning   StepStatus = "running"
	StepCompleted StepStatus = "completed"
	StepFailed    StepStatus = "failed"
	StepCancelled StepStatus = "cancelled"
	StepSkipped   StepStatus = "skipped"
)

// TriggerKind says what admitted a run.
type TriggerKind string

// The kinds of triggers.
const (
	TriggerManual   TriggerKind = "manual"
	TriggerSchedule TriggerKind = "schedule"
	TriggerWebhook  TriggerKind = "webhook"
)

// Trigger is what admitted a run.
type Trigger struct {
	Kind        TriggerKind `json:"kind" doc:"manual, schedule or webhook"`
	ID          string      `json:"id,omitempty" doc:"the schedule or webhook"`
	ScheduledAt *time.Time  `json:"scheduledAt,omitempty" doc:"the instant of the schedule"`
	// Late is set when the instant was missed and is caught up.
	Late       bool   `json:"late,omitempty" doc:"true: the instant was missed by more than a minute, and is caught up"`
	DeliveryID string `json:"deliveryId,omitempty" doc:"the delivery of the webhook"`
}

// WaitReason says what an unfinished run waits for.
type WaitReason string

// The reasons to wait.
const (
	WaitNotStarted         WaitReason = "not_started"
	WaitMachineOffline     WaitReason = "machine_offline"
	WaitMachineBusy        WaitReason = "machine_busy"
	WaitPreviousRun        WaitReason = "previous_run"
	WaitEngineUnavailable  WaitReason = "engine_unavailable"
	WaitRetry              WaitReason = "retry"
	WaitCancelConfirmation WaitReason = "cancel_confirmation"
	WaitDispatchStalled    WaitReason = "dispatch_stalled"
)

// Waiting is what an unfinished run waits for, since when.
type Waiting struct {
	Reason WaitReason `json:"reason" doc:"what it waits for"`
	Since  time.Time  `json:"since" doc:"since when"`
	Detail string     `json:"detail,omitempty" doc:"more, for a person"`
}

// RunError is why a run failed.
type RunError struct {
	Code    string      `json:"code"`
	Message string      `json:"message"`
	StepID  string      `json:"stepId,omitempty"`
	Details []Violation `json:"details,omitempty"`
}

// StepRecord is the journal entry of one step. Attempt counts its executions on the machine.
type StepRecord struct {
	ID          string          `json:"id" doc:"the id of the step in the plan"`
	Kind        StepKind        `json:"kind" doc:"action, command or script"`
	Status      StepStatus      `json:"status" doc:"pending, running, completed, failed, cancelled or skipped"`
	Attempt     int64           `json:"attempt" doc:"how many times it was executed"`
	StartedAt   *time.Time      `json:"startedAt,omitempty" doc:"when it began"`
	FinishedAt  *time.Time      `json:"finishedAt,omitempty" doc:"when it ended"`
	Output      json.RawMessage `json:"output,omitempty" doc:"its result; a failed process has one too"`
	Error       *StepError      `json:"error,omitempty" doc:"why it did not complete"`
	CarriedFrom string          `json:"carriedFrom,omitempty" doc:"the run that executed it, when its result was taken over"`
	Unconfirmed bool            `json:"unconfirmed,omitempty" doc:"the machine has not said that its program is gone"`

	// RetryAt is set while the step waits for its next execution after a transient or interrupted one.
	RetryAt          *time.Time `json:"-"`
	FirstTransientAt *time.Time `json:"-"`
	// BeginID is the [BeginRequest.RequestID] that made the current execution.
	BeginID string `json:"-"`
}

// Run is one admitted execution: snapshot, input, journal, status.
type Run struct {
	ID                string          `json:"id" doc:"the id of the run"`
	OwnerID           string          `json:"-"`
	AutomationID      string          `json:"automationId" doc:"its automation, which may be deleted by now"`
	AutomationName    string          `json:"automationName" doc:"the name that it had then"`
	AutomationVersion int64           `json:"automationVersion" doc:"the version that it had then"`
	MachineID         string          `json:"machineId" doc:"the machine that executes it"`
	Trigger           Trigger         `json:"trigger" doc:"what admitted it"`
	RetryOf           string          `json:"retryOf,omitempty" doc:"the run that it repeats"`
	Status            RunStatus       `json:"status" doc:"pending, running, completed, failed or cancelled"`
	CancelRequestedAt *time.Time      `json:"cancelRequestedAt,omitempty" doc:"when a cancel was asked for"`
	CancelReason      string          `json:"cancelReason,omitempty" doc:"the reason that was given"`
	WaitingFor        *Waiting        `json:"waitingFor,omitempty" doc:"why it does not go on; only of an unfinished one"`
	Input             json.RawMessage `json:"input,omitempty" doc:"its input; absent in listings"`
	Plan              *Plan           `json:"plan,omitempty" doc:"the snapshot that it executes; absent in listings"`
	Steps             []StepRecord    `json:"steps" doc:"the journal, in the order of the plan; without outputs in listings"`
	Error             *RunError       `json:"error,omitempty" doc:"why it failed"`
	CreatedAt         time.Time       `json:"createdAt" doc:"when it was admitted"`
	StartedAt         *time.Time      `json:"startedAt,omitempty" doc:"when its first step began"`
	FinishedAt        *time.Time      `json:"finishedAt,omitempty" doc:"when it ended"`
	WorkflowID        string          `json:"workflowId" doc:"what Temporal calls it"`
	// Restarted is set when the run's workflow was lost and started anew.
	Restarted *Restart `json:"restarted,omitempty" doc:"that its workflow was lost in Temporal and started again"`

	// WaitsFor is the run of the same schedule whose end this one awaits before it starts; empty when it may start.
	WaitsFor string `json:"-"`
	// EngineID names the Temporal cluster and namespace that holds the run's workflow; empty before its start.
	EngineID string `json:"-"`
	// Generation numbers the workflows of the run; a call that carries an older one is superseded.
	Generation int64 `json:"-"`
	// StalledAt is when the task of the run's next step was last taken for lost; a begin clears it.
	StalledAt *time.Time `json:"-"`
	// Revision counts the changes of the run and its steps; a change is compared against it.
	Revision int64 `json:"-"`
}

// Step returns the record of a step, or nil.
func (r *Run) Step(id string) *StepRecord {
	for i := range r.Steps {
		if r.Steps[i].ID == id {
			return &r.Steps[i]
		}
	}
	return nil
}
