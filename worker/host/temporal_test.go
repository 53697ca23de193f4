//go:build unix

package host_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/worker/host"
)

// frontend is the part of Temporal that a worker of activities talks to, on a real socket.
type frontend struct {
	workflowservice.UnimplementedWorkflowServiceServer
	tasks     chan *workflowservice.PollActivityTaskQueueResponse
	completed chan *workflowservice.RespondActivityTaskCompletedRequest
	failed    chan *workflowservice.RespondActivityTaskFailedRequest

	mu      sync.Mutex
	methods map[string]int
	polls   []*workflowservice.PollActivityTaskQueueRequest
	beats   []string // task tokens
}

func startFrontend(t *testing.T) (*frontend, string) {
	t.Helper()
	f := &frontend{
		tasks:     make(chan *workflowservice.PollActivityTaskQueueResponse, 8),
		completed: make(chan *workflowservice.RespondActivityTaskCompletedRequest, 8),
		failed:    make(chan *workflowservice.RespondActivityTaskFailedRequest, 8),
		methods:   map[string]int{},
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(
		func(ctx context.Context, r any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			f.mu.Lock()
			f.methods[info.FullMethod]++
			f.mu.Unlock()
			return handle(ctx, r)
		}))
	workflowservice.RegisterWorkflowServiceServer(server, f)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return f, listener.Addr().String()
}

func (f *frontend) GetSystemInfo(context.Context, *workflowservice.GetSystemInfoRequest) (*workflowservice.GetSystemInfoResponse, error) {
	return &workflowservice.GetSystemInfoResponse{Capabilities: &workflowservice.GetSystemInfoResponse_Capabilities{}}, nil
}

func (f *frontend) DescribeNamespace(context.Context, *workflowservice.DescribeNamespaceRequest) (*workflowservice.DescribeNamespaceResponse, error) {
	return &workflowservice.DescribeNamespaceResponse{}, nil
}

func (f *frontend) ShutdownWorker(context.Context, *workflowservice.ShutdownWorkerRequest) (*workflowservice.ShutdownWorkerResponse, error) {
	return &workflowservice.ShutdownWorkerResponse{}, nil
}

func (f *frontend) PollActivityTaskQueue(ctx context.Context, r *workflowservice.PollActivityTaskQueueRequest) (*workflowservice.PollActivityTaskQueueResponse, error) {
	f.mu.Lock()
	f.polls = append(f.polls, r)
	f.mu.Unlock()
	select {
	case task := <-f.tasks:
		return task, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (f *frontend) RecordActivityTaskHeartbeat(_ context.Context, r *workflowservice.RecordActivityTaskHeartbeatRequest) (*workflowservice.RecordActivityTaskHeartbeatResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.beats = append(f.beats, string(r.GetTaskToken()))
	return &workflowservice.RecordActivityTaskHeartbeatResponse{CancelRequested: len(f.beats) > 1}, nil
}

func (f *frontend) RespondActivityTaskCompleted(_ context.Context, r *workflowservice.RespondActivityTaskCompletedRequest) (*workflowservice.RespondActivityTaskCompletedResponse, error) {
	f.completed <- r
	return &workflowservice.RespondActivityTaskCompletedResponse{}, nil
}

func (f *frontend) RespondActivityTaskFailed(_ context.Context, r *workflowservice.RespondActivityTaskFailedRequest) (*workflowservice.RespondActivityTaskFailedResponse, error) {
	f.failed <- r
	return &workflowservice.RespondActivityTaskFailedResponse{}, nil
}

// offer puts a step on the queue.
func (f *frontend) offer(t *testing.T, activity, token string, in automation.StepInput) {
	t.Helper()
	input, err := converter.GetDefaultDataConverter().ToPayloads(in)
	if err != nil {
		t.Fatal(err)
	}
	f.tasks <- &workflowservice.PollActivityTaskQueueResponse{
		TaskToken: []byte(token), WorkflowNamespace: "test", ActivityId: in.StepID, Input: input, Attempt: 1,
		ActivityType:                &commonpb.ActivityType{Name: activity},
		WorkflowType:                &commonpb.WorkflowType{Name: automation.WorkflowAutomationRun},
		WorkflowExecution:           &commonpb.WorkflowExecution{WorkflowId: "w", RunId: "r"},
		ScheduledTime:               timestamppb.Now(),
		StartedTime:                 timestamppb.Now(),
		CurrentAttemptScheduledTime: timestamppb.Now(),
		StartToCloseTimeout:         durationpb.New(time.Hour),
		ScheduleToCloseTimeout:      durationpb.New(time.Hour),
		HeartbeatTimeout:            durationpb.New(automation.HeartbeatTimeout),
	}
}

func receive[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatal("Temporal got no answer")
		panic("unreachable")
	}
}

func TestGatewayTakesStepsOfEveryLane(t *testing.T) {
	t.Parallel()
	f, address := startFrontend(t)
	execute := func(ctx context.Context, a host.Attempt, in automation.StepInput) (automation.StepVerdict, error) {
		if in.StepID == "fails" {
			return automation.StepVerdict{}, temporal.NewNonRetryableApplicationError("step fails failed", "nonzero_exit", nil)
		}
		if in.StepID != "beats" {
			return automation.StepVerdict{Outcome: automation.OutcomeCompleted}, nil
		}
		if err := a.Heartbeat(ctx); err != nil {
			return automation.StepVerdict{}, fmt.Errorf("first heartbeat: %w", err)
		}
		if err := a.Heartbeat(ctx); !temporal.IsCanceledError(err) {
			return automation.StepVerdict{}, fmt.Errorf("second heartbeat: %w", err)
		}
		return automation.StepVerdict{Outcome: automation.OutcomeCancelled}, nil
	}
	gateway := host.Gateway{HostPort: address, Connection: client.ConnectionOptions{TLSDisabled: true}}
	w, err := gateway.Dial(t.Context(), host.WorkerOptions{
		Namespace: "test", TaskQueue: "queue-1", Identity: "machine/m", Concurrency: 4, StopTimeout: patience,
		Execute: execute, OnFatal: func(err error) { t.Errorf("the worker gave up: %v", err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []automation.StepKind{automation.KindAction, automation.KindCommand, automation.KindScript} {
		f.offer(t, automation.ExecuteStep(kind).Name, "token-"+string(kind), automation.StepInput{RunID: "r", StepID: "plain"})
		if got := receive(t, f.completed); string(got.GetTaskToken()) != "token-"+string(kind) {
			t.Errorf("completed %s", got.GetTaskToken())
		}
	}
	f.offer(t, automation.ExecuteCommand.Name, "token-beats", automation.StepInput{RunID: "r", StepID: "beats"})
	var verdict automation.StepVerdict
	if err := converter.GetDefaultDataConverter().FromPayloads(receive(t, f.completed).GetResult(), &verdict); err != nil || verdict.Outcome != automation.OutcomeCancelled {
		t.Errorf("verdict %+v, %v", verdict, err)
	}
	f.offer(t, automation.ExecuteCommand.Name, "token-fails", automation.StepInput{RunID: "r", StepID: "fails"})
	failure := receive(t, f.failed).GetFailure()
	if info := failure.GetApplicationFailureInfo(); info.GetType() != "nonzero_exit" || !info.GetNonRetryable() {
		t.Errorf("failure %v", failure)
	}
	w.Stop()
	f.check(t)
}

// check looks at the calls that the gateway would see: only those that it forwards.
func (f *frontend) check(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	forwarded := []string{
		"GetSystemInfo", "DescribeNamespace", "PollActivityTaskQueue", "RecordActivityTaskHeartbeat",
		"RespondActivityTaskCompleted", "RespondActivityTaskFailed", "RespondActivityTaskCanceled", "ShutdownWorker",
	}
	for method := range f.methods {
		if !slices.ContainsFunc(forwarded, func(name string) bool {
			return method == "/temporal.api.workflowservice.v1.WorkflowService/"+name
		}) {
			t.Errorf("the worker calls %s", method)
		}
	}
	for _, poll := range f.polls {
		if poll.GetTaskQueue().GetName() != "queue-1" || poll.GetNamespace() != "test" || poll.GetIdentity() != "machine/m" {
			t.Errorf("poll %v", poll)
		}
	}
	if !slices.Equal(f.beats, []string{"token-beats", "token-beats"}) {
		t.Errorf("heartbeats of %v", f.beats)
	}
}

func TestGatewayThatIsAwayIsAnErrorAtOnce(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	gateway := host.Gateway{HostPort: listener.Addr().String(), Connection: client.ConnectionOptions{TLSDisabled: true}}
	if _, err := gateway.Dial(ctx, host.WorkerOptions{Namespace: "test", TaskQueue: "q"}); err == nil {
		t.Error("it was reached")
	}
}
