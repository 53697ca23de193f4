package automation

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// WorkflowEnd is what has become of a workflow that is not open any more.
type WorkflowEnd string

// The ends of workflows. Gone means that the engine does not know the workflow.
const (
	WorkflowGone       WorkflowEnd = "gone"
	WorkflowCompleted  WorkflowEnd = "completed"
	WorkflowFailed     WorkflowEnd = "failed"
	WorkflowTimedOut   WorkflowEnd = "timed out"
	WorkflowTerminated WorkflowEnd = "terminated"
	WorkflowCancelled  WorkflowEnd = "cancelled"
)

// ClosedWorkflow is a workflow of a run, of which the engine has confirmed that it is not open.
type ClosedWorkflow struct {
	RunID      string
	Generation int64
	End        WorkflowEnd
	// By and Reason are who terminated it and why, as far as the engine tells.
	By, Reason string
	// BySystem is set when the engine itself terminated it.
	BySystem bool
}

// byPerson reports whether somebody wanted the workflow to end.
func (w ClosedWorkflow) byPerson() bool {
	return (w.End == WorkflowTerminated || w.End == WorkflowCancelled) && !w.BySystem
}

// why says in words what has become of the workflow.
func (w ClosedWorkflow) why() string {
	switch {
	case w.End == WorkflowGone:
		return "Temporal does not know its workflow any more"
	case w.byPerson():
		return strings.TrimSuffix(fmt.Sprintf("%s in Temporal by %s: %s", w.End, cmp.Or(w.By, "somebody"), w.Reason), ": ")
	case w.End == WorkflowTerminated:
		return strings.TrimSuffix("Temporal has terminated its workflow: "+w.Reason, ": ")
	default:
		return fmt.Sprintf("its workflow has ended in Temporal, as %s, before the run", w.End)
	}
}

// Repair is what was done about a run whose workflow is not open.
type Repair string

// The repairs.
const (
	RepairNone      Repair = ""
	RepairCancelled Repair = "cancelled"
	RepairRestarted Repair = "restarted"
)

// Restart says that a run's workflow was started anew, how often, when last and why.
type Restart struct {
	Count  int64     `json:"count" doc:"how often"`
	At     time.Time `json:"at" doc:"when last"`
	Reason string    `json:"reason" doc:"why"`
}

// Reconcile makes the run agree with the engine, in which its workflow is not open. When a person has terminated
// or cancelled the workflow, the run is cancelled, as by [Run.Cancel]; otherwise it gets a new generation, whose
// workflow is to be started and finds the completed steps in the journal. A run that has ended, one of another
// generation, and one that only waits for its machine to confirm a cancel, are left alone.
func (r *Run) Reconcile(w ClosedWorkflow, now time.Time) Repair {
	if r.Status.Finished() || w.Generation != r.Generation || r.CancelRequestedAt != nil {
		return RepairNone
	}
	if w.byPerson() {
		if _, err := r.Cancel(w.why(), false, now); err != nil {
			return RepairNone
		}
		return RepairCancelled
	}
	r.restart(w.why(), now)
	return RepairRestarted
}

// MoveEngine takes a run away from an engine that is not there any more: it gets a new generation, so that calls
// of its earlier workflow are superseded.
func (r *Run) MoveEngine(now time.Time) { r.restart("Temporal's data was replaced", now) }

func (r *Run) restart(reason string, now time.Time) {
	r.Generation++
	r.EngineID, r.StalledAt = "", nil
	r.Restarted = &Restart{Count: r.Generation - 1, At: now, Reason: reason}
}

// ParseWorkflowID returns the run and the generation of a workflow id of an installation; false for any other id.
func ParseWorkflowID(installationID, workflowID string) (runID string, generation int64, ok bool) {
	rest, ok := strings.CutPrefix(workflowID, installationID+"/run/")
	if !ok {
		return "", 0, false
	}
	runID, number, ok := strings.Cut(rest, "/")
	generation, err := strconv.ParseInt(number, 10, 64)
	if !ok || err != nil || WorkflowID(installationID, runID, generation) != workflowID {
		return "", 0, false
	}
	return runID, generation, true
}

// StrayAfter is how long a workflow may go on after its run has ended before it is told.
const StrayAfter = 30 * time.Second

// RunMark is where a run stands, for the comparison with an open workflow.
type RunMark struct {
	Generation int64
	FinishedAt *time.Time
}

// Stray is what is wrong with a workflow that is open.
type Stray string

// The kinds of strays: the run has ended, another workflow has the run now, or there is no such run.
const (
	StrayNone       Stray = ""
	StrayFinished   Stray = "finished"
	StraySuperseded Stray = "superseded"
	StrayUnknown    Stray = "unknown"
)

// Stray judges an open workflow of a generation by its run; nil stands for a run that does not exist.
func (m *RunMark) Stray(generation int64, now time.Time) Stray {
	switch {
	case m == nil:
		return StrayUnknown
	case generation < m.Generation:
		return StraySuperseded
	case m.FinishedAt != nil && now.Sub(*m.FinishedAt) >= StrayAfter:
		return StrayFinished
	}
	return StrayNone
}

const (
	// MaxReconcilePause is the longest time between two comparisons of the ledger with the engine.
	MaxReconcilePause = time.Minute
	minReconcilePause = 10 * time.Second
	// reconcileShare is the part of the time that comparisons may take: one in so many.
	reconcileShare = 20
)

// ReconcilePause returns how long to wait after a comparison that took so long: small installations are repaired at
// once, and large ones do not spend more than a twentieth of the time on it.
func ReconcilePause(took time.Duration) time.Duration {
	return min(max(reconcileShare*took, minReconcilePause), MaxReconcilePause)
}
