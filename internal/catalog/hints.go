package catalog

import (
	"context"
	"encoding/json"

	"github.com/errandhq/errand/automation"
)

// Hint names a command that is often given next after a result. It is an offer: nothing depends on whether it is
// taken, and a result without one leads nowhere in particular.
type Hint struct {
	Command string `json:"command" doc:"a command of the catalog"`
	// Input is what the result tells of its input, and is valid as it stands where it is there at all.
	Input json.RawMessage `json:"input,omitempty" doc:"its input, as far as this result tells it"`
	About string          `json:"about" doc:"what it does here"`
}

// Hinted is embedded in results that lead somewhere.
type Hinted struct {
	Hint *Hint `json:"hint,omitempty" doc:"a command that is often given next"`
}

func (h *Hinted) suggest(hint *Hint) { h.Hint = hint }

// waitForRun is how long hints wait for a run, in milliseconds: below [MaxWait], so that an answer is sure to come.
const waitForRun = 50_000

// hinted is a behaviour whose result carries the hint that next derives from it; next returns nil for none.
func hinted[In, Out any, P interface {
	*Out
	suggest(*Hint)
}](
	run func(context.Context, *Service, Principal, In) (Out, error), next func(Out) *Hint,
) func(context.Context, *Service, Principal, In) (Out, error) {
	return func(ctx context.Context, s *Service, p Principal, in In) (Out, error) {
		out, err := run(ctx, s, p, in)
		if err == nil {
			P(&out).suggest(next(out))
		}
		return out, err
	}
}

// newHint makes a hint; the members of its input are texts, numbers and truth values.
func newHint(command string, input map[string]any, about string) *Hint {
	encoded, err := json.Marshal(input)
	if err != nil {
		return nil // an offer that cannot be written is none
	}
	return &Hint{Command: command, Input: encoded, About: about}
}

// afterDefinition follows create and update: what makes the automation run, or a run of it.
func afterDefinition(a AutomationResult) *Hint {
	switch {
	case a.Workflow.Compiled == nil:
		return &Hint{Command: "update", About: "gives this draft a plan, in workflow.compiled; without one it is not executable"}
	case !a.Enabled:
		return newHint("update", map[string]any{"automation_id": a.ID, "enabled": true}, "enables the automation; until then no run is admitted")
	}
	return newHint("run-now", map[string]any{"automation_id": a.ID}, "runs the automation now")
}

// afterRun follows every command that returns one run.
func afterRun(r RunResult) *Hint {
	switch {
	case r.Status == automation.RunFailed:
		return newHint("retry-run", map[string]any{"run_id": r.ID},
			"runs the same plan and input again from the step that failed; run-now takes the plan as it is now")
	case r.Status.Finished():
		return nil
	case r.WaitingFor != nil && r.WaitingFor.Reason == automation.WaitMachineOffline:
		return newHint("machines", map[string]any{}, "shows when the machine was seen; the run waits for it, without limit")
	}
	return newHint("run", map[string]any{"run_id": r.ID, "wait_ms": waitForRun}, "waits for the run to end and shows it")
}

func afterDelete(d DeleteResult) *Hint {
	if d.UnfinishedRuns == 0 {
		return nil
	}
	return newHint("runs", map[string]any{"automation_id": d.AutomationID}, "lists its runs; unfinished ones go on, cancel-run ends one")
}

func afterApply(a ApplyResult) *Hint {
	for _, applied := range a.Automations {
		switch {
		case applied.Action == Unchanged:
		case a.DryRun:
			return &Hint{Command: "apply", About: "makes these changes, with the same input without dry_run"}
		default:
			return newHint("get", map[string]any{"automation_id": applied.AutomationID}, "shows the first that was changed")
		}
	}
	return nil
}
