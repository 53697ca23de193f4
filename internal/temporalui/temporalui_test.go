package temporalui_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/temporalui"
)

const (
	token  = "the token"
	weak   = "a token of somebody who may not"
	broken = "a token that cannot be checked"
)

// world is a guard on a real socket, in front of an interface that answers "served" and keeps what it saw.
type world struct {
	*testing.T
	address string

	mu    sync.Mutex
	seen  []*http.Request
	valid bool
	now   time.Time
	ids   int
	// signedIn are the tokens of the login form, one after another.
	signedIn []string
	log      strings.Builder
}

func newWorld(t *testing.T, change func(*temporalui.Options)) *world {
	t.Helper()
	w := &world{T: t, valid: true, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	server := httptest.NewUnstartedServer(nil)
	w.address = "http://" + server.Listener.Addr().String()
	o := temporalui.Options{
		UI: http.HandlerFunc(w.serve), Authenticate: w.authenticate, SigningIn: w.signIn, PublicURL: w.address, TokenFile: "/data/server.json",
		NewSecret: func() string { w.ids++; return "session-" + strconv.Itoa(w.ids) },
		Now: func() time.Time {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.now
		},
		Logger: slog.New(slog.NewTextHandler(&w.log, nil)),
	}
	if change != nil {
		change(&o)
	}
	guard, err := temporalui.New(o)
	if err != nil {
		t.Fatal(err)
	}
	server.Config.Handler = guard
	server.Start()
	t.Cleanup(server.Close)
	return w
}

func (w *world) serve(answer http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, r)
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		http.Error(answer, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	_, _ = io.WriteString(answer, "served")
}

func (w *world) signIn(ctx context.Context, given string) error {
	w.signedIn = append(w.signedIn, given)
	return w.authenticate(ctx, given)
}

func (w *world) authenticate(_ context.Context, given string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case given == weak:
		return automation.Errorf(automation.CodeForbidden, "/temporal needs the scope admin")
	case given == broken:
		return errors.New("the disk is gone")
	case given == token && w.valid:
		return nil
	}
	return automation.Errorf(automation.CodeUnauthorized, "the token is not valid")
}

func (w *world) change(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// answer is what a test looks at.
type answer struct {
	*http.Response
	body string
}

// send sends a request without following redirects.
func (w *world) send(client *http.Client, method, path, body string, header map[string]string) answer {
	w.Helper()
	request, err := http.NewRequestWithContext(w.Context(), method, w.address+path, strings.NewReader(body))
	if err != nil {
		w.Fatal(err)
	}
	for name, value := range header {
		request.Header.Set(name, value)
	}
	response, err := client.Do(request)
	if err != nil {
		w.Fatal(err)
	}
	content, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		w.Fatal(err)
	}
	return answer{response, string(content)}
}

// browser is a client with cookies of its own.
func (w *world) browser() *http.Client {
	w.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		w.Fatal(err)
	}
	// The default transport would lose its connections whenever the server of another test is closed.
	transport := &http.Transport{}
	w.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// login sends the login form.
func (w *world) login(client *http.Client, given, to string, header map[string]string) answer {
	w.Helper()
	all := map[string]string{"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin"}
	maps.Copy(all, header)
	return w.send(client, http.MethodPost, "/temporal/login", url.Values{"token": {given}, "to": {to}}.Encode(), all)
}

func bearer(value string) map[string]string {
	return map[string]string{"Authorization": "Bearer " + value}
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	html := map[string]string{"Accept": "text/html,*/*"}
	for name, c := range map[string]struct {
		header map[string]string
		status int
		body   string
	}{
		"token":                  {bearer(token), http.StatusOK, "served"},
		"lower case scheme":      {map[string]string{"Authorization": "bearer " + token}, http.StatusOK, "served"},
		"wrong token":            {bearer("other"), http.StatusUnauthorized, `"unauthorized"`},
		"no token":               {bearer(""), http.StatusUnauthorized, `"unauthorized"`},
		"another scheme":         {map[string]string{"Authorization": "Basic " + token}, http.StatusUnauthorized, `"unauthorized"`},
		"a program without":      {nil, http.StatusUnauthorized, `"unauthorized"`},
		"a person without":       {html, http.StatusUnauthorized, `<form method="post" action="/temporal/login">`},
		"somebody's cookie":      {map[string]string{"Cookie": "errand_temporal=session-1"}, http.StatusUnauthorized, `"unauthorized"`},
		"empty cookie":           {map[string]string{"Cookie": "errand_temporal="}, http.StatusUnauthorized, `"unauthorized"`},
		"a token that may not":   {bearer(weak), http.StatusForbidden, `"forbidden"`},
		"a token without answer": {bearer(broken), http.StatusInternalServerError, `"internal"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil)
			for _, path := range []string{"/temporal", "/temporal/_app/x.js", "/temporal/api/v1/namespaces?q=1"} {
				got := w.send(w.browser(), http.MethodGet, path, "", c.header)
				if got.StatusCode != c.status || !strings.Contains(got.body, c.body) {
					t.Errorf("GET %s: %d %s, want %d with %s", path, got.StatusCode, got.body, c.status, c.body)
				}
				if strings.Contains(got.body, "disk") {
					t.Errorf("the answer tells of the inside: %s", got.body)
				}
			}
			if c.status != http.StatusOK && len(w.seen) > 0 {
				t.Errorf("the interface has seen %d requests", len(w.seen))
			}
			if logged := strings.Contains(w.log.String(), "the disk is gone"); logged != (c.status == http.StatusInternalServerError) {
				t.Errorf("the log: %s", w.log.String())
			}
		})
	}
}

func TestSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	browser := w.browser()
	if got := w.login(browser, "other", "/temporal/x", nil); got.StatusCode != http.StatusUnauthorized ||
		!strings.Contains(got.body, "not valid") || !strings.Contains(got.body, `value="/temporal/x"`) || len(got.Cookies()) > 0 {
		t.Errorf("with a wrong token: %d %v %s", got.StatusCode, got.Cookies(), got.body)
	}
	if got := w.login(browser, weak, "/temporal/x", nil); got.StatusCode != http.StatusForbidden ||
		!strings.Contains(got.body, "administrator") || strings.Contains(got.body, weak) || len(got.Cookies()) > 0 {
		t.Errorf("with a token that may not: %d %v %s", got.StatusCode, got.Cookies(), got.body)
	}
	got := w.login(browser, " "+token+"\n", "/temporal/x?y=z", nil)
	if diff := cmp.Diff([]string{"other", weak, token}, w.signedIn); diff != "" {
		t.Errorf("who signed in (-want +got):\n%s", diff)
	}
	if got.StatusCode != http.StatusSeeOther || got.Header.Get("Location") != "/temporal/x?y=z" {
		t.Errorf("with the token: %d to %s", got.StatusCode, got.Header.Get("Location"))
	}
	want := []string{"errand_temporal=session-1; Path=/temporal; Max-Age=43200; HttpOnly; SameSite=Strict"}
	if diff := cmp.Diff(want, got.Header.Values("Set-Cookie")); diff != "" {
		t.Errorf("cookies (-want +got):\n%s", diff)
	}
	check := func(when string, want int) {
		t.Helper()
		if got := w.send(browser, http.MethodGet, "/temporal/api/v1/namespaces", "", nil); got.StatusCode != want {
			t.Errorf("%s: %d, want %d", when, got.StatusCode, want)
		}
	}
	check("signed in", http.StatusOK)
	if got := w.send(browser, http.MethodGet, "/temporal", "", bearer("other")); got.StatusCode != http.StatusUnauthorized {
		t.Errorf("a wrong token beside a session: %d", got.StatusCode)
	}
	w.change(func() { w.valid = false })
	check("after the end of the token", http.StatusUnauthorized)
	w.change(func() { w.valid = true; w.now = w.now.Add(temporalui.SessionLife - time.Second) })
	check("a second before its end", http.StatusOK)
	w.change(func() { w.now = w.now.Add(time.Second) })
	check("at its end", http.StatusUnauthorized)
}

func TestSessionsAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	first, second, last := w.browser(), w.browser(), w.browser()
	w.login(first, token, "", nil)
	w.change(func() { w.now = w.now.Add(time.Second) })
	w.login(second, token, "", nil)
	w.change(func() { w.now = w.now.Add(time.Second) })
	for range 99 {
		w.login(last, token, "", nil)
	}
	for browser, want := range map[*http.Client]int{
		first: http.StatusUnauthorized, second: http.StatusOK, last: http.StatusOK,
	} {
		if got := w.send(browser, http.MethodGet, "/temporal", "", nil); got.StatusCode != want {
			t.Errorf("%d, want %d", got.StatusCode, want)
		}
	}
}

func TestLoginLeadsNowhereElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	for to, want := range map[string]string{
		"":                                  "/temporal",
		"/temporal":                         "/temporal",
		"/temporal?a=b":                     "/temporal?a=b",
		"/temporal/namespaces/errand?a=b/c": "/temporal/namespaces/errand?a=b/c",
		"/temporal/login":                   "/temporal",
		"/temporalx":                        "/temporal",
		"/temporal/../v1/runs":              "/temporal",
		"//example.com/temporal/":           "/temporal",
		"//example.com/../temporal/x":       "/temporal",
		"//temporal/x":                      "/temporal",
		"https://example.com/temporal/":     "/temporal",
		"/temporal/\\example.com":           "/temporal",
		"/temporal/\nX: y":                  "/temporal",
	} {
		if got := w.login(w.browser(), token, to, nil).Header.Get("Location"); got != want {
			t.Errorf("from %q to %q, want %q", to, got, want)
		}
	}
	if got := w.send(w.browser(), http.MethodGet, "/temporal/login", "", nil); got.Header.Get("Location") != "/temporal" {
		t.Errorf("GET /temporal/login: %d to %q", got.StatusCode, got.Header.Get("Location"))
	}
	if got := w.login(w.browser(), strings.Repeat("x", 32<<10), "", nil); got.StatusCode != http.StatusBadRequest {
		t.Errorf("a large form: %d", got.StatusCode)
	}
}

// TestForeignOrigin sends what browsers send for requests that another site makes.
func TestForeignOrigin(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		method string
		header map[string]string
		want   int
	}{
		"same origin":            {http.MethodPost, map[string]string{"Sec-Fetch-Site": "same-origin"}, http.StatusOK},
		"typed by the user":      {http.MethodPost, map[string]string{"Sec-Fetch-Site": "none"}, http.StatusOK},
		"another site":           {http.MethodPost, map[string]string{"Sec-Fetch-Site": "cross-site"}, http.StatusForbidden},
		"another port":           {http.MethodPost, map[string]string{"Sec-Fetch-Site": "same-site"}, http.StatusForbidden},
		"PUT":                    {http.MethodPut, map[string]string{"Sec-Fetch-Site": "cross-site"}, http.StatusForbidden},
		"PATCH":                  {http.MethodPatch, map[string]string{"Sec-Fetch-Site": "cross-site"}, http.StatusForbidden},
		"DELETE":                 {http.MethodDelete, map[string]string{"Sec-Fetch-Site": "cross-site"}, http.StatusForbidden},
		"an old browser":         {http.MethodPost, map[string]string{"Origin": "http://example.com"}, http.StatusForbidden},
		"an old browser, sealed": {http.MethodPost, map[string]string{"Origin": "null"}, http.StatusForbidden},
		"through a proxy":        {http.MethodPost, map[string]string{"Origin": "https://errand.example.com"}, http.StatusOK},
		"with a token":           {http.MethodPost, map[string]string{"Sec-Fetch-Site": "cross-site", "Authorization": "Bearer " + token}, http.StatusForbidden},
		"reading":                {http.MethodGet, map[string]string{"Sec-Fetch-Site": "cross-site"}, http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(o *temporalui.Options) { o.PublicURL = "https://errand.example.com" })
			browser := w.browser()
			signedIn := w.login(browser, token, "", nil)
			if len(signedIn.Cookies()) != 1 || !signedIn.Cookies()[0].Secure {
				t.Errorf("behind https the cookies are %v", signedIn.Cookies())
			}
			header := map[string]string{"Cookie": "errand_temporal=session-1"} // the jar keeps a secure cookie from plain HTTP
			maps.Copy(header, c.header)
			if got := w.send(browser, c.method, "/temporal/api/v1/namespaces/x", "{}", header); got.StatusCode != c.want {
				t.Errorf("%d %s, want %d", got.StatusCode, got.body, c.want)
			}
			if c.want == http.StatusForbidden && len(w.seen) > 0 {
				t.Error("the interface has seen the request")
			}
		})
	}
	t.Run("the form", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, nil)
		if got := w.login(w.browser(), token, "", map[string]string{"Sec-Fetch-Site": "cross-site"}); got.StatusCode != http.StatusForbidden || len(got.Cookies()) > 0 {
			t.Errorf("signed in by another site: %d %v", got.StatusCode, got.Cookies())
		}
	})
}

func TestInterfaceSeesOnlyWhatItNeeds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.send(w.browser(), http.MethodPost, "/temporal/api/v1/namespaces/a%2Fb?c=%2F", `{"d":1}`, map[string]string{
		"Authorization": "Bearer " + token, "Authorization-Extras": "x", "Cookie": "errand_temporal=1; other=2",
		"Grpc-Metadata-Authorization": "x", "Grpc-Timeout": "1S", "X-Forwarded-For": "x", "Origin": w.address, "DPoP": "x",
		"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity", "Caller-Type": "operator",
		"User-Agent": "test",
	})
	if len(w.seen) != 1 {
		t.Fatalf("the interface has seen %d requests", len(w.seen))
	}
	r := w.seen[0]
	if r.Method != http.MethodPost || r.URL.String() != "/temporal/api/v1/namespaces/a%2Fb?c=%2F" || r.ContentLength != 7 {
		t.Errorf("the interface has seen %s %s with %d bytes", r.Method, r.URL, r.ContentLength)
	}
	want := http.Header{
		"Accept": {"application/json"}, "Accept-Encoding": {"identity"}, "Caller-Type": {"operator"}, "Content-Length": {"7"},
		"Content-Type": {"application/json"}, "User-Agent": {"test"},
	}
	if diff := cmp.Diff(want, r.Header); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	if got := w.send(w.browser(), http.MethodPost, "/temporal/x", strings.Repeat("x", 5<<20), bearer(token)); got.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("a body of 5 MiB: %d", got.StatusCode)
	}
}

func TestHeadersOfAnswers(t *testing.T) {
	t.Parallel()
	own := func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/page") {
			w.Header().Set("Content-Security-Policy", "of the page")
		}
	}
	w := newWorld(t, func(o *temporalui.Options) { o.UI = http.HandlerFunc(own) })
	for _, c := range []struct {
		name, path, policy, frames string
		header                     map[string]string
	}{
		{"a page", "/temporal/page", "of the page", "SAMEORIGIN", bearer(token)},
		{"anything else", "/temporal/x.js", "default-src 'none'; frame-ancestors 'self'", "SAMEORIGIN", bearer(token)},
		{"a refusal", "/temporal", "default-src 'none'; frame-ancestors 'self'", "SAMEORIGIN", nil},
		{"the form", "/temporal", "frame-ancestors 'none'", "DENY", map[string]string{"Accept": "text/html"}},
	} {
		got := w.send(w.browser(), http.MethodGet, c.path, "", c.header).Header
		if policy := got.Values("Content-Security-Policy"); len(policy) != 1 || !strings.HasSuffix(policy[0], c.policy) {
			t.Errorf("%s has the policy %q, want %q", c.name, policy, c.policy)
		}
		for name, want := range map[string]string{
			"X-Frame-Options": c.frames, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin",
			"Cross-Origin-Resource-Policy": "same-origin", "Cache-Control": "no-store",
		} {
			if !slices.Equal(got.Values(name), []string{want}) {
				t.Errorf("%s has %s: %q, want %q", c.name, name, got.Values(name), want)
			}
		}
	}
}

func TestFormShowsAddressAsText(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	got := w.send(w.browser(), http.MethodGet, `/temporal/%22%3E%3Cscript%3E?%22><script>`, "", map[string]string{"Accept": "text/html"})
	if got.StatusCode != http.StatusUnauthorized || strings.Contains(got.body, "<script>") || !strings.Contains(got.body, "/data/server.json") {
		t.Errorf("%d %s", got.StatusCode, got.body)
	}
}

func TestWithoutInterface(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *temporalui.Options) { o.UI = nil })
	for _, header := range []map[string]string{nil, bearer(token)} {
		got := w.send(w.browser(), http.MethodGet, "/temporal/namespaces", "", header)
		if got.StatusCode != http.StatusNotFound || !strings.Contains(got.body, "ERRAND_TEMPORAL_ADDRESS") {
			t.Errorf("%d %s", got.StatusCode, got.body)
		}
	}
}

func TestPublicURLMustBeOne(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"", "errand.example.com", "http://%"} {
		if _, err := temporalui.New(temporalui.Options{PublicURL: address}); err == nil {
			t.Errorf("%q is taken for a URL", address)
		}
	}
}
