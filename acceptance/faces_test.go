//go:build unix

package acceptance_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/catalog"
	"github.com/errandhq/errand/internal/cli"
	"github.com/errandhq/errand/internal/mcpserver"
)

// shown is what one face tells of a command. Members that are required have a ! behind their name.
type shown struct {
	Input, Result, Errors []string
}

// TestFacesShowTheCatalog proves that OpenAPI, the command line and MCP show each command of the catalog, and no
// other, with all members of its input and result and, where a face lists them, all codes of its errors. What REST
// routes is compared with the catalog beside them, in the package api.
func TestFacesShowTheCatalog(t *testing.T) {
	t.Parallel()
	want := map[string]shown{}
	for _, command := range catalog.Commands() {
		var input, result []string
		for _, member := range catalog.Members(command.Input) {
			input = append(input, marked(member.Name, member.Required))
		}
		for _, member := range catalog.Members(command.Result) {
			result = append(result, member.Name)
		}
		var codes []string
		for _, code := range append(slices.Clone(catalog.CommonErrors), command.Errors...) {
			codes = append(codes, string(code))
		}
		want[command.Name] = sorted(shown{input, result, codes})
	}
	faces := map[string]func(*testing.T) map[string]shown{"OpenAPI": inOpenAPI, "command line": onTheCommandLine, "MCP": overMCP}
	for name, face := range faces {
		got := face(t)
		for command, s := range got {
			if s.Errors == nil {
				s.Errors = want[command].Errors // the face does not list them
			}
			got[command] = sorted(s)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-catalog +%s)\n%s", name, name, diff)
		}
	}
}

func marked(name string, required bool) string {
	if required {
		return name + "!"
	}
	return name
}

func sorted(s shown) shown {
	for _, list := range [][]string{s.Input, s.Result, s.Errors} {
		slices.Sort(list)
	}
	s.Errors = slices.Compact(s.Errors)
	return s
}

// object is the part of a schema that lists members.
type object struct {
	Ref        string `json:"$ref"`
	Properties map[string]json.RawMessage
	Required   []string
	AnyOf      []object
	Defs       map[string]object `json:"$defs"`
}

// members returns the names of an input's members.
func (o object) members() []string {
	var names []string
	for name := range o.Properties {
		names = append(names, marked(name, slices.Contains(o.Required, name)))
	}
	return names
}

var codeInText = regexp.MustCompile("`([a-z_]+)`:")

// inOpenAPI reads the golden document, which is what the API serves.
func inOpenAPI(t *testing.T) map[string]shown {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "api", "openapi.json"))
	if err != nil {
		t.Fatal(err)
	}
	type media struct {
		Content map[string]struct{ Schema object }
	}
	var document struct {
		Paths map[string]map[string]struct {
			OperationID string
			Parameters  []struct {
				Name, In string
				Required bool
			}
			RequestBody media
			Responses   map[string]struct {
				Description string
				media
			}
		}
		Components struct{ Schemas map[string]object }
	}
	if err := json.Unmarshal(content, &document); err != nil {
		t.Fatal(err)
	}
	commands := map[string]shown{}
	for path, methods := range document.Paths {
		for method, operation := range methods {
			if command, _ := catalog.Find(operation.OperationID); !strings.EqualFold(command.Route.Method, method) || "/v1"+command.Route.Path != path {
				t.Errorf("%s is at %s %s", operation.OperationID, method, path)
			}
			s := shown{Input: operation.RequestBody.Content["application/json"].Schema.members(), Errors: []string{}}
			for _, parameter := range operation.Parameters {
				if parameter.In != "header" {
					s.Input = append(s.Input, marked(parameter.Name, parameter.Required))
				}
			}
			for status, response := range operation.Responses {
				if status[0] == '2' {
					schema := response.Content["application/json"].Schema
					named := document.Components.Schemas[strings.TrimPrefix(schema.Ref, "#/components/schemas/")]
					s.Result = slices.Collect(maps.Keys(named.Properties))
				}
				for _, code := range codeInText.FindAllStringSubmatch(response.Description, -1) {
					s.Errors = append(s.Errors, code[1])
					if strconv.Itoa(automation.Code(code[1]).Status()) != status {
						t.Errorf("%s: %s has the status %s", operation.OperationID, code[1], status)
					}
				}
			}
			commands[operation.OperationID] = s
		}
	}
	return commands
}

var (
	commandLine = regexp.MustCompile(`(?m)^  ([a-z-]+) +\S`)
	memberLine  = regexp.MustCompile(`(?m)^  ([A-Za-z_]+) +[a-z ]+?( \(required\))?(?::|$)`)
)

// onTheCommandLine reads the help.
func onTheCommandLine(t *testing.T) map[string]shown {
	t.Helper()
	help := func(args ...string) string {
		var stdout, stderr strings.Builder
		program := &cli.Program{Stdout: &stdout, Stderr: &stderr}
		if exit := program.Main(t.Context(), append(args, "--help")); exit != 0 {
			t.Fatalf("help of %q: %s", args, stderr.String())
		}
		return stdout.String()
	}
	commands := map[string]shown{}
	for _, name := range commandLine.FindAllStringSubmatch(section(help(), "Commands"), -1) {
		text := help(name[1])
		var s shown
		for _, member := range memberLine.FindAllStringSubmatch(section(text, "Input"), -1) {
			s.Input = append(s.Input, marked(member[1], member[2] != ""))
		}
		for _, member := range memberLine.FindAllStringSubmatch(section(text, "Result"), -1) {
			s.Result = append(s.Result, member[1])
		}
		s.Errors = regexp.MustCompile(`[a-z_]+`).FindAllString(section(text, "Errors (errand help errors says what to do)"), -1)
		commands[name[1]] = s
	}
	return commands
}

// section returns the lines below a heading, to the next empty one.
func section(text, heading string) string {
	_, rest, _ := strings.Cut(text, "\n"+heading+"\n")
	lines, _, _ := strings.Cut("\n"+rest, "\n\n")
	return lines
}

// overMCP asks the server for its tools.
func overMCP(t *testing.T) map[string]shown {
	t.Helper()
	tools := mcpserver.New(mcpserver.Options{
		Version: "test", Logger: slog.New(slog.DiscardHandler),
		Call: func(context.Context, catalog.Command, json.RawMessage) (json.RawMessage, error) {
			return nil, fmt.Errorf("nothing is called here")
		},
	})
	server := httptest.NewServer(tools.Handler(1))
	t.Cleanup(server.Close)
	commands := map[string]shown{}
	for tool, err := range connectMCP(t, &mcp.StreamableClientTransport{Endpoint: server.URL}).Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		decode := func(schema any) object {
			content, err := json.Marshal(schema)
			var o object
			if err == nil {
				err = json.Unmarshal(content, &o)
			}
			if err != nil {
				t.Fatalf("%s: %v", tool.Name, err)
			}
			return o
		}
		result := decode(tool.OutputSchema).AnyOf[0]
		commands[tool.Name] = shown{Input: decode(tool.InputSchema).members(), Result: slices.Collect(maps.Keys(result.Properties))}
	}
	return commands
}
