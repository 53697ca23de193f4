package workflows_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/workflows"
)

// wakeUp runs a wake-up whose ledger answers with decide, and returns its verdict and the times of the calls.
func wakeUp(
	t *testing.T, decide func(in automation.TriggerInput, call int) (automation.TriggerVerdict, error),
) (verdict automation.TriggerVerdict, calls []time.Time, err error) {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	env.SetTestTimeout(time.Minute)
	env.RegisterWorkflowWithOptions(workflows.ScheduleTrigger, workflow.RegisterOptions{Name: automation.WorkflowScheduleTrigger})
	env.RegisterActivityWithOptions(func(_ context.Context, in automation.TriggerInput) (automation.TriggerVerdict, error) {
		calls = append(calls, env.Now())
		return decide(in, len(calls))
	}, activity.RegisterOptions{Name: automation.DecideSchedule.Name})
	env.ExecuteWorkflow(automation.WorkflowScheduleTrigger, automation.TriggerInput{ScheduleID: "s"})
	if !env.IsWorkflowCompleted() {
		t.Fatal("the workflow has not ended")
	}
	if err = env.GetWorkflowError(); err == nil {
		err = env.GetWorkflowResult(&verdict)
	}
	return verdict, calls, err
}

func TestAWakeUpAsksForADecision(t *testing.T) {
	t.Parallel()
	want := automation.TriggerVerdict{Admitted: []string{"r2"}, Cancelled: []string{"r1"}}
	got, calls, err := wakeUp(t, func(in automation.TriggerInput, call int) (automation.TriggerVerdict, error) {
		if in.ScheduleID != "s" {
			t.Errorf("schedule %q", in.ScheduleID)
		}
		if call == 1 {
			return automation.TriggerVerdict{}, temporal.NewApplicationError("away", "store_unavailable")
		}
		return want, nil
	})
	if diff := cmp.Diff(want, got); diff != "" || err != nil || len(calls) != 2 {
		t.Errorf("%v after %d calls (-want +got):\n%s", err, len(calls), diff)
	}
}

func TestAWakeUpGivesUpOnALedgerThatIsAway(t *testing.T) {
	t.Parallel()
	_, calls, err := wakeUp(t, func(automation.TriggerInput, int) (automation.TriggerVerdict, error) {
		return automation.TriggerVerdict{}, temporal.NewApplicationError("away", "store_unavailable")
	})
	if err == nil || len(calls) < 3 {
		t.Fatalf("%v after %d calls", err, len(calls))
	}
	if took := calls[len(calls)-1].Sub(calls[0]); took > 31*time.Second {
		t.Errorf("it asked for %s", took)
	}
}
