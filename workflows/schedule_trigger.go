package workflows

import (
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/errandhq/errand/automation"
)

// decideWithin is how long a wake-up asks a ledger that does not answer. What it would have settled is found due when
// the ledger is back.
const decideWithin = 30 * time.Second

// ScheduleTrigger is what the firing of a Temporal Schedule starts: it wakes up one schedule of the ledger, which
// decides what is due, if anything is. The time for which Temporal started it means nothing.
func ScheduleTrigger(ctx workflow.Context, in automation.TriggerInput) (automation.TriggerVerdict, error) {
	ctx = workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{
		ScheduleToCloseTimeout: decideWithin,
		Summary:                automation.DecideSchedule.Name,
		RetryPolicy:            &temporal.RetryPolicy{InitialInterval: time.Second, BackoffCoefficient: 2},
	})
	var verdict automation.TriggerVerdict
	err := workflow.ExecuteLocalActivity(ctx, automation.DecideSchedule.Name, in).Get(ctx, &verdict)
	return verdict, err
}
