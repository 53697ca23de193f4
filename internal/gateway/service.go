package gateway

import (
	"context"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	namespacepb "go.temporal.io/api/namespace/v1"
	"go.temporal.io/api/serviceerror"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/errandhq/errand/automation"
)

// service implements the calls of an activity-only worker. What it does not implement is refused by the
// embedded type, so a call that a newer Temporal adds is refused too.
type service struct {
	workflowservice.UnimplementedWorkflowServiceServer

	upstream     workflowservice.WorkflowServiceClient
	namespace    string
	installation string
	tokens       tokenSealer
	polls        *pollRegistry
	maxPoll      time.Duration
	seen         func(machineID string)

	upstreamTrouble *trouble
}

// GetSystemInfo claims no capability of the server: a worker of activities needs none.
func (s *service) GetSystemInfo(context.Context, *workflowservice.GetSystemInfoRequest) (*workflowservice.GetSystemInfoResponse, error) {
	return &workflowservice.GetSystemInfoResponse{Capabilities: &workflowservice.GetSystemInfoResponse_Capabilities{}}, nil
}

// DescribeNamespace answers for the one namespace there is, whatever the machine calls it. Polls end by
// themselves when a worker stops, so that no task is sent into a poll that its worker has given up.
func (s *service) DescribeNamespace(context.Context, *workflowservice.DescribeNamespaceRequest) (*workflowservice.DescribeNamespaceResponse, error) {
	return &workflowservice.DescribeNamespaceResponse{NamespaceInfo: &namespacepb.NamespaceInfo{
		Name:         s.namespace,
		State:        enumspb.NAMESPACE_STATE_REGISTERED,
		Capabilities: &namespacepb.NamespaceInfo_Capabilities{WorkerPollCompleteOnShutdown: true},
	}}, nil
}

// PollActivityTaskQueue waits for a task on the machine's own queue.
func (s *service) PollActivityTaskQueue(ctx context.Context, in *workflowservice.PollActivityTaskQueueRequest) (*workflowservice.PollActivityTaskQueueResponse, error) {
	machine := machineID(ctx)
	queue := s.queue(machine)
	if in.GetTaskQueue().GetName() != queue.GetName() || !normal(in.GetTaskQueue().GetKind()) {
		return nil, status.Error(codes.PermissionDenied, "a machine may poll its own task queue only")
	}
	instance := instanceKey(machine, in.GetWorkerInstanceKey())
	pollCtx, done, err := s.polls.begin(ctx, machine, instance)
	if err != nil {
		return nil, err
	}
	defer done()
	s.seen(machine)
	pollCtx, cancel := context.WithTimeout(pollCtx, s.maxPoll)
	defer cancel()
	out, err := s.upstream.PollActivityTaskQueue(pollCtx, &workflowservice.PollActivityTaskQueueRequest{
		Namespace: s.namespace, TaskQueue: queue, Identity: identity(machine),
		WorkerInstanceKey: instance, PollerGroupId: groupID(in.GetPollerGroupId()),
	})
	switch {
	case err == nil:
		s.upstreamTrouble.over(ctx, "poll")
		if len(out.GetTaskToken()) > 0 {
			out.TaskToken = s.tokens.seal(machine, out.GetTaskToken())
		}
		return out, nil
	case ctx.Err() != nil: // the machine is gone or its own deadline has passed
		return nil, status.FromContextError(ctx.Err()).Err()
	case pollCtx.Err() != nil || s.timeIsUp(pollCtx, err): // ended by us: drain, disconnect, the worker's stop, or the longest time
		return &workflowservice.PollActivityTaskQueueResponse{}, nil
	default:
		return nil, s.pollError(ctx, err)
	}
}

// deadlineSlack is how much earlier than here the time of a poll may be up at Temporal, whose clock started with
// the call.
const deadlineSlack = time.Second

// timeIsUp reports whether a poll has failed because its longest time has passed at Temporal, a moment before it
// does here.
func (s *service) timeIsUp(pollCtx context.Context, err error) bool {
	deadline, ok := pollCtx.Deadline()
	return ok && serviceerror.ToStatus(err).Code() == codes.DeadlineExceeded && time.Until(deadline) < deadlineSlack
}

// RecordActivityTaskHeartbeat passes a sign of life on, without details.
func (s *service) RecordActivityTaskHeartbeat(ctx context.Context, in *workflowservice.RecordActivityTaskHeartbeatRequest) (*workflowservice.RecordActivityTaskHeartbeatResponse, error) {
	machine := machineID(ctx)
	token, err := s.tokens.open(machine, in.GetTaskToken())
	if err != nil {
		return nil, err
	}
	s.seen(machine)
	return forward(ctx, s, s.upstream.RecordActivityTaskHeartbeat, &workflowservice.RecordActivityTaskHeartbeatRequest{
		Namespace: s.namespace, TaskToken: token, Identity: identity(machine),
	})
}

// RespondActivityTaskCompleted passes a verdict on.
func (s *service) RespondActivityTaskCompleted(ctx context.Context, in *workflowservice.RespondActivityTaskCompletedRequest) (*workflowservice.RespondActivityTaskCompletedResponse, error) {
	machine := machineID(ctx)
	token, err := s.tokens.open(machine, in.GetTaskToken())
	if err != nil {
		return nil, err
	}
	return forward(ctx, s, s.upstream.RespondActivityTaskCompleted, &workflowservice.RespondActivityTaskCompletedRequest{
		Namespace: s.namespace, TaskToken: token, Identity: identity(machine), Result: in.GetResult(),
	})
}

// RespondActivityTaskFailed passes a failure on.
func (s *service) RespondActivityTaskFailed(ctx context.Context, in *workflowservice.RespondActivityTaskFailedRequest) (*workflowservice.RespondActivityTaskFailedResponse, error) {
	machine := machineID(ctx)
	token, err := s.tokens.open(machine, in.GetTaskToken())
	if err != nil {
		return nil, err
	}
	return forward(ctx, s, s.upstream.RespondActivityTaskFailed, &workflowservice.RespondActivityTaskFailedRequest{
		Namespace: s.namespace, TaskToken: token, Identity: identity(machine), Failure: in.GetFailure(),
	})
}

// RespondActivityTaskCanceled passes the confirmation of a cancellation on.
func (s *service) RespondActivityTaskCanceled(ctx context.Context, in *workflowservice.RespondActivityTaskCanceledRequest) (*workflowservice.RespondActivityTaskCanceledResponse, error) {
	machine := machineID(ctx)
	token, err := s.tokens.open(machine, in.GetTaskToken())
	if err != nil {
		return nil, err
	}
	return forward(ctx, s, s.upstream.RespondActivityTaskCanceled, &workflowservice.RespondActivityTaskCanceledRequest{
		Namespace: s.namespace, TaskToken: token, Identity: identity(machine), Details: in.GetDetails(),
	})
}

// ShutdownWorker ends the polls of a worker that stops. Temporal ends them without losing a task where its
// frontend.enableCancelWorkerPollsOnShutdown is on; those that are still open a moment later are ended here.
func (s *service) ShutdownWorker(ctx context.Context, in *workflowservice.ShutdownWorkerRequest) (*workflowservice.ShutdownWorkerResponse, error) {
	machine := machineID(ctx)
	queue := s.queue(machine).GetName()
	if in.GetTaskQueue() != queue {
		return nil, status.Error(codes.PermissionDenied, "a machine may stop the workers of its own task queue only")
	}
	instance := instanceKey(machine, in.GetWorkerInstanceKey())
	out, err := forward(ctx, s, s.upstream.ShutdownWorker, &workflowservice.ShutdownWorkerRequest{
		Namespace: s.namespace, Identity: identity(machine), Reason: "the worker stops", TaskQueue: queue,
		TaskQueueTypes: []enumspb.TaskQueueType{enumspb.TASK_QUEUE_TYPE_ACTIVITY}, WorkerInstanceKey: instance,
	})
	if instance != "" {
		time.AfterFunc(stopGrace, func() {
			s.polls.end(func(p *poll) bool { return p.machine == machine && p.instance == instance })
		})
	}
	return out, err
}

func (s *service) queue(machine string) *taskqueuepb.TaskQueue {
	return &taskqueuepb.TaskQueue{
		Name: automation.MachineQueue(s.installation, machine), Kind: enumspb.TASK_QUEUE_KIND_NORMAL,
	}
}

// normal accepts the unspecified kind, which Temporal takes for a normal queue.
func normal(kind enumspb.TaskQueueKind) bool {
	return kind == enumspb.TASK_QUEUE_KIND_NORMAL || kind == enumspb.TASK_QUEUE_KIND_UNSPECIFIED
}

// identity is how a machine's worker appears in Temporal, whatever it calls itself.
func identity(machine string) string { return "machine/" + machine }

const (
	// stopGrace is what Temporal has to end the polls of a stopping worker by itself, so that a task that is on
	// its way arrives. The SDK waits 5 seconds for its polls.
	stopGrace = 500 * time.Millisecond
	// maxKeyBytes is far above what the SDK and Temporal make as keys.
	maxKeyBytes = 128
)

// instanceKey keeps the instance keys of machines apart: with the key of another machine's worker, which is
// no secret, a machine could else end that worker's polls. A key too long to be one is left out.
func instanceKey(machine, key string) string {
	if key == "" || len(key) > maxKeyBytes {
		return ""
	}
	return machine + "/" + key
}

// groupID passes on where Temporal told the worker to poll.
func groupID(id string) string {
	if len(id) > maxKeyBytes {
		return ""
	}
	return id
}

// pollError translates what Temporal answered to a poll. After some codes (INVALID_ARGUMENT, a namespace that
// is not found, an unsupported client version) the SDK ends a worker for good, and none of them is the
// machine's fault here: all trouble is Unavailable, except a request to slow down.
func (s *service) pollError(ctx context.Context, err error) error {
	code := serviceerror.ToStatus(err).Code()
	if code == codes.ResourceExhausted {
		return status.Error(codes.ResourceExhausted, "Temporal asks to poll less often")
	}
	s.upstreamTrouble.met(ctx, "poll", code, err)
	return status.Error(codes.Unavailable, "Temporal cannot be polled now")
}
