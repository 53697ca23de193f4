package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	deploymentpb "go.temporal.io/api/deployment/v1"
	enumspb "go.temporal.io/api/enums/v1"
	failurepb "go.temporal.io/api/failure/v1"
	"go.temporal.io/api/serviceerror"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	workerpb "go.temporal.io/api/worker/v1"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/gateway"
)

// pollOf returns a poll of a machine's own queue.
func pollOf(machine string) *workflowservice.PollActivityTaskQueueRequest {
	return &workflowservice.PollActivityTaskQueueRequest{
		Namespace: namespace, Identity: "me", WorkerInstanceKey: "instance",
		TaskQueue: &taskqueuepb.TaskQueue{Name: automation.MachineQueue(installation, machine), Kind: enumspb.TASK_QUEUE_KIND_NORMAL},
	}
}

// pollTask has the machine poll and the upstream hand out a task, and returns the token that the machine got.
func (s *stage) pollTask(t *testing.T, machine, token string) []byte {
	t.Helper()
	go func() { s.upstream.tasks <- &workflowservice.PollActivityTaskQueueResponse{TaskToken: []byte(token)} }()
	out, err := s.machine(t, machine).PollActivityTaskQueue(t.Context(), pollOf(machine))
	if err != nil {
		t.Fatal(err)
	}
	<-s.upstream.polling
	return out.GetTaskToken()
}

// startPoll polls beside the test and returns when the poll has reached the upstream.
func (s *stage) startPoll(t *testing.T, ctx context.Context, c workflowservice.WorkflowServiceClient, r *workflowservice.PollActivityTaskQueueRequest) <-chan pollResult {
	t.Helper()
	result := make(chan pollResult, 1)
	go func() {
		out, err := c.PollActivityTaskQueue(ctx, r)
		result <- pollResult{out, err}
	}()
	receive(t, s.upstream.polling, "a poll at the upstream")
	return result
}

type pollResult struct {
	out *workflowservice.PollActivityTaskQueueResponse
	err error
}

func (r pollResult) wantEmpty(t *testing.T) {
	t.Helper()
	if r.err != nil || len(r.out.GetTaskToken()) != 0 {
		t.Fatalf("the poll was answered with token %q and error %v, want an empty answer", r.out.GetTaskToken(), r.err)
	}
}

var allowed = []string{
	"DescribeNamespace", "GetSystemInfo", "PollActivityTaskQueue", "RecordActivityTaskHeartbeat", "RespondActivityTaskCanceled",
	"RespondActivityTaskCompleted", "RespondActivityTaskFailed", "ShutdownWorker",
}

func TestOnlyTheCallsOfAnActivityWorkerExist(t *testing.T) {
	t.Parallel()
	s := newStage(t, nil)
	machine, nobody := s.connect(t, machineA), s.connect(t, "")
	methods := workflowservice.WorkflowService_ServiceDesc.Methods
	if len(methods) < 90 {
		t.Fatalf("the service has only %d methods", len(methods))
	}
	implemented := map[string]bool{}
	for _, m := range methods {
		full := "/" + workflowservice.WorkflowService_ServiceDesc.ServiceName + "/" + m.MethodName
		if err := nobody.Invoke(t.Context(), full, &emptypb.Empty{}, &emptypb.Empty{}); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s by nobody: %v", m.MethodName, err)
		}
		// An empty request is refused by those that exist, too; what counts is how.
		if err := machine.Invoke(t.Context(), full, &emptypb.Empty{}, &emptypb.Empty{}); status.Code(err) != codes.Unimplemented {
			implemented[m.MethodName] = true
		}
	}
	if got := slices.Sorted(maps.Keys(implemented)); !slices.Equal(got, allowed) {
		t.Errorf("implemented: %v, want %v", got, allowed)
	}
	for _, full := range []string{
		"/temporal.api.operatorservice.v1.OperatorService/ListSearchAttributes", "/temporal.server.api.adminservice.v1.AdminService/DescribeCluster",
		"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/temporal.api.workflowservice.v1.WorkflowService/Nonsense",
	} {
		if err := machine.Invoke(t.Context(), full, &emptypb.Empty{}, &emptypb.Empty{}); status.Code(err) != codes.Unimplemented {
			t.Errorf("%s: %v", full, err)
		}
	}
	if calls := s.upstream.recorded(""); len(calls) > 0 {
		t.Errorf("calls reached the upstream: %v", calls)
	}
}

func TestAuthenticatorGetsTheCall(t *testing.T) {
	t.Parallel()
	s := newStage(t, nil)
	if _, err := s.machine(t, machineA).GetSystemInfo(t.Context(), &workflowservice.GetSystemInfoRequest{}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"POST /temporal.api.workflowservice.v1.WorkflowService/GetSystemInfo"}; !slices.Equal(s.doorman.methods, want) {
		t.Errorf("authenticated %v, want %v", s.doorman.methods, want)
	}
	if !slices.Equal(s.doorman.proofs[0], []string{"proof"}) {
		t.Errorf("proofs %v", s.doorman.proofs)
	}
}

func TestAuthenticationErrors(t *testing.T) {
	t.Parallel()
	var refused atomic.Int64
	s := newStage(t, func(o *gateway.Options) { o.Refused = func() { refused.Add(1) } })
	tests := map[string]struct {
		err     error
		code    codes.Code
		message string
	}{
		"unauthorized": {automation.Errorf(automation.CodeUnauthorized, "bad proof"), codes.Unauthenticated, "bad proof"},
		"revoked":      {automation.Errorf(automation.CodeMachineRevoked, "revoked"), codes.Unauthenticated, "revoked"},
		"unknown":      {automation.Errorf(automation.CodeNotFound, "unknown"), codes.Unauthenticated, "unknown"},
		"forbidden":    {automation.Errorf(automation.CodeForbidden, "elsewhere"), codes.PermissionDenied, "elsewhere"},
		"rate limited": {automation.Errorf(automation.CodeRateLimited, "slow down"), codes.ResourceExhausted, "slow down"},
		"store down":   {automation.Errorf(automation.CodeStoreUnavailable, "no database"), codes.Unavailable, "no database"},
		"internal":     {errors.New("secret cause"), codes.Unavailable, "the call cannot be authenticated now"},
	}
	for name, test := range tests {
		s.doorman.set(name, test.err)
		_, err := s.machine(t, name).PollActivityTaskQueue(t.Context(), pollOf(name))
		if status.Code(err) != test.code || status.Convert(err).Message() != test.message {
			t.Errorf("%s: %v, want %v %q", name, err, test.code, test.message)
		}
	}
	if n := refused.Load(); n != 3 { // unauthorized, revoked, unknown
		t.Errorf("%d refused credentials were told, want 3", n)
	}
	if !strings.Contains(s.logs.String(), "secret cause") {
		t.Error("the cause of an internal error is not in the log")
	}
	if calls := s.upstream.recorded(""); len(calls) > 0 {
		t.Errorf("refused calls reached the upstream: %v", calls)
	}
}

func TestPollIsRebuilt(t *testing.T) {
	t.Parallel()
	s := newStage(t, nil)
	r := pollOf(machineA)
	r.Namespace, r.PollerGroupId, r.WorkerControlTaskQueue = "another", "group", "control"
	r.DeploymentOptions = &deploymentpb.WorkerDeploymentOptions{DeploymentName: "d"}
	go func() {
		s.upstream.tasks <- &workflowservice.PollActivityTaskQueueResponse{TaskToken: []byte("token"), ActivityId: "step", Attempt: 3}
	}()
	out, err := s.machine(t, machineA).PollActivityTaskQueue(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if out.GetActivityId() != "step" || out.GetAttempt() != 3 || bytes.Equal(out.GetTaskToken(), []byte("token")) || !bytes.HasSuffix(out.GetTaskToken(), []byte("token")) {
		t.Errorf("the machine got %v", out)
	}
	want := &workflowservice.PollActivityTaskQueueRequest{
		Namespace: namespace, Identity: "machine/" + machineA, TaskQueue: pollOf(machineA).GetTaskQueue(),
		WorkerInstanceKey: machineA + "/instance", PollerGroupId: "group",
	}
	got := s.upstream.recorded("PollActivityTaskQueue")
	if len(got) != 1 || !proto.Equal(got[0].request, want) {
		t.Fatalf("upstream got %v, want %v", got, want)
	}
	for name := range got[0].headers {
		if name == "authorization" || name == "dpop" || strings.HasPrefix(name, "x-") {
			t.Errorf("the header %s of the machine reached Temporal", name)
		}
	}
	if s.sightings(machineA) != 1 {
		t.Errorf("the poll was reported %d times", s.sightings(machineA))
	}
}

func TestPollOfAnotherQueueIsRefused(t *testing.T) {
	t.Parallel()
	s := newStage(t, nil)
	own := automation.MachineQueue(installation, machineA)
	tests := map[string]*taskqueuepb.TaskQueue{
		"none":                   nil,
		"empty":                  {},
		"another machine's":      {Name: automation.MachineQueue(installation, machineB)},
		"the control queue":      {Name: automation.ControlQueue(installation)},
		"another installation":   {Name: automation.MachineQueue("other", machineA)},
		"a partition of its own": {Name: "/_sys/" + own + "/1"},
		"with a space":           {Name: own + " "},
		"in capitals":            {Name: strings.ToUpper(own)},
		"sticky":                 {Name: own, Kind: enumspb.TASK_QUEUE_KIND_STICKY, NormalName: own},
		"of commands to workers": {Name: own, Kind: enumspb.TASK_QUEUE_KIND_WORKER_COMMANDS},
	}
	for name, queue := range tests {
		r := pollOf(machineA)
		r.TaskQueue = queue
		_, err := s.machine(t, machineA).PollActivityTaskQueue(t.Context(), r)
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: %v", name, err)
		}
		_, err = s.machine(t, machineA).ShutdownWorker(t.Context(), &workflowservice.ShutdownWorkerRequest{TaskQueue: queue.GetName() + "x"})
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: shutdown: %v", name, err)
		}
	}
	if calls := s.upstream.recorded(""); len(calls) > 0 {
		t.Errorf("refused calls reached the upstream: %v", calls)
	}
	if s.sightings(machineA) > 0 {
		t.Error("a refused poll was reported as a sign of life")
	}
}

// taskCalls are the calls that carry a task token.
var taskCalls = map[string]func(context.Context, workflowservice.WorkflowServiceClient, []byte) error{
	"RecordActivityTaskHeartbeat": func(ctx context.Context, c workflowservice.WorkflowServiceClient, token []byte) error {
		_, err := c.RecordActivityTaskHeartbeat(ctx, &workflowservice.RecordActivityTaskHeartbeatRequest{
			TaskToken: token, Namespace: "another", Identity: "me", ResourceId: "r", Details: payloads("details"),
		})
		return err
	},
	"RespondActivityTaskCompleted": func(ctx context.Context, c workflowservice.WorkflowServiceClient, token []byte) error {
		_, err := c.RespondActivityTaskCompleted(ctx, &workflowservice.RespondActivityTaskCompletedRequest{
			TaskToken: token, Namespace: "another", Identity: "me", ResourceId: "r", Result: payloads("verdict"),
			DeploymentOptions: &deploymentpb.WorkerDeploymentOptions{DeploymentName: "d"},
		})
		return err
	},
	"RespondActivityTaskFailed": func(ctx context.Context, c workflowservice.WorkflowServiceClient, token []byte) error {
		_, err := c.RespondActivityTaskFailed(ctx, &workflowservice.RespondActivityTaskFailedRequest{
			TaskToken: token, Namespace: "another", Identity: "me", Failure: &failurepb.Failure{Message: "why"}, LastHeartbeatDetails: payloads("details"),
		})
		return err
	},
	"RespondActivityTaskCanceled": func(ctx context.Context, c workflowservice.WorkflowServiceClient, token []byte) error {
		_, err := c.RespondActivityTaskCanceled(ctx, &workflowservice.RespondActivityTaskCanceledRequest{
			TaskToken: token, Namespace: "another", Identity: "me", Details: payloads("verdict"),
		})
		return err
	},
}

func payloads(text string) *commonpb.Payloads {
	return &commonpb.Payloads{Payloads: []*commonpb.Payload{{Data: []byte(text)}}}
}

func TestTaskCallsAreRebuilt(t *testing.T) {
	t.Parallel()
	s := newStage(t, nil)
	token := s.pollTask(t, machineA, "raw token")
	me := "machine/" + machineA
	want := map[string]proto.Message{
		"RecordActivityTaskHeartbeat":  &workflowservice.RecordActivityTaskHeartbeatRequest{TaskToken: []byte("raw token"), Namespace: namespace, Identity: me},
		"RespondActivityTaskCompleted": &workflowservice.RespondActivityTaskCompletedRequest{TaskToken: []byte("raw token"), Namespace: namespace, Identity: me, Result: payloads("verdict")},
		"RespondActivityTaskFailed":    &workflowservice.RespondActivityTaskFailedRequest{TaskToken: []byte("raw token"), Namespace: namespace, Identity: me, Failure: &failurepb.Failure{Message: "why"}},
		"RespondActivityTaskCanceled":  &workflowservice.RespondActivityTaskCanceledRequest{TaskToken: []byte("raw token"), Namespace: namespace, Identity: me, Details: payloads("verdict")},
	}
	for name, make := range taskCalls {
		if err := make(t.Context(), s.machine(t, machineA), token); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := s.upstream.recorded(name)
		if len(got) != 1 || !proto.Equal(got[0].request, want[name]) {
			t.Errorf("%s: upstream got %v, want %v", name, got, want[name])
		}
		if h := got[0].headers; len(h.Get("authorization"))+len(h.Get("dpop"))+len(h.Get("x-machine-secret")) > 0 {
			t.Errorf("%s: headers of the machine reached Temporal: %v", name, h)
		}
	}
	if s.sightings(machineA) != 2 {
		t.Errorf("one poll and one heartbeat were reported %d times", s.sightings(machineA))
	}
	out, err := s.machine(t, machineA).RecordActivityTaskHeartbeat(t.Context(), &workflowservice.RecordActivityTaskHeartbeatRequest{TaskToken: token})
	if err != nil || !out.GetCancelRequested() {
		t.Errorf("heartbeat answer %v, %v", out, err)
	}
}

func TestForeignTokensAreRefused(t *testing.T) {
	t.Parallel()
	s := newStage(t, nil)
	earlier := newStage(t, func(o *gateway.Options) { o.TokenKey = bytes.Repeat([]byte{9}, 32) })
	tokenA := s.pollTask(t, machineA, "token of A")
	flipped := bytes.Clone(tokenA)
	flipped[0] ^= 1
	changed := bytes.Clone(tokenA)
	changed[len(changed)-1] ^= 1
	tests := map[string]struct {
		machine string
		token   []byte
	}{
		"B with A's token":          {machineB, tokenA},
		"A with a raw token":        {machineA, []byte("token of A, as Temporal made it, as long as you like")},
		"A with a changed MAC":      {machineA, flipped},
		"A with a changed token":    {machineA, changed},
		"A with a longer token":     {machineA, append(bytes.Clone(tokenA), 0)},
		"A with the MAC alone":      {machineA, tokenA[:32]},
		"A with half a MAC":         {machineA, tokenA[:16]},
		"A with nothing":            {machineA, nil},
		"an earlier installation's": {machineA, earlier.pollTask(t, machineA, "token of A")},
	}
	for name, test := range tests {
		for method, make := range taskCalls {
			if err := make(t.Context(), s.machine(t, test.machine), test.token); status.Code(err) != codes.PermissionDenied {
				t.Errorf("%s, %s: %v", name, method, err)
			}
			if calls := s.upstream.recorded(method); len(calls) > 0 {
				t.Fatalf("%s, %s: reached the upstream", name, method)
			}
		}
	}
	if s.sightings(machineB) > 0 {
		t.Error("a refused heartbeat was reported as a sign of life")
	}
}

func TestTokensOutliveARestart(t *testing.T) {
	t.Parallel()
	before, after := newStage(t, nil), newStage(t, nil)
	token := before.pollTask(t, machineA, "token")
	if err := taskCalls["RespondActivityTaskCompleted"](t.Context(), after.machine(t, machineA), token); err != nil {
		t.Fatal(err)
	}
}

func TestUpstreamErrors(t *testing.T) {
	t.Parallel()
	type want struct{ poll, call codes.Code }
	tests := map[string]struct {
		err  error
		want want
	}{
		"unavailable":         {serviceerror.NewUnavailable("down"), want{codes.Unavailable, codes.Unavailable}},
		"invalid argument":    {serviceerror.NewInvalidArgument("bad"), want{codes.Unavailable, codes.InvalidArgument}},
		"task not found":      {serviceerror.NewNotFound("invalid activityID"), want{codes.Unavailable, codes.NotFound}},
		"namespace not found": {serviceerror.NewNamespaceNotFound(namespace), want{codes.Unavailable, codes.Unavailable}},
		"namespace elsewhere": {serviceerror.NewNamespaceNotActive(namespace, "a", "b"), want{codes.Unavailable, codes.Unavailable}},
		"old client":          {serviceerror.NewClientVersionNotSupported("1", "x", "2"), want{codes.Unavailable, codes.FailedPrecondition}},
		"our credentials":     {serviceerror.NewPermissionDenied("no", ""), want{codes.Unavailable, codes.Unavailable}},
		"our API key":         {status.Error(codes.Unauthenticated, "no"), want{codes.Unavailable, codes.Unavailable}},
		"unimplemented":       {serviceerror.NewUnimplemented("no"), want{codes.Unavailable, codes.Unavailable}},
		"internal":            {serviceerror.NewInternal("oops"), want{codes.Unavailable, codes.Unavailable}},
		"unknown":             {status.Error(codes.Unknown, "?"), want{codes.Unavailable, codes.Unavailable}},
		"deadline":            {status.Error(codes.DeadlineExceeded, "late"), want{codes.Unavailable, codes.Unavailable}},
		"cancelled":           {status.Error(codes.Canceled, "gone"), want{codes.Unavailable, codes.Unavailable}},
		"too fast": {
			serviceerror.NewResourceExhausted(enumspb.RESOURCE_EXHAUSTED_CAUSE_RPS_LIMIT, "slow"),
			want{codes.ResourceExhausted, codes.ResourceExhausted},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, nil)
			token := s.pollTask(t, machineA, "token")
			st := serviceerror.ToStatus(test.err)
			s.upstream.setFailure("PollActivityTaskQueue", st.Err())
			_, err := s.machine(t, machineA).PollActivityTaskQueue(t.Context(), pollOf(machineA))
			if status.Code(err) != test.want.poll {
				t.Errorf("poll: %v, want %v", err, test.want.poll)
			}
			for method, make := range taskCalls {
				s.upstream.setFailure(method, st.Err())
				err := make(t.Context(), s.machine(t, machineA), token)
				if status.Code(err) != test.want.call {
					t.Errorf("%s: %v, want %v", method, err, test.want.call)
				}
				if test.want.call == codes.NotFound && status.Convert(err).Message() != st.Message() {
					t.Errorf("%s: the sentence was lost: %v", method, err)
				}
			}
		})
	}
}

func TestUpstreamThatIsGoneIsUnavailable(t *testing.T) {
	t.Parallel()
	conn, err := grpc.NewClient("127.0.0.1:1", insecureOption)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	s := newStage(t, func(o *gateway.Options) { o.Upstream = workflowservice.NewWorkflowServiceClient(conn) })
	c := s.machine(t, machineA)
	_, err = c.PollActivityTaskQueue(t.Context(), pollOf(machineA))
	wantStatus(t, err, codes.Unavailable, "Temporal cannot be polled now")
	if _, err := c.DescribeNamespace(t.Context(), &workflowservice.DescribeNamespaceRequest{}); err != nil {
		t.Errorf("a worker cannot start while Temporal is down: %v", err)
	}
}

func TestSystemInfoAndNamespaceAreAnsweredHere(t *testing.T) {
	t.Parallel()
	s := newStage(t, nil)
	c := s.machine(t, machineA)
	info, err := c.GetSystemInfo(t.Context(), &workflowservice.GetSystemInfoRequest{})
	if err != nil || info.GetServerVersion() != "" || !proto.Equal(info.GetCapabilities(), &workflowservice.GetSystemInfoResponse_Capabilities{}) {
		t.Errorf("system info %v, %v", info, err)
	}
	ns, err := c.DescribeNamespace(t.Context(), &workflowservice.DescribeNamespaceRequest{Namespace: "another"})
	if err != nil {
		t.Fatal(err)
	}
	if ns.GetNamespaceInfo().GetName() != namespace || ns.GetConfig() != nil || ns.GetNamespaceInfo().GetCapabilities().GetWorkerHeartbeats() {
		t.Errorf("namespace %v", ns)
	}
	if calls := s.upstream.recorded(""); len(calls) > 0 {
		t.Errorf("calls reached the upstream: %v", calls)
	}
}

func TestDrain(t *testing.T) {
	t.Parallel()
	s := newStage(t, nil)
	token := s.pollTask(t, machineA, "token")
	c := s.machine(t, machineA)
	first := s.startPoll(t, t.Context(), c, pollOf(machineA))
	second := s.startPoll(t, t.Context(), s.machine(t, machineB), pollOf(machineB))
	checks := healthpb.NewHealthClient(s.connect(t, ""))
	wantHealth(t, checks, healthpb.HealthCheckResponse_SERVING)
	s.gateway.Drain()
	receive(t, first, "the first poll").wantEmpty(t)
	receive(t, second, "the second poll").wantEmpty(t)
	wantHealth(t, checks, healthpb.HealthCheckResponse_NOT_SERVING)
	_, err := c.PollActivityTaskQueue(t.Context(), pollOf(machineA))
	wantStatus(t, err, codes.Unavailable, "stopping")
	for name, make := range taskCalls {
		if err := make(t.Context(), c, token); err != nil {
			t.Errorf("%s after the drain: %v", name, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := s.server.Config.Shutdown(ctx); err != nil {
		t.Errorf("the server does not shut down after a drain: %v", err)
	}
}

func wantHealth(t *testing.T, c healthpb.HealthClient, want healthpb.HealthCheckResponse_ServingStatus) {
	t.Helper()
	for _, name := range []string{"", "temporal.api.workflowservice.v1.WorkflowService"} {
		out, err := c.Check(t.Context(), &healthpb.HealthCheckRequest{Service: name})
		if err != nil || out.GetStatus() != want {
			t.Errorf("health of %q: %v, %v; want %v", name, out.GetStatus(), err, want)
		}
	}
	_, err := c.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "another"})
	wantStatus(t, err, codes.NotFound, "another")
}

func TestDisconnectEndsThePollsOfOneMachine(t *testing.T) {
	t.Parallel()
	s := newStage(t, nil)
	a, b := s.machine(t, machineA), s.machine(t, machineB)
	first, second := s.startPoll(t, t.Context(), a, pollOf(machineA)), s.startPoll(t, t.Context(), a, pollOf(machineA))
	other := s.startPoll(t, t.Context(), b, pollOf(machineB))
	s.doorman.set(machineA, automation.Errorf(automation.CodeMachineRevoked, "the machine has been revoked"))
	s.gateway.Disconnect(machineA)
	receive(t, first, "A's first poll").wantEmpty(t)
	receive(t, second, "A's second poll").wantEmpty(t)
	// The upstream hears of it a moment later, and until then one of these polls could take the task for B.
	for range 2 {
		receive(t, s.upstream.ended, "the end of A's polls at the upstream")
	}
	_, err := a.PollActivityTaskQueue(t.Context(), pollOf(machineA))
	wantStatus(t, err, codes.Unauthenticated, "revoked")
	go func() { s.upstream.tasks <- &workflowservice.PollActivityTaskQueueResponse{TaskToken: []byte("for B")} }()
	if r := receive(t, other, "B's poll"); r.err != nil || len(r.out.GetTaskToken()) == 0 {
		t.Errorf("B's poll was ended too: %v, %v", r.out, r.err)
	}
}

func TestPollEndsEmptyAfterTheLongestTime(t *testing.T) {
	t.Parallel()
	s := newStage(t, func(o *gateway.Options) { o.MaxPoll = 50 * time.Millisecond })
	c := s.machine(t, machineA)
	waitFor(t, "a poll that has reached the upstream", func() bool {
		out, err := c.PollActivityTaskQueue(t.Context(), pollOf(machineA))
		pollResult{out, err}.wantEmpty(t)
		return len(s.upstream.polling) > 0
	})
	if err := receive(t, s.upstream.ended, "the poll's end at the upstream"); err == nil {
		t.Error("the poll is still open at the upstream")
	}
}

func TestCancelledPollReachesTheUpstream(t *testing.T) {
	t.Parallel()
	s := newStage(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	result := s.startPoll(t, ctx, s.machine(t, machineA), pollOf(machineA))
	cancel()
	if r := receive(t, result, "the poll"); status.Code(r.err) != codes.Canceled {
		t.Errorf("the machine's poll: %v", r.err)
	}
	if err := receive(t, s.upstream.ended, "the poll's end at the upstream"); !errors.Is(err, context.Canceled) {
		t.Errorf("the upstream saw %v", err)
	}
}

func TestPollsOfOneMachineAreLimited(t *testing.T) {
	t.Parallel()
	s := newStage(t, nil)
	c := s.machine(t, machineA)
	var open []<-chan pollResult
	ctx, cancel := context.WithCancel(t.Context())
	for range gateway.DefaultMaxPollsPerMachine {
		open = append(open, s.startPoll(t, ctx, c, pollOf(machineA)))
	}
	_, err := c.PollActivityTaskQueue(t.Context(), pollOf(machineA))
	wantStatus(t, err, codes.ResourceExhausted, "16 open polls")
	s.startPoll(t, ctx, s.machine(t, machineB), pollOf(machineB))
	if n := s.gateway.OpenPolls(); n != gateway.DefaultMaxPollsPerMachine+1 {
		t.Errorf("%d polls are open, want %d", n, gateway.DefaultMaxPollsPerMachine+1)
	}
	cancel()
	for _, poll := range open {
		receive(t, poll, "a cancelled poll")
	}
	for range gateway.DefaultMaxPollsPerMachine + 1 {
		if err := receive(t, s.upstream.ended, "a poll's end at the upstream"); err == nil {
			t.Error("a cancelled poll is still open at the upstream")
		}
	}
	// The gateway lets a poll go just after its caller and the upstream have.
	waitFor(t, "a place for a poll", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := c.PollActivityTaskQueue(ctx, pollOf(machineA))
		return status.Code(err) == codes.DeadlineExceeded
	})
}

func TestShutdownWorkerEndsThePollsOfOneInstance(t *testing.T) {
	t.Parallel()
	s := newStage(t, nil)
	a := s.machine(t, machineA)
	another := pollOf(machineA)
	another.WorkerInstanceKey = "another"
	stopped, kept := s.startPoll(t, t.Context(), a, pollOf(machineA)), s.startPoll(t, t.Context(), a, another)
	keptB := s.startPoll(t, t.Context(), s.machine(t, machineB), pollOf(machineB)) // with the same instance key
	_, err := a.ShutdownWorker(t.Context(), &workflowservice.ShutdownWorkerRequest{
		Namespace: "another", TaskQueue: automation.MachineQueue(installation, machineA), WorkerInstanceKey: "instance",
		Identity: "me", Reason: "anything", StickyTaskQueue: "someone's", WorkerHeartbeat: &workerpb.WorkerHeartbeat{HostInfo: &workerpb.WorkerHostInfo{HostName: "host"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := &workflowservice.ShutdownWorkerRequest{
		Namespace: namespace, Identity: "machine/" + machineA, Reason: "the worker stops", TaskQueue: automation.MachineQueue(installation, machineA),
		TaskQueueTypes: []enumspb.TaskQueueType{enumspb.TASK_QUEUE_TYPE_ACTIVITY}, WorkerInstanceKey: machineA + "/instance",
	}
	if got := s.upstream.recorded("ShutdownWorker"); len(got) != 1 || !proto.Equal(got[0].request, want) {
		t.Errorf("upstream got %v, want %v", got, want)
	}
	receive(t, stopped, "the stopped worker's poll").wantEmpty(t)
	for _, poll := range []<-chan pollResult{kept, keptB} {
		select {
		case r := <-poll:
			t.Errorf("another worker's poll was ended: %v, %v", r.out, r.err)
		default:
		}
	}
}

func TestLargeRequestsAreRefused(t *testing.T) {
	t.Parallel()
	s := newStage(t, nil)
	token := s.pollTask(t, machineA, "token")
	c := s.machine(t, machineA)
	_, err := c.RespondActivityTaskCompleted(t.Context(), &workflowservice.RespondActivityTaskCompletedRequest{
		TaskToken: token, Result: payloads(strings.Repeat("x", gateway.MaxMessageBytes)),
	})
	wantStatus(t, err, codes.ResourceExhausted, "larger than")
	_, err = c.RespondActivityTaskCompleted(t.Context(), &workflowservice.RespondActivityTaskCompletedRequest{
		TaskToken: token, Result: payloads(strings.Repeat("x", gateway.MaxMessageBytes-1000)),
	})
	if err != nil {
		t.Errorf("just below the limit: %v", err)
	}
	if got := len(s.upstream.recorded("RespondActivityTaskCompleted")); got != 1 {
		t.Errorf("%d calls reached the upstream", got)
	}
}

func TestPanicIsInternalAndLogged(t *testing.T) {
	t.Parallel()
	var once sync.Once
	s := newStage(t, func(o *gateway.Options) {
		o.Seen = func(string) { once.Do(func() { panic("the callback broke") }) }
	})
	c := s.machine(t, machineA)
	_, err := c.PollActivityTaskQueue(t.Context(), pollOf(machineA))
	wantStatus(t, err, codes.Internal, "server's log")
	if strings.Contains(err.Error(), "callback") || !strings.Contains(s.logs.String(), "the callback broke") {
		t.Errorf("error %v, log %s", err, s.logs)
	}
	if token := s.pollTask(t, machineA, "token"); len(token) == 0 {
		t.Error("no task after the panic")
	}
}

func TestOtherContentIsTheAPIs(t *testing.T) {
	t.Parallel()
	s := newStage(t, nil)
	response, err := http.Get("http://" + s.address + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, _ := io.ReadAll(response.Body); string(body) != "the API" {
		t.Errorf("got %q", body)
	}
}

func TestNewRefusesIncompleteOptions(t *testing.T) {
	t.Parallel()
	complete := func() gateway.Options {
		return gateway.Options{
			Upstream: workflowservice.NewWorkflowServiceClient(nil), Namespace: "n", InstallationID: "i",
			TokenKey: make([]byte, 32), Authenticator: &doorman{},
		}
	}
	if _, err := gateway.New(complete()); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*gateway.Options){
		"upstream":      func(o *gateway.Options) { o.Upstream = nil },
		"namespace":     func(o *gateway.Options) { o.Namespace = "" },
		"installation":  func(o *gateway.Options) { o.InstallationID = "" },
		"authenticator": func(o *gateway.Options) { o.Authenticator = nil },
		"short key":     func(o *gateway.Options) { o.TokenKey = make([]byte, 31) },
	} {
		o := complete()
		change(&o)
		if _, err := gateway.New(o); err == nil {
			t.Errorf("options with a bad %s were accepted", name)
		}
	}
}

// waitFor returns when the condition holds.
func waitFor(t *testing.T, what string, holds func() bool) {
	t.Helper()
	again := time.NewTicker(2 * time.Millisecond)
	defer again.Stop()
	for deadline := time.Now().Add(patience); !holds(); <-again.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
