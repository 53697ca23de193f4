// Package worker registers what each kind of Temporal worker of the product runs: here the control plane's
// workflows and ledger activities on the control queue, in its sub-package host a machine's steps on the
// queue of that machine.
package worker

import (
	"context"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/errandhq/errand/activities/control"
	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/workflows"
)

// deadlockDetection is how long a workflow task may compute before the SDK calls it a deadlock.
const deadlockDetection = 5 * time.Second

// NewControl returns the worker of an installation's control queue, not started yet. onFatal is told when it has given
// up for good, as when its namespace has been missing for minutes; it must not block.
func NewControl(c client.Client, installationID string, activities control.Activities, onFatal func(error)) worker.Worker {
	w := worker.New(c, automation.ControlQueue(installationID), worker.Options{
		Identity:                         "errandd/" + installationID,
		DisableRegistrationAliasing:      true,
		MaxConcurrentWorkflowTaskPollers: 4,
		// Workflows here only sequence; a busy machine must not look like a deadlock.
		DeadlockDetectionTimeout: deadlockDetection,
		OnFatalError:             onFatal,
	})
	w.RegisterWorkflowWithOptions(workflows.AutomationRun, workflow.RegisterOptions{
		Name: automation.WorkflowAutomationRun,
	})
	w.RegisterWorkflowWithOptions(workflows.ScheduleTrigger, workflow.RegisterOptions{
		Name: automation.WorkflowScheduleTrigger,
	})
	bind(w, automation.FinalizeRun, activities.FinalizeRun)
	bind(w, automation.RequestCancel, activities.RequestCancel)
	bind(w, automation.DecideSchedule, activities.DecideSchedule)
	return w
}

// bind registers a function under an activity's contract; another input or result type does not compile.
func bind[In, Out any](
	registry worker.ActivityRegistry, contract automation.Activity[In, Out], fn func(context.Context, In) (Out, error),
) {
	registry.RegisterActivityWithOptions(fn, activity.RegisterOptions{Name: contract.Name})
}
