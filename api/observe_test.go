package api_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/automation"
)

// figures is what a world shows at /metrics.
const figures = "errand_something 1\n"

// calls is an observer that passes on what it is told. What finds no place is lost.
type calls struct{ told chan string }

func (c calls) note(format string, args ...any) {
	select {
	case c.told <- fmt.Sprintf(format, args...):
	default:
	}
}

// next returns what is told next. A call is observed a moment after its answer.
func (c calls) next(t testing.TB) string {
	t.Helper()
	select {
	case told := <-c.told:
		return told
	case <-time.After(10 * time.Second):
		t.Fatal("nothing is told")
		return ""
	}
}

// until waits until something is told.
func (c calls) until(t testing.TB, want string) {
	t.Helper()
	for c.next(t) != want {
	}
}

func (c calls) CallAnswered(method, route string, status int, took time.Duration) {
	c.note("%s %s %d", method, route, status)
	if took > 0 {
		c.note("it took some time")
	}
}

func (c calls) CredentialRefused(kind automation.CredentialKind) { c.note("refused %s", kind) }
func (c calls) CallLimited(limit automation.CallLimit)           { c.note("limited %s", limit) }

// frozen is a clock that stands.
func frozen() time.Time { return time.Unix(1_800_000_000, 0) }

func anonymous(r *http.Request) { r.Header.Del("Authorization") }

// TestMetricsAreForAdministrators: everybody's runs are in them.
func TestMetricsAreForAdministrators(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	admin, _ := w.key("admin", "")
	control, _ := w.key("control", "")
	read, _ := w.key("read", "")
	for name, test := range map[string]struct {
		as     func(*http.Request)
		status int
	}{
		"the token of this computer": {func(*http.Request) {}, http.StatusOK},
		"an admin":                   {bearer(admin), http.StatusOK},
		"control":                    {bearer(control), http.StatusForbidden},
		"read":                       {bearer(read), http.StatusForbidden},
		"a machine":                  {asMachine, http.StatusForbidden},
		"nobody":                     {anonymous, http.StatusUnauthorized},
		"a page of another site":     {func(r *http.Request) { r.Host = "evil.example.com" }, http.StatusForbidden},
	} {
		a := w.do("GET", "/metrics", "", test.as)
		if a.status != test.status || (string(a.body) == figures) != (test.status == http.StatusOK) {
			t.Errorf("as %s: %d %s", name, a.status, a.body)
		}
	}
}

// TestCallsAreObserved: by the pattern of their route, however they end.
func TestCallsAreObserved(t *testing.T) {
	t.Parallel()
	w := newWorldAt(t, frozen)
	automationID := w.create()
	w.observed.until(t, "POST /v1/automations 201")
	const enrolment = `{"code":"","publicKey":{},"proof":"","name":"","platform":"","version":""}`
	for _, test := range []struct {
		method, path, body string
		as                 func(*http.Request)
		want               []string
	}{
		{"GET", "/v1/automations/" + automationID, "", nil, []string{"GET /v1/automations/{automation_id} 200"}},
		{"GET", "/v1/automations/" + newID(), "", nil, []string{"GET /v1/automations/{automation_id} 404"}},
		{"GET", "/v1/automations/" + panicID, "", nil, []string{"GET /v1/automations/{automation_id} 500"}},
		{"GET", "/no/such/" + newID(), "", nil, []string{"other other 404"}},
		{"BREW", "/v1/runs", "", nil, []string{"other other 404"}},
		{"GET", "/v1/runs", "", func(r *http.Request) { r.Host = "evil.example.com" }, []string{"GET /v1/runs 403"}},
		{"GET", "/v1/runs", "", anonymous, []string{"refused none", "GET /v1/runs 401"}},
		{"GET", "/v1/runs", "", bearer("nonsense"), []string{"refused token", "GET /v1/runs 401"}},
		{"POST", "/v1/machine/alive", "", header("Authorization", "DPoP nonsense"), []string{"refused machine", "POST /v1/machine/alive 401"}},
		{"POST", "/v1/machine/token", "", header("Authorization", "Machine nonsense"), []string{"refused machine", "POST /v1/machine/token 401"}},
		{"POST", "/v1/machine/enroll", enrolment, anonymous, []string{"refused code", "POST /v1/machine/enroll 401"}},
		{"POST", "/hooks/" + newID(), "{}", anonymous, []string{"POST /hooks/{id} 401"}},
	} {
		var changes []func(*http.Request)
		if test.as != nil {
			changes = append(changes, test.as)
		}
		w.do(test.method, test.path, test.body, changes...)
		var got []string
		for range test.want {
			got = append(got, w.observed.next(t))
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s %s is observed otherwise (-want +got):\n%s", test.method, test.path, diff)
		}
	}
}

// TestTheTimeOfACallIsObserved by the API's clock.
func TestTheTimeOfACallIsObserved(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	now := time.Unix(1_800_000_000, 0)
	w := newWorldAt(t, func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		now = now.Add(time.Second)
		return now
	})
	w.do("GET", "/healthz", "")
	w.observed.until(t, "GET /healthz 200")
	if told := w.observed.next(t); told != "it took some time" {
		t.Errorf("after the call %q is told", told)
	}
}

// TestLimitedCallsAreObserved by what they have too many of.
func TestLimitedCallsAreObserved(t *testing.T) {
	t.Parallel()
	w := newWorldWith(t, func(o *worldOptions) { o.rate, o.now = 2, frozen })
	key, _ := w.key("read", "")
	for _, test := range []struct {
		limit string
		call  func() answer
	}{
		{"caller", func() answer { return w.do("GET", "/v1/runs", "", bearer(key)) }},
		{"wrong_credentials", func() answer { return w.do("GET", "/v1/runs", "", bearer("nonsense")) }},
		{"enrolments", func() answer { return w.do("POST", "/v1/machine/enroll", "{}", anonymous) }},
	} {
		for calls := 0; test.call().status != http.StatusTooManyRequests; calls++ {
			if calls > 1000 {
				t.Fatalf("%s: nothing is refused", test.limit)
			}
		}
		w.observed.until(t, "limited "+test.limit)
	}
}
