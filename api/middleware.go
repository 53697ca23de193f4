package api

import (
	"context"
	"io"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/catalog"
)

// Keys of what middleware leaves for handlers.
const (
	keyRequestID = "request_id"
	keyMachine   = "machine"
	keyCaller    = "caller"
)

// identifyRequest gives a request an id, and says in its context where it comes from; see [catalog.PrincipalOf].
func (a *API) identifyRequest(c *gin.Context) {
	id := a.NewID()
	c.Set(keyRequestID, id)
	c.Header("X-Request-Id", id)
	a.setPrincipal(c, catalog.Principal{Origin: automation.Origin{Address: c.ClientIP(), RequestID: id}})
}

func (a *API) setPrincipal(c *gin.Context, p catalog.Principal) {
	c.Request = c.Request.WithContext(catalog.WithPrincipal(c.Request.Context(), p))
}

// recoverPanic answers a panic as internal and logs it. A client that is gone is nobody's fault.
func (a *API) recoverPanic(c *gin.Context) {
	defer func() {
		cause := recover()
		if cause == nil {
			return
		}
		if cause == http.ErrAbortHandler { //nolint:errorlint // net/http panics with this very value
			panic(cause)
		}
		a.Logger.ErrorContext(c.Request.Context(), "a request panicked",
			"request_id", c.GetString(keyRequestID), "panic", cause, "stack", string(debug.Stack()))
		if !c.Writer.Written() {
			a.refuse(c, automation.Errorf(automation.CodeInternal, "%s", internalMessage(c)))
		}
		c.Abort()
	}()
	c.Next()
}

// checkHost refuses a request whose Host is not ours. A page of another site that makes its name resolve to
// this address sends its own name here.
func (a *API) checkHost(c *gin.Context) {
	for _, allowed := range a.AllowedHosts {
		if strings.EqualFold(c.Request.Host, allowed) {
			return
		}
		if host, _, err := net.SplitHostPort(c.Request.Host); err == nil && strings.EqualFold(host, allowed) {
			return
		}
	}
	a.refuse(c, automation.Errorf(automation.CodeForbidden,
		"the host %q is not served here; add it to ERRAND_ALLOWED_HOSTS if it should be", c.Request.Host))
}

func secureHeaders(c *gin.Context) {
	c.Header("X-Content-Type-Options", "nosniff")
	c.Header("X-Frame-Options", "DENY")
	c.Header("Referrer-Policy", "no-referrer")
	c.Header("Cross-Origin-Resource-Policy", "same-origin")
	c.Header("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	c.Header("Cache-Control", "no-store")
}

// bodyWithin is how long a client may take to send a body. Without it a stranger could hold connections with a
// byte each.
const bodyWithin = 30 * time.Second

// limitBody bounds the body of every request, also of one whose body nobody reads: the server itself reads what is left
// of it before the next request.
func limitBody(c *gin.Context) { boundBody(c, maxBodyBytes) }

// boundBody bounds the size of a body, and the time in which it must have come; see [bodyIsRead].
func boundBody(c *gin.Context, most int64) {
	if c.Request.ContentLength == 0 {
		return // there is none, and nothing would lift the deadline
	}
	// A transport without deadlines still serves; its bodies are bounded in size alone.
	_ = http.NewResponseController(c.Writer).SetReadDeadline(time.Now().Add(bodyWithin))
	c.Request.Body = http.MaxBytesReader(c.Writer, c.Request.Body, most)
}

// bodyIsRead lifts the deadline of the body: what follows, such as waiting for a run, may take longer.
func bodyIsRead(c *gin.Context) {
	_ = http.NewResponseController(c.Writer).SetReadDeadline(time.Time{})
}

// temporal serves Temporal's web interface, which reads bodies by itself.
func (a *API) temporal(c *gin.Context) {
	c.Request.Body = &endedBody{c.Request.Body, func() { bodyIsRead(c) }}
	a.TemporalUI.ServeHTTP(c.Writer, c.Request)
}

// endedBody tells when a body has ended.
type endedBody struct {
	io.ReadCloser
	ended func()
}

func (b *endedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.ended()
	}
	return n, err //nolint:wrapcheck // io.EOF must stay what it is
}

// requireUser lets a request in whose caller is known and does not call too often, and says in the request's
// context who that is; see [catalog.PrincipalOf].
func (a *API) requireUser(c *gin.Context) {
	principal, err := a.authenticate(c)
	if err == nil {
		err = a.limitCaller(principal)
	}
	if err != nil {
		a.refuse(c, err)
		return
	}
	a.setPrincipal(c, principal)
	c.Set(keyCaller, callerName(principal.Actor))
}

// authenticate returns who makes a request: whoever a bearer token stands for, or a machine by its proof. A
// machine controls what its owner owns. It is the one way in for every face that serves people and programs.
func (a *API) authenticate(c *gin.Context) (catalog.Principal, error) {
	// Of two credentials whoever stands in front may have looked at the other one.
	if sent := c.Request.Header.Values("Authorization"); len(sent) > 1 {
		a.Observer.CredentialRefused(automation.CredentialNone)
		return catalog.Principal{}, automation.Errorf(automation.CodeUnauthorized,
			"the request carries %d Authorization headers; send one", len(sent))
	}
	if token, ok := bearer(c.Request); ok {
		return a.User(c.Request.Context(), token)
	}
	machine, err := a.authenticateMachine(c)
	if err != nil {
		return catalog.Principal{}, err
	}
	return catalog.Principal{
		OwnerID: machine.OwnerID, MachineID: machine.ID, Scope: automation.ScopeControl,
		Actor:  automation.Actor{Kind: automation.ActorMachine, ID: machine.ID},
		Origin: catalog.PrincipalOf(c.Request.Context()).Origin,
	}, nil
}

func (a *API) requireMachine(c *gin.Context) {
	machine, err := a.authenticateMachine(c)
	if err != nil {
		a.refuse(c, err)
		return
	}
	c.Set(keyMachine, machine)
	c.Set(keyCaller, callerName(automation.Actor{Kind: automation.ActorMachine, ID: machine.ID}))
	c.Request.Body = &meteredBody{ReadCloser: c.Request.Body, read: func(n int) { a.Machines.Received(machine.ID, n) }}
}

// meteredBody tells how much of a body has come.
type meteredBody struct {
	io.ReadCloser
	read func(bytes int)
}

func (b *meteredBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.read(n)
	}
	return n, err
}

func (a *API) authenticateMachine(c *gin.Context) (automation.Machine, error) {
	r := c.Request
	if r.Header.Get("Authorization") == "" {
		c.Header("WWW-Authenticate", "Bearer")
		a.Observer.CredentialRefused(automation.CredentialNone)
		return automation.Machine{}, automation.Errorf(automation.CodeUnauthorized,
			"the request carries no credential; send the header Authorization: Bearer <token>")
	}
	var machine automation.Machine
	origin := catalog.PrincipalOf(r.Context()).Origin
	err := a.gate.pass(origin.Address, automation.CredentialMachine, credentialOf(r), func() (err error) {
		machine, err = a.Machines.AuthenticateMachine(r.Context(), callOf(r))
		return err
	})
	return machine, err
}

// callOf is a request as a machine has to prove it.
func callOf(r *http.Request) automation.Credential {
	return automation.Credential{
		Method: r.Method, Path: r.URL.EscapedPath(),
		Authorization: r.Header.Values("Authorization"), Proof: r.Header.Values("DPoP"),
	}
}

func machineOf(c *gin.Context) automation.Machine {
	machine, _ := c.MustGet(keyMachine).(automation.Machine)
	return machine
}

// bearer returns the token of a request that carries one.
func bearer(r *http.Request) (string, bool) {
	scheme, token, found := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.TrimSpace(token), found && strings.EqualFold(scheme, "Bearer")
}

// detached returns the request's context without its cancellation, for work that must not stop half-way when
// the client leaves.
func detached(c *gin.Context) context.Context { return context.WithoutCancel(c.Request.Context()) }
