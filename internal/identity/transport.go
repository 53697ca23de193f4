package identity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// set puts the headers of a machine on a request.
func (h Headers) set(r *http.Request) {
	r.Header.Set(HeaderAuthorization, h.Authorization)
	r.Header.Set(HeaderProof, h.Proof)
}

// Transport adds the access token of a machine, and a fresh proof, to each HTTP request. A request is signed for
// the address that it is sent to, which therefore must be the configured one.
type Transport struct {
	// Base sends the request; nil means http.DefaultTransport.
	Base   http.RoundTripper
	Signer *Signer
	Tokens *TokenSource
}

// RoundTrip sends a copy of the request. When the control plane gives no token, its answer is the answer to the
// request. A request whose token was not accepted is sent once more with a new one, if its body can be had again.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	response, token, err := t.attempt(r, r.Body)
	if err != nil || response.StatusCode != http.StatusUnauthorized || token == "" {
		return response, err
	}
	t.Tokens.Refuse(token)
	again, ok := bodyAgain(r)
	if !ok {
		return response, nil
	}
	_ = response.Body.Close() // of a refusal that is not shown
	response, _, err = t.attempt(r, again)
	return response, err
}

// attempt sends the request once and returns the token that it carried.
func (t *Transport) attempt(r *http.Request, body io.ReadCloser) (_ *http.Response, token string, err error) {
	token, err = t.Tokens.Token(r.Context())
	var headers Headers
	if err == nil {
		headers, err = t.Signer.Proof(r.Method, r.URL.String(), token)
	}
	if err != nil {
		if body != nil {
			_ = body.Close() // the transport's duty when it does not send the request
		}
		if refused, ok := errors.AsType[*TokenRefusedError](err); ok {
			return refused.response(r), "", nil
		}
		return nil, "", err
	}
	signed := r.Clone(r.Context())
	signed.Body = body
	headers.set(signed)
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	response, err := base.RoundTrip(signed)
	return response, token, err
}

// bodyAgain returns the request's body once more, and whether it can be had.
func bodyAgain(r *http.Request) (io.ReadCloser, bool) {
	switch {
	case r.Body == nil || r.Body == http.NoBody:
		return r.Body, true
	case r.GetBody == nil:
		return nil, false
	}
	body, err := r.GetBody()
	return body, err == nil
}

// response is the refusal as the answer to a request that could not be sent.
func (e *TokenRefusedError) response(r *http.Request) *http.Response {
	return &http.Response{
		Status: fmt.Sprintf("%d %s", e.Status, http.StatusText(e.Status)), StatusCode: e.Status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: e.Header.Clone(), Body: io.NopCloser(bytes.NewReader(e.Body)), ContentLength: int64(len(e.Body)), Request: r,
	}
}

// UnaryClientInterceptor adds the access token of a machine, and a fresh proof, to each gRPC call to the service
// at baseURL. Placed after a retrying interceptor, as the dial options of the Temporal SDK's ConnectionOptions
// are, it runs for each attempt. A call whose token was not accepted is made once more with a new one: the SDK
// would drop the result of a step.
func UnaryClientInterceptor(s *Signer, tokens *TokenSource, baseURL string) (grpc.UnaryClientInterceptor, error) {
	base, err := canonicalBase(baseURL)
	if err != nil {
		return nil, fmt.Errorf("preparing proofs for gRPC: %w", err)
	}
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		attempt := func() (token string, err error) {
			if token, err = tokens.Token(ctx); err != nil {
				return "", tokenStatus(err)
			}
			headers, err := s.Proof(http.MethodPost, base+method, token)
			if err != nil {
				return "", status.Error(codes.Internal, err.Error())
			}
			signed := metadata.AppendToOutgoingContext(ctx, HeaderAuthorization, headers.Authorization, HeaderProof, headers.Proof)
			return token, invoke(signed, method, req, reply, cc, opts...)
		}
		token, err := attempt()
		if status.Code(err) == codes.Unauthenticated && token != "" {
			tokens.Refuse(token)
			_, err = attempt()
		}
		return err
	}, nil
}

// tokenStatus is the status of a call for which there was no token. What passes is Unavailable, which the SDK
// retries.
func tokenStatus(err error) error {
	refused, ok := errors.AsType[*TokenRefusedError](err)
	switch {
	case !ok:
		return status.Error(codes.Unavailable, err.Error())
	case refused.Status == http.StatusTooManyRequests:
		return status.Error(codes.ResourceExhausted, err.Error())
	case refused.Status >= http.StatusInternalServerError:
		return status.Error(codes.Unavailable, err.Error())
	}
	return status.Error(codes.Unauthenticated, err.Error())
}
