package actions_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/actions"
)

func requestStep(input string) automation.ConcreteStep {
	return automation.ConcreteStep{
		RunID: "run-1", StepID: "call", Kind: automation.KindAction,
		ActionID: "http.request", Input: json.RawMessage(input),
	}
}

func requester(t *testing.T, policy actions.HTTPPolicy) *actions.Registry {
	t.Helper()
	policy.Now = time.Now
	return registry(t, actions.HTTPRequest(policy))
}

// serve starts a server that the tests may reach.
func serve(t *testing.T, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server
}

// result decodes what http.request returned, without what differs each time.
func result(t *testing.T, data json.RawMessage, err error) map[string]any {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	var members map[string]any
	if err := json.Unmarshal(data, &members); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	if ms, ok := members["durationMs"].(float64); !ok || ms < 0 {
		t.Errorf("durationMs %v", members["durationMs"])
	}
	for _, name := range []string{"durationMs", "url", "headers"} {
		delete(members, name)
	}
	return members
}

func TestHTTPRequestSendsWhatThePlanSays(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, input, method, body, contentType string
		headers                                map[string]string
	}{
		{"the least", `{"url":%q}`, "GET", "", "", map[string]string{"Idempotency-Key": "run-1:call", "User-Agent": "errand"}},
		{"JSON", `{"url":%q,"method":"post","json":{"b":1.0,"a":[null]}}`, "POST", `{"b":1.0,"a":[null]}`, "application/json", nil},
		{"the JSON null", `{"url":%q,"method":"PUT","json":null}`, "PUT", `null`, "application/json", nil},
		{"text", `{"url":%q,"method":"PATCH","body":"a\nä"}`, "PATCH", "a\nä", "text/plain; charset=utf-8", nil},
		{"an empty text", `{"url":%q,"method":"POST","body":""}`, "POST", "", "text/plain; charset=utf-8", nil},
		{
			"headers", `{"url":%q,"method":"DELETE","headers":{"x-a":"1","Content-Type":"a/b","Idempotency-Key":"mine"}}`, "DELETE", "", "a/b",
			map[string]string{"X-A": "1", "Idempotency-Key": "mine"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			server := serve(t, func(_ http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				if r.Method != tt.method || string(body) != tt.body || r.Header.Get("Content-Type") != tt.contentType {
					t.Errorf("%s with %q of type %q", r.Method, body, r.Header.Get("Content-Type"))
				}
				for name, want := range tt.headers {
					if got := r.Header.Get(name); got != want {
						t.Errorf("%s: %q, want %q", name, got, want)
					}
				}
			})
			got, err := requester(t, actions.HTTPPolicy{}).Run(t.Context(), requestStep(fmt.Sprintf(tt.input, server.URL)))
			want := map[string]any{"status": 200.0, "body": "", "bodyBytes": 0.0, "bodyTruncated": false}
			if diff := cmp.Diff(want, result(t, got, err)); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
		})
	}
}

func TestHTTPRequestKeepsTheResponseWithinBounds(t *testing.T) {
	t.Parallel()
	const kept = 256 << 10
	tests := []struct {
		name, contentType, body string
		want                    map[string]any
	}{
		{"JSON", "application/json; charset=utf-8", ` {"a": 1.0} `, map[string]any{"json": map[string]any{"a": 1.0}, "bodyBytes": 12.0, "bodyTruncated": false}},
		{"JSON of a kind", "application/problem+json", `[]`, map[string]any{"json": []any{}, "bodyBytes": 2.0, "bodyTruncated": false}},
		{"no JSON", "application/json", `{"a":`, map[string]any{"body": `{"a":`, "bodyBytes": 5.0, "bodyTruncated": false}},
		{"JSON with a NUL", "application/json", `"\u0000"`, map[string]any{"body": `"\u0000"`, "bodyBytes": 8.0, "bodyTruncated": false}},
		{"text", "text/html", "<p>ä</p>", map[string]any{"body": "<p>ä</p>", "bodyBytes": 9.0, "bodyTruncated": false}},
		{"bytes", "image/png", "\x89P\x00\xff", map[string]any{"body": "\uFFFDP␀\uFFFD", "bodyBytes": 4.0, "bodyTruncated": false}},
		{
			"a character at the limit", "text/plain", strings.Repeat("x", kept-1) + "äxx",
			map[string]any{"body": strings.Repeat("x", kept-1), "bodyBytes": float64(kept + 3), "bodyTruncated": true},
		},
		{
			"large JSON", "application/json", `"` + strings.Repeat("x", 3*kept) + `"`,
			map[string]any{"body": `"` + strings.Repeat("x", kept-1), "bodyBytes": float64(3*kept + 2), "bodyTruncated": true},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			server := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", tt.contentType)
				_, _ = io.WriteString(w, tt.body)
			})
			got, err := requester(t, actions.HTTPPolicy{}).Run(t.Context(), requestStep(fmt.Sprintf(`{"url":%q}`, server.URL)))
			tt.want["status"] = 200.0
			if diff := cmp.Diff(tt.want, result(t, got, err)); diff != "" {
				t.Errorf("result (-want +got):\n%.2000s", diff)
			}
		})
	}
}

func TestHTTPRequestStatus(t *testing.T) {
	t.Parallel()
	tests := []struct {
		status   int
		expected string
		code     automation.StepCode
	}{
		{204, "", ""},
		{200, "[204]", automation.StepErrActionFailed},
		{404, "[200,404]", ""},
		{404, "", automation.StepErrActionFailed},
		{401, "", automation.StepErrActionUnauthorized},
		{403, "", automation.StepErrActionUnauthorized},
		{401, "[401]", ""},
		{500, "", automation.StepErrActionFailed},
		{503, "", automation.StepErrActionFailed},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.status, tt.expected), func(t *testing.T) {
			t.Parallel()
			server := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, "the reason")
			})
			input := fmt.Sprintf(`{"url":%q}`, server.URL)
			if tt.expected != "" {
				input = fmt.Sprintf(`{"url":%q,"expectedStatus":%s}`, server.URL, tt.expected)
			}
			_, err := requester(t, actions.HTTPPolicy{}).Run(t.Context(), requestStep(input))
			if got := stepCode(err); got != tt.code || (err == nil) != (tt.code == "") {
				t.Fatalf("error %v, want code %q", err, tt.code)
			}
			if err != nil && (!strings.Contains(err.Error(), fmt.Sprint(tt.status)) || !strings.Contains(err.Error(), "the reason")) {
				t.Errorf("error %v says neither status nor reason", err)
			}
		})
	}
}

func TestHTTPRequestRefusesBadInput(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, input, says string }{
		{"no url", `{}`, "url"},
		{"another scheme", `{"url":"file:///etc/passwd"}`, "url"},
		{"no host", `{"url":"http:///x"}`, "url"},
		{"a password", `{"url":"http://a:s3cret@localhost"}`, "credential"},
		{"an unknown member", `{"url":"http://x","header":{}}`, "headers"},
		{"a bad method", `{"url":"http://x","method":"A B"}`, "method"},
		{"CONNECT", `{"url":"http://x","method":"connect"}`, "method"},
		{"two bodies", `{"url":"http://x","json":1,"body":"x"}`, "one body"},
		{"a header of two lines", `{"url":"http://x","headers":{"A":"b\nC: d"}}`, "headers.A"},
		{"a managed header", `{"url":"http://x","headers":{"content-length":"1"}}`, "content-length"},
		{"a status", `{"url":"http://x","expectedStatus":[99]}`, "expectedStatus[0]"},
	}
	for _, tt := range tests {
		_, err := requester(t, actions.HTTPPolicy{}).Run(t.Context(), requestStep(tt.input))
		if stepCode(err) != automation.StepErrActionFailed || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: error %v, want action_failed that says %q", tt.name, err, tt.says)
		}
	}
}

func TestHTTPRequestRedirects(t *testing.T) {
	t.Parallel()
	other := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Key") != "" {
			t.Error("the credential went to another host")
		}
		_, _ = io.WriteString(w, "other")
	})
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/here":
			http.Redirect(w, r, "/end", http.StatusTemporaryRedirect)
		case "/there":
			http.Redirect(w, r, other.URL, http.StatusFound)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case "/metadata":
			http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusFound)
		default:
			_, _ = io.WriteString(w, r.Method+" end "+r.Header.Get("X-Key"))
		}
	})
	const failed = automation.StepErrActionFailed
	tests := []struct {
		policy, path string
		code         automation.StepCode
		says         string
	}{
		{"", "/here", "", "POST end k"},
		{"", "/there", failed, "policy"},
		{"same-host", "/there", failed, other.URL},
		{"none", "/here", failed, "307"},
		{"any", "/here", "", "POST end k"},
		{"any", "/there", "", "other"},
		{"any", "/loop", failed, "10 redirects"},
		{"any", "/metadata", failed, "metadata"},
	}
	for _, tt := range tests {
		policy := actions.HTTPPolicy{Redirects: tt.policy, Credential: credentials(key{value: "k", host: strings.TrimPrefix(server.URL, "http://")})}
		step := requestStep(fmt.Sprintf(`{"url":"%s%s","method":"POST"}`, server.URL, tt.path))
		step.Credential = "key"
		got, err := requester(t, policy).Run(t.Context(), step)
		text := string(got)
		if err != nil {
			text = err.Error()
		}
		if stepCode(err) != tt.code || !strings.Contains(text, tt.says) {
			t.Errorf("%s under %q: %s, %v, want code %q and %q", tt.path, tt.policy, got, err, tt.code, tt.says)
		}
	}
}

// key is a credential for one host.
type key struct {
	value, host string
	err         error
}

func (k key) HeaderName() string       { return "X-Key" }
func (k key) Resolve() (string, error) { return k.value, k.err }
func (k key) Allows(u *url.URL) bool   { return u.Host == k.host }

func credentials(k key) func(string) (actions.Credential, bool) {
	return func(name string) (actions.Credential, bool) { return k, name == "key" }
}

func TestHTTPRequestCredential(t *testing.T) {
	t.Parallel()
	server := serve(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "<"+r.Header.Get("X-Key")+">") })
	host := strings.TrimPrefix(server.URL, "http://")
	const failed = automation.StepErrActionFailed
	tests := []struct {
		name, credential string
		find             func(string) (actions.Credential, bool)
		code             automation.StepCode
		says             string
	}{
		{"presented", "key", credentials(key{value: "s3cret", host: host}), "", "<s3cret>"},
		{"not asked for", "", credentials(key{value: "s3cret", host: host}), "", "<>"},
		{"for another host", "key", credentials(key{value: "s3cret", host: "x"}), failed, "machine.yaml"},
		{"unknown", "lock", credentials(key{value: "s3cret", host: host}), failed, "lock"},
		{"a machine without any", "key", nil, failed, "key"},
		{"unreadable", "key", credentials(key{value: "s3cret", host: host, err: errors.New("reading a credential: gone")}), failed, "gone"},
	}
	for _, tt := range tests {
		step := requestStep(fmt.Sprintf(`{"url":%q}`, server.URL))
		step.Credential = tt.credential
		got, err := requester(t, actions.HTTPPolicy{Credential: tt.find}).Run(t.Context(), step)
		text := string(got)
		if err != nil {
			text = err.Error()
		}
		if stepCode(err) != tt.code || !strings.Contains(text, tt.says) || err != nil && strings.Contains(text, "s3cret") {
			t.Errorf("%s: %s, %v", tt.name, got, err)
		}
	}
}

func TestHTTPRequestTroubleOnTheWay(t *testing.T) {
	t.Parallel()
	broken := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/half" {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "half")
		}
		panic(http.ErrAbortHandler)
	})
	closed := serve(t, nil)
	closed.Close()
	untrusted := httptest.NewUnstartedServer(http.NotFoundHandler())
	untrusted.Config.ErrorLog = log.New(io.Discard, "", 0)
	untrusted.StartTLS()
	t.Cleanup(untrusted.Close)
	tests := []struct {
		name, url string
		code      automation.StepCode
	}{
		{"nobody listens", closed.URL, automation.StepErrTransportUnavailable},
		{"no such host", "http://nosuch.invalid/", automation.StepErrTransportUnavailable},
		{"broken off", broken.URL, automation.StepErrTransportUnavailable},
		{"broken off in the body", broken.URL + "/half", automation.StepErrTransportUnavailable},
		{"a certificate that is not trusted", untrusted.URL, automation.StepErrActionFailed},
	}
	for _, tt := range tests {
		_, err := requester(t, actions.HTTPPolicy{}).Run(t.Context(), requestStep(fmt.Sprintf(`{"url":%q}`, tt.url)))
		if stepCode(err) != tt.code || !strings.Contains(err.Error(), tt.url) {
			t.Errorf("%s: error %v, want %s", tt.name, err, tt.code)
		}
	}
	trusting := actions.HTTPPolicy{TLS: &tls.Config{RootCAs: untrusted.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}}
	if _, err := requester(t, trusting).Run(t.Context(), requestStep(fmt.Sprintf(`{"url":%q,"expectedStatus":[404]}`, untrusted.URL))); err != nil {
		t.Errorf("a certificate that is trusted: %v", err)
	}
}

func TestHTTPRequestIsCancelled(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{})
	left := make(chan struct{})
	server := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
		close(left)
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-arrived
		cancel()
	}()
	if _, err := requester(t, actions.HTTPPolicy{}).Run(ctx, requestStep(fmt.Sprintf(`{"url":%q}`, server.URL))); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	<-left
}

func TestHTTPRequestRefusesAddresses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		addr            string
		always, private bool // refused
	}{
		{"169.254.169.254", true, true},
		{"::ffff:169.254.169.254", true, true},
		{"64:ff9b::a9fe:a9fe", true, true},
		{"fe80::1%eth0", true, true},
		{"fd00:ec2::254", true, true},
		{"100.100.100.200", true, true},
		{"0.0.0.0", true, true},
		{"::", true, true},
		{"224.0.0.1", true, true},
		{"127.0.0.1", false, true},
		{"::1", false, true},
		{"10.1.2.3", false, true},
		{"::ffff:10.1.2.3", false, true},
		{"192.168.0.1", false, true},
		{"fd12::1", false, true},
		{"100.64.0.1", false, true},
		{"93.184.216.34", false, false},
		{"2606:4700::1111", false, false},
	}
	for _, tt := range tests {
		addr := netip.MustParseAddr(tt.addr)
		if err := actions.CheckAddress(addr, false); (err != nil) != tt.always {
			t.Errorf("%s: %v", tt.addr, err)
		}
		if err := actions.CheckAddress(addr, true); (err != nil) != tt.private {
			t.Errorf("%s, private addresses refused: %v", tt.addr, err)
		}
	}
	server := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("a refused address was reached") })
	_, port, err := net.SplitHostPort(strings.TrimPrefix(server.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	// The name is only resolved when the connection is made, and it is the result that counts.
	for _, host := range []string{"127.0.0.1", "localhost"} {
		_, err := requester(t, actions.HTTPPolicy{RefusePrivate: true}).Run(t.Context(), requestStep(fmt.Sprintf(`{"url":"http://%s:%s"}`, host, port)))
		if stepCode(err) != automation.StepErrActionFailed || !strings.Contains(err.Error(), "private") {
			t.Errorf("%s: %v", host, err)
		}
	}
}

func TestHTTPRequestThroughAProxy(t *testing.T) {
	t.Parallel()
	proxy := serve(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "proxy for "+r.URL.String()) })
	at, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	r := requester(t, actions.HTTPPolicy{RefusePrivate: true, Proxy: http.ProxyURL(at)})
	got, err := r.Run(t.Context(), requestStep(`{"url":"http://service.example.com/x"}`))
	if err != nil || !strings.Contains(string(got), "proxy for http://service.example.com/x") {
		t.Errorf("%s, %v", got, err)
	}
	if _, err := r.Run(t.Context(), requestStep(`{"url":"http://169.254.169.254/"}`)); stepCode(err) != automation.StepErrActionFailed {
		t.Errorf("metadata through the proxy: %v", err)
	}
}
