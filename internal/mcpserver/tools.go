package mcpserver

import (
	"context"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/errandhq/errand/internal/catalog"
)

// tool describes a command. Everything in it comes from the catalog.
func tool(command catalog.Command) *mcp.Tool {
	return &mcp.Tool{
		Name: command.Name, Title: command.Summary,
		Description: command.Summary + "\n\n" + command.Contract + "\n\nExample: " + command.Example,
		InputSchema: command.InputSchema(), OutputSchema: command.ResultSchema(),
		Annotations: annotations(command),
	}
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
