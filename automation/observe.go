package automation

import (
	"context"
	"time"

	"github.com/errandhq/errand/automation/schedule"
)

// Observer is told what the commits of one ledger have done, for whoever counts. Each call comes after its commit,
// once, and must not block.
type Observer interface {
	// RunAdmitted: a run was admitted. A run that repeats another one is manual.
	RunAdmitted(trigger TriggerKind)
	// RunEnded: a run has ended.
	RunEnded(status RunStatus)
	// StepBegun: a step has a new execution.
	StepBegun(kind StepKind)
	// StepEnded: a step has ended; it was skipped when it had not begun. Steps that were carried over are not among
	// them.
	StepEnded(kind StepKind, status StepStatus)
	// StepInterrupted: an execution has ended without a result, and the step is executed again.
	StepInterrupted(kind StepKind)
	// InstantAdmitted: an instant of a schedule was admitted so long after it was due, its jitter included.
	InstantAdmitted(behind time.Duration)
	// InstantsDropped: so many instants of a schedule were dropped.
	InstantsDropped(reason schedule.Reason, count int64)
}

// Census counts what a ledger holds at one time, whoever owns it.
type Census struct {
	// Unfinished counts the unfinished runs by where they stand. What is not there is 0.
	Unfinished map[RunStanding]int
	// Enrolled are the machines that are not revoked, Online those of them that were seen lately.
	Enrolled, Online int
}

// RunStanding is the status of an unfinished run, and what it waits for, or "".
type RunStanding struct {
	Status RunStatus
	Waits  WaitReason
}

// CensusStore counts.
type CensusStore interface {
	// Census counts unfinished runs and machines; engineUp says whether the engine answers, for which runs may wait.
	Census(ctx context.Context, engineUp bool) (Census, error)
}
