package mcpserver_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/catalog"
)

const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`

// post sends one request as a client does, changed by edit.
func post(t *testing.T, url, body string, edit func(*http.Request)) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Set("Authorization", "Bearer "+userToken)
	if edit != nil {
		edit(r)
	}
	response, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(text)
}

// TestWhoMayCallOverHTTP: the checks of REST stand before MCP, on both of its paths.
func TestWhoMayCallOverHTTP(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	tests := map[string]struct {
		edit   func(*http.Request)
		status int
		code   automation.Code
	}{
		"the token":           {nil, 200, ""},
		"no token":            {func(r *http.Request) { r.Header.Del("Authorization") }, 401, automation.CodeUnauthorized},
		"another token":       {header("Authorization", "Bearer x"), 401, automation.CodeUnauthorized},
		"another host":        {func(r *http.Request) { r.Host = "evil.example" }, 403, automation.CodeForbidden},
		"a page elsewhere":    {header("Origin", "https://evil.example"), 403, automation.CodeForbidden},
		"a page of no origin": {header("Origin", "null"), 403, automation.CodeForbidden},
		"a malformed origin":  {header("Origin", "http://%zz"), 403, automation.CodeForbidden},
		"the public host":     {func(r *http.Request) { r.Host = "errand.example.com" }, 200, ""},
		"a page of our own":   {header("Origin", w.http.URL), 200, ""},
		"behind a TLS proxy": {func(r *http.Request) {
			r.Host = "errand.example.com"
			r.Header.Set("Origin", "https://errand.example.com")
		}, 200, ""},
		"another page of ours": {func(r *http.Request) { r.Host = "errand.example.com"; r.Header.Set("Origin", w.http.URL) }, 403, automation.CodeForbidden},
	}
	for name, test := range tests {
		for _, path := range []string{"/mcp", "/mcp/automations"} {
			response, body := post(t, w.http.URL+path, initialize, test.edit)
			if response.StatusCode != test.status || test.code != "" && !strings.Contains(body, `"code":"`+string(test.code)+`"`) {
				t.Errorf("%s at %s: %d %s", name, path, response.StatusCode, body)
			}
			if test.status == 401 && name == "no token" && response.Header.Get("WWW-Authenticate") == "" {
				t.Errorf("%s: nothing says how to authenticate", name)
			}
		}
	}
}

// TestHostileRequests: whatever is sent is refused with a status of 4xx, or with an error of the protocol, and the
// server goes on.
func TestHostileRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tests := map[string]struct {
		body   string
		status int
	}{
		"nothing":              {``, 400},
		"no JSON":              {`{"jsonrpc":`, 400},
		"not UTF-8":            {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\xfe\"}", 400},
		"no message":           {`{}`, 400},
		"a text":               {`"initialize"`, 400},
		"another version":      {`{"jsonrpc":"1.0","id":1,"method":"ping"}`, 400},
		"a batch":              {" \n[" + initialize + "]", 400},
		"an unknown method":    {`{"jsonrpc":"2.0","id":1,"method":"tools/destroy"}`, 400},
		"parameters of a kind": {`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[1,2]}`, 200},
		"deep nesting":         {`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + strings.Repeat(`{"a":`, 1<<20) + `1` + strings.Repeat(`}`, 1<<20) + `}`, 400},
		"a deep input": {`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list","arguments":` +
			strings.Repeat(`{"a":`, 5000) + `1` + strings.Repeat(`}`, 5000) + `}}`, 400},
		"too large": {`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"` + strings.Repeat("x", 9<<20) + `"}}`, 413},
	}
	for name, test := range tests {
		response, body := post(t, w.http.URL+"/mcp", test.body, nil)
		if response.StatusCode != test.status || test.status == 200 && !strings.Contains(body, "rror") {
			t.Errorf("%s: %d %.300s", name, response.StatusCode, body)
		}
	}
	for _, method := range []string{http.MethodGet, http.MethodDelete} {
		response, _ := post(t, w.http.URL+"/mcp", "", func(r *http.Request) { r.Method = method })
		if response.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s: %d", method, response.StatusCode)
		}
	}
	if strings.Contains(w.log.String(), "panic") {
		t.Errorf("something panicked: %s", w.log)
	}
	succeed(t, w.overHTTP(t), "list", `{}`)
}

// TestACallEndsWithItsRequest: who leaves while a call waits for a run, ends the wait, whatever version of the
// protocol is spoken.
func TestACallEndsWithItsRequest(t *testing.T) {
	t.Parallel()
	began, ended := make(chan struct{}), make(chan struct{})
	s, _ := failing(func(ctx context.Context, _ catalog.Command, _ json.RawMessage) (json.RawMessage, error) {
		began <- struct{}{}
		<-ctx.Done()
		ended <- struct{}{}
		return nil, ctx.Err()
	})
	server := httptest.NewServer(s.Handler(16))
	defer server.Close()
	for _, version := range []string{"", "2025-06-18", "2025-11-25"} {
		ctx, leave := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL,
			strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run","arguments":{}}}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		if version != "" {
			r.Header.Set("Mcp-Protocol-Version", version)
		}
		go func() {
			if response, err := http.DefaultTransport.RoundTrip(r); err == nil {
				_ = response.Body.Close()
			}
		}()
		<-began
		leave()
		<-ended
	}
	session := connect(t, &mcp.StreamableClientTransport{Endpoint: server.URL})
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "run"})
		done <- err
	}()
	<-began
	leave()
	<-ended
	if <-done == nil {
		t.Error("a call that was given up succeeded")
	}
}

// TestCallsAreBounded: what is over the bound is told to come back, and can.
func TestCallsAreBounded(t *testing.T) {
	t.Parallel()
	began, goOn := make(chan struct{}), make(chan struct{})
	s, _ := failing(func(context.Context, catalog.Command, json.RawMessage) (json.RawMessage, error) {
		began <- struct{}{}
		<-goOn
		return json.RawMessage(`{}`), nil
	})
	server := httptest.NewServer(s.Handler(2))
	defer server.Close()
	const message = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list","arguments":{}}}`
	answers := make(chan int, 2)
	for range 2 {
		go func() {
			response, _ := post(t, server.URL, message, nil)
			answers <- response.StatusCode
		}()
		<-began
	}
	response, body := post(t, server.URL, message, nil)
	if response.StatusCode != http.StatusTooManyRequests || response.Header.Get("Retry-After") != "1" || !strings.Contains(body, "rate_limited") {
		t.Errorf("%d %s", response.StatusCode, body)
	}
	close(goOn)
	for range 2 {
		if status := <-answers; status != 200 {
			t.Errorf("a call within the bound got %d", status)
		}
	}
	go func() { <-began }()
	if response, body := post(t, server.URL, message, nil); response.StatusCode != http.StatusOK {
		t.Errorf("afterwards: %d %s", response.StatusCode, body)
	}
}

// TestNobodyHoldsAConnectionForChanges: the lists do not change, so a subscription ends at once instead of holding
// one of the places that are bounded.
func TestNobodyHoldsAConnectionForChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, body := post(t, w.http.URL+"/mcp", `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"_meta":{`+
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},`+
		`"io.modelcontextprotocol/clientCapabilities":{}},"notifications":{"toolsListChanged":true,"promptsListChanged":true,"resourcesListChanged":true,"resourceSubscriptions":["errand://runs/x"]}}}`, func(r *http.Request) {
		r.Header.Set("Mcp-Protocol-Version", "2026-07-28")
		r.Header.Set("Mcp-Method", "subscriptions/listen")
	})
	if !strings.Contains(body, `"notifications":{}`) || !strings.Contains(body, `"resultType":"complete"`) {
		t.Errorf("%s", body)
	}
}
