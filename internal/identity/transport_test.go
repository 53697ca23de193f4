package identity_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/identity"
)

// newSignedServer serves HTTP/1.1 and cleartext HTTP/2 and hands the handler a verifier that knows the
// server's own address. Machine A's signer works by the real clock, as the server does.
func newSignedServer(t *testing.T, handle func(v *identity.Verifier, w http.ResponseWriter, r *http.Request)) (string, *world, *identity.Signer) {
	t.Helper()
	w := newWorld(t)
	var verifier *identity.Verifier
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == identity.TokenPath {
			issueToken(verifier, rw, r)
			return
		}
		handle(verifier, rw, r)
	}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	address := "http://" + server.Listener.Addr().String()
	verifier = newVerifier(t, identity.VerifierOptions{Machines: w.store, Tokens: w.tokens, BaseURLs: []string{address}})
	server.Start()
	t.Cleanup(server.Close)
	return address, w, identity.NewSigner(w.keyA, machineA, identity.SignerOptions{})
}

// issueToken serves the token endpoint as the machine API does.
func issueToken(v *identity.Verifier, rw http.ResponseWriter, r *http.Request) {
	answer, err := v.IssueToken(r.Context(), credentialOf(r))
	if err != nil {
		rw.WriteHeader(automation.CodeOf(err).Status())
		_, _ = fmt.Fprintf(rw, `{"error":{"code":%q,"message":%q}}`, automation.CodeOf(err), err)
		return
	}
	_ = json.NewEncoder(rw).Encode(answer)
}

func credentialOf(r *http.Request) automation.Credential {
	return automation.Credential{
		Method: r.Method, Path: r.URL.EscapedPath(),
		Authorization: r.Header.Values(identity.HeaderAuthorization), Proof: r.Header.Values(identity.HeaderProof),
	}
}

// newTransport returns the transport of a signer's machine.
func newTransport(t *testing.T, s *identity.Signer, address string) *identity.Transport {
	t.Helper()
	return &identity.Transport{Signer: s, Tokens: newSource(t, s, address)}
}

func newSource(t *testing.T, s *identity.Signer, address string) *identity.TokenSource {
	t.Helper()
	source, err := identity.NewTokenSource(s, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	return source
}

func TestTransportSignsEachRequest(t *testing.T) {
	t.Parallel()
	address, w, signer := newSignedServer(t, func(v *identity.Verifier, rw http.ResponseWriter, r *http.Request) {
		m, err := v.AuthenticateMachine(r.Context(), credentialOf(r))
		if err != nil {
			http.Error(rw, err.Error(), http.StatusUnauthorized)
			return
		}
		body, _ := io.ReadAll(r.Body)
		_, _ = io.WriteString(rw, m.ID+" "+string(body))
	})
	httpClient := &http.Client{Transport: newTransport(t, signer, address)}
	for _, path := range []string{"", "/", "/v1/machine/hello", "/v1/machine/events?after=2", "/a%2Fb%20c"} {
		for range 2 { // the same request again has a proof of its own
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address+path, strings.NewReader("hello"))
			if err != nil {
				t.Fatal(err)
			}
			response, err := httpClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(response.Body)
			response.Body.Close()
			if got := string(body); got != machineA+" hello" {
				t.Errorf("%q: %d %s", path, response.StatusCode, got)
			}
			if len(request.Header) > 0 {
				t.Errorf("the caller's request was changed: %v", request.Header)
			}
		}
	}
	stolen := &http.Client{Transport: newTransport(t, identity.NewSigner(w.keyB, machineA, identity.SignerOptions{}), address)}
	response, err := stolen.Get(address + "/v1/machine/hello")
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusUnauthorized {
		t.Errorf("another machine's key: %d", response.StatusCode)
	}
}

// flakyService fails the first calls of a method that the SDK retries.
type flakyService struct {
	workflowservice.UnimplementedWorkflowServiceServer
	mu       sync.Mutex
	failures int
}

func (*flakyService) GetSystemInfo(context.Context, *workflowservice.GetSystemInfoRequest) (*workflowservice.GetSystemInfoResponse, error) {
	return &workflowservice.GetSystemInfoResponse{}, nil
}

func (s *flakyService) RequestCancelWorkflowExecution(context.Context, *workflowservice.RequestCancelWorkflowExecutionRequest) (*workflowservice.RequestCancelWorkflowExecutionResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failures > 0 {
		s.failures--
		return nil, status.Error(codes.Unavailable, "not now")
	}
	return &workflowservice.RequestCancelWorkflowExecutionResponse{}, nil
}

// The Temporal SDK retries inside one call. The verifier accepts a proof once, so a retry passes only if the
// interceptor runs for each attempt.
func TestInterceptorSignsEachAttemptOfTheSDK(t *testing.T) {
	t.Parallel()
	service := &flakyService{failures: 2}
	var mu sync.Mutex
	attempts := map[string]int{}
	refused := []error{}
	grpcServer := func(v *identity.Verifier) *grpc.Server {
		s := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			md, _ := metadata.FromIncomingContext(ctx)
			_, err := v.AuthenticateMachine(ctx, automation.Credential{
				Method: http.MethodPost, Path: info.FullMethod, Authorization: md.Get(identity.HeaderAuthorization), Proof: md.Get(identity.HeaderProof),
			})
			mu.Lock()
			attempts[info.FullMethod]++
			if err != nil {
				refused = append(refused, err)
			}
			mu.Unlock()
			if err != nil {
				return nil, status.Error(codes.Unauthenticated, err.Error())
			}
			return handle(ctx, req)
		}))
		workflowservice.RegisterWorkflowServiceServer(s, service)
		return s
	}
	var once sync.Once
	var server *grpc.Server
	address, _, signer := newSignedServer(t, func(v *identity.Verifier, rw http.ResponseWriter, r *http.Request) {
		once.Do(func() { server = grpcServer(v) })
		server.ServeHTTP(rw, r)
	})
	interceptor, err := identity.UnaryClientInterceptor(signer, newSource(t, signer, address), address+"/")
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.Dial(client.Options{
		HostPort:          strings.TrimPrefix(address, "http://"),
		ConnectionOptions: client.ConnectionOptions{DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(interceptor)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.CancelWorkflow(t.Context(), "workflow", ""); err != nil {
		t.Errorf("the call was not repaired by retries: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if got := attempts[workflowservice.WorkflowService_RequestCancelWorkflowExecution_FullMethodName]; got != 3 || len(refused) > 0 {
		t.Errorf("%d attempts, want 3; refused: %v", got, refused)
	}
}

func TestInterceptorRefusesABadAddress(t *testing.T) {
	t.Parallel()
	if _, err := identity.UnaryClientInterceptor(nil, nil, "127.0.0.1:7717"); err == nil {
		t.Error("an address without a scheme was accepted")
	}
}

func TestInterceptorFailsTheCallWhenItCannotSign(t *testing.T) {
	t.Parallel()
	signer := identity.NewSigner(mustKey(t, t.TempDir()), machineA, identity.SignerOptions{Rand: strings.NewReader("")})
	interceptor, err := identity.UnaryClientInterceptor(signer, newSource(t, signer, baseURL), baseURL)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("127.0.0.1:1", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUnaryInterceptor(interceptor))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = workflowservice.NewWorkflowServiceClient(conn).GetSystemInfo(t.Context(), &workflowservice.GetSystemInfoRequest{})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "random") {
		t.Errorf("error %v", err)
	}
}
