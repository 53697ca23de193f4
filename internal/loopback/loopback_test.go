package loopback_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/catalog"
	"github.com/errandhq/errand/internal/loopback"
	"github.com/errandhq/errand/internal/mcpserver"
	"github.com/errandhq/errand/internal/runtimefile"
)

const token = "the-token-of-this-start"

// prover stands for the transport that proves the machine's identity.
type prover struct{}

func (prover) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Machine machine-1")
	r.Header.Set("DPoP", "proof of "+r.URL.Path)
	return http.DefaultTransport.RoundTrip(r)
}

// start runs a route to a control plane that is served by handler.
func start(t *testing.T, handler http.HandlerFunc) (*loopback.Server, string) {
	t.Helper()
	controlPlane := httptest.NewServer(handler)
	t.Cleanup(controlPlane.Close)
	return startTo(t, controlPlane.URL)
}

func startTo(t *testing.T, target string) (*loopback.Server, string) {
	t.Helper()
	dir := t.TempDir()
	s, err := loopback.Start(loopback.Options{
		ServerURL: target, Transport: prover{}, Token: token, Dir: dir, StartedAt: time.Unix(1_800_000_000, 0).UTC(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.Stop(ctx)
	})
	return s, dir
}

// call sends a request with the token, changed by edit, and returns status and body.
func call(t *testing.T, method, url, body string, edit func(*http.Request)) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	if edit != nil {
		edit(r)
	}
	response, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(text)
}

func TestRequestsPassWithTheMachinesAuthority(t *testing.T) {
	t.Parallel()
	s, _ := start(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		for name, want := range map[string]string{
			"Authorization": "Machine machine-1", "DPoP": "proof of /v1/automations", "Cookie": "", "Idempotency-Key": "k",
			"X-Forwarded-For": "", "X-Forwarded-Host": "",
		} {
			if got := r.Header.Get(name); got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
		if strings.HasPrefix(r.Host, "localhost") {
			t.Errorf("the caller's host %q was passed on", r.Host)
		}
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusConflict)
		_, _ = fmt.Fprintf(w, "%s %s?%s %s", r.Method, r.URL.Path, r.URL.RawQuery, body)
	})
	response, body := call(t, http.MethodPost, s.URL()+"/v1/automations?limit=3", `{"name":"<x>"}`, func(r *http.Request) {
		r.Host = "localhost" + strings.TrimPrefix(s.URL(), "http://127.0.0.1")
		r.Header.Set("Cookie", "a=b")
		r.Header.Set("DPoP", "of the caller")
		r.Header.Set("Idempotency-Key", "k")
		r.Header.Set("X-Forwarded-For", "10.0.0.1")
		r.Header.Set("X-Forwarded-Host", "elsewhere")
	})
	if response.StatusCode != http.StatusConflict || response.Header.Get("Retry-After") != "7" {
		t.Errorf("status %d, Retry-After %q", response.StatusCode, response.Header.Get("Retry-After"))
	}
	if want := `POST /v1/automations?limit=3 {"name":"<x>"}`; body != want {
		t.Errorf("body %q, want %q", body, want)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	s, _ := start(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("%s was passed on", r.URL) })
	port := strings.TrimPrefix(s.URL(), "http://127.0.0.1:")
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	host := func(host string) func(*http.Request) { return func(r *http.Request) { r.Host = host } }
	tests := map[string]struct {
		path string
		edit func(*http.Request)
		want automation.Code
	}{
		"no token":              {"/v1/runs", func(r *http.Request) { r.Header.Del("Authorization") }, automation.CodeUnauthorized},
		"another token":         {"/v1/runs", header("Authorization", "Bearer "+token+"x"), automation.CodeUnauthorized},
		"an empty token":        {"/v1/runs", header("Authorization", "Bearer "), automation.CodeUnauthorized},
		"another scheme":        {"/v1/runs", header("Authorization", "Basic "+token), automation.CodeUnauthorized},
		"the bare token":        {"/v1/runs", header("Authorization", token), automation.CodeUnauthorized},
		"rebound name":          {"/v1/runs", host("evil.example:" + port), automation.CodeForbidden},
		"another port":          {"/v1/runs", host("127.0.0.1:1"), automation.CodeForbidden},
		"no port":               {"/v1/runs", host("127.0.0.1"), automation.CodeForbidden},
		"a page":                {"/v1/runs", header("Origin", "http://evil.example"), automation.CodeForbidden},
		"a page of ours":        {"/v1/runs", header("Origin", s.URL()), automation.CodeForbidden},
		"a sandboxed page":      {"/v1/runs", header("Origin", "null"), automation.CodeForbidden},
		"machine API":           {"/v1/machine/hello", nil, automation.CodeNotFound},
		"machine API root":      {"/v1/machine", nil, automation.CodeNotFound},
		"machine API, doubled":  {"/v1//machine/hello", nil, automation.CodeNotFound},
		"machine API, dots":     {"/v1/runs/../machine/hello", nil, automation.CodeNotFound},
		"machine API, encoded":  {"/v1/%6dachine/hello", nil, automation.CodeNotFound},
		"machine API, slash":    {"/v1%2Fmachine%2Fhello", nil, automation.CodeNotFound},
		"machine API, enc dots": {"/v1/runs/%2e%2e/machine/hello", nil, automation.CodeNotFound},
		"machine API, case":     {"/v1/Machine/hello", nil, automation.CodeNotFound},
		"MCP without a token":   {"/mcp/automations", func(r *http.Request) { r.Header.Del("Authorization") }, automation.CodeUnauthorized},
		"MCP from a page":       {"/mcp/automations", header("Origin", "http://evil.example"), automation.CodeForbidden},
		"MCP, rebound name":     {"/mcp/automations", host("evil.example:" + port), automation.CodeForbidden},
		"below MCP":             {"/mcp/automations/x", nil, automation.CodeNotFound},
		"MCP, dots":             {"/v1/../mcp/automations", nil, automation.CodeNotFound},
		"outside of the API":    {"/temporal/", nil, automation.CodeNotFound},
		"the root":              {"/", nil, automation.CodeNotFound},
		"a longer name":         {"/v10/runs", nil, automation.CodeNotFound},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			response, body := call(t, http.MethodGet, s.URL()+test.path, "", test.edit)
			var envelope struct {
				Error struct{ Code, Message string } `json:"error"`
			}
			if err := json.Unmarshal([]byte(body), &envelope); err != nil {
				t.Fatalf("body %q: %v", body, err)
			}
			if automation.Code(envelope.Error.Code) != test.want || response.StatusCode != test.want.Status() || envelope.Error.Message == "" {
				t.Errorf("status %d, body %s; want %s", response.StatusCode, body, test.want)
			}
		})
	}
}

func TestMachinesListIsNotTheMachineAPI(t *testing.T) {
	t.Parallel()
	s, _ := start(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "listed") })
	for _, path := range []string{"/v1/machines", "/v1/machines/"} {
		if _, body := call(t, http.MethodGet, s.URL()+path, "", nil); body != "listed" {
			t.Errorf("%s: %q", path, body)
		}
	}
}

// bearer adds the runtime token to requests.
type bearer struct{}

func (bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+token)
	return http.DefaultTransport.RoundTrip(r)
}

// TestMCPPasses with the machine's proof on each request, and refusals as they are.
func TestMCPPasses(t *testing.T) {
	t.Parallel()
	tools := mcpserver.New(mcpserver.Options{
		Version: "test", Logger: slog.New(slog.DiscardHandler),
		Call: func(_ context.Context, command catalog.Command, input json.RawMessage) (json.RawMessage, error) {
			if command.Name != "list" {
				return nil, automation.Errorf(automation.CodeMachineRevoked, "%s", input)
			}
			return json.RawMessage(`{"automations":[]}`), nil
		},
	}).Handler(8)
	var requests atomic.Int64
	s, dir := start(t, func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if r.URL.Path != "/mcp/automations" || r.Header.Get("Authorization") != "Machine machine-1" || r.Header.Get("Dpop") != "proof of /mcp/automations" {
			t.Errorf("%s came with %q and %q", r.URL.Path, r.Header.Get("Authorization"), r.Header.Get("Dpop"))
		}
		tools.ServeHTTP(w, r)
	})
	file, err := runtimefile.Read(filepath.Join(dir, loopback.FileName))
	if err != nil || file.MCPURL != s.URL()+"/mcp/automations" {
		t.Fatalf("%+v, %v", file, err)
	}
	session, err := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, nil).Connect(t.Context(),
		&mcp.StreamableClientTransport{Endpoint: file.MCPURL, HTTPClient: &http.Client{Transport: bearer{}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = session.Close() }()
	if result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "list"}); err != nil || result.IsError {
		t.Errorf("%+v, %v", result, err)
	}
	result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "delete", Arguments: map[string]int{"x": 1}})
	want := map[string]any{"error": map[string]any{"code": "machine_revoked", "message": `{"x":1}`, "status": 409.0}}
	if err != nil || !result.IsError || !cmp.Equal(want, result.StructuredContent) {
		t.Errorf("%+v, %v", result, err)
	}
	if requests.Load() < 3 {
		t.Errorf("%d requests", requests.Load())
	}
}

func TestStreamsPassAtOnce(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	s, _ := start(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = fmt.Fprintln(w, "first")
		_ = http.NewResponseController(w).Flush()
		<-release
		_, _ = fmt.Fprintln(w, "second")
	})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL()+"/v1/runs/1", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "bearer "+token)
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	lines := bufio.NewScanner(response.Body)
	if !lines.Scan() || lines.Text() != "first" {
		t.Fatalf("read %q, %v", lines.Text(), lines.Err())
	}
	close(release)
	if !lines.Scan() || lines.Text() != "second" {
		t.Errorf("read %q, %v", lines.Text(), lines.Err())
	}
}

func TestControlPlaneThatIsAwayIsSaidToBe(t *testing.T) {
	t.Parallel()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	s, _ := startTo(t, gone.URL)
	response, body := call(t, http.MethodGet, s.URL()+"/v1/runs", "", nil)
	if response.StatusCode != http.StatusBadGateway || !strings.Contains(body, string(automation.CodeRuntimeUnavailable)) || !strings.Contains(body, gone.URL) {
		t.Errorf("status %d, body %s", response.StatusCode, body)
	}
}

func TestFileSaysWhereTheRouteIs(t *testing.T) {
	t.Parallel()
	s, dir := start(t, func(http.ResponseWriter, *http.Request) {})
	path := filepath.Join(dir, "worker.json")
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, %v", info, err)
	}
	got, err := runtimefile.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	want := runtimefile.File{
		URL: s.URL(), MCPURL: s.URL() + "/mcp/automations", Token: token, PID: os.Getpid(), StartedAt: time.Unix(1_800_000_000, 0).UTC(),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("worker.json (-want +got):\n%s", diff)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("worker.json after the stop: %v", err)
	}
	if response, err := http.Get(s.URL()); err == nil {
		_ = response.Body.Close()
		t.Error("the route still answers")
	}
}

func TestFileOfALaterWorkerStays(t *testing.T) {
	t.Parallel()
	s, dir := start(t, func(http.ResponseWriter, *http.Request) {})
	path := filepath.Join(dir, "worker.json")
	later := runtimefile.File{URL: "http://127.0.0.1:1", Token: "another", PID: 1, StartedAt: time.Unix(0, 0).UTC()}
	if err := runtimefile.Write(path, later); err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := runtimefile.Read(path); err != nil || got != later {
		t.Errorf("worker.json is %+v, %v", got, err)
	}
}

func TestStartNeedsItsOptions(t *testing.T) {
	t.Parallel()
	good := loopback.Options{ServerURL: "http://127.0.0.1:1", Transport: prover{}, Token: token, Dir: t.TempDir()}
	bad := map[string]func(*loopback.Options){
		"no server":       func(o *loopback.Options) { o.ServerURL = "" },
		"no URL":          func(o *loopback.Options) { o.ServerURL = "http://[::1" },
		"no transport":    func(o *loopback.Options) { o.Transport = nil },
		"no token":        func(o *loopback.Options) { o.Token = "" },
		"no directory":    func(o *loopback.Options) { o.Dir = "" },
		"a missing place": func(o *loopback.Options) { o.Dir = filepath.Join(good.Dir, "missing") },
	}
	for name, spoil := range bad {
		o := good
		spoil(&o)
		if s, err := loopback.Start(o); err == nil {
			t.Errorf("%s: it started on %s", name, s.URL())
		}
	}
}
