// Package temporalui guards Temporal's web interface at /temporal. It lets in whoever may use the API: programs by the
// header that they use there, and people, whose browsers cannot send it, by a session that they get for a token in a form.
// It refuses what another site makes a browser send, and hands the interface nothing of a request but what it needs.
// What the interface is and does is left to the handler that it is given; the Host header is left to the API.
package temporalui

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/errandhq/errand/automation"
)

const (
	// Path is where the interface is, together with everything below it.
	Path = "/temporal"
	// SessionLife is how long a session lasts at most. It ends earlier with its token, and with the process.
	SessionLife = 12 * time.Hour

	loginPath = Path + "/login"
	// maxBody bounds a request to the interface, in bytes. Temporal itself takes at most 4 MiB.
	maxBody = 4 << 20
	// maxForm bounds the login form, in bytes.
	maxForm = 16 << 10
)

// Options are what a guard is made of. All are required but UI.
type Options struct {
	// UI serves the interface below Path. Without it every request is answered with where to look instead.
	UI http.Handler
	// Authenticate returns nil when a token may use the interface, unauthorized for one that stands for nobody, and
	// forbidden for one that stands for somebody who may not.
	Authenticate func(ctx context.Context, token string) error
	// SigningIn is Authenticate for the token of the login form, of which there is something to be kept.
	SigningIn func(ctx context.Context, token string) error
	// PublicURL is the address that browsers see, without a path. Below https the session's cookie is never sent in
	// the clear.
	PublicURL string
	// TokenFile is where a person finds the token; the login form names it.
	TokenFile string
	// NewSecret makes the ids of sessions, which nobody can guess.
	NewSecret func() string
	Now       func() time.Time
	// Logger receives what went wrong inside.
	Logger *slog.Logger
}

// Guard serves the interface to those who may use it.
type Guard struct {
	Options
	sessions *sessions
	origins  *http.CrossOriginProtection
	secure   bool
}

// New returns a guard. A public URL that is none is an error.
func New(o Options) (*Guard, error) {
	public, err := url.Parse(o.PublicURL)
	if err != nil {
		return nil, fmt.Errorf("reading the public URL: %w", err)
	}
	g := &Guard{
		Options: o, sessions: newSessions(o.NewSecret, o.Now),
		origins: http.NewCrossOriginProtection(), secure: public.Scheme == "https",
	}
	// A proxy in front may send another Host than the one in the browser's address.
	if err := g.origins.AddTrustedOrigin(public.Scheme + "://" + public.Host); err != nil {
		return nil, fmt.Errorf("reading the public URL: %w", err)
	}
	return g, nil
}

// ServeHTTP serves one request for Path or something below it.
func (g *Guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	setHeaders(w.Header())
	if g.UI == nil {
		g.refuse(w, r, automation.Errorf(automation.CodeNotFound, "this installation uses a Temporal of its own, "+
			"which ERRAND_TEMPORAL_ADDRESS names; open the web interface that belongs to it"))
		return
	}
	if err := g.origins.Check(r); err != nil {
		g.refuse(w, r, automation.Errorf(automation.CodeForbidden, "another site sent this request: %v", err))
		return
	}
	if r.URL.Path == loginPath {
		g.login(w, r)
		return
	}
	if err := g.authorize(r); err != nil {
		g.turnAway(w, r, err)
		return
	}
	g.UI.ServeHTTP(w, g.plain(w, r))
}

// setHeaders sets what holds for every answer. The interface's page replaces the policy by its own.
func setHeaders(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'self'")
	h.Set("X-Frame-Options", "SAMEORIGIN")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin") // with no-referrer the login form would come from the origin "null"
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

// authorize returns nil for a request that may pass. A header decides alone when there is one.
func (g *Guard) authorize(r *http.Request) error {
	if header := r.Header.Get("Authorization"); header != "" {
		scheme, token, _ := strings.Cut(header, " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return automation.Errorf(automation.CodeUnauthorized, "the interface takes the header Authorization: Bearer <token>")
		}
		return g.Authenticate(r.Context(), strings.TrimSpace(token))
	}
	for _, cookie := range r.CookiesNamed(cookieName) {
		if token, ok := g.sessions.token(cookie.Value); ok {
			return g.Authenticate(r.Context(), token)
		}
	}
	return automation.Errorf(automation.CodeUnauthorized, "you are not signed in; open %s in a browser", Path)
}

// turnAway shows the login form to a person and an error to everything else. The form comes with the status 401 and
// stays at the address that was asked for, to which it leads back.
func (g *Guard) turnAway(w http.ResponseWriter, r *http.Request, err error) {
	code := automation.CodeOf(err)
	if code == automation.CodeUnauthorized && r.Method == http.MethodGet &&
		strings.Contains(r.Header.Get("Accept"), "text/html") && r.Header.Get("Authorization") == "" {
		g.showLogin(w, r, http.StatusUnauthorized, loginForm{To: r.URL.RequestURI()})
		return
	}
	w.Header().Set("WWW-Authenticate", "Bearer")
	g.refuse(w, r, err)
}

// passed are the headers that the interface sees. Others stay out by default: credentials, cookies of everything else on
// this host, and what the interface would forward to Temporal as metadata.
var passed = []string{
	"Accept", "Accept-Encoding", "Accept-Language", "Caller-Type", "Content-Length", "Content-Type", "If-Modified-Since",
	"If-None-Match", "Range", "User-Agent",
}

// plain returns the request as the interface sees it.
func (g *Guard) plain(w http.ResponseWriter, r *http.Request) *http.Request {
	out := r.Clone(r.Context())
	for name := range out.Header {
		if !slices.Contains(passed, name) {
			delete(out.Header, name)
		}
	}
	out.Body = http.MaxBytesReader(w, r.Body, maxBody)
	return out
}

// refuse answers with the envelope of the API. The text of an error without a code stays in the log.
func (g *Guard) refuse(w http.ResponseWriter, r *http.Request, err error) {
	var e *automation.Error
	if !errors.As(err, &e) || e.Code == automation.CodeInternal {
		g.Logger.ErrorContext(r.Context(), "a request for Temporal's web interface failed", "error", err)
		e = automation.Errorf(automation.CodeInternal, "something went wrong inside the control plane; its log says what")
	}
	type body struct {
		Code    automation.Code `json:"code"`
		Message string          `json:"message"`
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(e.Code.Status())
	_ = json.NewEncoder(w).Encode(map[string]body{"error": {e.Code, e.Message}}) // who asked is gone
}
