package api

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/errandhq/errand/internal/catalog"
)

// TestRoutesAreTheCatalog: below /v1 there is a route for every command and, beside the machine API, no other; and
// MCP is there on its two paths.
func TestRoutesAreTheCatalog(t *testing.T) {
	t.Parallel()
	a, err := New(Options{MCP: http.NotFoundHandler(), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	router, ok := a.handler.(*gin.Engine)
	if !ok {
		t.Fatalf("the handler is a %T", a.handler)
	}
	routes := map[string]bool{}
	mcpPaths := map[string]bool{}
	for _, route := range router.Routes() {
		switch {
		case strings.HasPrefix(route.Path, "/mcp"):
			mcpPaths[route.Path] = true
		case strings.HasPrefix(route.Path, "/v1/") && !strings.HasPrefix(route.Path, "/v1/machine/"):
			routes[route.Method+" "+route.Path] = true
		}
	}
	for _, command := range catalog.Commands() {
		route := command.Route.Method + " /v1" + ginPath(command.Route.Path)
		if !routes[route] {
			t.Errorf("%s has no route", command.Name)
		}
		delete(routes, route)
	}
	for route := range routes {
		t.Errorf("%s is the route of no command", route)
	}
	if len(mcpPaths) != 2 || !mcpPaths["/mcp"] || !mcpPaths["/mcp/automations"] {
		t.Errorf("MCP is at %v", mcpPaths)
	}
}
