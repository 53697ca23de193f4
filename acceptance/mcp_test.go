//go:build unix

package acceptance_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/errandhq/errand/internal/apptest"
	"github.com/errandhq/errand/internal/catalog"
	"github.com/errandhq/errand/internal/runtimefile"
)

// mcpPatience bounds every wait for an MCP client.
const mcpPatience = time.Minute

// wayIn is where an agent reaches the tools: an address with a token, or errand mcp without one.
type wayIn struct{ url, token string }

// waysIn are errandd, the worker of this machine, and a program of one's own.
func waysIn(s *apptest.Server) map[string]wayIn {
	ways := map[string]wayIn{"errand mcp": {}}
	for _, name := range []string{"server.json", "worker.json"} {
		s.Await(mcpPatience, name+" is there", func() (string, bool) {
			file, err := runtimefile.Read(filepath.Join(s.DataDir(), name))
			ways[name] = wayIn{file.MCPURL, file.Token}
			return fmt.Sprint(err), err == nil
		})
	}
	return ways
}

// errandMCP returns the command that serves tools on its standard input and output.
func errandMCP(t *testing.T, s *apptest.Server) *exec.Cmd {
	t.Helper()
	command := exec.CommandContext(t.Context(), filepath.Join(apptest.Binaries(t), "errand"), "mcp")
	command.Dir, command.Env = s.Options.Dir, s.Environment()
	return command
}

// withToken adds a bearer token to requests.
type withToken string

func (token withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(token))
	return http.DefaultTransport.RoundTrip(r)
}

func connectMCP(t *testing.T, transport mcp.Transport) *mcp.ClientSession {
	t.Helper()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "acceptance", Version: "1"}, nil).Connect(t.Context(), transport, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return session
}

func (w wayIn) connect(t *testing.T, s *apptest.Server) *mcp.ClientSession {
	t.Helper()
	if w.url == "" {
		return connectMCP(t, &mcp.CommandTransport{Command: errandMCP(t, s)})
	}
	return connectMCP(t, &mcp.StreamableClientTransport{
		Endpoint: w.url, HTTPClient: &http.Client{Transport: withToken(w.token)},
	})
}

// callTool returns what a tool answered, and the code and status of a refusal.
func callTool(t *testing.T, session *mcp.ClientSession, name string, input map[string]any) (answer map[string]any, refusal string) {
	t.Helper()
	result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: input})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	answer, _ = result.StructuredContent.(map[string]any)
	if body, ok := answer["error"].(map[string]any); ok && result.IsError {
		return answer, fmt.Sprint(body["code"], " ", body["status"])
	}
	return answer, ""
}

func mustCall(t *testing.T, session *mcp.ClientSession, name string, input map[string]any) map[string]any {
	t.Helper()
	answer, refusal := callTool(t, session, name, input)
	if refusal != "" {
		t.Fatalf("%s: %v", name, answer)
	}
	return answer
}

// TestMCPWaysIn lives an automation's life over each way in, with the client of the Go SDK and with that of the
// TypeScript SDK.
func TestMCPWaysIn(t *testing.T) {
	t.Parallel()
	s := apptest.Start(t, apptest.Options{})
	for name, way := range waysIn(s) {
		t.Run(name, func(t *testing.T) {
			lifeOverMCP(t, way.connect(t, s))
			lifeFromTypeScript(t, s, way)
		})
	}
}

func lifeOverMCP(t *testing.T, session *mcp.ClientSession) {
	t.Helper()
	created := mustCall(t, session, "create", map[string]any{
		"name": "over MCP", "workflow": map[string]any{"compiled": map[string]any{"version": 2, "steps": []any{
			map[string]any{"id": "a", "kind": "command", "command": "cat", "stdin": map[string]any{"$runInput": true}},
		}}},
	})
	id := created["id"]
	admitted := mustCall(t, session, "run-now", map[string]any{"automation_id": id, "input": "hello", "wait_ms": 30_000})
	run := mustCall(t, session, "run", map[string]any{"run_id": admitted["id"], "wait_ms": 30_000})
	steps, _ := json.Marshal(run["steps"])
	if run["status"] != "completed" || !bytes.Contains(steps, []byte(`"stdout":"hello"`)) {
		t.Errorf("the run is %v: %s", run["status"], steps)
	}
	if changed := mustCall(t, session, "update", map[string]any{"automation_id": id, "enabled": false}); changed["version"] != 2.0 {
		t.Errorf("changed to %v", changed)
	}
	if _, refusal := callTool(t, session, "run-now", map[string]any{"automation_id": id}); refusal != "automation_disabled 409" {
		t.Errorf("a disabled automation: %s", refusal)
	}
	mustCall(t, session, "delete", map[string]any{"automation_id": id})
	if _, refusal := callTool(t, session, "get", map[string]any{"automation_id": id}); refusal != "not_found 404" {
		t.Errorf("a deleted automation: %s", refusal)
	}
}

// mcpClientPackages returns where `make mcpclient` installs the TypeScript SDK.
func mcpClientPackages(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", ".cache", "mcpclient"))
	if err != nil {
		t.Fatal(err)
	}
	wanted, err := os.ReadFile(filepath.Join("mcpclient", "package-lock.json"))
	if err != nil {
		t.Fatal(err)
	}
	if installed, err := os.ReadFile(filepath.Join(dir, "installed")); err != nil || !bytes.Equal(wanted, installed) {
		t.Fatalf("the TypeScript SDK for this test is missing in %s, or of another version: run `make mcpclient`", dir)
	}
	return dir
}

func lifeFromTypeScript(t *testing.T, s *apptest.Server, way wayIn) {
	t.Helper()
	args := []string{filepath.Join("mcpclient", "client.mjs"), mcpClientPackages(t), "http", way.url}
	if way.url == "" {
		args = append(args[:2], "stdio", filepath.Join(apptest.Binaries(t), "errand"), "mcp")
	}
	client := exec.CommandContext(t.Context(), "node", args...)
	client.Env = append(s.Environment(), "TOKEN="+way.token)
	var stderr bytes.Buffer
	client.Stderr = &stderr
	output, err := client.Output()
	if err != nil {
		t.Fatalf("%v\n%s%s", err, output, stderr.String())
	}
	var got map[string]any
	if err := json.Unmarshal(output, &got); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	names := map[string]bool{}
	for _, name := range got["tools"].([]any) {
		names[fmt.Sprint(name)] = true
	}
	for _, command := range catalog.Commands() {
		if !names[command.Name] {
			t.Errorf("there is no tool %s", command.Name)
		}
		delete(names, command.Name)
	}
	if len(names) > 0 {
		t.Errorf("tools that are no commands: %v", slices.Sorted(maps.Keys(names)))
	}
	delete(got, "tools")
	want := map[string]any{
		"status": "completed", "stdout": "<hello> & 😀", "runs": 1.0, "version": 2.0, "deleted": true,
		"errors":  []any{"version_conflict 409", "validation_failed 400", "not_found 404"},
		"unknown": -32602.0, "resource": "completed", "listed": true, "server": "errand", "instructions": true,
		"templates": []any{"errand://automations/{id}", "errand://runs/{id}"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the TypeScript client saw (-want +got)\n%s", diff)
	}
}

// TestMCPKeepsTheDoor: neither address answers without its token, or to a page in a browser.
func TestMCPKeepsTheDoor(t *testing.T) {
	t.Parallel()
	s := apptest.Start(t, apptest.Options{})
	const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	for name, way := range waysIn(s) {
		if way.url == "" {
			continue
		}
		for what, test := range map[string]struct {
			header, value string
			status        int
		}{
			"nothing special": {"X-Test", "1", 200},
			"no token":        {"Authorization", "", 401},
			"another token":   {"Authorization", "Bearer " + way.token + "x", 401},
			"a page":          {"Origin", "https://evil.example", 403},
			"another host":    {"Host", "evil.example", 403},
		} {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, way.url, strings.NewReader(ping))
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Content-Type", "application/json")
			request.Header.Set("Accept", "application/json, text/event-stream")
			request.Header.Set("Authorization", "Bearer "+way.token)
			request.Header.Set(test.header, test.value)
			if test.header == "Host" {
				request.Host = test.value
			}
			if status, body := s.Do(request); status != test.status {
				t.Errorf("%s, %s: %d %s", name, what, status, body)
			}
		}
	}
}

// TestMCPOutlivesTheService: errand mcp may be started first, says what is missing, and finds each start of errandd.
// A signal ends it in order, and it has written nothing but messages.
func TestMCPOutlivesTheService(t *testing.T) {
	t.Parallel()
	s := apptest.New(t, apptest.Options{})
	program := errandMCP(t, s)
	stdin, err := program.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	var written bytes.Buffer
	session := connectMCP(t, &mcp.IOTransport{Reader: io.NopCloser(io.TeeReader(stdout, &written)), Writer: stdin})
	unavailable := func(when string) {
		t.Helper()
		if _, refusal := callTool(t, session, "list", nil); refusal != "runtime_unavailable <nil>" {
			t.Errorf("%s: %q", when, refusal)
		}
	}
	unavailable("before errandd")
	s.Restart()
	mustCall(t, session, "list", nil)
	s.Interrupt()
	unavailable("after errandd")
	s.Restart()
	mustCall(t, session, "list", nil)
	if err := program.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = session.Wait() // its pipe has ended
	if err := program.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	for line := range strings.Lines(written.String()) {
		if !json.Valid([]byte(line)) {
			t.Errorf("standard output has %q", line)
		}
	}
}
