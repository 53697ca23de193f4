package engine

import (
	"context"
	"errors"
	"fmt"

	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"

	"github.com/errandhq/errand/automation"
)

// openPage is how many workflows one call lists: as many as Temporal gives by default.
const openPage = 1000

// identityOfTemporal is what Temporal calls itself where it terminates a workflow by itself, for example because
// its history has become too long.
const identityOfTemporal = "history-service"

// OpenWorkflow is a workflow of a run that is open in the engine.
type OpenWorkflow struct {
	RunID      string
	Generation int64
}

// Refresh reads the identity of the cluster and the namespace again. When they are other ones, because Temporal's data
// was replaced, it makes sure of the search attributes there, and the runs that the former engine held are started
// anew by the next look of the [Starter].
func (e *Engine) Refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	before := e.ID()
	namespace, err := e.identify(ctx)
	if err != nil {
		return e.observe(err)
	}
	if now := e.ID(); now != before {
		e.logger.Warn("Temporal's data was replaced; unfinished runs are started again from the ledger", "before", before, "now", now)
		e.ensureSearchAttributes(ctx, namespace)
	}
	return e.observe(nil)
}

// OpenWorkflows lists the open workflows of runs, a page per call: next is what the call before returned, nil at first
// and at the end. What was started or has ended in the last seconds may be missing or still be there.
func (e *Engine) OpenWorkflows(ctx context.Context, next []byte) (page []OpenWorkflow, token []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := e.client.WorkflowService().ListWorkflowExecutions(ctx, &workflowservice.ListWorkflowExecutionsRequest{
		Namespace: e.namespace, PageSize: openPage, NextPageToken: next,
		Query: fmt.Sprintf("ExecutionStatus = 'Running' AND WorkflowType = '%s' AND TaskQueue = '%s'",
			automation.WorkflowAutomationRun, automation.ControlQueue(e.install)),
	})
	if err != nil {
		return nil, nil, e.observe(translate("listing the open workflows", err))
	}
	for _, execution := range answer.GetExecutions() {
		runID, generation, ours := automation.ParseWorkflowID(e.install, execution.GetExecution().GetWorkflowId())
		if ours {
			page = append(page, OpenWorkflow{RunID: runID, Generation: generation})
		}
	}
	return page, answer.GetNextPageToken(), e.observe(nil)
}

// ClosedWorkflow says how the workflow of a run has ended; false when it is open. It asks the engine's own records,
// which are never behind.
func (e *Engine) ClosedWorkflow(ctx context.Context, runID string, generation int64) (automation.ClosedWorkflow, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	closed := automation.ClosedWorkflow{RunID: runID, Generation: generation}
	id := automation.WorkflowID(e.install, runID, generation)
	description, err := e.client.DescribeWorkflowExecution(ctx, id, "")
	if _, gone := errors.AsType[*serviceerror.NotFound](err); gone {
		closed.End = automation.WorkflowGone
		return closed, true, e.observe(nil)
	}
	if err != nil {
		return closed, false, e.observe(translate("looking at the workflow of run "+runID, err))
	}
	info := description.GetWorkflowExecutionInfo()
	end, isClosed := endOf(info.GetStatus())
	closed.End = end
	if end == automation.WorkflowTerminated {
		err = e.addTermination(ctx, info.GetExecution(), &closed)
	}
	return closed, isClosed, e.observe(translate("reading why the workflow of run "+runID+" was terminated", err))
}

// endOf says what a status means; false for those of an open workflow.
func endOf(status enumspb.WorkflowExecutionStatus) (automation.WorkflowEnd, bool) {
	switch status {
	case enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED, enumspb.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW:
		return automation.WorkflowCompleted, true
	case enumspb.WORKFLOW_EXECUTION_STATUS_FAILED:
		return automation.WorkflowFailed, true
	case enumspb.WORKFLOW_EXECUTION_STATUS_TIMED_OUT:
		return automation.WorkflowTimedOut, true
	case enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED:
		return automation.WorkflowTerminated, true
	case enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED:
		return automation.WorkflowCancelled, true
	case enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING, enumspb.WORKFLOW_EXECUTION_STATUS_PAUSED,
		enumspb.WORKFLOW_EXECUTION_STATUS_UNSPECIFIED:
		return "", false
	}
	return "", false // a status of a later Temporal says nothing that could be acted upon
}

// addTermination reads from the last event of a history who has terminated the workflow and why.
func (e *Engine) addTermination(ctx context.Context, execution *commonpb.WorkflowExecution, closed *automation.ClosedWorkflow) error {
	events := e.client.GetWorkflowHistory(ctx, execution.GetWorkflowId(), execution.GetRunId(), false,
		enumspb.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT)
	for events.HasNext() {
		event, err := events.Next()
		if err != nil {
			return err
		}
		if terminated := event.GetWorkflowExecutionTerminatedEventAttributes(); terminated != nil {
			closed.By, closed.Reason = terminated.GetIdentity(), terminated.GetReason()
			closed.BySystem = closed.By == identityOfTemporal
		}
	}
	return nil
}

// Redispatch asks the workflow of a run to dispatch a step again. A workflow that is not there has nothing to do.
func (e *Engine) Redispatch(ctx context.Context, step automation.StalledStep) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	id := automation.WorkflowID(e.install, step.RunID, step.Generation)
	err := e.client.SignalWorkflow(ctx, id, "", automation.DispatchSignal.Name, automation.DispatchNotice{StepID: step.StepID})
	return e.observe(translate("dispatching a step of run "+step.RunID+" again", unlessGone(err)))
}

// EndSuperseded terminates a workflow whose run has another one by now. Programs of the run are not touched.
func (e *Engine) EndSuperseded(ctx context.Context, runID string, generation int64) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	id := automation.WorkflowID(e.install, runID, generation)
	err := e.client.TerminateWorkflow(ctx, id, "", "the run has a later workflow")
	return e.observe(translate("ending a superseded workflow of run "+runID, unlessGone(err)))
}

// unlessGone makes nothing of the answer that a workflow is not there or has ended.
func unlessGone(err error) error {
	if _, gone := errors.AsType[*serviceerror.NotFound](err); gone {
		return nil
	}
	return err
}
