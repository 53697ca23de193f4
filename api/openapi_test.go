package api_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/internal/catalog"
)

var update = flag.Bool("update", false, "write the golden file anew")

const golden = "openapi.json"

// TestOpenAPI compares the document with the committed one, so that a change of the interface is seen in
// review. `go test ./api -update` writes it anew.
func TestOpenAPI(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	got := w.do("GET", "/openapi.json", "").body
	if *update {
		if err := os.WriteFile(golden, append(bytes.TrimSpace(got), '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(bytes.TrimSpace(want)), string(bytes.TrimSpace(got))); diff != "" {
		t.Errorf("api/openapi.json is not what the API serves (-want +got); if the change is meant, run go test ./api -update\n%s", diff)
	}
}

// TestOpenAPICoversTheCatalog proves that no command and no member is missing from the document.
func TestOpenAPICoversTheCatalog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var document struct {
		Paths map[string]map[string]struct {
			OperationID string `json:"operationId"`
			Parameters  []struct {
				Name, In string
			}
			RequestBody struct {
				Content map[string]struct {
					Schema struct {
						Properties map[string]any
						Required   []string
					}
				}
			} `json:"requestBody"`
			Responses map[string]any
		}
	}
	if err := json.Unmarshal(w.do("GET", "/openapi.json", "").body, &document); err != nil {
		t.Fatal(err)
	}
	operations := 0
	for _, methods := range document.Paths {
		operations += len(methods)
	}
	if operations != len(catalog.Commands()) {
		t.Errorf("%d operations for %d commands", operations, len(catalog.Commands()))
	}
	for _, command := range catalog.Commands() {
		method := strings.ToLower(command.Route.Method)
		operation, found := document.Paths["/v1"+command.Route.Path][method]
		if !found || operation.OperationID != command.Name {
			t.Errorf("%s is missing", command.Name)
			continue
		}
		described := map[string]bool{}
		for _, parameter := range operation.Parameters {
			if parameter.In != "header" {
				described[parameter.Name] = true
			}
		}
		for name := range operation.RequestBody.Content["application/json"].Schema.Properties {
			described[name] = true
		}
		for _, member := range catalog.Members(command.Input) {
			if !described[member.Name] {
				t.Errorf("%s: the member %s is not described", command.Name, member.Name)
			}
			delete(described, member.Name)
		}
		for name := range described {
			t.Errorf("%s: %s is described and not a member", command.Name, name)
		}
		for _, status := range []string{"400", "401", "403", "413", "500", "503"} {
			if _, found := operation.Responses[status]; !found {
				t.Errorf("%s: the answer %s is not described", command.Name, status)
			}
		}
	}
}
