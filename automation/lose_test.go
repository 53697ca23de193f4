package automation_test

import (
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
)

func TestLoseMachine(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	later := now.Add(time.Minute)
	record := func(id string, status automation.StepStatus) automation.StepRecord {
		return automation.StepRecord{ID: id, Status: status, Attempt: 1}
	}
	tests := map[string]struct {
		status      automation.RunStatus
		steps       []automation.StepRecord
		begun       string
		want        []automation.StepStatus
		unconfirmed bool
		errorStep   string
	}{
		"not begun": {
			status: automation.RunPending, steps: []automation.StepRecord{record("a", automation.StepPending)},
			want: []automation.StepStatus{automation.StepSkipped},
		},
		"between steps": {
			status: automation.RunRunning,
			steps:  []automation.StepRecord{record("a", automation.StepCompleted), record("b", automation.StepPending)},
			want:   []automation.StepStatus{automation.StepCompleted, automation.StepSkipped},
		},
		"executing": {
			status: automation.RunRunning,
			steps:  []automation.StepRecord{record("a", automation.StepRunning), record("b", automation.StepPending)},
			begun:  "a", want: []automation.StepStatus{automation.StepFailed, automation.StepSkipped}, unconfirmed: true, errorStep: "a",
		},
		"waiting for its next execution": {
			status: automation.RunRunning,
			steps:  []automation.StepRecord{{ID: "a", Status: automation.StepRunning, Attempt: 1, RetryAt: &later}},
			begun:  "a", want: []automation.StepStatus{automation.StepFailed}, errorStep: "a",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := automation.Run{Status: test.status, Steps: test.steps}
			if begun := run.LoseMachine(now); begun != test.begun {
				t.Errorf("begun %q, want %q", begun, test.begun)
			}
			for i, want := range test.want {
				if got := run.Steps[i]; got.Status != want || got.FinishedAt == nil && want != automation.StepCompleted {
					t.Errorf("step %d is %+v, want %q", i, got, want)
				}
			}
			if run.Steps[0].Unconfirmed != test.unconfirmed {
				t.Errorf("unconfirmed %t, want %t", run.Steps[0].Unconfirmed, test.unconfirmed)
			}
			if run.Status != automation.RunFailed || run.Error == nil || run.Error.Code != "machine_lost" || run.Error.StepID != test.errorStep ||
				run.FinishedAt == nil || !run.FinishedAt.Equal(now) {
				t.Errorf("the run is %s with %+v, finished %v", run.Status, run.Error, run.FinishedAt)
			}
			before := run
			if begun := run.LoseMachine(later); begun != "" || run.Status != before.Status || !run.FinishedAt.Equal(now) {
				t.Errorf("a finished run was changed: %+v", run)
			}
		})
	}
}
