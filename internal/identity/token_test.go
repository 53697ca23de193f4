package identity_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/identity"
)

func tokenCall(t *testing.T, s *identity.Signer, path, token string) automation.Credential {
	t.Helper()
	h, err := s.Proof(http.MethodPost, baseURL+path, token)
	if err != nil {
		t.Fatal(err)
	}
	return automation.Credential{Method: "POST", Path: path, Authorization: []string{h.Authorization}, Proof: []string{h.Proof}}
}

func TestIssuedTokenOpensCalls(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	answer, err := w.verifier.IssueToken(t.Context(), tokenCall(t, w.signer(), identity.TokenPath, ""))
	if err != nil || answer.TokenType != "DPoP" || answer.ExpiresInMs != 600_000 {
		t.Fatalf("%+v, %v", answer, err)
	}
	elsewhere := newVerifier(t, identity.VerifierOptions{
		Machines: w.store, Tokens: newTokens(t, "installation"), BaseURLs: []string{baseURL}, Now: w.clock.Now,
	})
	for _, v := range []*identity.Verifier{w.verifier, elsewhere} {
		if m, err := v.AuthenticateMachine(t.Context(), tokenCall(t, w.signer(), pollPath, answer.AccessToken)); err != nil || m.ID != machineA {
			t.Errorf("machine %q, %v", m.ID, err)
		}
	}
	w.clock.Advance(identity.TokenValidFor)
	_, err = w.verifier.AuthenticateMachine(t.Context(), tokenCall(t, w.signer(), pollPath, answer.AccessToken))
	wantCode(t, err, automation.CodeUnauthorized, "the access token expired")
}

func TestIssueTokenRefuses(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		make func(t *testing.T, w *world) automation.Credential
		code automation.Code
		want string
	}{
		"a call's token and proof": {func(t *testing.T, w *world) automation.Credential {
			return tokenCall(t, w.signer(), identity.TokenPath, w.tokens.TokenOf(w.signer(), start))
		}, automation.CodeUnauthorized, "must have the form"},
		"a call's proof": {func(t *testing.T, w *world) automation.Credential {
			c := tokenCall(t, w.signer(), identity.TokenPath, w.tokens.TokenOf(w.signer(), start))
			c.Authorization[0] = "Machine " + machineA
			return c
		}, automation.CodeUnauthorized, "not made to get an access token"},
		"a proof with another subject": {func(t *testing.T, w *world) automation.Credential {
			c := tokenCall(t, w.signer(), identity.TokenPath, "")
			c.Authorization[0] = "Machine " + machineB
			return c
		}, automation.CodeUnauthorized, "not made to get an access token"},
		"another machine's key": {func(t *testing.T, w *world) automation.Credential {
			s := identity.NewSigner(w.keyB, machineA, identity.SignerOptions{Now: w.clock.Now})
			return tokenCall(t, s, identity.TokenPath, "")
		}, automation.CodeUnauthorized, "another key"},
		"a proof for another call": {func(t *testing.T, w *world) automation.Credential {
			c := tokenCall(t, w.signer(), pollPath, "")
			c.Path = identity.TokenPath
			return c
		}, automation.CodeUnauthorized, "not the address of this call"},
		"a replayed proof": {func(t *testing.T, w *world) automation.Credential {
			c := tokenCall(t, w.signer(), identity.TokenPath, "")
			if _, err := w.verifier.IssueToken(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			return c
		}, automation.CodeUnauthorized, "used before"},
		"a clock that is behind": {func(t *testing.T, w *world) automation.Credential {
			c := tokenCall(t, w.signer(), identity.TokenPath, "")
			w.clock.Advance(5 * time.Minute)
			return c
		}, automation.CodeUnauthorized, "the machine's clock is 5m0s behind the server's"},
		"a revoked machine": {func(t *testing.T, w *world) automation.Credential {
			w.store.set(machineA, func(m *automation.Machine) { m.State = automation.MachineRevoked })
			return tokenCall(t, w.signer(), identity.TokenPath, "")
		}, automation.CodeMachineRevoked, "has been revoked"},
		"a machine that is none": {func(t *testing.T, w *world) automation.Credential {
			return tokenCall(t, identity.NewSigner(w.keyA, "nobody", identity.SignerOptions{Now: w.clock.Now}), identity.TokenPath, "")
		}, automation.CodeUnauthorized, "not enrolled here"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			answer, err := w.verifier.IssueToken(t.Context(), test.make(t, w))
			wantCode(t, err, test.code, test.want)
			if answer.AccessToken != "" {
				t.Error("a refused request has a token")
			}
		})
	}
	if _, err := identity.NewTokens([]byte("short"), "x"); err == nil {
		t.Error("a short key was accepted")
	}
	if _, err := identity.NewTokens(make([]byte, identity.KeySize), ""); err == nil {
		t.Error("no issuer was accepted")
	}
}

// issuer serves numbered tokens, or what the test wants instead.
type issuer struct {
	asked  atomic.Int64
	status atomic.Int64
}

func (i *issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := i.asked.Add(1)
	if status := i.status.Load(); status != 0 {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(int(status))
		_, _ = io.WriteString(w, `{"error":{"code":"machine_revoked","message":"it is revoked"}}`)
		return
	}
	_, _ = io.WriteString(w, `{"accessToken":"token-`+strings.Repeat("i", int(n))+`","tokenType":"DPoP","expiresInMs":600000}`)
}

func TestTokenSource(t *testing.T) {
	t.Parallel()
	served := &issuer{}
	server := httptest.NewServer(served)
	t.Cleanup(server.Close)
	c := &clock{now: start}
	source := newSource(t, identity.NewSigner(mustKey(t, t.TempDir()), machineA, identity.SignerOptions{Now: c.Now}), server.URL+"/")
	want := func(token string, asked int64) {
		t.Helper()
		got, err := source.Token(t.Context())
		if err != nil || got != token || served.asked.Load() != asked {
			t.Fatalf("token %q after %d requests, want %q after %d; %v", got, served.asked.Load(), token, asked, err)
		}
	}
	want("token-i", 1)
	c.Advance(8*time.Minute - time.Second)
	want("token-i", 1)
	c.Advance(time.Second)
	want("token-ii", 2) // in the last fifth
	served.status.Store(503)
	c.Advance(9 * time.Minute)
	want("token-ii", 3) // it cannot be renewed, and is good for another minute
	c.Advance(time.Minute)
	_, err := source.Token(t.Context())
	refused, ok := errors.AsType[*identity.TokenRefusedError](err)
	if !ok || refused.Status != 503 || refused.Message != "it is revoked" {
		t.Fatalf("at its end: %v", err)
	}
	served.status.Store(0)
	want("token-iiiii", 5)
	source.Refuse("an older one")
	want("token-iiiii", 5)
	source.Refuse("token-iiiii")
	want("token-iiiiii", 6)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	source.Refuse("token-iiiiii")
	if _, err := source.Token(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that left got %v", err)
	}
	for _, address := range []string{"", "127.0.0.1:7717", "ftp://host", "http://"} {
		if _, err := identity.NewTokenSource(identity.NewSigner(mustKey(t, t.TempDir()), machineA, identity.SignerOptions{}), address, nil); err == nil {
			t.Errorf("the address %q was accepted", address)
		}
	}
}

func TestTransportPassesARefusedTokenOn(t *testing.T) {
	t.Parallel()
	served := &issuer{}
	served.status.Store(409)
	server := httptest.NewServer(served)
	t.Cleanup(server.Close)
	transport := newTransport(t, identity.NewSigner(mustKey(t, t.TempDir()), machineA, identity.SignerOptions{}), server.URL)
	response, err := (&http.Client{Transport: transport}).Post(server.URL+"/v1/automations", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(response.Body)
	response.Body.Close()
	if response.StatusCode != http.StatusConflict || !strings.Contains(string(body), "machine_revoked") || response.Header.Get("Retry-After") != "7" || served.asked.Load() != 1 {
		t.Errorf("%d %v %s after %d requests", response.StatusCode, response.Header, body, served.asked.Load())
	}
}

// TestTokenThatIsNotAcceptedIsReplaced is what happens when a control plane comes back with another master key.
func TestTokenThatIsNotAcceptedIsReplaced(t *testing.T) {
	t.Parallel()
	served := &issuer{}
	var calls, answered atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == identity.TokenPath {
			served.ServeHTTP(w, r)
			return
		}
		calls.Add(1)
		if body, _ := io.ReadAll(r.Body); r.Header.Get("Authorization") != "DPoP token-ii" || string(body) != "hello" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		answered.Add(1)
	}))
	t.Cleanup(server.Close)
	transport := newTransport(t, identity.NewSigner(mustKey(t, t.TempDir()), machineA, identity.SignerOptions{}), server.URL)
	send := func(body io.Reader) int {
		t.Helper()
		response, err := (&http.Client{Transport: transport}).Post(server.URL+"/v1/machine/hello", "text/plain", body)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		return response.StatusCode
	}
	if status := send(strings.NewReader("hello")); status != 200 || calls.Load() != 2 {
		t.Errorf("the call got %d after %d tries", status, calls.Load())
	}
	transport.Tokens.Refuse("token-ii")
	if status := send(io.MultiReader(strings.NewReader("hello"))); status != 401 {
		t.Errorf("a body that is gone was sent again: %d", status)
	}
	if served.asked.Load() != 3 || answered.Load() != 1 {
		t.Errorf("%d tokens, %d answers", served.asked.Load(), answered.Load())
	}
}

func TestInterceptorReplacesATokenThatIsNotAccepted(t *testing.T) {
	t.Parallel()
	served := &issuer{}
	server := httptest.NewServer(served)
	t.Cleanup(server.Close)
	signer := identity.NewSigner(mustKey(t, t.TempDir()), machineA, identity.SignerOptions{})
	intercept, err := identity.UnaryClientInterceptor(signer, newSource(t, signer, server.URL), server.URL)
	if err != nil {
		t.Fatal(err)
	}
	var sent []string
	accepted := "DPoP token-ii"
	invoke := func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
		md, _ := metadata.FromOutgoingContext(ctx)
		sent = append(sent, md.Get("authorization")...)
		if md.Get("authorization")[0] != accepted || len(md.Get("dpop")) != 1 {
			return status.Error(codes.Unauthenticated, "no")
		}
		return nil
	}
	if err := intercept(t.Context(), pollPath, nil, nil, nil, invoke); err != nil || len(sent) != 2 {
		t.Errorf("%v after the calls %q", err, sent)
	}
	accepted = "nothing"
	if err := intercept(t.Context(), pollPath, nil, nil, nil, invoke); status.Code(err) != codes.Unauthenticated || len(sent) != 4 {
		t.Errorf("%v after the calls %q, want one repetition", err, sent)
	}
	for want, answer := range map[codes.Code]int64{
		codes.Unauthenticated: 409, codes.ResourceExhausted: 429, codes.Unavailable: 503,
	} {
		served.status.Store(answer)
		if err := intercept(t.Context(), pollPath, nil, nil, nil, invoke); status.Code(err) != want {
			t.Errorf("without a token, for %d: %v, want %s", answer, err, want)
		}
	}
	server.Close()
	if err := intercept(t.Context(), pollPath, nil, nil, nil, invoke); status.Code(err) != codes.Unavailable {
		t.Errorf("without a server: %v", err)
	}
}
