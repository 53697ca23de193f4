//go:build unix

package acceptance_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/apptest"
)

// toolsVariable makes the test binary an MCP server on its standard streams, with its marks in that directory.
const toolsVariable = "ACCEPTANCE_TEST_TOOLS"

// serveTools is the MCP server that a worker starts in [TestMachineYAML].
func serveTools(dir string) {
	if err := newTools(dir).Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

type nameOf struct {
	Name string `json:"name" jsonschema:"who is greeted"`
}

// newTools has a tool for each thing that can happen to a call.
func newTools(dir string) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "tools", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "greet"}, func(_ context.Context, _ *mcp.CallToolRequest, in nameOf) (*mcp.CallToolResult, any, error) {
		return said("Hello " + in.Name), nil, nil
	})
	type nothing struct{}
	mcp.AddTool(server, &mcp.Tool{Name: "self"}, func(_ context.Context, r *mcp.CallToolRequest, _ nothing) (*mcp.CallToolResult, any, error) {
		return nil, map[string]any{"pid": os.Getpid(), "key": r.Params.Meta["errand/idempotencyKey"], "environ": os.Environ()}, nil
	})
	mcp.AddTool(server, &mcp.Tool{Name: "refuse"}, func(context.Context, *mcp.CallToolRequest, nothing) (*mcp.CallToolResult, any, error) {
		result := said("the disk is full")
		result.IsError = true
		return result, nil, nil
	})
	mcp.AddTool(server, &mcp.Tool{Name: "dieOnce"}, func(context.Context, *mcp.CallToolRequest, nothing) (*mcp.CallToolResult, any, error) {
		if err := os.Mkdir(filepath.Join(dir, "died"), 0o700); err == nil {
			os.Exit(7)
		}
		return said("alive again"), nil, nil
	})
	mcp.AddTool(server, &mcp.Tool{Name: "slow"}, func(ctx context.Context, _ *mcp.CallToolRequest, _ nothing) (*mcp.CallToolResult, any, error) {
		if err := os.WriteFile(filepath.Join(dir, "slow-began"), nil, 0o600); err != nil {
			return nil, nil, err
		}
		<-ctx.Done()
		return nil, nil, os.WriteFile(filepath.Join(dir, "slow-was-cancelled"), nil, 0o600)
	})
	return server
}

func said(text string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}
}

// guarded serves tools over HTTP to whoever has the key.
func guarded(t *testing.T, dir, key string) string {
	t.Helper()
	tools := newTools(dir)
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return tools }, nil)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != key {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func call(id, action string, input any, more step) step {
	s := step{"id": id, "kind": "action", "actionId": action, "input": input}
	maps.Copy(s, more)
	return s
}

// TestMachineYAML gives the real worker a machine.yaml with a PATH, an MCP server that it starts and one that it
// reaches over HTTP.
func TestMachineYAML(t *testing.T) {
	t.Parallel()
	dir, tools := t.TempDir(), t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const key = "Bearer let-me-in"
	url := guarded(t, dir, key)
	writeProgram(t, tools, "only-here", "#!/bin/sh\nprintenv PATH\n", 0o755)
	path := tools + ":/usr/bin:/bin"
	s := apptest.New(t, apptest.Options{})
	config := filepath.Join(s.Home(), ".config", "errand")
	if err := os.MkdirAll(config, 0o700); err != nil {
		t.Fatal(err)
	}
	settings, err := json.Marshal(map[string]any{ // YAML contains JSON
		"path": path,
		"mcpServers": map[string]any{
			"local":  map[string]any{"command": self, "env": map[string]string{toolsVariable: dir}},
			"web":    map[string]any{"url": url, "credential": "good"},
			"closed": map[string]any{"url": url, "credential": "bad"},
		},
		"credentials": map[string]any{
			"good": map[string]any{"value": key, "hosts": []string{strings.TrimPrefix(url, "http://")}},
			"bad":  map[string]any{"value": "Bearer wrong", "hosts": []string{strings.TrimPrefix(url, "http://")}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(config, "machine.yaml"), settings, 0o600); err != nil {
		t.Fatal(err)
	}
	s.Restart()
	runCases(t, s, []fieldCase{
		{step: command("path", nil, "only-here"), result: printed(0, path+"\n")},
		{step: command("searched", nil, "nowhere"), code: "command_not_found", says: []string{path}},
	})
	for _, c := range []toolCase{
		{step: call("greets", "local.greet", step{"name": "Mom"}, nil), output: "Hello Mom"},
		{step: call("refused", "local.refuse", step{}, nil), code: automation.StepErrActionFailed, says: "the disk is full"},
		{step: call("misspelt", "local.gret", step{}, nil), code: automation.StepErrActionNotFound, says: "local.greet"},
		{step: call("wrong", "local.greet", step{"nome": 1}, nil), code: automation.StepErrActionFailed, says: "nome"},
		{step: call("dies", "local.dieonce", step{}, nil), output: "alive again", attempts: 2},
		{step: call("web", "web.greet", step{"name": "Dad"}, nil), output: "Hello Dad"},
		{step: call("unauthorized", "closed.greet", step{"name": "Dad"}, nil), code: automation.StepErrActionUnauthorized},
	} {
		t.Run(fmt.Sprint(c.step["id"]), func(t *testing.T) { c.check(t, s) })
	}
	t.Run("cancel", func(t *testing.T) { cancelTool(t, s, dir) })
	t.Run("kept and ended", func(t *testing.T) { keepTool(t, s) })
}

// toolCase is a call of a tool and what becomes of it.
type toolCase struct {
	step     step
	output   string
	attempts int64
	code     automation.StepCode
	says     string
}

func (c toolCase) check(t *testing.T, s *apptest.Server) {
	run := awaitEnd(t, s, s.RunNow(s.Create(definition(c.step)), nil).ID)
	got := run.Steps[0]
	var code automation.StepCode
	var message string
	if got.Error != nil {
		code, message = got.Error.Code, got.Error.Message
	}
	if code != c.code || !strings.Contains(message, c.says) || !strings.Contains(string(got.Output), c.output) {
		t.Errorf("the step ends with %q (%s) and %s; want %q saying %q, and %q", code, message, got.Output, c.code, c.says, c.output)
	}
	if got.Attempt != max(c.attempts, 1) {
		t.Errorf("the step took %d attempts, not %d", got.Attempt, max(c.attempts, 1))
	}
}

// cancelTool passes a cancel on to the tool.
func cancelTool(t *testing.T, s *apptest.Server, dir string) {
	id := s.RunNow(s.Create(definition(call("slow", "local.slow", step{}, nil))), nil).ID
	awaitFile(t, filepath.Join(dir, "slow-began"))
	if status, answer := s.Post("/v1/runs/"+id+"/cancel", step{}); status != http.StatusOK {
		t.Fatalf("the cancel is answered by %d: %s", status, answer)
	}
	awaitFile(t, filepath.Join(dir, "slow-was-cancelled"))
	if run := awaitEnd(t, s, id); run.Status != automation.RunCancelled {
		t.Errorf("the run is %s", run.Status)
	}
}

// keepTool looks at the process that serves the tools: it is the same for two steps, has their keys and nothing of
// Errand's, and ends with its worker.
func keepTool(t *testing.T, s *apptest.Server) {
	run := awaitEnd(t, s, s.RunNow(s.Create(definition(call("one", "local.self", step{}, nil), call("two", "local.self", step{}, nil))), nil).ID)
	var pids []int
	var keys []string
	for _, step := range run.Steps {
		var result struct {
			StructuredContent struct {
				PID     int      `json:"pid"`
				Key     string   `json:"key"`
				Environ []string `json:"environ"`
			} `json:"structuredContent"`
		}
		if err := json.Unmarshal(step.Output, &result); err != nil {
			t.Fatalf("%s: %v", step.Output, err)
		}
		pids, keys = append(pids, result.StructuredContent.PID), append(keys, result.StructuredContent.Key)
		for _, variable := range result.StructuredContent.Environ {
			if strings.HasPrefix(variable, "ERRAND_") {
				t.Errorf("the server sees %s", variable)
			}
		}
	}
	if diff := cmp.Diff([]string{run.ID + ":one", run.ID + ":two"}, keys); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
	if pids[0] != pids[1] {
		t.Fatalf("two processes served: %v", pids)
	}
	s.Interrupt()
	s.Await(patience, "the MCP server has ended with its worker", func() (string, bool) {
		err := syscall.Kill(pids[0], 0)
		return fmt.Sprint(err), err != nil
	})
}
