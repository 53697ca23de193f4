package cli_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/catalog"
	"github.com/errandhq/errand/internal/cli"
	"github.com/errandhq/errand/internal/client"
)

// TestMCPCallsTheServiceOfTheMoment: the service is looked for at each call, and an invalid input calls nobody.
func TestMCPCallsTheServiceOfTheMoment(t *testing.T) {
	t.Parallel()
	url, requests := service(t, 409, `{"error":{"code":"already_finished","message":"it has ended","requestId":"r1"}}`)
	environ := map[string]string{}
	dir := t.TempDir()
	var stdout, stderr strings.Builder
	program := &cli.Program{
		Stdout: &stdout, Stderr: &stderr, Getenv: func(name string) string { return environ[name] },
		DataDir: func() (string, error) { return dir, nil }, Alive: func(int) bool { return true },
		RunMCP: func(ctx context.Context, call cli.Call, o cli.MCP) error {
			if o.LogLevel != "debug" || o.LogFormat != "auto" {
				t.Errorf("options %+v", o)
			}
			cancel, _ := catalog.Find("cancel-run")
			if _, err := call(ctx, cancel, json.RawMessage(`{"run_id":"`+runID+`","run_id":"x"}`)); automation.CodeOf(err) != automation.CodeValidationFailed {
				t.Errorf("a duplicate: %v", err)
			}
			input := json.RawMessage(`{"run_id":"` + runID + `"}`)
			if _, err := call(ctx, cancel, input); automation.CodeOf(err) != automation.CodeRuntimeUnavailable {
				t.Errorf("without a service: %v", err)
			}
			environ["ERRAND_MCP_URL"], environ["ERRAND_RUNTIME_TOKEN"] = url+"/mcp/automations", "token"
			_, err := call(ctx, cancel, input)
			var remote *client.RemoteError
			if !errors.As(err, &remote) || remote.Code != automation.CodeAlreadyFinished || remote.Status != 409 || remote.RequestID != "r1" {
				t.Errorf("%+v", err)
			}
			return errors.New("standard output is gone")
		},
	}
	exit := program.Main(t.Context(), []string{"mcp", "--log-level", "debug"})
	if len(*requests) != 1 || (*requests)[0].Path != "/v1/runs/"+runID+"/cancel" || (*requests)[0].Authorization != "Bearer token" {
		t.Errorf("%+v", *requests)
	}
	if exit != 1 || stdout.Len() > 0 || !strings.Contains(stderr.String(), "standard output is gone") {
		t.Errorf("exit %d, %s%s", exit, stdout.String(), stderr.String())
	}
}
