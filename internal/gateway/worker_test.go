package gateway_test

import (
	"context"
	"strings"
	"testing"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/worker"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/errandhq/errand/automation"
)

// startWorker starts a worker of the Temporal SDK as a machine does: activities only, no worker heartbeats.
func startWorker(t *testing.T, s *stage, machine string, run func(context.Context, automation.StepInput) (automation.StepVerdict, error)) worker.Worker {
	t.Helper()
	c, err := client.Dial(client.Options{
		HostPort: s.address, Namespace: namespace, Logger: quiet, WorkerHeartbeatInterval: -1,
		ConnectionOptions: client.ConnectionOptions{DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(identify(machine))}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	w := worker.New(c, automation.MachineQueue(installation, machine), worker.Options{
		DisableWorkflowWorker: true, MaxConcurrentActivityExecutionSize: 4, MaxConcurrentActivityTaskPollers: 2,
	})
	w.RegisterActivityWithOptions(run, activity.RegisterOptions{Name: automation.ExecuteCommand.Name})
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	return w
}

// stepTask returns the task of a step, as Temporal hands it out.
func stepTask(t *testing.T, token string) *workflowservice.PollActivityTaskQueueResponse {
	t.Helper()
	input, err := converter.GetDefaultDataConverter().ToPayloads(automation.StepInput{RunID: "run", StepID: "step", Generation: 1})
	if err != nil {
		t.Fatal(err)
	}
	now := timestamppb.Now()
	return &workflowservice.PollActivityTaskQueueResponse{
		TaskToken: []byte(token), WorkflowNamespace: namespace, ActivityId: "step", Attempt: 1, Input: input,
		WorkflowType: &commonpb.WorkflowType{Name: automation.WorkflowAutomationRun}, ActivityType: &commonpb.ActivityType{Name: automation.ExecuteCommand.Name},
		WorkflowExecution: &commonpb.WorkflowExecution{WorkflowId: "workflow", RunId: "0192d3a0-0000-7000-8000-0000000000ee"},
		ScheduledTime:     now, CurrentAttemptScheduledTime: now, StartedTime: now,
		StartToCloseTimeout: durationpb.New(time.Hour), ScheduleToCloseTimeout: durationpb.New(time.Hour), HeartbeatTimeout: durationpb.New(30 * time.Second),
	}
}

func TestWorkerOfTheSDK(t *testing.T) {
	t.Parallel()
	s := newStage(t, nil)
	beats := make(chan error, 1)
	w := startWorker(t, s, machineA, func(ctx context.Context, in automation.StepInput) (automation.StepVerdict, error) {
		// With a context of its own, as the host beats.
		beats <- activity.GetClient(ctx).RecordActivityHeartbeat(context.WithoutCancel(ctx), activity.GetInfo(ctx).TaskToken)
		return automation.StepVerdict{Outcome: automation.OutcomeCompleted, Stopped: automation.StopReason(in.StepID)}, nil
	})
	receive(t, s.upstream.polling, "the worker's poll")
	select {
	case s.upstream.tasks <- stepTask(t, "token"):
	case <-time.After(patience):
		t.Fatal("nobody took the task")
	}
	if err := receive(t, beats, "a heartbeat"); err == nil || !strings.Contains(err.Error(), "canceled") {
		t.Errorf("the heartbeat's answer (cancel requested) became %v", err)
	}
	waitFor(t, "the verdict", func() bool { return len(s.upstream.recorded("RespondActivityTaskCompleted")) > 0 })
	done := s.upstream.recorded("RespondActivityTaskCompleted")[0].request.(*workflowservice.RespondActivityTaskCompletedRequest)
	var verdict automation.StepVerdict
	if err := converter.GetDefaultDataConverter().FromPayloads(done.GetResult(), &verdict); err != nil {
		t.Fatal(err)
	}
	if string(done.GetTaskToken()) != "token" || verdict.Outcome != automation.OutcomeCompleted || verdict.Stopped != "step" {
		t.Errorf("token %q, verdict %v", done.GetTaskToken(), verdict)
	}
	w.Stop()
	if got := len(s.upstream.recorded("ShutdownWorker")); got != 1 {
		t.Errorf("the worker's stop reached Temporal %d times", got)
	}
	known := map[string]bool{
		"PollActivityTaskQueue": true, "RecordActivityTaskHeartbeat": true, "RespondActivityTaskCompleted": true, "ShutdownWorker": true,
	}
	for _, c := range s.upstream.recorded("") {
		if !known[c.method] {
			t.Errorf("%s reached Temporal", c.method)
		}
	}
}

func TestWorkerOfTheSDKSurvivesTrouble(t *testing.T) {
	t.Parallel()
	s := newStage(t, nil)
	ran := make(chan struct{}, 1)
	w := startWorker(t, s, machineA, func(context.Context, automation.StepInput) (automation.StepVerdict, error) {
		ran <- struct{}{}
		return automation.StepVerdict{Outcome: automation.OutcomeCompleted}, nil
	})
	defer w.Stop()
	receive(t, s.upstream.polling, "the worker's poll")
	s.doorman.set(machineA, automation.Errorf(automation.CodeUnauthorized, "not now"))
	s.gateway.Disconnect(machineA)
	waitFor(t, "refused polls", func() bool { return s.doorman.refusals() > 1 })
	s.doorman.set(machineA, nil)
	select {
	case s.upstream.tasks <- stepTask(t, "token"):
	case <-time.After(patience):
		t.Fatal("the worker does not poll after it was let in again")
	}
	receive(t, ran, "the activity")
}
