package api

import (
	"bytes"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/errandhq/errand/automation"
)

// mcp serves one request of the Model Context Protocol, whose body has come whole before it is looked at.
func (a *API) mcp(c *gin.Context) {
	body, err := readBody(c)
	if err != nil {
		a.refuse(c, err)
		return
	}
	caller := c.GetString(keyCaller)
	if !a.mcpCalls.Take(caller, 1) {
		a.refuse(c, underWay(time.Second, fmt.Sprintf(
			"%d calls of yours are being served over MCP at the same time, more are not allowed; try again when one has ended", maxMCPCalls)))
		return
	}
	defer a.mcpCalls.Give(caller, 1)
	c.Request.Body = io.NopCloser(bytes.NewReader(body))
	a.MCP.ServeHTTP(c.Writer, c.Request)
}

// checkOrigin refuses a request that a page of another site makes in somebody's browser. Programs send no Origin.
func (a *API) checkOrigin(c *gin.Context) {
	for _, origin := range c.Request.Header.Values("Origin") {
		site, err := url.Parse(origin)
		if err != nil || !strings.EqualFold(site.Host, c.Request.Host) {
			a.refuse(c, automation.Errorf(automation.CodeForbidden,
				"this address is for programs and for pages of this service, not for pages of %q", origin))
			return
		}
	}
}
