package mcpserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/catalog"
	"github.com/errandhq/errand/internal/mcpserver"
)

// call calls a tool and returns its structured content and whether it was refused. What is text is the same JSON,
// and both results and refusals obey the tool's schema.
func call(t *testing.T, session *mcp.ClientSession, tool, input string) (map[string]any, bool) {
	t.Helper()
	result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: json.RawMessage(input)})
	if err != nil {
		t.Fatalf("%s %s: %v", tool, input, err)
	}
	structured, ok := result.StructuredContent.(map[string]any)
	if !ok {
		t.Fatalf("%s: the structured content is %v", tool, result.StructuredContent)
	}
	text, ok := result.Content[0].(*mcp.TextContent)
	if !ok || len(result.Content) != 1 {
		t.Fatalf("%s: the content is %v", tool, result.Content)
	}
	var same map[string]any
	if err := json.Unmarshal([]byte(text.Text), &same); err != nil || !cmp.Equal(same, structured) {
		t.Errorf("%s: the text differs: %v, %s", tool, err, text.Text)
	}
	schemas, err := outputs()
	if err != nil {
		t.Fatal(err)
	}
	if err := schemas[tool].Validate(result.StructuredContent); err != nil {
		t.Errorf("%s: its schema refuses %s: %v", tool, text.Text, err)
	}
	return structured, result.IsError
}

// outputs are the schemas that the server gives for what its tools return.
var outputs = sync.OnceValues(func() (map[string]*jsonschema.Resolved, error) {
	s, _ := failing(nil)
	server := httptest.NewServer(s.Handler(1))
	defer server.Close()
	ctx := context.Background()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, nil).
		Connect(ctx, &mcp.StreamableClientTransport{Endpoint: server.URL}, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = session.Close() }()
	listed, err := session.ListTools(ctx, nil)
	if err != nil {
		return nil, err
	}
	resolved := map[string]*jsonschema.Resolved{}
	for _, tool := range listed.Tools {
		document, err := json.Marshal(tool.OutputSchema)
		var schema jsonschema.Schema
		if err == nil {
			err = json.Unmarshal(document, &schema)
		}
		if err == nil {
			resolved[tool.Name], err = schema.Resolve(nil)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", tool.Name, err)
		}
	}
	return resolved, nil
})

func succeed(t *testing.T, session *mcp.ClientSession, tool, input string) map[string]any {
	t.Helper()
	result, refused := call(t, session, tool, input)
	if refused {
		t.Fatalf("%s %s: %v", tool, input, result)
	}
	return result
}

// generic is the JSON of v with Go's own types for JSON.
func generic(t *testing.T, v any) any {
	t.Helper()
	document, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var out any
	if err := json.Unmarshal(document, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestToolsAreTheCatalog proves that no tool, member or effect is missing, added or changed.
func TestToolsAreTheCatalog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, session := range map[string]*mcp.ClientSession{"http": w.overHTTP(t), "stdio": w.overStdio(t)} {
		listed, err := session.ListTools(t.Context(), nil)
		if err != nil || listed.NextCursor != "" {
			t.Fatalf("%s: %v, a second page %q", name, err, listed.NextCursor)
		}
		tools := map[string]*mcp.Tool{}
		for _, tool := range listed.Tools {
			tools[tool.Name] = tool
		}
		for _, command := range catalog.Commands() {
			tool, found := tools[command.Name]
			if !found {
				t.Errorf("%s: %s is no tool", name, command.Name)
				continue
			}
			delete(tools, command.Name)
			if !strings.Contains(tool.Description, command.Contract) || !strings.Contains(tool.Description, command.Example) {
				t.Errorf("%s: %s is described as %s", name, command.Name, tool.Description)
			}
			if diff := cmp.Diff(generic(t, command.InputSchema()), tool.InputSchema); diff != "" {
				t.Errorf("%s: input of %s (-want +got)\n%s", name, command.Name, diff)
			}
			result, _ := generic(t, command.ResultSchema()).(map[string]any)
			output, _ := tool.OutputSchema.(map[string]any)
			if diff := cmp.Diff(result["properties"], output["anyOf"].([]any)[0].(map[string]any)["properties"]); diff != "" {
				t.Errorf("%s: result of %s (-want +got)\n%s", name, command.Name, diff)
			}
			if h := tool.Annotations; h == nil || h.DestructiveHint == nil || h.OpenWorldHint == nil || h.ReadOnlyHint != (command.Effect == catalog.EffectRead) {
				t.Errorf("%s: %s has the annotations %+v", name, command.Name, h)
			}
		}
		for extra := range tools {
			t.Errorf("%s: %s is a tool and no command", name, extra)
		}
	}
}

func TestAnnotationsFollowTheEffect(t *testing.T) {
	t.Parallel()
	s, _ := failing(nil)
	listed, err := inMemory(t, s).ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{ // read-only, destructive, idempotent, open world
		"get": "true false true false", "create": "false false false false",
		"delete": "false true true false", "update": "false true true false", "run-now": "false true false true",
	}
	for _, tool := range listed.Tools {
		h := tool.Annotations
		got := fmt.Sprint(h.ReadOnlyHint, *h.DestructiveHint, h.IdempotentHint, *h.OpenWorldHint)
		if expected, ok := want[tool.Name]; ok && got != expected {
			t.Errorf("%s: %s, want %s", tool.Name, got, expected)
		}
	}
}

func TestInstructionsNameTools(t *testing.T) {
	t.Parallel()
	s, _ := failing(nil)
	text := inMemory(t, s).InitializeResult().Instructions
	names := regexp.MustCompile("`([a-z-]+)`").FindAllStringSubmatch(text, -1)
	if len(names) < 3 || len(text) > 2000 {
		t.Errorf("%d bytes name %d tools", len(text), len(names))
	}
	for _, name := range names {
		if _, found := catalog.Find(name[1]); !found {
			t.Errorf("%s is no command", name[1])
		}
	}
}

// TestLifeOfAnAutomation goes through every state that needs no machine, over each transport.
func TestLifeOfAnAutomation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, session := range map[string]*mcp.ClientSession{"http": w.overHTTP(t), "stdio": w.overStdio(t)} {
		created := succeed(t, session, "create", `{"name":"Life over `+name+`","workflow":{"compiled":{"version":2,"steps":[`+
			`{"id":"a","kind":"command","command":"echo","args":["<&>"]}]}}}`)
		id, _ := created["id"].(string)
		run := succeed(t, session, "run-now", `{"automation_id":"`+id+`","input":{"n":12345678901234567890.50}}`)
		runID, _ := run["id"].(string)
		if run["status"] != "pending" {
			t.Errorf("%s: the run is %v", name, run["status"])
		}
		shown := succeed(t, session, "run", `{"run_id":"`+runID+`"}`)
		if steps, _ := shown["steps"].([]any); len(steps) != 1 {
			t.Errorf("%s: the run has the steps %v", name, shown["steps"])
		}
		updated := succeed(t, session, "update", `{"automation_id":"`+id+`","expected_version":1,"enabled":false}`)
		if updated["version"] != 2.0 || updated["enabled"] != false {
			t.Errorf("%s: updated to %v", name, updated)
		}
		refused, isError := call(t, session, "run-now", `{"automation_id":"`+id+`"}`)
		if body, _ := refused["error"].(map[string]any); !isError || body["code"] != "automation_disabled" || body["status"] != 409.0 {
			t.Errorf("%s: %v", name, refused)
		}
		if cancelled := succeed(t, session, "cancel-run", `{"run_id":"`+runID+`"}`); cancelled["status"] != "cancelled" {
			t.Errorf("%s: the run is %v", name, cancelled["status"])
		}
		if deleted := succeed(t, session, "delete", `{"automation_id":"`+id+`"}`); deleted["deleted"] != true {
			t.Errorf("%s: %v", name, deleted)
		}
		if page := succeed(t, session, "runs", `{"automation_id":"`+id+`"}`); len(page["runs"].([]any)) != 1 {
			t.Errorf("%s: the runs of a deleted automation are %v", name, page["runs"])
		}
	}
}

func TestInvalidInputNamesEveryPlace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tests := map[string]struct {
		tool, input string
		places      []string
	}{
		"a wrong type":          {"get", `{"automation_id":7}`, []string{"automation_id"}},
		"an unknown member":     {"list", `{"limmit":3}`, []string{"limmit"}},
		"a duplicate":           {"list", `{"limit":3,"limit":3}`, []string{"limit"}},
		"a float":               {"list", `{"limit":3.0}`, []string{"limit"}},
		"no input":              {"get", ``, []string{"automation_id"}},
		"null":                  {"get", `null`, []string{"automation_id"}},
		"several":               {"runs", `{"status":"done","limit":0}`, []string{"status", "limit"}},
		"a step":                {"create", `{"name":"x","workflow":{"compiled":{"version":2,"steps":[{"id":"a","kind":"command"}]}}}`, []string{"workflow.compiled.steps[0].command"}},
		"a list for the object": {"list", `[1]`, []string{""}},
	}
	session := w.overStdio(t)
	for name, test := range tests {
		params := &mcp.CallToolParams{Name: test.tool}
		if test.input != "" {
			params.Arguments = json.RawMessage(test.input)
		}
		result, err := session.CallTool(t.Context(), params)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got struct {
			Error struct {
				Code    automation.Code
				Status  int
				Details []automation.Violation
			}
		}
		document, _ := json.Marshal(result.StructuredContent)
		if err := json.Unmarshal(document, &got); err != nil || !result.IsError || got.Error.Code != automation.CodeValidationFailed || got.Error.Status != 400 {
			t.Errorf("%s: %s, %v", name, document, err)
		}
		for _, place := range test.places {
			if !slices.ContainsFunc(got.Error.Details, func(v automation.Violation) bool { return v.Path == place }) {
				t.Errorf("%s: nothing is said of %q: %s", name, place, document)
			}
		}
	}
}

// TestEveryErrorCode: a refusal keeps its code, its status and its sentence, whether it was made here or elsewhere.
func TestEveryErrorCode(t *testing.T) {
	t.Parallel()
	var failure error
	s, log := failing(func(context.Context, catalog.Command, json.RawMessage) (json.RawMessage, error) { return nil, failure })
	session := inMemory(t, s)
	for _, code := range append(slices.Clone(automation.Codes), "made_up") {
		failure = &automation.Error{
			Code: code, Message: "the sentence", Cause: errors.New("the secret cause"),
			Details: []automation.Violation{{Path: "a.b", Message: "is wrong"}},
		}
		want := map[string]any{
			"code": string(code), "message": "the sentence", "status": float64(code.Status()),
			"details": []any{map[string]any{"path": "a.b", "message": "is wrong"}},
		}
		switch code { //nolint:exhaustive // the others are said as they are
		case automation.CodeRuntimeUnavailable:
			delete(want, "status")
		case automation.CodeInternal, "made_up":
			want = map[string]any{
				"code": "internal", "status": 500.0, "message": "something went wrong inside the server of these tools; its log says what",
			}
		}
		got, refused := call(t, session, "list", `{}`)
		if diff := cmp.Diff(map[string]any{"error": want}, got); diff != "" || !refused {
			t.Errorf("%s (-want +got)\n%s", code, diff)
		}
		failure = &mcpserver.Refusal{Code: code, Message: "the sentence", Status: 418, Details: json.RawMessage(`[{"x":1}]`), RequestID: "r"}
		want = map[string]any{
			"code": string(code), "message": "the sentence", "status": 418.0, "details": []any{map[string]any{"x": 1.0}}, "requestId": "r",
		}
		if got, _ := call(t, session, "list", `{}`); !cmp.Equal(map[string]any{"error": want}, got) {
			t.Errorf("%s from elsewhere: %v", code, got)
		}
	}
	if !strings.Contains(log.String(), "the secret cause") {
		t.Error("the cause is not in the log")
	}
}

func TestAPanicEndsOneCall(t *testing.T) {
	t.Parallel()
	s, log := failing(func(context.Context, catalog.Command, json.RawMessage) (json.RawMessage, error) {
		panic("the secret reason")
	})
	session := inMemory(t, s)
	for range 2 {
		got, refused := call(t, session, "list", `{}`)
		if body, _ := got["error"].(map[string]any); !refused || body["code"] != "internal" || strings.Contains(fmt.Sprint(got), "secret") {
			t.Errorf("%v", got)
		}
	}
	if !strings.Contains(log.String(), "the secret reason") {
		t.Error("the panic is not in the log")
	}
}

func TestUnknownToolsAndMethods(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, session := range map[string]*mcp.ClientSession{"http": w.overHTTP(t), "stdio": w.overStdio(t)} {
		_, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "destroy"})
		failure, ok := errors.AsType[*jsonrpc.Error](err)
		if !ok || failure.Code != jsonrpc.CodeInvalidParams {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := session.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "x"}); err == nil {
			t.Errorf("%s: there is a prompt", name)
		}
		succeed(t, session, "list", `{}`)
	}
}

func TestResources(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, session := range map[string]*mcp.ClientSession{"http": w.overHTTP(t), "stdio": w.overStdio(t)} {
		var ids []string
		for i := range 60 { // more than a page
			created := succeed(t, session, "create", fmt.Sprintf(`{"name":"%s %d","workflow":{"compiled":{"version":2,"steps":[`+
				`{"id":"a","kind":"command","command":"echo"}]}}}`, name, i))
			ids = append(ids, created["id"].(string))
		}
		templates, err := session.ListResourceTemplates(t.Context(), nil)
		if err != nil || len(templates.ResourceTemplates) != 2 {
			t.Fatalf("%s: %v, %v", name, templates, err)
		}
		seen := map[string]string{}
		for listed, err := range session.Resources(t.Context(), nil) {
			if err != nil {
				t.Fatal(err)
			}
			seen[listed.URI] = listed.Name
		}
		for i, id := range ids {
			if got := seen["errand://automations/"+id]; got != fmt.Sprintf("%s %d", name, i) {
				t.Errorf("%s: %s is listed as %q", name, id, got)
			}
		}
		run := succeed(t, session, "run-now", `{"automation_id":"`+ids[0]+`"}`)
		for uri, member := range map[string]string{
			"errand://automations/" + ids[0]:         `"name":"` + name + ` 0"`,
			"errand://runs/" + fmt.Sprint(run["id"]): `"status":"pending"`,
		} {
			read, err := session.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
			if err != nil || read.Contents[0].MIMEType != "application/json" || !strings.Contains(read.Contents[0].Text, member) {
				t.Errorf("%s: %s: %v, %+v", name, uri, err, read)
			}
		}
		for uri, code := range map[string]int64{
			"errand://runs/0193f5a0-0000-7000-8000-000000000000": jsonrpc.CodeInvalidParams,
			"errand://runs/x":                jsonrpc.CodeInvalidParams,
			"errand://machines/x":            jsonrpc.CodeInvalidParams,
			"errand://runs/../automations/a": jsonrpc.CodeInvalidParams,
			"file:///etc/passwd":             jsonrpc.CodeInvalidParams,
		} {
			_, err := session.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
			if failure, ok := errors.AsType[*jsonrpc.Error](err); !ok || failure.Code != code {
				t.Errorf("%s: %s: %v", name, uri, err)
			}
		}
	}
}
