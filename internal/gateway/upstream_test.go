package gateway_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/gateway"
	"github.com/errandhq/errand/internal/logtest"
)

const (
	machineA     = "0192d3a0-0000-7000-8000-00000000000a"
	machineB     = "0192d3a0-0000-7000-8000-00000000000b"
	installation = "0192d3a0-0000-7000-8000-0000000000ff"
	namespace    = "errand-test"
	patience     = 30 * time.Second
)

// upstream stands in for a Temporal frontend on a socket of its own: it hands out tasks, and records every
// call with its headers.
type upstream struct {
	workflowservice.UnimplementedWorkflowServiceServer

	tasks   chan *workflowservice.PollActivityTaskQueueResponse
	polling chan *workflowservice.PollActivityTaskQueueRequest // each poll that has arrived
	ended   chan error                                         // why each poll without a task ended

	mu     sync.Mutex
	calls  []call
	fail   map[string]error // by method name
	answer map[string]proto.Message
}

// call is one recorded call.
type call struct {
	method  string
	request proto.Message
	headers metadata.MD
}

func (u *upstream) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	name := info.FullMethod[strings.LastIndex(info.FullMethod, "/")+1:]
	md, _ := metadata.FromIncomingContext(ctx)
	u.mu.Lock()
	u.calls = append(u.calls, call{name, req.(proto.Message), md})
	err, answer := u.fail[name], u.answer[name]
	u.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if answer != nil {
		return answer, nil
	}
	return handle(ctx, req)
}

func (u *upstream) setFailure(method string, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.fail[method] = err
}

// recorded returns the requests that a method has received.
func (u *upstream) recorded(method string) []call {
	u.mu.Lock()
	defer u.mu.Unlock()
	var found []call
	for _, c := range u.calls {
		if method == "" || c.method == method {
			found = append(found, c)
		}
	}
	return found
}

func (u *upstream) PollActivityTaskQueue(ctx context.Context, r *workflowservice.PollActivityTaskQueueRequest) (*workflowservice.PollActivityTaskQueueResponse, error) {
	u.polling <- r
	select {
	case task := <-u.tasks:
		return task, nil
	case <-ctx.Done():
		u.ended <- ctx.Err()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

func (*upstream) RecordActivityTaskHeartbeat(context.Context, *workflowservice.RecordActivityTaskHeartbeatRequest) (*workflowservice.RecordActivityTaskHeartbeatResponse, error) {
	return &workflowservice.RecordActivityTaskHeartbeatResponse{CancelRequested: true}, nil
}

func (*upstream) RespondActivityTaskCompleted(context.Context, *workflowservice.RespondActivityTaskCompletedRequest) (*workflowservice.RespondActivityTaskCompletedResponse, error) {
	return &workflowservice.RespondActivityTaskCompletedResponse{}, nil
}

func (*upstream) RespondActivityTaskFailed(context.Context, *workflowservice.RespondActivityTaskFailedRequest) (*workflowservice.RespondActivityTaskFailedResponse, error) {
	return &workflowservice.RespondActivityTaskFailedResponse{}, nil
}

func (*upstream) RespondActivityTaskCanceled(context.Context, *workflowservice.RespondActivityTaskCanceledRequest) (*workflowservice.RespondActivityTaskCanceledResponse, error) {
	return &workflowservice.RespondActivityTaskCanceledResponse{}, nil
}

func (*upstream) ShutdownWorker(context.Context, *workflowservice.ShutdownWorkerRequest) (*workflowservice.ShutdownWorkerResponse, error) {
	return &workflowservice.ShutdownWorkerResponse{}, nil
}

// newUpstream starts the frontend and returns a client for it, made by the SDK as the control plane makes it.
func newUpstream(t *testing.T) (*upstream, workflowservice.WorkflowServiceClient) {
	t.Helper()
	u := &upstream{
		tasks:   make(chan *workflowservice.PollActivityTaskQueueResponse),
		polling: make(chan *workflowservice.PollActivityTaskQueueRequest, 1000),
		ended:   make(chan error, 1000),
		fail:    map[string]error{},
		answer:  map[string]proto.Message{},
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(u.intercept), grpc.MaxRecvMsgSize(64<<20))
	workflowservice.RegisterWorkflowServiceServer(server, u)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	c, err := client.NewLazyClient(client.Options{HostPort: listener.Addr().String(), Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return u, c.WorkflowService()
}

var quiet = slog.New(slog.DiscardHandler)

var insecureOption = grpc.WithTransportCredentials(insecure.NewCredentials())

// doorman authenticates by the machine id in the Authorization header alone; proofs are another package's.
type doorman struct {
	mu      sync.Mutex
	refuse  map[string]error
	methods []string
	proofs  [][]string
	refused int
}

func (d *doorman) AuthenticateMachine(_ context.Context, c automation.Credential) (automation.Machine, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.methods = append(d.methods, c.Method+" "+c.Path)
	d.proofs = append(d.proofs, c.Proof)
	if len(c.Authorization) != 1 {
		return automation.Machine{}, automation.Errorf(automation.CodeUnauthorized, "who are you?")
	}
	id, ok := strings.CutPrefix(c.Authorization[0], "Machine ")
	if !ok {
		return automation.Machine{}, automation.Errorf(automation.CodeUnauthorized, "who are you?")
	}
	if d.refuse[id] != nil {
		d.refused++
	}
	return automation.Machine{ID: id}, d.refuse[id]
}

func (d *doorman) refusals() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.refused
}

func (d *doorman) set(id string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refuse[id] = err
}

// stage is a gateway between its upstream and machines, served as the application serves it: one http.Server
// for HTTP/1.1 and cleartext HTTP/2, switched by content type.
type stage struct {
	upstream *upstream
	gateway  *gateway.Gateway
	doorman  *doorman
	server   *httptest.Server
	address  string
	logs     *logtest.Buffer

	mu   sync.Mutex
	seen map[string]int
}

func newStage(t *testing.T, change func(*gateway.Options)) *stage {
	t.Helper()
	s := &stage{doorman: &doorman{refuse: map[string]error{}}, logs: &logtest.Buffer{}, seen: map[string]int{}}
	up, upClient := newUpstream(t)
	s.upstream = up
	o := gateway.Options{
		Upstream: upClient, Namespace: namespace, InstallationID: installation, TokenKey: bytes.Repeat([]byte{7}, 32),
		Authenticator: s.doorman, Logger: slog.New(slog.NewTextHandler(s.logs, nil)),
		Seen: func(id string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.seen[id]++
		},
	}
	if change != nil {
		change(&o)
	}
	g, err := gateway.New(o)
	if err != nil {
		t.Fatal(err)
	}
	s.gateway = g
	s.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if gateway.IsGRPC(r) {
			g.ServeHTTP(w, r)
			return
		}
		_, _ = w.Write([]byte("the API"))
	}))
	s.server.Config.Protocols = new(http.Protocols)
	s.server.Config.Protocols.SetHTTP1(true)
	s.server.Config.Protocols.SetUnencryptedHTTP2(true)
	s.server.Start()
	s.address = s.server.Listener.Addr().String()
	t.Cleanup(func() {
		g.Drain()
		s.server.CloseClientConnections()
		s.server.Close()
	})
	return s
}

func (s *stage) sightings(id string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen[id]
}

// identify adds what a machine sends with each call, and headers that must not go further.
func identify(machine string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Machine "+machine, "dpop", "proof", "x-machine-secret", "s3cret")
		return invoke(ctx, method, req, reply, cc, opts...)
	}
}

// connect returns a connection of a machine, or of nobody for "".
func (s *stage) connect(t *testing.T, machine string) *grpc.ClientConn {
	t.Helper()
	options := []grpc.DialOption{insecureOption}
	if machine != "" {
		options = append(options, grpc.WithUnaryInterceptor(identify(machine)))
	}
	conn, err := grpc.NewClient(s.address, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (s *stage) machine(t *testing.T, id string) workflowservice.WorkflowServiceClient {
	t.Helper()
	return workflowservice.NewWorkflowServiceClient(s.connect(t, id))
}

func wantStatus(t *testing.T, err error, code codes.Code, part string) {
	t.Helper()
	if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), part) {
		t.Fatalf("error %v, want %v with %q", err, code, part)
	}
}

// receive returns the next value of a channel, and fails when none comes.
func receive[T any](t *testing.T, from <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatalf("waited in vain for %s", what)
		panic("unreachable")
	}
}
