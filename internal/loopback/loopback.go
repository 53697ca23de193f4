// Package loopback is the worker's local route to the control plane: command lines and agents on the machine use
// it, over REST and MCP, with the machine's authority and never see a durable credential. It listens on the
// loopback address alone, asks for a token that lives until the worker's next start, and tells programs of the
// same user where it is through the file worker.json.
//
// Requests pass to the control plane as they are, less what belongs to this hop, and answers come back with
// their status and body. The machine API is not reachable here: it belongs to the worker itself. What proves
// the machine's identity to the control plane is the transport that the caller gives.
package loopback

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/runtimefile"
)

const (
	// FileName is the name of the file that says where the route is.
	FileName = "worker.json"
	// mcpPath is where automations are controlled over MCP, below the route's address.
	mcpPath = "/mcp/automations"

	headerTimeout = 10 * time.Second
	maxHeader     = 64 << 10
)

// Options says what a [Server] serves. All but Logger are required.
type Options struct {
	// ServerURL is the control plane's address.
	ServerURL string
	// Transport sends requests to the control plane with the proof of the machine's identity.
	Transport http.RoundTripper
	// Token is what callers show as bearer.
	Token string
	// Dir is where worker.json is written.
	Dir string
	// StartedAt is when this worker started.
	StartedAt time.Time
	Logger    *slog.Logger
}

// Server is a running route.
type Server struct {
	o      Options
	target *url.URL
	token  [sha256.Size]byte
	port   string
	http   *http.Server
	served chan struct{}
}

// Start listens on a free port of the loopback address, serves, and writes worker.json.
func Start(o Options) (*Server, error) {
	target, err := url.Parse(o.ServerURL)
	if err != nil {
		return nil, fmt.Errorf("reading the control plane's URL: %w", err)
	}
	if target.Host == "" || o.Transport == nil || o.Token == "" || o.Dir == "" {
		return nil, errors.New("a required option of the local route is missing")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening on the loopback address: %w", err)
	}
	s := &Server{o: o, target: target, token: sha256.Sum256([]byte(o.Token)), served: make(chan struct{})}
	_, s.port, err = net.SplitHostPort(listener.Addr().String())
	if err == nil {
		err = runtimefile.Write(s.path(), runtimefile.File{
			URL: s.URL(), MCPURL: s.URL() + mcpPath, Token: o.Token, PID: os.Getpid(), StartedAt: o.StartedAt,
		})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("announcing the local route: %w", err), listener.Close())
	}
	logger := slog.NewLogLogger(o.Logger.Handler(), slog.LevelDebug)
	s.http = &http.Server{
		Handler: s.guarded(s.proxy()), ReadHeaderTimeout: headerTimeout, MaxHeaderBytes: maxHeader, ErrorLog: logger,
	}
	go func() {
		defer close(s.served)
		if err := s.http.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			o.Logger.Error("The local route for command lines has ended.", "error", err)
		}
	}()
	return s, nil
}

// URL returns the route's address.
func (s *Server) URL() string { return "http://127.0.0.1:" + s.port }

func (s *Server) path() string { return filepath.Join(s.o.Dir, FileName) }

// Stop removes worker.json and ends the route. Requests that are under way are cut off when ctx ends.
func (s *Server) Stop(ctx context.Context) error {
	var failures []error
	// Another worker's file, should there be one by now, is not ours to remove.
	if file, err := runtimefile.Read(s.path()); err == nil && file.Token == s.o.Token {
		if err := os.Remove(s.path()); err != nil {
			failures = append(failures, fmt.Errorf("removing %s: %w", FileName, err))
		}
	}
	if err := s.http.Shutdown(ctx); err != nil {
		failures = append(failures, s.http.Close())
	}
	<-s.served
	return errors.Join(failures...)
}

// guarded lets through what a program of this machine's user may ask for.
func (s *Server) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Host != "127.0.0.1:"+s.port && r.Host != "localhost:"+s.port:
			// A page of another site whose name resolves to this address sends its own name.
			refuse(w, automation.CodeForbidden, "this address is served as 127.0.0.1 and localhost only")
		case r.Header.Get("Origin") != "":
			refuse(w, automation.CodeForbidden, "this address is for programs on this machine, not for pages in a browser")
		case !s.authorized(r):
			w.Header().Set("WWW-Authenticate", "Bearer")
			refuse(w, automation.CodeUnauthorized, "the token is missing or not that of this worker; it is in "+FileName+" and changes with each start of the worker")
		case !forwarded(r.URL.Path):
			refuse(w, automation.CodeNotFound, "there is no such route on a worker")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func (s *Server) authorized(r *http.Request) bool {
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return false
	}
	shown := sha256.Sum256([]byte(strings.TrimSpace(token)))
	return subtle.ConstantTimeCompare(shown[:], s.token[:]) == 1
}

// forwarded reports whether a path belongs to the API that users see, or is the one for MCP. A path that could be read in two ways
// is none of them.
func forwarded(p string) bool {
	if p == mcpPath {
		return true
	}
	if path.Clean(p) != strings.TrimSuffix(p, "/") {
		return false
	}
	rest, ok := strings.CutPrefix(p, "/v1/")
	if !ok {
		return false
	}
	first, _, _ := strings.Cut(rest, "/")
	return !strings.EqualFold(first, "machine")
}

// proxy passes requests on with the machine's authority in place of the caller's.
func (s *Server) proxy() http.Handler {
	return &httputil.ReverseProxy{
		Transport: s.o.Transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(s.target)
			for _, name := range []string{"Authorization", "Cookie", "Dpop"} {
				r.Out.Header.Del(name)
			}
		},
		FlushInterval: -1, // streams of events pass at once
		ErrorLog:      slog.NewLogLogger(s.o.Logger.Handler(), slog.LevelDebug),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() != nil {
				return // the caller has gone
			}
			s.o.Logger.Warn("A local request could not be passed to the control plane.", "path", r.URL.Path, "error", err)
			refuse(w, automation.CodeRuntimeUnavailable, "the control plane at "+s.o.ServerURL+" does not answer this machine's worker")
		},
	}
}

// refuse writes an error as the control plane would.
func refuse(w http.ResponseWriter, code automation.Code, message string) {
	status := code.Status()
	if code == automation.CodeRuntimeUnavailable {
		status = http.StatusBadGateway
	}
	body := map[string]any{"error": map[string]any{"code": code, "message": message}}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the caller has gone, and nobody else is to be told
}
