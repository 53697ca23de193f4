package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/inflight"
)

// emptyMessage is the frame of a message without content.
const emptyMessage = "\x00\x00\x00\x00\x00"

// caller is who makes a call, or why it is refused.
type caller struct {
	machine string
	refused error
}

// callerKey is the context key of a [caller].
type callerKey struct{}

func callerOf(ctx context.Context) caller {
	c, _ := ctx.Value(callerKey{}).(caller)
	return c
}

// machineID returns the machine that made the call.
func machineID(ctx context.Context) string { return callerOf(ctx).machine }

// ServeHTTP serves one gRPC call. It needs HTTP/2, with TLS or in clear text.
//
// The caller is authenticated by its headers, before anything of the body is read, and gRPC gets the body when it
// has come whole: by itself gRPC keeps whatever a client sends, in buffers of 16 KiB for as little as a byte each,
// for as long as the call lasts, and waits for the rest without end. A refused call goes on with an empty message
// to the place where gRPC answers with its status.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// A transport without deadlines still serves; its bodies are bounded in size alone.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyWithin))
	var who caller
	var message []byte
	if isHealth(r.URL.Path) {
		message, who.refused = readMessage(http.MaxBytesReader(w, r.Body, maxHealthBody))
	} else if who = g.authenticate(r); who.refused == nil {
		held := g.held.Body(who.machine, http.MaxBytesReader(w, r.Body, maxBody))
		defer held.Release()
		message, who.refused = readMessage(held)
		g.received(who.machine, len(message))
	}
	if who.refused != nil {
		message = []byte(emptyMessage)
	}
	r = r.WithContext(context.WithValue(r.Context(), callerKey{}, who))
	r.Body = io.NopCloser(bytes.NewReader(message))
	g.server.ServeHTTP(w, r)
}

// isHealth reports whether a call asks for the state of the server. It needs no identity: load balancers make them.
func isHealth(path string) bool {
	return strings.HasPrefix(path, "/"+healthpb.Health_ServiceDesc.ServiceName+"/")
}

// authenticate lets only enrolled machines in.
func (g *Gateway) authenticate(r *http.Request) caller {
	machine, err := g.auth.AuthenticateMachine(r.Context(), automation.Credential{
		Method: r.Method, Path: r.URL.EscapedPath(),
		Authorization: r.Header.Values("Authorization"), Proof: r.Header.Values("DPoP"),
	})
	if err != nil {
		return caller{refused: g.refusal(r.Context(), err)}
	}
	return caller{machine: machine.ID}
}

// readMessage returns the body of a call, which for every call there is consists of one message, or a refusal.
func readMessage(body io.Reader) ([]byte, error) {
	message, err := io.ReadAll(body)
	tooLarge := new(http.MaxBytesError)
	switch {
	case err == nil:
		return message, nil
	case errors.As(err, &tooLarge):
		return nil, status.Errorf(codes.ResourceExhausted, "the request is larger than %d bytes", tooLarge.Limit)
	case errors.Is(err, inflight.ErrFull):
		return nil, status.Errorf(codes.ResourceExhausted, "the machine sends more than %d bytes at the same time", maxHeld)
	default:
		return nil, status.Error(codes.Canceled, "the request could not be read to its end")
	}
}

// admit answers a call that was refused before gRPC saw it, and lets nobody without an identity further than the
// state of the server.
func admit(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	who := callerOf(ctx)
	if _, ok := info.Server.(*health); !ok && who.machine == "" && who.refused == nil {
		return nil, status.Error(codes.Unauthenticated, "the call carries no identity")
	}
	if who.refused != nil {
		return nil, who.refused
	}
	return handle(ctx, req)
}
