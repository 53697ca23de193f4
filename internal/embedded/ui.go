package embedded

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"regexp"
	"strings"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"github.com/temporalio/ui-server/v2/server/api"
	uiconfig "github.com/temporalio/ui-server/v2/server/config"
	"github.com/temporalio/ui-server/v2/server/headers"
	"github.com/temporalio/ui-server/v2/server/route"
	"github.com/temporalio/ui-server/v2/ui"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

const (
	uiAPI = "/api/v1"
	// uiReceiveLimit bounds one answer of Temporal, in bytes. It is the limit of Temporal's own interface.
	uiReceiveLimit = 64 << 20
	// uiCallerType makes Temporal tell people's calls from those of programs when it has to slow someone down.
	uiCallerType = "Caller-Type"
)

// UI returns Temporal's web interface, to be served below a path such as "/temporal". It lets everyone do everything
// that Temporal can do, so the caller decides who gets there and checks where a request comes from. It uses the server's
// frontend, and answers with errors once the server has stopped.
//
// It is made of the handlers of Temporal's ui-server and not of its Server, which would listen on a port of its own that
// anybody on this computer could reach, and which ends the process when it cannot.
func (s *Server) UI(mount string) (http.Handler, error) {
	assets, err := newUIAssets(mount)
	if err != nil {
		return nil, fmt.Errorf("reading the files of Temporal's web interface: %w", err)
	}
	conn, err := s.uiConnection()
	if err != nil {
		return nil, err
	}
	settings, err := uiconfig.NewConfigProviderWithRefresh(&uiconfig.Config{
		TemporalGRPCAddress: s.HostPort(),
		DefaultNamespace:    s.namespace,
		DisableNewsFetch:    true,
	})
	if err != nil {
		return nil, fmt.Errorf("describing Temporal's web interface: %w", err)
	}

	e := echo.New()
	e.Use(middleware.Gzip())
	calls := e.Group(uiAPI)
	calls.GET("/settings", api.GetSettings(settings))
	calls.GET(api.WorkflowRawHistoryUrl, api.WorkflowRawHistoryHandler(workflowservice.NewWorkflowServiceClient(conn)))
	calls.Match(
		[]string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}, "/*",
		api.TemporalAPIHandler(settings, []api.Middleware{headers.WithForwardHeaders([]string{uiCallerType})}, conn),
	)
	route.SetRenderRoute(e, "")
	e.GET("/*", echo.WrapHandler(assets))
	return http.StripPrefix(mount, rooted(e)), nil
}

// uiConnection returns the interface's connection to the frontend, which is made at the first call and closed by Stop.
func (s *Server) uiConnection() (*grpc.ClientConn, error) {
	s.uiMutex.Lock()
	defer s.uiMutex.Unlock()
	if s.uiConn != nil {
		return s.uiConn, nil
	}
	conn, err := grpc.NewClient(s.HostPort(),
		grpc.WithTransportCredentials(credentials.NewTLS(s.TLS())),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(uiReceiveLimit)))
	if err != nil {
		return nil, fmt.Errorf("connecting Temporal's web interface: %w", err)
	}
	s.uiConn = conn
	return conn, nil
}

func (s *Server) closeUI() {
	s.uiMutex.Lock()
	defer s.uiMutex.Unlock()
	if s.uiConn != nil {
		_ = s.uiConn.Close() // it fails when closed twice only
	}
}

// rooted gives the path "/" to a request for the mount itself.
func rooted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "" {
			r.URL.Path = "/"
		}
		next.ServeHTTP(w, r)
	})
}

// uiAssets serves the interface's files, and its one page at every other path, since the page reads its path itself.
type uiAssets struct {
	fs.FS
	files  http.Handler
	page   []byte
	policy string
}

var (
	inlineScript = regexp.MustCompile(`(?s)<script>(.*?)</script>`)
	policyTag    = regexp.MustCompile(`(?i)<meta[^>]*http-equiv="content-security-policy"[^>]*>`)
)

// newUIAssets moves the page below the mount, and replaces its content security policy, which the move breaks, by a
// header: scripts are the interface's files and the page's own one, everything is from where the page is, and only a
// page from there may show it in a frame. Styles are set inline all over the interface.
func newUIAssets(mount string) (*uiAssets, error) {
	all, err := ui.Assets()
	if err != nil {
		return nil, err
	}
	local, err := fs.Sub(all, "local")
	if err != nil {
		return nil, err
	}
	page, err := fs.ReadFile(local, "index.html")
	if err != nil {
		return nil, err
	}
	page = bytes.ReplaceAll(page, []byte(`base: ""`), fmt.Appendf(nil, "base: %q", mount))
	page = bytes.ReplaceAll(page, []byte(`"/_app/`), fmt.Appendf(nil, `"%s/_app/`, mount))
	page = policyTag.ReplaceAll(page, nil)
	// Before the page names its icon, a browser looks for one at the root, which is not the interface's.
	page = bytes.Replace(page, []byte("<head>"), fmt.Appendf(nil, `<head><link rel="icon" href="%s/favicon.ico">`, mount), 1)
	script := inlineScript.FindSubmatch(page)
	if script == nil {
		return nil, errors.New("index.html has no script")
	}
	hash := sha256.Sum256(script[1])
	return &uiAssets{
		FS: local, files: http.FileServerFS(local), page: page,
		policy: "default-src 'self'; script-src 'self' 'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "'; " +
			"style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; manifest-src 'self' data:; " +
			"object-src 'none'; " +
			"base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
	}, nil
}

// ServeHTTP serves one request. Files below _app/immutable have a name that changes with their content.
func (a *uiAssets) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(path.Clean(r.URL.Path), "/")
	if info, err := fs.Stat(a, name); err == nil && !info.IsDir() && name != "index.html" {
		if strings.HasPrefix(name, "_app/immutable/") {
			w.Header().Set("Cache-Control", "private, max-age=31536000, immutable")
		}
		a.files.ServeHTTP(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", a.policy)
	_, _ = w.Write(a.page) //nolint:gosec // the page holds nothing of the request; a failure means that who asked is gone
}
