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
	Kind        TriggerKind `json:"kind"`
	ID          string      `json:"id,omitempty"`
	ScheduledAt *time.Time  `json:"scheduledAt,omitempty"`
	DeliveryID  string      `json:"deliveryId,omitempty"`
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
	Reason WaitReason `json:"reason"`
	Since  time.Time  `json:"since"`
	Detail string     `json:"detail,omitempty"`
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
	ID          string          `json:"id"`
	Kind        StepKind        `json:"kind"`
	Status      StepStatus      `json:"status"`
	Attempt     int64           `json:"attempt"`
	StartedAt   *time.Time      `json:"startedAt,omitempty"`
	FinishedAt  *time.Time      `json:"finishedAt,omitempty"`
	Output      json.RawMessage `json:"output,omitempty"`
	Error       *StepError      `json:"error,omitempty"`
	CarriedFrom string          `json:"carriedFrom,omitempty"`
	Unconfirmed bool            `json:"unconfirmed,omitempty"`

	// RetryAt is set while the step waits for its next execution after a transient or interrupted one.
	RetryAt          *time.Time `json:"-"`
	FirstTransientAt *time.Time `json:"-"`
	// BeginID is the [BeginRequest.RequestID] that made the current execution.
	BeginID string `json:"-"`
}

// Run is one admitted execution: snapshot, input, journal, status.
type Run struct {
	ID                string          `json:"id"`
	OwnerID           string          `json:"-"`
	AutomationID      string          `json:"automationId"`
	AutomationName    string          `json:"automationName"`
	AutomationVersion int64           `json:"automationVersion"`
	MachineID         string          `json:"machineId"`
	Trigger           Trigger         `json:"trigger"`
	RetryOf           string          `json:"retryOf,omitempty"`
	Status            RunStatus       `json:"status"`
	CancelRequestedAt *time.Time      `json:"cancelRequestedAt,omitempty"`
	CancelReason      string          `json:"cancelReason,omitempty"`
	WaitingFor        *Waiting        `json:"waitingFor,omitempty"`
	Input             json.RawMessage `json:"input,omitempty"`
	Plan              *Plan           `json:"plan,omitempty"`
	Steps             []StepRecord    `json:"steps"`
	Error             *RunError       `json:"error,omitempty"`
	CreatedAt         time.Time       `json:"createdAt"`
	StartedAt         *time.Time      `json:"startedAt,omitempty"`
	FinishedAt        *time.Time      `json:"finishedAt,omitempty"`
	WorkflowID        string          `json:"workflowId"`

	// WaitsFor is the run of the same schedule whose end this one awaits before it starts; empty when it may start.
	WaitsFor string `json:"-"`
	// EngineID names the Temporal cluster and namespace that holds the run's workflow; empty before its start.
	EngineID string `json:"-"`
	// Generation numbers the workflows of the run; a call that carries an older one is superseded.
	Generation int64 `json:"-"`
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
