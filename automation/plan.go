package automation

import (
	"encoding/json"
	"time"
)

// StepKind is the lane in which a step executes. The three are separate, never aliases of one another.
type StepKind string

// The lanes.
const (
	KindAction  StepKind = "action"
	KindCommand StepKind = "command"
	KindScript  StepKind = "script"
)

// Runtime is the interpreter of a script step.
type Runtime string

// The runtimes.
const (
	RuntimeShell  Runtime = "shell"
	RuntimeNode   Runtime = "node"
	RuntimePython Runtime = "python"
)

// Leftovers says what happens to processes that a step leaves running.
type Leftovers string

// The treatments of leftovers.
const (
	LeftoversEnd  Leftovers = "end"
	LeftoversKeep Leftovers = "keep"
)

// Limits of a plan and its steps, with the defaults that apply where a step is silent.
const (
	MaxSteps              = 100
	MaxStepIDLength       = 64
	MaxArgumentBytes      = 131_071 // Linux MAX_ARG_STRLEN (128 KiB) less the terminating NUL.
	MaxSourceBytes        = 96 << 10
	MaxPlanBytes          = 1 << 20
	MaxInputBytes         = 1 << 20
	MaxExpandedBytes      = 4 << 20
	MaxDepth              = 64
	DefaultTimeout        = time.Hour
	MaxTimeout            = 7 * 24 * time.Hour
	DefaultMaxOutputBytes = 256 << 10
	MaxMaxOutputBytes     = 8 << 20
)

// SupportedPlanVersions are the plan versions that admission accepts and the workflow interprets.
var SupportedPlanVersions = []int{1, 2}

// Plan is the compiled, versioned list of steps of an automation. A plan that comes from [DecodePlan] or
// [DecodeDefinition] obeys every rule of the format; one that was made by hand may not.
type Plan struct {
	Version int    `json:"version" strict:"required" doc:"2; 1 for a plan that has only actions"`
	Steps   []Step `json:"steps" strict:"required" doc:"1 to 100 steps, executed one after another"`
}

// Step is one step of a plan as it was written: optional members that were absent stay absent, so that a
// plan reads back as it was sent. [Step.Lane], [Step.Timeout] and the other methods apply the defaults.
type Step struct {
	ID   string   `json:"id" strict:"required" doc:"unique in the plan: 1 to 64 letters, digits, _ or -, starting with a letter"`
	Kind StepKind `json:"kind,omitempty" enum:"action,command,script" doc:"the lane; without it an action; absent in version 1"`

	// ActionID, Input and Credential belong to the action lane.
	ActionID   string          `json:"actionId,omitempty" doc:"action: which one, such as channels.notify_user"`
	Input      json.RawMessage `json:"input,omitempty" doc:"action: its input, any JSON value"`
	Credential string          `json:"credential,omitempty" doc:"action: the name of a credential of the machine"`

	// Command belongs to the command lane.
	Command string `json:"command,omitempty" doc:"command: a program, by its name on PATH or its absolute path; no shell reads it"`

	// Runtime and Source belong to the script lane.
	Runtime Runtime `json:"runtime,omitempty" enum:"shell,node,python" doc:"script: what executes it"`
	Source  string  `json:"source,omitempty" doc:"script: the text of the program"`

	// The rest is shared by the command and script lanes; TimeoutMs also by actions of version 2.
	Args           []string          `json:"args,omitzero" doc:"command, script: the arguments, each handed over as it is"`
	Cwd            string            `json:"cwd,omitempty" doc:"command, script: an absolute directory; default the user's home"`
	Env            map[string]string `json:"env,omitzero" doc:"command, script: more variables; not for secrets"`
	Stdin          json.RawMessage   `json:"stdin,omitempty" doc:"command, script: what it reads: a text, or any JSON value, written as JSON"`
	TimeoutMs      int64             `json:"timeoutMs,omitempty" doc:"time limit in milliseconds; default one hour"`
	MaxOutputBytes int64             `json:"maxOutputBytes,omitempty" doc:"command, script: how much of each stream is kept; default 256 KiB"`
	Leftovers      Leftovers         `json:"leftovers,omitempty" enum:"end,keep" doc:"command, script: what happens to processes that it leaves behind; default end"`
}

// Lane returns the lane of the step; a step without a kind is an action.
func (s Step) Lane() StepKind {
	if s.Kind == "" {
		return KindAction
	}
	return s.Kind
}

// Timeout returns how long the step may run, not counting time that the machine sleeps.
func (s Step) Timeout() time.Duration {
	if s.TimeoutMs == 0 {
		return DefaultTimeout
	}
	return time.Duration(s.TimeoutMs) * time.Millisecond
}

// OutputLimit returns how many bytes of each stream are kept.
func (s Step) OutputLimit() int64 {
	if s.MaxOutputBytes == 0 {
		return DefaultMaxOutputBytes
	}
	return s.MaxOutputBytes
}

// Program names what the step executes, without arguments: the action, the command, or the runtime. It is
// what operators see in Temporal.
func (s Step) Program() string {
	switch s.Lane() {
	case KindCommand:
		return s.Command
	case KindScript:
		return string(s.Runtime) + " script"
	case KindAction:
		return s.ActionID
	}
	return string(s.Kind)
}

// ConcreteStep is a step with its run input substituted and its defaults applied: exactly what a machine executes.
type ConcreteStep struct {
	RunID  string   `json:"runId"`
	StepID string   `json:"stepId"`
	Kind   StepKind `json:"kind"`

	ActionID   string          `json:"actionId,omitempty"`
	Input      json.RawMessage `json:"input,omitempty"`
	Credential string          `json:"credential,omitempty"`

	Command string  `json:"command,omitempty"`
	Runtime Runtime `json:"runtime,omitempty"`
	Source  string  `json:"source,omitempty"`

	Args []string          `json:"args,omitempty"`
	Cwd  string            `json:"cwd,omitempty"`
	Env  map[string]string `json:"env,omitempty"`
	// Stdin is the bytes that the program reads (base64 on the wire); empty means end of file at once.
	Stdin          []byte    `json:"stdin,omitempty"`
	TimeoutMs      int64     `json:"timeoutMs"`
	MaxOutputBytes int64     `json:"maxOutputBytes,omitempty"`
	Leftovers      Leftovers `json:"leftovers,omitempty"`
}

// IdempotencyKey returns the stable key of the step, `<run id>:<step id>`: the same for every execution of it.
func (s ConcreteStep) IdempotencyKey() string { return StepKey(s.RunID, s.StepID) }

// StepKey returns the idempotency key of a run's step.
func StepKey(runID, stepID string) string { return runID + ":" + stepID }
