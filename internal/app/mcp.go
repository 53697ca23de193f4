package app

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/errandhq/errand/internal/buildinfo"
	"github.com/errandhq/errand/internal/catalog"
	"github.com/errandhq/errand/internal/mcpserver"
	"github.com/errandhq/errand/internal/strictjson"
)

// mcpConcurrent is how many MCP calls are served at the same time; most of them wait for runs.
const mcpConcurrent = 256

// mcpHandler serves the catalog over MCP, for whoever the API says is calling.
func (a *App) mcpHandler(service *catalog.Service) http.Handler {
	call := func(ctx context.Context, command catalog.Command, input json.RawMessage) (json.RawMessage, error) {
		result, err := command.Execute(ctx, service, catalog.PrincipalOf(ctx), input)
		if err != nil {
			return nil, err
		}
		return strictjson.Marshal(result)
	}
	return mcpserver.New(mcpserver.Options{
		Call: call, Version: buildinfo.Version(), Logger: a.logger.With("component", "mcp"),
	}).Handler(mcpConcurrent)
}
