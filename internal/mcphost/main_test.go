package mcphost_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/mcphost"
)

// roleVariable makes the test binary play an MCP server instead of running tests.
const roleVariable = "MCPHOST_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "":
		os.Exit(m.Run())
	case "server":
		if err := newServer(os.Getenv("MCPHOST_TEST_DIR")).Run(context.Background(), &mcp.StdioTransport{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		if os.Getenv("MCPHOST_TEST_STUBBORN") != "" {
			select {} // its input has ended, and it does not care
		}
	case "broken":
		fmt.Fprintln(os.Stderr, "the licence has expired")
		os.Exit(3)
	}
}

// newServer is a server with a tool for each situation. Its tools leave their marks in dir.
func newServer(dir string) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	add := func(name string, handle mcp.ToolHandler) {
		server.AddTool(&mcp.Tool{Name: name, InputSchema: &jsonschema.Schema{Type: "object"}}, handle)
	}
	mcp.AddTool(server, &mcp.Tool{Name: "greet"}, func(_ context.Context, _ *mcp.CallToolRequest, in greeting) (*mcp.CallToolResult, any, error) {
		return text(strings.Repeat("Hello "+in.Name+". ", max(1, in.Times))), nil, nil
	})
	add("meta", func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		result := text(string(r.Params.Arguments))
		result.StructuredContent = r.Params.Meta
		return result, nil
	})
	add("refuse", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		result := text("the disk is full")
		result.IsError = true
		return result, nil
	})
	add("protocolError", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return nil, errors.New("something broke")
	})
	add("die", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		fmt.Fprintln(os.Stderr, "dying")
		os.Exit(7)
		panic("unreachable")
	})
	add("environ", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		cwd, _ := os.Getwd()
		return &mcp.CallToolResult{StructuredContent: map[string]any{"environ": os.Environ(), "pid": os.Getpid(), "cwd": cwd}}, nil
	})
	add("slow", func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		mark(filepath.Join(dir, "slow-started"))
		<-ctx.Done()
		mark(filepath.Join(dir, "slow-cancelled"))
		return nil, ctx.Err()
	})
	add("grow", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		add("grown", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { return text("grown"), nil })
		return text("ok"), nil
	})
	return server
}

type greeting struct {
	Name  string `json:"name" jsonschema:"who is greeted"`
	Times int    `json:"times,omitempty"`
}

func text(s string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
}

func mark(path string) {
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// program is the settings of a server that the test binary plays.
func program(t *testing.T, role, dir string) mcphost.Server {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return mcphost.Server{
		Name: "srv", Command: exe, Dir: dir,
		Env: map[string]string{roleVariable: role, "MCPHOST_TEST_DIR": dir},
	}
}

// host returns the host of one server and that server's source.
func host(t *testing.T, server mcphost.Server) (*mcphost.Host, *mcphost.Source) {
	t.Helper()
	h, err := mcphost.New([]mcphost.Server{server}, mcphost.Options{
		Environ: append(os.Environ(), "ERRAND_RUNTIME_TOKEN=secret", "ERRAND_DATA_DIR=/x", "NOTIFY_SOCKET=/y"),
		Home:    t.TempDir(), Version: "1",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h, h.Sources()[0]
}

func step(tool, input string) automation.ConcreteStep {
	return automation.ConcreteStep{
		RunID: "run-1", StepID: "call", Kind: automation.KindAction, ActionID: "srv." + tool, Input: json.RawMessage(input),
	}
}

// stepCode returns the code of a step error, or "" for another error.
func stepCode(err error) automation.StepCode {
	if stepErr, ok := errors.AsType[*automation.StepError](err); ok {
		return stepErr.Code
	}
	return ""
}

// eventually waits for a condition, long enough for a machine that is busy with other tests.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("waited 30 s for this, in vain: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func exists(path string) func() bool {
	return func() bool {
		_, err := os.Stat(path)
		return err == nil
	}
}
