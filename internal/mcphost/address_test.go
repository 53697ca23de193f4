package mcphost_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/mcphost"
)

// address starts a server on HTTP behind a handler that may answer instead; it returns where it is.
func address(t *testing.T, before func(w http.ResponseWriter, r *http.Request) (answered bool)) (string, *atomic.Pointer[http.Handler]) {
	t.Helper()
	var current atomic.Pointer[http.Handler]
	restart := func() {
		server := newServer(t.TempDir())
		var h http.Handler = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
		current.Store(&h)
	}
	restart()
	listener := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if before != nil && before(w, r) {
			return
		}
		(*current.Load()).ServeHTTP(w, r)
	}))
	t.Cleanup(listener.Close)
	return listener.URL, &current
}

func TestToolsAtAnAddress(t *testing.T) {
	t.Parallel()
	var wrong atomic.Int64
	url, _ := address(t, func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("X-Team") != "a" || r.Header.Get("Authorization") != "Bearer s3cret" {
			wrong.Add(1)
		}
		return false
	})
	_, source := host(t, mcphost.Server{
		Name: "srv", URL: url, Headers: map[string]string{"X-Team": "a"},
		Credential: func() (string, string, error) { return "Authorization", "Bearer s3cret", nil },
	})
	got, err := source.Run(t.Context(), step("greet", `{"name":"Ada"}`))
	if err != nil || !strings.Contains(string(got), "Hello Ada") || wrong.Load() > 0 {
		t.Errorf("%s, %v; %d requests without the headers", got, err, wrong.Load())
	}
	if _, err := source.Run(t.Context(), step("refuse", `{}`)); stepCode(err) != automation.StepErrActionFailed {
		t.Errorf("isError: %v", err)
	}
	if _, err := source.Run(t.Context(), step("protocolerror", `{}`)); stepCode(err) != automation.StepErrActionFailed {
		t.Errorf("protocol error: %v", err)
	}
}

func TestTroubleAtAnAddress(t *testing.T) {
	t.Parallel()
	const (
		failed       = automation.StepErrActionFailed
		unauthorized = automation.StepErrActionUnauthorized
		transport    = automation.StepErrTransportUnavailable
	)
	tests := []struct {
		name   string
		status int
		code   automation.StepCode
	}{
		{"401", http.StatusUnauthorized, unauthorized},
		{"403", http.StatusForbidden, unauthorized},
		{"404, no such address", http.StatusNotFound, failed},
		{"400", http.StatusBadRequest, failed},
		{"429", http.StatusTooManyRequests, transport},
		{"500", http.StatusInternalServerError, transport},
		{"503", http.StatusServiceUnavailable, transport},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var refuse atomic.Bool
			url, _ := address(t, func(w http.ResponseWriter, _ *http.Request) bool {
				if refuse.Load() {
					http.Error(w, "refused", tt.status)
				}
				return refuse.Load()
			})
			// At the start, and once it is known.
			refuse.Store(true)
			_, source := host(t, mcphost.Server{Name: "srv", URL: url})
			if _, err := source.Run(t.Context(), step("greet", `{"name":"x"}`)); stepCode(err) != tt.code {
				t.Errorf("at the start: %v, want %s", err, tt.code)
			}
			refuse.Store(false)
			if _, err := source.Run(t.Context(), step("greet", `{"name":"x"}`)); err != nil {
				t.Fatalf("when it is well again: %v", err)
			}
			if tt.status == http.StatusNotFound {
				return // in a session it means that the session is gone: see below
			}
			refuse.Store(true)
			if _, err := source.Run(t.Context(), step("greet", `{"name":"x"}`)); stepCode(err) != tt.code {
				t.Errorf("in a session: %v, want %s", err, tt.code)
			}
			refuse.Store(false)
			eventually(t, "it is used again", func() bool {
				_, err := source.Run(t.Context(), step("greet", `{"name":"x"}`))
				return err == nil
			})
		})
	}
}

func TestNobodyAtTheAddress(t *testing.T) {
	t.Parallel()
	listener := httptest.NewServer(http.NotFoundHandler())
	listener.Close()
	_, source := host(t, mcphost.Server{Name: "srv", URL: listener.URL})
	if _, err := source.Run(t.Context(), step("greet", `{}`)); stepCode(err) != automation.StepErrTransportUnavailable {
		t.Errorf("error %v", err)
	}
}

func TestServerAtAnAddressIsRestarted(t *testing.T) {
	t.Parallel()
	url, current := address(t, nil)
	_, source := host(t, mcphost.Server{Name: "srv", URL: url})
	if _, err := source.Run(t.Context(), step("greet", `{"name":"x"}`)); err != nil {
		t.Fatal(err)
	}
	server := newServer(t.TempDir())
	var fresh http.Handler = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
	current.Store(&fresh)
	if _, err := source.Run(t.Context(), step("greet", `{"name":"x"}`)); err != nil {
		t.Errorf("after the server forgot the session: %v", err)
	}
}

func TestCredentialThatCannotBeRead(t *testing.T) {
	t.Parallel()
	url, _ := address(t, nil)
	_, source := host(t, mcphost.Server{Name: "srv", URL: url, Credential: func() (string, string, error) {
		return "", "", errors.New("reading a credential: gone")
	}})
	_, err := source.Run(t.Context(), step("greet", `{}`))
	if stepCode(err) != automation.StepErrActionFailed || !strings.Contains(err.Error(), "gone") {
		t.Errorf("error %v", err)
	}
}

// The headers of a server are for that server.
func TestHeadersAreNotSentElsewhere(t *testing.T) {
	t.Parallel()
	var leaked atomic.Bool
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Key") != "" {
			leaked.Store(true)
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(elsewhere.Close)
	url, _ := address(t, func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
		return true
	})
	_, source := host(t, mcphost.Server{Name: "srv", URL: url, Headers: map[string]string{"X-Key": "s3cret"}})
	if _, err := source.Run(t.Context(), step("greet", `{}`)); err == nil || leaked.Load() {
		t.Errorf("error %v, leaked %v", err, leaked.Load())
	}
}
