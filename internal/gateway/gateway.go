package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/inflight"
)

const (
	// DefaultMaxPoll is how long a poll stays open before it ends with an empty answer. With the time for
	// which an authenticator may work from memory it keeps a revocation below a minute; Temporal wants polls
	// of 20 seconds or more.
	DefaultMaxPoll = 40 * time.Second
	// DefaultMaxPollsPerMachine is how many polls one machine may have open.
	DefaultMaxPollsPerMachine = 16
	// MaxMessageBytes limits a request, after decompression.
	MaxMessageBytes = 4 << 20

	// maxBody is the largest message in its frame.
	maxBody = int64(MaxMessageBytes + len(emptyMessage))
	// maxHealthBody is far above a request for the state of the server, which anybody may send.
	maxHealthBody = 1 << 10
	// bodyWithin is how long a caller may take to send a request.
	bodyWithin = 30 * time.Second
	// maxHeld is how many bytes of requests of one machine may be in memory.
	maxHeld = 32 << 20

	minTokenKey = 32
	// forwardTimeout bounds a call that is not a poll when the machine set no shorter deadline.
	forwardTimeout = 15 * time.Second
)

// Authenticator says which machine made a call.
type Authenticator interface {
	// AuthenticateMachine returns the active machine that the credential belongs to. Errors carry a code of
	// the closed set.
	AuthenticateMachine(ctx context.Context, c automation.Credential) (automation.Machine, error)
}

// Options configure a [Gateway]. Upstream, Namespace, InstallationID, TokenKey and Authenticator are required.
type Options struct {
	// Upstream is the Temporal frontend, with the control plane's own credentials.
	Upstream  workflowservice.WorkflowServiceClient
	Namespace string
	// InstallationID is part of every machine's queue name; see automation.MachineQueue.
	InstallationID string
	// TokenKey signs task tokens; at least 32 bytes. Tokens of another key are refused, so it must be the
	// same after a restart and on every server of an installation.
	TokenKey      []byte
	Authenticator Authenticator
	// Seen is called with a machine's id at each poll and heartbeat. It must not block.
	Seen func(machineID string)
	// Received is called with a machine's id and the size of each of its requests. It must not block.
	Received func(machineID string, bytes int)
	// Refused is called when a call is refused because its credential is not that of a machine. It must not block.
	Refused func()
	Logger  *slog.Logger
	// MaxPoll replaces DefaultMaxPoll.
	MaxPoll time.Duration
	// MaxPollsPerMachine replaces DefaultMaxPollsPerMachine.
	MaxPollsPerMachine int
}

// Gateway is the service. It is safe for concurrent use.
type Gateway struct {
	server   *grpc.Server
	polls    *pollRegistry
	auth     Authenticator
	received func(machineID string, bytes int)
	refused  func()
	held     *inflight.Budget
	log      *slog.Logger
}

// New returns a gateway; it refuses incomplete options.
func New(o Options) (*Gateway, error) {
	if o.Upstream == nil || o.Namespace == "" || o.InstallationID == "" || o.Authenticator == nil {
		return nil, errors.New("gateway: Upstream, Namespace, InstallationID and Authenticator are required")
	}
	if len(o.TokenKey) < minTokenKey {
		return nil, fmt.Errorf("gateway: the token key has %d bytes, at least %d are required", len(o.TokenKey), minTokenKey)
	}
	if o.Seen == nil {
		o.Seen = func(string) {}
	}
	if o.Received == nil {
		o.Received = func(string, int) {}
	}
	if o.Refused == nil {
		o.Refused = func() {}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.MaxPoll <= 0 {
		o.MaxPoll = DefaultMaxPoll
	}
	if o.MaxPollsPerMachine <= 0 {
		o.MaxPollsPerMachine = DefaultMaxPollsPerMachine
	}
	g := &Gateway{
		polls: newPollRegistry(o.MaxPollsPerMachine), auth: o.Authenticator, received: o.Received, refused: o.Refused,
		held: inflight.New(maxHeld), log: o.Logger,
	}
	g.server = grpc.NewServer(
		grpc.MaxRecvMsgSize(MaxMessageBytes),
		grpc.ChainUnaryInterceptor(g.recoverPanics, admit),
	)
	workflowservice.RegisterWorkflowServiceServer(g.server, &service{
		upstream: o.Upstream, namespace: o.Namespace, installation: o.InstallationID,
		tokens: tokenSealer{key: o.TokenKey}, polls: g.polls, maxPoll: o.MaxPoll, seen: o.Seen,
		upstreamTrouble: newTrouble(o.Logger),
	})
	healthpb.RegisterHealthServer(g.server, &health{polls: g.polls})
	return g, nil
}

// IsGRPC reports whether a request is for [Gateway.ServeHTTP].
func IsGRPC(r *http.Request) bool {
	return r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc")
}

// Drain ends all open polls with an empty answer and lets no new one in; other calls are served on, so that
// machines can report what they finish. Call it before http.Server.Shutdown, which waits for open calls.
func (g *Gateway) Drain() { g.polls.drain() }

// Disconnect ends the open polls of a machine with an empty answer. When it has been revoked, tell the
// authenticator first, so that the polls that follow are refused.
func (g *Gateway) Disconnect(machineID string) {
	g.polls.end(func(p *poll) bool { return p.machine == machineID })
}

// refusal translates the error of an authenticator. Trouble of ours is Unavailable, which the SDK retries.
func (g *Gateway) refusal(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	message := "the call cannot be authenticated now"
	if refused, ok := errors.AsType[*automation.Error](err); ok {
		message = refused.Message
	}
	switch automation.CodeOf(err) {
	case automation.CodeUnauthorized, automation.CodeMachineRevoked, automation.CodeNotFound:
		g.refused()
		return status.Error(codes.Unauthenticated, message)
	case automation.CodeForbidden:
		return status.Error(codes.PermissionDenied, message)
	case automation.CodeRateLimited:
		return status.Error(codes.ResourceExhausted, message)
	case automation.CodeStoreUnavailable:
		return status.Error(codes.Unavailable, message)
	default:
		g.log.ErrorContext(ctx, "a machine's call could not be authenticated", "error", err)
		return status.Error(codes.Unavailable, "the call cannot be authenticated now")
	}
}

// recoverPanics keeps one broken call from ending the process. The cause stays in the log.
func (g *Gateway) recoverPanics(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (_ any, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			g.log.ErrorContext(ctx, "a machine's call panicked", "method", info.FullMethod, "panic", fmt.Sprint(cause), "stack", string(debug.Stack()))
			err = status.Error(codes.Internal, "the call failed; the reason is in the server's log")
		}
	}()
	return handle(ctx, req)
}

// health implements grpc.health.v1: serving until the gateway drains. It has no Watch, whose streams would
// keep a server from shutting down.
type health struct {
	healthpb.UnimplementedHealthServer
	polls *pollRegistry
}

// Check implements the health protocol for the server as a whole and for the workflow service.
func (h *health) Check(_ context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	if name := r.GetService(); name != "" && name != workflowservice.WorkflowService_ServiceDesc.ServiceName {
		return nil, status.Errorf(codes.NotFound, "there is no service %q", name)
	}
	if h.polls.draining() {
		return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_NOT_SERVING}, nil
	}
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}
