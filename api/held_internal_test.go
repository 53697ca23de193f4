package api

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/catalog"
	"github.com/errandhq/errand/internal/inflight"
)

// anybody is called as the token says.
type anybody struct{}

func (anybody) Local(string) bool { return false }

func (anybody) User(_ context.Context, token string) (catalog.Principal, error) {
	return catalog.Principal{
		OwnerID: token, Scope: automation.ScopeRead, Actor: automation.Actor{Kind: automation.ActorKey, ID: token},
	}, nil
}

// served returns an API whose handler of MCP says that it was reached, and then waits until it may go on.
func served(t *testing.T) (a *API, reached chan string, goOn chan struct{}) {
	t.Helper()
	reached, goOn = make(chan string, 10), make(chan struct{})
	a, err := New(Options{
		Users: anybody{}, Now: time.Now, NewID: func() string { return "id" }, AllowedHosts: []string{"127.0.0.1"},
		Logger: slog.New(slog.DiscardHandler),
		MCP: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			reached <- catalog.PrincipalOf(r.Context()).Actor.ID
			<-goOn
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	return a, reached, goOn
}

func (a *API) call(token string, body io.Reader) *httptest.ResponseRecorder {
	request := httptest.NewRequest(http.MethodPost, "/mcp", body)
	request.Host = "127.0.0.1"
	request.Header.Set("Authorization", "Bearer "+token)
	answer := httptest.NewRecorder()
	a.ServeHTTP(answer, request)
	return answer
}

func wantTooMuch(t *testing.T, what string, answer *httptest.ResponseRecorder, part string) {
	t.Helper()
	if answer.Code != http.StatusTooManyRequests || answer.Header().Get("Retry-After") == "" || !strings.Contains(answer.Body.String(), part) {
		t.Errorf("%s: %d %s", what, answer.Code, answer.Body)
	}
}

// TestACallerHoldsSoMuch: bodies that are still coming, bodies that are in use and answers that are not taken count
// together, for each caller by itself.
func TestACallerHoldsSoMuch(t *testing.T) {
	t.Parallel()
	a, reached, goOn := served(t)
	a.held = inflight.New(100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.call("ann", strings.NewReader(strings.Repeat("x", 60)))
	}()
	<-reached
	wantTooMuch(t, "a second large body", a.call("ann", strings.NewReader(strings.Repeat("x", 60))), "large requests")
	a.held.Add("key ann", 50) // as an answer that is being written
	wantTooMuch(t, "while an answer is not taken", a.call("ann", strings.NewReader("")), "large requests")
	close(goOn)
	if answer := a.call("ben", strings.NewReader(strings.Repeat("x", 60))); answer.Code != http.StatusOK || <-reached != "ben" {
		t.Errorf("another caller: %d %s", answer.Code, answer.Body)
	}
	<-done
	a.held.Give("key ann", 50)
	if answer := a.call("ann", strings.NewReader(strings.Repeat("x", 100))); answer.Code != http.StatusOK {
		t.Errorf("when all is over: %d %s", answer.Code, answer.Body)
	}
}

// TestAnAnswerWithoutRoom: what was only read is dropped when the caller's other answers are not taken; what says that
// something was changed is sent.
func TestAnAnswerWithoutRoom(t *testing.T) {
	t.Parallel()
	a, _, _ := served(t)
	a.held = inflight.New(100)
	a.held.Add("key ann", 101)
	for method, code := range map[string]int{http.MethodGet: http.StatusTooManyRequests, http.MethodPost: http.StatusOK} {
		out := httptest.NewRecorder()
		c, _ := gin.CreateTestContext(out)
		c.Request = httptest.NewRequest(method, "/", http.NoBody)
		c.Set(keyCaller, "key ann")
		a.answer(c, http.StatusOK, map[string]string{"a": "b"})
		if out.Code != code {
			t.Errorf("%s: %d %s", method, out.Code, out.Body)
		}
	}
	a.held.Give("key ann", 101)
	if !a.held.Take("key ann", 100) {
		t.Error("an answer was not given back")
	}
}

// TestACallerTakesNotAllOfMCP: one who lets calls wait leaves room for others.
func TestACallerTakesNotAllOfMCP(t *testing.T) {
	t.Parallel()
	a, reached, goOn := served(t)
	a.mcpCalls = inflight.New(1)
	done := make(chan struct{}, 2)
	for _, who := range []string{"ann", "ben"} {
		go func() {
			a.call(who, strings.NewReader("{}"))
			done <- struct{}{}
		}()
		if got := <-reached; got != who {
			t.Errorf("%s was served instead of %s", got, who)
		}
	}
	wantTooMuch(t, "a second call", a.call("ann", strings.NewReader("{}")), "same time")
	close(goOn)
	<-done
	<-done
	if answer := a.call("ann", strings.NewReader("{}")); answer.Code != http.StatusOK {
		t.Errorf("when the first has ended: %d %s", answer.Code, answer.Body)
	}
}

// TestTemporalUIHasTheTimeThatItNeeds: the deadline of a body ends with the body.
func TestTemporalUIHasTheTimeThatItNeeds(t *testing.T) {
	t.Parallel()
	var set []time.Time
	a, err := New(Options{
		Now: time.Now, NewID: func() string { return "id" }, AllowedHosts: []string{"127.0.0.1"}, Logger: slog.New(slog.DiscardHandler),
		TemporalUI: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.ReadAll(r.Body) }),
	})
	if err != nil {
		t.Fatal(err)
	}
	request := httptest.NewRequest(http.MethodPost, "/temporal/api/v1/x", strings.NewReader("{}"))
	request.Host = "127.0.0.1"
	a.ServeHTTP(readDeadlines{httptest.NewRecorder(), &set}, request)
	if len(set) != 2 || set[0].IsZero() || !set[1].IsZero() {
		t.Errorf("read deadlines %v, want one and its end", set)
	}
}

// readDeadlines remembers the read deadlines of a connection.
type readDeadlines struct {
	*httptest.ResponseRecorder
	set *[]time.Time
}

func (d readDeadlines) SetReadDeadline(t time.Time) error {
	*d.set = append(*d.set, t)
	return nil
}
