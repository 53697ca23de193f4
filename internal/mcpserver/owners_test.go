package mcpserver_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/catalog"
)

// TestAnotherOwnersThings gives every tool that takes an id the ids of another owner, and ids of nothing: the
// answers are alike, and so are those of the resources.
func TestAnotherOwnersThings(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	owner := w.overStdio(t)
	stranger := succeed(t, owner, "create-owner", `{"name":"Eve"}`)
	created := succeed(t, owner, "create", `{"name":"Mine","workflow":{"compiled":{"version":2,"steps":[{"id":"a","kind":"command","command":"echo"}]}}}`)
	theirs := map[string]string{"automation_id": created["id"].(string), "machine_id": created["machineId"].(string)}
	theirs["run_id"] = succeed(t, owner, "run-now", `{"automation_id":"`+theirs["automation_id"]+`"}`)["id"].(string)
	nothing := map[string]string{}
	for member := range theirs {
		nothing[member] = newID()
	}

	w.principal = catalog.Principal{OwnerID: stranger["id"].(string), Scope: automation.ScopeAdmin}
	session := w.overStdio(t)
	compared := 0
	for _, c := range catalog.Commands() {
		got, gotRefused, takes := withIDs(t, session, c, theirs)
		if !takes {
			continue
		}
		compared++
		want, wantRefused, _ := withIDs(t, session, c, nothing)
		if got != want || gotRefused != wantRefused {
			t.Errorf("%s of another owner: %s\nof nobody: %s", c.Name, got, want)
		}
	}
	if compared < 6 {
		t.Errorf("only %d tools take an id", compared)
	}
	for _, kind := range []string{"automation", "run"} {
		_, got := session.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "errand://" + kind + "s/" + theirs[kind+"_id"]})
		_, want := session.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "errand://" + kind + "s/" + nothing[kind+"_id"]})
		if got == nil || want == nil || got.Error() != strings.ReplaceAll(want.Error(), nothing[kind+"_id"], theirs[kind+"_id"]) {
			t.Errorf("the resource of another owner: %v\nof nobody: %v", got, want)
		}
	}
	if kept := succeed(t, owner, "get", `{"automation_id":"`+theirs["automation_id"]+`"}`); kept["version"] != created["version"] {
		t.Errorf("the automation has changed: %v", kept)
	}
}

// withIDs calls a tool with its example, in which ids are replaced, and returns the answer with the names of the ids
// in their places; false when it takes none of them.
func withIDs(t *testing.T, session *mcp.ClientSession, c catalog.Command, ids map[string]string) (answer string, refused, takes bool) {
	t.Helper()
	var input map[string]any
	if err := json.Unmarshal([]byte(c.Example), &input); err != nil {
		t.Fatal(err)
	}
	for member, id := range ids {
		if _, there := input[member]; there {
			input[member], takes = id, true
		}
	}
	if !takes {
		return "", false, false
	}
	arguments, err := json.Marshal(input)
	if err != nil {
		t.Fatal(err)
	}
	result, refused := call(t, session, c.Name, string(arguments))
	encoded, err := json.Marshal(result)
	if err != nil {
		t.Fatal(err)
	}
	answer = string(encoded)
	for member, id := range ids {
		answer = strings.ReplaceAll(answer, id, member)
	}
	return answer, refused, true
}
