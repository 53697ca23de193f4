package mcpserver

import (
	"context"
	"reflect"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/errandhq/errand/internal/catalog"
)

// tool describes a command. Everything in it comes from the catalog.
func tool(command catalog.Command) *mcp.Tool {
	return &mcp.Tool{
		Name: command.Name, Title: command.Summary,
		Description: command.Summary + "\n\n" + command.Contract + "\n\nExample: " + command.Example,
		InputSchema: command.InputSchema(), OutputSchema: outputSchema(command),
		Annotations: annotations(command),
	}
}

// outputSchema describes what a call may return as structured content: the result, or a refusal. Some clients hold
// refused calls to it too.
func outputSchema(command catalog.Command) any {
	result := command.ResultSchema()
	schema := map[string]any{
		"type": "object", "anyOf": []*catalog.Schema{result, catalog.NewSchemas("").Result(reflect.TypeFor[envelope]())},
	}
	if len(result.Definitions) > 0 {
		// References start at the root of a schema, and so do the definitions.
		schema["$defs"], result.Definitions = result.Definitions, nil
	}
	return schema
}

// annotations tell a client what a call may do, so that it can ask its person first.
func annotations(command catalog.Command) *mcp.ToolAnnotations {
	destructive, openWorld := false, false
	hints := &mcp.ToolAnnotations{Title: command.Summary, DestructiveHint: &destructive, OpenWorldHint: &openWorld}
	switch command.Effect {
	case catalog.EffectRead:
		hints.ReadOnlyHint, hints.IdempotentHint = true, true
	case catalog.EffectAdd:
	case catalog.EffectChange:
		destructive, hints.IdempotentHint = true, true
	case catalog.EffectExecute:
		destructive, openWorld = true, true
	}
	return hints
}

// handler executes a command for the callers of its tool.
func (s *Server) handler(command catalog.Command) mcp.ToolHandler {
	return func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		result, err := s.execute(ctx, command, r.Params.Arguments)
		if err != nil {
			return s.refused(ctx, command.Name, err), nil
		}
		return &mcp.CallToolResult{
			StructuredContent: result, Content: []mcp.Content{&mcp.TextContent{Text: string(result)}},
		}, nil
	}
}
