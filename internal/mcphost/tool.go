package mcphost

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// tool is one tool of a server.
type tool struct {
	name   string
	schema *jsonschema.Resolved // nil when the server's schema is not understood: the server checks then
}

// addTool adds a tool under its own name, and under the form of it that an action id can hold. A tool that is
// really called so goes before one that is made to fit.
func addTool(tools map[string]*tool, offered *mcp.Tool) {
	t := &tool{name: offered.Name, schema: resolveSchema(offered.InputSchema)}
	fitted := fitName(offered.Name)
	if other, taken := tools[fitted]; fitted == offered.Name || !taken || other.name != fitted {
		tools[fitted] = t
	}
}

// fitName returns a name in the form of the rest of an action id.
func fitName(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', '0' <= r && r <= '9', r == '_', r == '-', r == '.':
			return r
		case 'A' <= r && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '_'
	}, name)
}

func resolveSchema(schema any) *jsonschema.Resolved {
	text, err := json.Marshal(schema)
	if err != nil {
		return nil
	}
	var parsed jsonschema.Schema
	if json.Unmarshal(text, &parsed) != nil {
		return nil
	}
	// Schemas elsewhere are not fetched.
	resolved, err := parsed.Resolve(nil)
	if err != nil {
		return nil
	}
	return resolved
}

// arguments returns the input as a tool takes it, after it was checked against the tool's schema.
func (t *tool) arguments(input json.RawMessage) (json.RawMessage, error) {
	if len(bytes.TrimSpace(input)) == 0 {
		input = json.RawMessage("{}")
	}
	var object map[string]any
	if err := json.Unmarshal(input, &object); err != nil || object == nil {
		return nil, failed("the input must be a JSON object, since a tool takes named arguments")
	}
	if t.schema == nil {
		return input, nil
	}
	if err := t.schema.Validate(object); err != nil {
		return nil, failed("the input does not fit the tool's schema: %v", trimSchemaPath(err))
	}
	return input, nil
}

// trimSchemaPath leaves out how the validator got to where the violation is.
func trimSchemaPath(err error) string {
	text := err.Error()
	for {
		rest, ok := strings.CutPrefix(text, "validating ")
		if !ok {
			return text
		}
		place, after, ok := strings.Cut(rest, ": ")
		if !ok {
			return text
		}
		if !strings.HasPrefix(after, "validating ") {
			return fmt.Sprintf("%s: %s", strings.TrimPrefix(place, "/"), after)
		}
		text = after
	}
}
