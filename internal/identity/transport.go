package identity

import (
	"context"
	"fmt"
	"net/http"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Transport adds the headers of a machine to each HTTP request. A request is signed for the address that it
// is sent to, which therefore must be the configured one.
type Transport struct {
	// Base sends the request; nil means http.DefaultTransport.
	Base   http.RoundTripper
	Signer *Signer
}

// RoundTrip sends a copy of the request with a fresh proof.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	headers, err := t.Signer.Proof(r.Method, r.URL.String())
	if err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, err
	}
	signed := r.Clone(r.Context())
	signed.Header.Set(HeaderAuthorization, headers.Authorization)
	signed.Header.Set(HeaderProof, headers.Proof)
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	return base.RoundTrip(signed)
}

// UnaryClientInterceptor adds the headers of a machine to each gRPC call to the service at baseURL. Placed
// after a retrying interceptor, as the dial options of the Temporal SDK's ConnectionOptions are, it runs for
// each attempt.
func UnaryClientInterceptor(s *Signer, baseURL string) (grpc.UnaryClientInterceptor, error) {
	base, err := canonicalBase(baseURL)
	if err != nil {
		return nil, fmt.Errorf("preparing proofs for gRPC: %w", err)
	}
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		headers, err := s.Proof(http.MethodPost, base+method)
		if err != nil {
			return status.Error(codes.Internal, err.Error())
		}
		ctx = metadata.AppendToOutgoingContext(ctx, HeaderAuthorization, headers.Authorization, HeaderProof, headers.Proof)
		return invoke(ctx, method, req, reply, cc, opts...)
	}, nil
}
