package automation

import (
	"encoding/json"
	"time"
)

// Outcome is how one execution of a step ended, as the machine saw it.
type Outcome string

// The outcomes. Interrupted (the worker's drain ended the program) and transient leave the step running,
// to be executed again; the others are final.
const (
	OutcomeCompleted   Outcome = "completed"
	OutcomeFailed      Outcome = "failed"
	OutcomeCancelled   Outcome = "cancelled"
	OutcomeInterrupted Outcome = "interrupted"
	OutcomeTransient   Outcome = "transient"
)

// Final reports whether the outcome ends the step.
func (o Outcome) Final() bool {
	return o == OutcomeCompleted || o == OutcomeFailed || o == OutcomeCancelled
}

// StepRef names a step of a run.
type StepRef struct {
	RunID  string `json:"runId"`
	StepID string `json:"stepId"`
}

// Key returns the idempotency key of the step.
func (r StepRef) Key() string { return StepKey(r.RunID, r.StepID) }

// HeldState is what a machine holds for a step.
type HeldState string

// The states of a held execution.
const (
	HeldRunning  HeldState = "running"
	HeldFinished HeldState = "finished"
)

// Held is an execution that a machine holds: a program that runs, or a result that is not acknowledged yet.
type Held struct {
	StepRef
	Execution int64     `json:"execution"`
	State     HeldState `json:"state"`
}

// Hello is what a machine says on every connect.
type Hello struct {
	Instance    Instance          `json:"instance"`
	Version     string            `json:"version"`
	Platform    string            `json:"platform"`
	Labels      map[string]string `json:"labels,omitempty"`
	Concurrency int               `json:"concurrency"`
	Held        []Held            `json:"held,omitempty"`
}

// HeldVerdict tells a machine what to do with an execution that it holds.
type HeldVerdict string

// The verdicts: keep it running, end its program, send the result again, or forget it.
const (
	VerdictKeep   HeldVerdict = "keep"
	VerdictEnd    HeldVerdict = "end"
	VerdictFinish HeldVerdict = "finish"
	VerdictForget HeldVerdict = "forget"
)

// HeldAnswer is the verdict on one held execution.
type HeldAnswer struct {
	StepRef
	Execution int64       `json:"execution"`
	Verdict   HeldVerdict `json:"verdict"`
}

// HelloAnswer is the ledger's answer to [Hello].
type HelloAnswer struct {
	MachineID string       `json:"machineId"`
	Namespace string       `json:"namespace"`
	TaskQueue string       `json:"taskQueue"`
	Held      []HeldAnswer `json:"held"`
}

// BeginRequest asks the ledger whether a step may execute. Held is nil when the machine holds nothing for it.
type BeginRequest struct {
	StepRef
	Generation int64 `json:"generation"`
	// RequestID is a UUID that the machine makes anew for each begin and repeats with each retry of it. So a
	// retry, and a copy that the network delivers late, get the number of the first and start nothing new.
	RequestID string `json:"requestId"`
	Held      *Held  `json:"held,omitempty"`
}

// BeginDecision is what the ledger answers to [BeginRequest].
type BeginDecision string

// The decisions, in the order in which they are considered.
const (
	// BeginDone: the step has ended; complete the activity with the recorded outcome, execute nothing.
	BeginDone BeginDecision = "done"
	// BeginStop: the step must not execute; see [StopReason].
	BeginStop BeginDecision = "stop"
	// BeginAttach: the machine holds the current execution; wait for it.
	BeginAttach BeginDecision = "attach"
	// BeginRun: execute the concrete step under the given number.
	BeginRun BeginDecision = "run"
)

// StopReason says why a step must not execute.
type StopReason string

// The reasons. A superseded call ends its workflow only: a program that the machine holds goes on. All
// others end the program too.
const (
	StopCancelled  StopReason = "cancelled"
	StopFinished   StopReason = "finished"
	StopRevoked    StopReason = "revoked"
	StopSuperseded StopReason = "superseded"
)

// BeginAnswer is the ledger's answer to [BeginRequest].
type BeginAnswer struct {
	Decision  BeginDecision `json:"decision"`
	Execution int64         `json:"execution"`
	// Outcome and Error are the recorded end of the step, for [BeginDone].
	Outcome Outcome    `json:"outcome,omitempty"`
	Error   *StepError `json:"error,omitempty"`
	// Stop is set for [BeginStop].
	Stop StopReason `json:"stop,omitempty"`
	// Step is set for [BeginRun].
	Step *ConcreteStep `json:"step,omitempty"`
}

// FinishRequest reports the end of one execution. The machine sends it when the program ends, whether or
// not an activity attempt is alive, and again until it is acknowledged.
type FinishRequest struct {
	StepRef
	Execution int64           `json:"execution"`
	Outcome   Outcome         `json:"outcome"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     *StepError      `json:"error,omitempty"`
}

// FinishAnswer acknowledges a [FinishRequest] with what the ledger holds now.
type FinishAnswer struct {
	// Accepted is false when the execution is not the current one; the machine forgets it.
	Accepted bool `json:"accepted"`
	// Outcome is the recorded outcome of the step: for a repeat, the first one.
	Outcome Outcome    `json:"outcome"`
	Error   *StepError `json:"error,omitempty"`
	// RetryAfterMs says when the next execution is due, for an outcome that is not final.
	RetryAfterMs int64 `json:"retryAfterMs,omitempty"`
}

// EventKind names what the control plane pushes to a machine.
type EventKind string

// The events of a machine's stream. A ping carries nothing; it shows that the stream lives.
const (
	EventEnd     EventKind = "end"
	EventRevoked EventKind = "revoked"
	EventPing    EventKind = "ping"
)

// Event is pushed to a machine over its event stream.
type Event struct {
	Kind EventKind `json:"kind"`
	StepRef
	Execution int64 `json:"execution,omitempty"`
}

// Delays between the executions of a step after a transient or interrupted one, and how long transient
// trouble may last before it is a failure.
const (
	RetryFirstDelay  = time.Second
	RetryMaxDelay    = time.Minute
	TransientAtMost  = 24 * time.Hour
	HeartbeatTimeout = 30 * time.Second
	HeartbeatEvery   = 10 * time.Second
)
