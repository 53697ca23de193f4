package automation

import "fmt"

// Activity is the typed contract of one Temporal activity: workflows call it by name, workers bind a
// function of the same types to it, and neither imports the other.
type Activity[In, Out any] struct{ Name string }

// Signal is the typed contract of one workflow signal.
type Signal[In any] struct{ Name string }

// The names of the workflows.
const (
	// WorkflowAutomationRun carries a run from its first step to its last.
	WorkflowAutomationRun = "AutomationRun"
	// WorkflowScheduleTrigger wakes up one schedule.
	WorkflowScheduleTrigger = "ScheduleTrigger"
)

// The activities of machine steps, one per lane; they run on the machine's queue.
var (
	ExecuteAction  = Activity[StepInput, StepVerdict]{Name: "ExecuteAction"}
	ExecuteCommand = Activity[StepInput, StepVerdict]{Name: "ExecuteCommand"}
	ExecuteScript  = Activity[StepInput, StepVerdict]{Name: "ExecuteScript"}
)

// The activities of the control plane; they run on the control queue.
var (
	FinalizeRun    = Activity[FinalizeInput, FinalizeVerdict]{Name: "FinalizeRun"}
	RequestCancel  = Activity[CancelInput, CancelVerdict]{Name: "RequestCancel"}
	DecideSchedule = Activity[TriggerInput, TriggerVerdict]{Name: "DecideSchedule"}
)

// CancelSignal tells a run's workflow that the ledger has recorded a cancel.
var CancelSignal = Signal[CancelNotice]{Name: "cancel"}

// DispatchSignal asks a run's workflow to dispatch a step again whose task the machine has not got.
var DispatchSignal = Signal[DispatchNotice]{Name: "dispatch"}

// ExecuteStep returns the activity of a lane.
func ExecuteStep(kind StepKind) Activity[StepInput, StepVerdict] {
	switch kind {
	case KindCommand:
		return ExecuteCommand
	case KindScript:
		return ExecuteScript
	case KindAction:
		return ExecuteAction
	}
	return ExecuteAction
}

// RunInput is the input of the workflow [WorkflowAutomationRun]: ids, kinds, summaries and limits; no plan,
// no input, no environment.
type RunInput struct {
	RunID        string        `json:"runId"`
	Generation   int64         `json:"generation"`
	MachineQueue string        `json:"machineQueue"`
	Steps        []StepOutline `json:"steps"`
}

// StepOutline is what the workflow knows of a step.
type StepOutline struct {
	ID        string   `json:"id"`
	Kind      StepKind `json:"kind"`
	Summary   string   `json:"summary"`
	TimeoutMs int64    `json:"timeoutMs"`
}

// StepInput is the input of a machine step's activity.
type StepInput struct {
	RunID      string `json:"runId"`
	StepID     string `json:"stepId"`
	Generation int64  `json:"generation"`
}

// Ref returns the step that the input names.
func (i StepInput) Ref() StepRef { return StepRef{RunID: i.RunID, StepID: i.StepID} }

// StepVerdict is the result of a step's activity that completed. A failed step fails its activity with an
// application error whose type is the step's code; its outcome is in the ledger.
type StepVerdict struct {
	Outcome Outcome `json:"outcome"`
	// Stopped is set when the ledger refused to execute the step.
	Stopped StopReason `json:"stopped,omitempty"`
}

// FinalizeInput asks the ledger to end a run. Failure is set when the workflow gave up on a step for a
// reason that the ledger cannot know.
type FinalizeInput struct {
	RunID      string    `json:"runId"`
	Generation int64     `json:"generation"`
	Failure    *RunError `json:"failure,omitempty"`
}

// FinalizeVerdict says how the run stands after [FinalizeRun].
type FinalizeVerdict struct {
	Status     RunStatus `json:"status"`
	Superseded bool      `json:"superseded,omitempty"`
	// Code and StepID say why a failed run failed, for people who watch Temporal.
	Code   string `json:"code,omitempty"`
	StepID string `json:"stepId,omitempty"`
}

// CancelInput asks the ledger to cancel a run, for a cancel that was made in Temporal.
type CancelInput struct {
	RunID  string `json:"runId"`
	Reason string `json:"reason"`
}

// CancelVerdict says which step had begun when the cancel was recorded.
type CancelVerdict struct {
	Begun string `json:"begun,omitempty"`
}

// CancelNotice is the payload of [CancelSignal]. Begun is the step that had begun when the cancel was
// recorded: the workflow keeps awaiting it, and cancels any other.
type CancelNotice struct {
	Begun string `json:"begun,omitempty"`
}

// TriggerInput is the input of the workflow [WorkflowScheduleTrigger] and asks the ledger to decide a schedule. It
// names no instant: a wake-up carries no authority.
type TriggerInput struct {
	ScheduleID string `json:"scheduleId"`
}

// TriggerVerdict says, for people who watch Temporal, what a wake-up has led to.
type TriggerVerdict struct {
	// Admitted and Cancelled are ids of runs. Those that were admitted and wait for an earlier one are not listed.
	Admitted  []string `json:"admitted,omitempty"`
	Cancelled []string `json:"cancelled,omitempty"`
}

// DispatchNotice is the payload of [DispatchSignal]. A step that is over is not dispatched again.
type DispatchNotice struct {
	StepID string `json:"stepId"`
}

// WorkflowID returns the id of a run's workflow.
func WorkflowID(installationID, runID string, generation int64) string {
	return fmt.Sprintf("%s/run/%s/%d", installationID, runID, generation)
}

// maxSummaryBytes is Temporal's limit of a summary.
const maxSummaryBytes = 400

// WorkflowSummary is what people who watch Temporal read of a workflow first.
func WorkflowSummary(automationName string, trigger TriggerKind) string {
	return Shorten(automationName+" · "+string(trigger), maxSummaryBytes)
}

// Shorten cuts a text to at most maxBytes, on a character boundary, and marks the cut.
func Shorten(text string, maxBytes int) string {
	if len(text) <= maxBytes {
		return text
	}
	const ellipsis = "…"
	cut := 0
	for i := range text {
		if i > maxBytes-len(ellipsis) {
			break
		}
		cut = i
	}
	return text[:cut] + ellipsis
}

// EngineSchedulePrefix is what the ids of an installation's schedules in the engine begin with.
func EngineSchedulePrefix(installationID string) string { return installationID + "/schedule/" }

// EngineScheduleID returns the id of a schedule in the engine.
func EngineScheduleID(installationID, scheduleID string) string {
	return EngineSchedulePrefix(installationID) + scheduleID
}

// TriggerWorkflowID returns what the ids of the workflows that wake up a schedule begin with; the engine appends
// the time of the firing.
func TriggerWorkflowID(installationID, scheduleID string) string {
	return installationID + "/trigger/" + scheduleID
}

// ControlQueue returns the task queue of an installation's workflows and control activities.
func ControlQueue(installationID string) string { return installationID + "/control" }

// MachineQueue returns the task queue of one machine.
func MachineQueue(installationID, machineID string) string {
	return installationID + "/machine/" + machineID
}
