//go:build unix

package host_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/activities/machine"
	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/process"
	"github.com/errandhq/errand/worker/host"
)

// stubbornRunner fails to end leftovers a few times.
type stubbornRunner struct {
	host.Runner
	mu           sync.Mutex
	failures     int
	tries        int
	startedEarly bool
}

func (r *stubbornRunner) EndLeftover(automation.StepRef, *process.Info) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tries++
	if r.failures > 0 {
		r.failures--
		return 0, errors.New("it hangs in the kernel")
	}
	return 1, nil
}

// count returns how often leftovers were to be ended.
func (r *stubbornRunner) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tries
}

func (r *stubbornRunner) Start(step automation.ConcreteStep) machine.Execution {
	r.mu.Lock()
	r.startedEarly = r.startedEarly || r.failures > 0
	r.mu.Unlock()
	return r.Runner.Start(step)
}

func newControlPlane(t *testing.T, handler http.HandlerFunc, silence time.Duration) *host.HTTPControlPlane {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	c, err := host.NewControlPlane(server.URL+"/below/", newHTTPClient(), silence)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestEventStream(t *testing.T) {
	t.Parallel()
	end := automation.Event{Kind: automation.EventEnd, StepRef: automation.StepRef{RunID: "r", StepID: "s"}, Execution: 3}
	tests := map[string]struct {
		stream string
		want   []automation.Event
	}{
		"events": {
			stream: "event: ping\ndata: {}\n\nevent: end\ndata: {\"kind\":\"end\",\"runId\":\"r\",\"stepId\":\"s\",\"execution\":3}\n\n",
			want:   []automation.Event{{Kind: automation.EventPing}, end},
		},
		"carriage returns, comments, ids": {
			stream: ": hello\r\nid: 7\r\nevent: end\r\ndata: {\"runId\":\"r\",\"stepId\":\"s\",\r\ndata: \"execution\":3}\r\n\r\n",
			want:   []automation.Event{end},
		},
		"no data":                {stream: "event: revoked\n\n", want: []automation.Event{{Kind: automation.EventRevoked}}},
		"unreadable data passes": {stream: "event: end\ndata: {\n\nevent: ping\n\n", want: []automation.Event{{Kind: automation.EventPing}}},
		"cut in the middle":      {stream: "event: end\ndata: {\"runId\":\"r\"}\n"},
		"too long":               {stream: "data: " + strings.Repeat("x", 100<<10) + "\n\nevent: ping\n\n"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newControlPlane(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/below/v1/machine/events" {
					t.Errorf("path %s", r.URL.Path)
				}
				_, _ = fmt.Fprint(w, test.stream)
			}, 0)
			var got []automation.Event
			if err := c.Events(t.Context(), func(e automation.Event) { got = append(got, e) }); err == nil {
				t.Error("the end of the stream is no error")
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSilentStreamIsGivenUp(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]string{"from the start": "", "after an event": "event: ping\ndata: {}\n\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newControlPlane(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = fmt.Fprint(w, first)
				if first != "" {
					_ = http.NewResponseController(w).Flush()
				}
				<-r.Context().Done()
			}, 20*time.Millisecond)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			err := c.Events(ctx, func(automation.Event) {})
			if err == nil || !strings.Contains(err.Error(), "silent") {
				t.Errorf("the stream ended with %v", err)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		status int
		body   string
		code   automation.Code // "" for trouble that passes
		final  bool
	}{
		"not found":         {404, `{"error":{"code":"not_found","message":"no"}}`, automation.CodeNotFound, true},
		"forbidden":         {403, `{"error":{"code":"forbidden","message":"the worker on host b has it"}}`, automation.CodeForbidden, true},
		"too large":         {413, `{"error":{"code":"payload_too_large","message":"no"}}`, automation.CodePayloadTooLarge, true},
		"unauthorized":      {401, `{"error":{"code":"unauthorized","message":"no"}}`, automation.CodeUnauthorized, false},
		"rate limited":      {429, `{"error":{"code":"rate_limited","message":"no"}}`, automation.CodeRateLimited, false},
		"request timeout":   {408, `{"error":{"code":"internal","message":"no"}}`, automation.CodeInternal, false},
		"store unavailable": {503, `{"error":{"code":"store_unavailable","message":"no"}}`, automation.CodeStoreUnavailable, false},
		"a page":            {404, `<html>`, "", false},
		"other JSON":        {404, `{"message":"no route"}`, "", false},
		"nothing":           {502, ``, "", false},
		"no content":        {204, ``, "", false},
		"broken":            {200, `{"accepted":`, "", false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newControlPlane(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(test.status)
				_, _ = fmt.Fprint(w, test.body)
			}, 0)
			_, err := c.Finish(t.Context(), automation.FinishRequest{})
			if err == nil {
				t.Fatal("no error")
			}
			refusal, ok := errors.AsType[*host.RefusalError](err)
			if ok != (test.code != "") {
				t.Fatalf("error %v", err)
			}
			if ok && (refusal.Code != test.code || refusal.Final() != test.final) {
				t.Errorf("code %s, final %t", refusal.Code, refusal.Final())
			}
		})
	}
}

func TestResultsAreNotEscapedOnTheirWay(t *testing.T) {
	t.Parallel()
	var length int64
	c := newControlPlane(t, func(w http.ResponseWriter, r *http.Request) {
		length = r.ContentLength
		_, _ = fmt.Fprint(w, `{"accepted":true}`)
	}, 0)
	result := `"` + strings.Repeat("<&>", 1000) + `"`
	if _, err := c.Finish(t.Context(), automation.FinishRequest{Result: []byte(result)}); err != nil {
		t.Fatal(err)
	}
	if length > int64(len(result))+200 {
		t.Errorf("a result of %d bytes became a request of %d", len(result), length)
	}
}

func TestResultThatIsNoJSONIsARefusal(t *testing.T) {
	t.Parallel()
	c := newControlPlane(t, func(http.ResponseWriter, *http.Request) { t.Error("it was sent") }, 0)
	_, err := c.Finish(t.Context(), automation.FinishRequest{Result: []byte("{")})
	if refusal, ok := errors.AsType[*host.RefusalError](err); !ok || !refusal.Final() {
		t.Errorf("error %v", err)
	}
}

func TestControlPlaneURLs(t *testing.T) {
	t.Parallel()
	for _, base := range []string{"", "errand.example", "ftp://errand.example", "http://", "http://[::1"} {
		if _, err := host.NewControlPlane(base, http.DefaultClient, 0); err == nil {
			t.Errorf("%q was accepted", base)
		}
	}
}
