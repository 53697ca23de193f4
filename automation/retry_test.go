package automation_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/automation"
)

func TestRepeat(t *testing.T) {
	t.Parallel()
	began, ended := time.Unix(100, 0).UTC(), time.Unix(200, 0).UTC()
	record := func(id string, status automation.StepStatus) automation.StepRecord {
		return automation.StepRecord{ID: id, Kind: automation.KindScript, Status: status, Attempt: 3, StartedAt: &began, FinishedAt: &ended}
	}
	pending := func(id string) automation.StepRecord {
		return automation.StepRecord{ID: id, Kind: automation.KindScript, Status: automation.StepPending}
	}
	carried := func(id, from string) automation.StepRecord {
		return automation.StepRecord{
			ID: id, Kind: automation.KindScript, Status: automation.StepCompleted, StartedAt: &began, FinishedAt: &ended, CarriedFrom: from,
		}
	}
	failed := []automation.StepRecord{
		record("a", automation.StepCompleted), record("b", automation.StepCompleted),
		record("c", automation.StepFailed), record("d", automation.StepSkipped),
	}
	failed[0].CarriedFrom = "earlier"
	completed := []automation.StepRecord{record("a", automation.StepCompleted), record("b", automation.StepCompleted)}
	tests := map[string]struct {
		status automation.RunStatus
		steps  []automation.StepRecord
		from   string
		want   []automation.StepRecord
		code   automation.Code
	}{
		"from the first incomplete step": {
			automation.RunFailed, failed, "",
			[]automation.StepRecord{carried("a", "earlier"), carried("b", "run"), pending("c"), pending("d")},
			"",
		},
		"from that step by name": {
			automation.RunCancelled, failed, "c",
			[]automation.StepRecord{carried("a", "earlier"), carried("b", "run"), pending("c"), pending("d")},
			"",
		},
		"from a step before": {
			automation.RunFailed, failed, "b",
			[]automation.StepRecord{carried("a", "earlier"), pending("b"), pending("c"), pending("d")},
			"",
		},
		"a completed run, whole":         {automation.RunCompleted, completed, "", []automation.StepRecord{pending("a"), pending("b")}, ""},
		"a completed run, its last step": {automation.RunCompleted, completed, "b", []automation.StepRecord{carried("a", "run"), pending("b")}, ""},
		"after an incomplete step":       {automation.RunFailed, failed, "d", nil, automation.CodeValidationFailed},
		"an unknown step":                {automation.RunFailed, failed, "x", nil, automation.CodeValidationFailed},
		"a pending run":                  {automation.RunPending, failed, "", nil, automation.CodeNotFinished},
		"a running run":                  {automation.RunRunning, failed, "x", nil, automation.CodeNotFinished},
	}
	for name, test := range tests {
		run := automation.Run{ID: "run", Status: test.status, Steps: slices.Clone(test.steps)}
		got, err := run.Repeat(test.from)
		if automation.CodeOf(err) != test.code {
			t.Errorf("%s: %v, want %q", name, err, test.code)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(test.steps, run.Steps); diff != "" {
			t.Errorf("%s has changed the finished run:\n%s", name, diff)
		}
	}
}
