package gateway

import (
	"context"
	"errors"

	"go.temporal.io/api/serviceerror"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// forward makes one call to Temporal that is not a poll. The outgoing context has no metadata: gRPC keeps
// incoming headers apart, and nothing copies them.
func forward[In, Out any](ctx context.Context, s *service, call func(context.Context, *In, ...grpc.CallOption) (*Out, error), in *In) (*Out, error) {
	callCtx, cancel := context.WithTimeout(ctx, forwardTimeout)
	defer cancel()
	out, err := call(callCtx, in)
	if err == nil {
		s.upstreamTrouble.over(ctx, "call")
		return out, nil
	}
	if ctx.Err() != nil {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return nil, s.callError(ctx, err)
}

// callError translates what Temporal answered to a call about a task. What concerns the task passes, since
// the worker acts on it: NOT_FOUND says that the attempt is over. What concerns the connection between the
// control plane and Temporal is Unavailable, which the SDK retries, and so is a namespace that is not found.
func (s *service) callError(ctx context.Context, err error) error {
	st := serviceerror.ToStatus(err)
	if isNamespaceError(err) {
		s.upstreamTrouble.met(ctx, "call", st.Code(), err)
		return status.Error(codes.Unavailable, "Temporal cannot be reached now")
	}
	switch st.Code() {
	case codes.NotFound, codes.InvalidArgument, codes.FailedPrecondition, codes.Aborted, codes.OutOfRange, codes.ResourceExhausted:
		return status.Error(st.Code(), st.Message())
	default:
		s.upstreamTrouble.met(ctx, "call", st.Code(), err)
		return status.Error(codes.Unavailable, "Temporal cannot be reached now")
	}
}

// isNamespaceError reports whether Temporal does not serve our namespace, which looks like a task that is not
// found in all but the type.
func isNamespaceError(err error) bool {
	err = serviceerror.FromStatus(serviceerror.ToStatus(err))
	_, notFound := errors.AsType[*serviceerror.NamespaceNotFound](err)
	_, invalid := errors.AsType[*serviceerror.NamespaceInvalidState](err)
	_, elsewhere := errors.AsType[*serviceerror.NamespaceNotActive](err)
	return notFound || invalid || elsewhere
}
