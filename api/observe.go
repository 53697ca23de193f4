package api

import (
	"regexp"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/catalog"
)

// unobserved is the observer of an API that nobody counts the calls of.
type unobserved struct{}

func (unobserved) CallAnswered(string, string, int, time.Duration) {}
func (unobserved) CredentialRefused(automation.CredentialKind)     {}
func (unobserved) CallLimited(automation.CallLimit)                {}

// otherRoute stands for every path that is no route, so that strangers cannot invent any.
const otherRoute = "other"

var ginPlaceholder = regexp.MustCompile(`[:*]([a-z_]+)`)

// nameRoutes gives the routes the names that they have in the documentation.
func (a *API) nameRoutes(router *gin.Engine) {
	a.routeNames = map[string]string{}
	for _, route := range router.Routes() {
		a.routeNames[route.Path] = ginPlaceholder.ReplaceAllString(route.Path, "{$1}")
	}
}

// observe tells the observer how a request was answered, whatever comes of it.
func (a *API) observe(c *gin.Context) {
	began := a.Now()
	defer func() {
		method, route := c.Request.Method, a.routeNames[c.FullPath()]
		if route == "" {
			method, route = otherRoute, otherRoute
		}
		a.Observer.CallAnswered(method, route, c.Writer.Status(), a.Now().Sub(began))
	}()
	c.Next()
}

// metrics serves the numbers of this server, in which everybody's runs are counted, to administrators.
func (a *API) metrics(c *gin.Context) {
	if err := catalog.PrincipalOf(c.Request.Context()).Scope.Authorize("/metrics", automation.ScopeAdmin); err != nil {
		a.refuse(c, err)
		return
	}
	a.Metrics.ServeHTTP(c.Writer, c.Request)
}
