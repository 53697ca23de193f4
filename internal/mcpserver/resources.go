package mcpserver

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/errandhq/errand/internal/catalog"
	"github.com/errandhq/errand/internal/strictjson"
)

const mimeJSON = "application/json"

// resource is a command that reads one thing by its id.
type resource struct {
	name, title, description string
	// prefix is the address without the id.
	prefix          string
	command, member string
}

var resources = []resource{
	{"automation", "Automation", "an automation with its plan, as the tool get returns it", "errand://automations/", "get", "automation_id"},
	{"run", "Run", "a run with its steps and outputs, as the tool run returns it", "errand://runs/", "run", "run_id"},
}

func (s *Server) addResources() {
	for _, r := range resources {
		s.server.AddResourceTemplate(&mcp.ResourceTemplate{
			Name: r.name, Title: r.title, Description: r.description, MIMEType: mimeJSON, URITemplate: r.prefix + "{id}",
		}, s.reader(r))
	}
}

// reader reads a resource by the command that returns it.
func (s *Server) reader(r resource) mcp.ResourceHandler {
	return func(ctx context.Context, request *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		uri := request.Params.URI
		result, err := s.read(ctx, r.command, map[string]string{r.member: strings.TrimPrefix(uri, r.prefix)})
		if err != nil {
			return nil, s.resourceError(ctx, uri, r.command, err)
		}
		return &mcp.ReadResourceResult{
			Contents: []*mcp.ResourceContents{{URI: uri, MIMEType: mimeJSON, Text: string(result)}},
		}, nil
	}
}

// read calls a command of the catalog.
func (s *Server) read(ctx context.Context, name string, input map[string]string) (json.RawMessage, error) {
	command, found := catalog.Find(name)
	if !found {
		return nil, fmt.Errorf("there is no command %s", name)
	}
	document, err := strictjson.Marshal(input)
	if err != nil {
		return nil, fmt.Errorf("encoding an input: %w", err)
	}
	return s.execute(ctx, command, document)
}

// listResources answers resources/list with a page of automations, read when it is asked for. Runs are found
// through the tools; there is no end of them.
func (s *Server) listResources(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, request mcp.Request) (mcp.Result, error) {
		asked, ok := request.(*mcp.ListResourcesRequest)
		if !ok {
			return next(ctx, method, request)
		}
		input := map[string]string{}
		if asked.Params != nil && asked.Params.Cursor != "" {
			input["cursor"] = asked.Params.Cursor
		}
		result, err := s.read(ctx, "list", input)
		if err != nil {
			return nil, s.resourceError(ctx, "errand://automations", "list", err)
		}
		var page struct {
			Automations []struct {
				ID          string `json:"id"`
				Name        string `json:"name"`
				Description string `json:"description"`
			} `json:"automations"`
			NextCursor string `json:"next_cursor"`
		}
		if err := json.Unmarshal(result, &page); err != nil {
			return nil, s.resourceError(ctx, "errand://automations", "list", fmt.Errorf("reading a list: %w", err))
		}
		// The library's own answer, which knows the form that the client's version of the protocol wants.
		answer, err := next(ctx, method, &mcp.ListResourcesRequest{
			Session: asked.Session, Params: &mcp.ListResourcesParams{}, Extra: asked.Extra,
		})
		listed, ok := answer.(*mcp.ListResourcesResult)
		if err != nil || !ok {
			return answer, err
		}
		for _, a := range page.Automations {
			listed.Resources = append(listed.Resources, &mcp.Resource{
				Name: a.Name, Description: a.Description, MIMEType: mimeJSON, URI: resources[0].prefix + a.ID,
			})
		}
		listed.NextCursor = page.NextCursor
		return listed, nil
	}
}
