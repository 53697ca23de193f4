// Package api is the control plane's HTTP face: the REST projection of the command catalog, the machine API,
// the deliveries of webhooks, health, metrics, and the OpenAPI document. It authenticates every route but health, the
// documentation of REST and the deliveries, whose signatures are verified by whoever takes them; it checks the Host
// header against rebinding, bounds bodies, and turns every error into the envelope with a code of the closed set. What
// a command does is the catalog's business, what a step may do the ledger's.
package api

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
	"golang.org/x/time/rate"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/catalog"
	"github.com/errandhq/errand/internal/inflight"
	"github.com/errandhq/errand/internal/ratelimit"
)

// maxBodyBytes bounds a request body: more than the largest plan, input and result together, so that an
// oversized part of a document is named by its own rule.
const maxBodyBytes = 8 << 20

// Users authenticates people and programs that hold a token.
type Users interface {
	// Local reports whether a token is that of a program of the computer's user, which costs next to nothing.
	Local(token string) bool
	// User returns who a bearer token stands for and what it may do, else unauthorized.
	User(ctx context.Context, token string) (catalog.Principal, error)
}

// Machines authenticates machines by proof of their device key.
type Machines interface {
	// AuthenticateMachine returns the machine that made a call, else unauthorized or machine_revoked.
	AuthenticateMachine(ctx context.Context, call automation.Credential) (automation.Machine, error)
	// IssueToken gives a machine that proves its key an access token, else unauthorized or machine_revoked.
	IssueToken(ctx context.Context, call automation.Credential) (automation.TokenAnswer, error)
	// Received is told how many bytes an authenticated machine has sent.
	Received(machineID string, bytes int)
	// Enroll admits a new machine against a one-time code, else unauthorized or validation_failed.
	Enroll(ctx context.Context, request automation.EnrollRequest) (automation.Machine, error)
}

// Ledger is what the machine API needs of the ledger.
type Ledger interface {
	automation.StepLedger
	Machine(ctx context.Context, id string) (automation.Machine, error)
	TouchMachine(ctx context.Context, id string, t time.Time) error
}

// Options are what the API is made of.
type Options struct {
	Service  *catalog.Service
	Users    Users
	Machines Machines
	Ledger   Ledger
	Hooks    Hooks
	// InstallationID and Namespace tell machines their queue.
	InstallationID, Namespace string
	// TrustedProxies are the addresses and networks of proxies that say truly from where a call came.
	TrustedProxies []string
	// RateLimit is how many requests a second each caller may make; 0 is without limit.
	RateLimit int
	// AllowedHosts are the values of the Host header that are served.
	AllowedHosts []string
	// TemporalUI serves /temporal and everything below it, and authenticates on its own. Without it there is nothing.
	TemporalUI http.Handler
	// MCP serves the catalog over the Model Context Protocol. Its requests are authenticated and bounded as those
	// of REST are, and say in their context who calls; see [catalog.PrincipalOf]. Without it there is nothing.
	MCP http.Handler
	// Metrics serves the numbers of this server, for administrators. Without it there is nothing.
	Metrics http.Handler
	// Observer is told how calls were answered. Nil means that nobody counts.
	Observer automation.CallObserver
	// Ready reports why the control plane cannot serve, or nil.
	Ready   func(ctx context.Context) error
	Version string
	Now     func() time.Time
	// NewID makes request ids.
	NewID  func() string
	Logger *slog.Logger
}

// API serves HTTP. Its background work starts with [API.Run].
type API struct {
	Options
	handler http.Handler
	ends    *endBroker
	gate    *gate
	callers *ratelimit.Buckets
	// enrolments bounds how often codes are presented from one network.
	enrolments *ratelimit.Buckets
	// held are the bytes of requests and answers of a caller that are in memory, heldByStrangers those of requests
	// from a network that are not authenticated. mcpCalls are the calls of a caller that are served over MCP.
	held, heldByStrangers, mcpCalls *inflight.Budget
	openapi                         []byte
	// routeNames are the documented names of the routes, by their patterns.
	routeNames map[string]string
}

// New returns the API of the options.
func New(o Options) (*API, error) {
	if o.Observer == nil {
		o.Observer = unobserved{}
	}
	a := &API{
		Options: o, ends: newEndBroker(o.Ledger, o.Logger), gate: newGate(o.Now, o.Observer),
		enrolments: ratelimit.New(enrolmentsPerSecond, enrolmentBurst),
		held:       inflight.New(maxHeld), heldByStrangers: inflight.New(maxHeldByStrangers), mcpCalls: inflight.New(maxMCPCalls),
		callers: ratelimit.New(rate.Limit(o.RateLimit), burstSeconds*o.RateLimit),
	}
	document, err := openAPI(o.Version)
	if err != nil {
		return nil, err
	}
	a.openapi = document
	gin.SetMode(gin.ReleaseMode)
	router := gin.New()
	if err := router.SetTrustedProxies(o.TrustedProxies); err != nil {
		return nil, fmt.Errorf("reading the trusted proxies: %w", err)
	}
	a.handler = a.routes(router)
	a.nameRoutes(router)
	return a, nil
}

// ServeHTTP serves one request.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.handler.ServeHTTP(newTimedWriter(w, r), r)
}

// Run looks for ends to push to connected machines until ctx ends; then every event stream is closed.
func (a *API) Run(ctx context.Context) { a.ends.run(ctx) }

// MachineHasEnds makes the API look at once for ends of a machine, which it would find within a second.
func (a *API) MachineHasEnds(machineID string) { a.ends.kick(machineID) }

// MachineAccessChanged ends the event streams of a machine that has another key, or was revoked, which its worker
// is told first. Tell the authenticator before.
func (a *API) MachineAccessChanged(machineID string, revoked bool) { a.ends.close(machineID, revoked) }

func (a *API) routes(router *gin.Engine) http.Handler {
	router.HandleMethodNotAllowed = true
	router.RedirectTrailingSlash = false
	router.Use(a.observe, a.identifyRequest, a.recoverPanic, limitBody, secureHeaders, a.checkHost)
	router.NoRoute(func(c *gin.Context) {
		a.refuse(c, automation.Errorf(automation.CodeNotFound, "there is no route %s", c.Request.URL.Path))
	})
	router.NoMethod(func(c *gin.Context) {
		a.refuse(c, automation.Errorf(automation.CodeNotFound,
			"%s is not a method of %s", c.Request.Method, c.Request.URL.Path))
	})
	router.GET("/healthz", func(c *gin.Context) { a.answer(c, http.StatusOK, gin.H{"status": "ok"}) })
	router.GET("/readyz", a.ready)
	router.GET("/openapi.json", func(c *gin.Context) {
		c.Data(http.StatusOK, "application/json", a.openapi)
	})
	a.docsRoutes(router)

	if a.TemporalUI != nil {
		router.Any("/temporal", a.temporal)
		router.Any("/temporal/*below", a.temporal)
	}

	if a.Metrics != nil {
		router.GET("/metrics", a.requireUser, a.metrics)
	}

	if a.MCP != nil {
		// The longer path is the one that runtime files name.
		router.Any("/mcp", a.checkOrigin, a.requireUser, a.boundHeld, a.mcp)
		router.Any("/mcp/automations", a.checkOrigin, a.requireUser, a.boundHeld, a.mcp)
	}

	router.POST(catalog.HooksPath+":id", a.deliver)

	user := router.Group("/v1", a.requireUser, a.boundHeld)
	for _, command := range catalog.Commands() {
		user.Handle(command.Route.Method, ginPath(command.Route.Path), a.command(command))
	}

	router.POST("/v1/machine/enroll", a.enroll)
	router.POST("/v1/machine/token", a.issueToken)
	machine := router.Group("/v1/machine", a.requireMachine, a.boundHeld)
	machine.POST("/hello", a.hello)
	machine.POST("/alive", a.alive)
	machine.POST("/steps/begin", a.begin)
	machine.POST("/steps/finish", a.finish)
	machine.GET("/events", a.events)
	return router
}

func (a *API) ready(c *gin.Context) {
	if err := a.Ready(c.Request.Context()); err != nil {
		a.refuse(c, err)
		return
	}
	a.answer(c, http.StatusOK, gin.H{"status": "ready", "version": a.Version})
}
