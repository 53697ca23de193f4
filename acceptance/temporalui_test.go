//go:build unix

package acceptance_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/apptest"
)

const (
	// browserVariable names a browser to test with.
	browserVariable = "ERRAND_TEST_BROWSER"
	// browserPatience bounds every wait for a page. The first one takes seconds on a busy computer.
	browserPatience = time.Minute
	// temporalAPI is where the interface calls Temporal.
	temporalAPI = "/temporal/api/v1/namespaces/errand"
)

// browserNames are programs that speak the protocol of Chromium, those of tools/ensure-chromium.
var browserNames = []string{"chromium", "google-chrome", "google-chrome-stable"}

func browserPath(t *testing.T) string {
	t.Helper()
	names := browserNames
	if name := os.Getenv(browserVariable); name != "" {
		names = []string{name}
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Fatalf("the browser for this test is missing (%s): install Debian's package chromium (`make chromium` does), or "+
		"Google Chrome, or name one in %s", strings.Join(names, ", "), browserVariable)
	return ""
}

// tab is a tab of a browser that was started for one test.
type tab struct {
	*testing.T
	ctx context.Context
}

// openTab starts a browser. It ends with the test.
func openTab(t *testing.T) *tab {
	t.Helper()
	allocator, cancel := chromedp.NewExecAllocator(t.Context(), chromedp.ExecPath(browserPath(t)),
		chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun,
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("disable-quic", true), chromedp.Flag("disable-sync", true))
	ctx, cancelTab := chromedp.NewContext(allocator)
	t.Cleanup(func() {
		cancelTab()
		cancel()
	})
	b := &tab{T: t, ctx: ctx}
	if err := chromedp.Do(ctx, chromedp.Navigate("about:blank")); err != nil {
		t.Fatalf("starting the browser: %v", err)
	}
	return b
}

// run runs an action of the browser, within a time.
func run[R any](b *tab, what string, action chromedp.Action[R]) R {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, browserPatience)
	defer cancel()
	result, err := chromedp.Run(ctx, action)
	if err != nil {
		b.Fatalf("%s: %v", what, err)
	}
	return result
}

// open opens an address and returns the status of its document.
func (b *tab) open(address string) int {
	b.Helper()
	return int(run(b, "opening "+address, chromedp.NavigateResponse(address)).Status)
}

// awaitText waits until the page shows all of the words.
func (b *tab) awaitText(words ...string) {
	b.Helper()
	apptest.Eventually(b, browserPatience, fmt.Sprintf("the page shows %q", words), func() (string, bool) {
		text := run(b, "reading the page", chromedp.Evaluate[string]("location.href + '\\n' + (document.body?.innerText ?? '')"))
		for _, word := range words {
			if !strings.Contains(text, word) {
				return text, false
			}
		}
		return "", true
	})
}

// follow clicks a link, by script: the page moves while it loads, and a mouse would miss.
func (b *tab) follow(link string) {
	b.Helper()
	run(b, "following "+link, chromedp.Evaluate[chromedp.Void](fmt.Sprintf("document.querySelector(%q).click()", link)))
}

// fetch makes the page send a request and returns the status of the answer.
func (b *tab) fetch(method, address, body string) int {
	b.Helper()
	script := fmt.Sprintf("fetch(%q, {method: %q, body: %q, headers: {'Content-Type': 'application/json'}}).then(r => r.status)", address, method, body)
	return run(b, method+" "+address, chromedp.Evaluate[int](script, chromedp.EvalAwaitPromise))
}

// watchConsole collects what the console shows from now on, and returns what is an error or a warning.
func (b *tab) watchConsole() func() []string {
	ctx, stop := context.WithCancel(b.ctx)
	b.Cleanup(stop)
	messages := chromedp.Console(ctx)
	collected := make(chan []string)
	go func() {
		var problems []string
		for message, err := range messages {
			if err != nil {
				break
			}
			if message.IsException() || message.Type == "error" || message.Type == "warning" || message.Type == "assert" {
				problems = append(problems, message.String()+" ("+message.URL+")")
			}
		}
		collected <- problems
	}()
	return func() []string {
		stop()
		return <-collected
	}
}

// TestTemporalUI looks at a run, a schedule and a note in Temporal's web interface as an operator does.
func TestTemporalUI(t *testing.T) {
	t.Parallel()
	b := openTab(t)
	s := apptest.Start(t, apptest.Options{})
	checkNoWayIn(t, s)
	finished := s.WaitRun(s.RunNow(s.Create(greeting), nil).ID, automation.RunCompleted)
	prepareTemporal(t, s)

	signIn(b, s)
	problems := b.watchConsole()
	b.open(s.URL() + "/temporal/namespaces/errand/workflows")
	b.awaitText("AutomationRun", "/run/"+finished.ID+"/", "noted")
	b.follow(fmt.Sprintf("a[href*=%q]", finished.ID))
	b.awaitText("AutomationRun", "Event History", "Completed")
	place := run(b, "reading the address", chromedp.Location())
	b.open(place[:strings.LastIndex(place, "/")] + "/history")
	b.awaitText("Workflow Execution Started", "Greeting · manual", "ExecuteCommand", "greet · echo", "Workflow Execution Completed")

	b.open(s.URL() + "/temporal/namespaces/errand/schedules")
	b.awaitText("nightly", "Every 1 hour(s)")
	b.open(s.URL() + "/temporal/namespaces/errand/schedules/nightly")
	b.awaitText("nightly", "Upcoming Runs", "made by hand")

	b.open(s.URL() + "/temporal/namespaces/errand/workflows/noted")
	b.awaitText("noted", "User Metadata")
	b.follow("a[href$=user-metadata]")
	apptest.Eventually(b, browserPatience, "the note is rendered", func() (string, bool) {
		html := run(b, "reading the note", chromedp.Evaluate[string](
			"[...document.querySelectorAll('iframe')].map(f => f.contentDocument?.body?.innerHTML).join()"))
		return html, strings.Contains(html, "All is <strong>well</strong>")
	})
	if status := b.fetch(http.MethodPost, temporalAPI+"/workflows/noted/signal/hello", `{"requestId":"1"}`); status != http.StatusOK {
		t.Errorf("a signal from the interface is answered with %d", status)
	}
	if seen := problems(); len(seen) > 0 {
		t.Errorf("the console shows:\n%s", strings.Join(seen, "\n"))
	}
	checkForeignPage(b, s)
}

// greeting is an automation of one step.
var greeting = map[string]any{
	"name": "Greeting",
	"workflow": map[string]any{"compiled": map[string]any{"version": 2, "steps": []any{
		map[string]any{"id": "greet", "kind": "command", "command": "echo", "args": []string{"hello"}},
	}}},
}

// checkNoWayIn checks that nothing below /temporal is served to a stranger.
func checkNoWayIn(t *testing.T, s *apptest.Server) {
	t.Helper()
	for _, path := range []string{
		"/temporal", "/temporal/", "/temporal/namespaces", "/temporal/favicon.ico", "/temporal/_app/version.json",
		"/temporal/render?content=x", "/temporal/api/v1/settings", "/temporal/api/v1/namespaces", temporalAPI + "/workflows",
	} {
		for _, credential := range []string{"", "Bearer wrong", "Basic " + s.Token()} {
			request := s.Request(http.MethodGet, path, nil)
			request.Header.Set("Authorization", credential)
			if status, body := s.Do(request); status != http.StatusUnauthorized {
				t.Errorf("GET %s with the credential %q is answered with %d: %s", path, credential, status, body)
			}
		}
	}
	request := s.Request(http.MethodGet, "/temporal", nil)
	request.Host = "rebound.example.com"
	if status, body := s.Do(request); status != http.StatusForbidden {
		t.Errorf("under another name the interface answers with %d: %s", status, body)
	}
}

// prepareTemporal makes a schedule, and a workflow with a note in Markdown, in the way in which programs can.
func prepareTemporal(t *testing.T, s *apptest.Server) {
	t.Helper()
	payload := func(json string) map[string]any {
		encode := base64.StdEncoding.EncodeToString
		return map[string]any{
			"metadata": map[string]any{"encoding": encode([]byte("json/plain"))}, "data": encode([]byte(json)),
		}
	}
	nothing := map[string]any{
		"workflowId": "scheduled", "workflowType": map[string]any{"name": "Nothing"}, "taskQueue": map[string]any{"name": "nobody"},
	}
	for path, body := range map[string]map[string]any{
		"/schedules/nightly": {"requestId": "1", "schedule": map[string]any{
			"spec":   map[string]any{"interval": []any{map[string]any{"interval": "3600s"}}},
			"action": map[string]any{"startWorkflow": nothing},
			"state":  map[string]any{"notes": "made by hand"},
		}},
		"/workflows/noted": {
			"requestId": "1", "workflowType": nothing["workflowType"], "taskQueue": nothing["taskQueue"],
			"userMetadata": map[string]any{"summary": payload(`"a note"`), "details": payload(`"All is **well**"`)},
		},
	} {
		if status, answer := s.Post(temporalAPI+path, body); status != http.StatusOK {
			t.Fatalf("POST %s: %d %s", path, status, answer)
		}
	}
}

// signIn signs in at the form that a stranger is shown, with a wrong token first, and comes to where it was going.
func signIn(b *tab, s *apptest.Server) {
	b.Helper()
	wanted := s.URL() + "/temporal/namespaces/errand/workflows"
	if status := b.open(wanted); status != http.StatusUnauthorized {
		b.Errorf("a stranger gets %d", status)
	}
	for _, try := range []struct {
		token, place string
		status       int64
	}{
		{"wrong", s.URL() + "/temporal/login", http.StatusUnauthorized},
		{s.Token(), wanted, http.StatusOK},
	} {
		ctx, cancel := context.WithTimeout(b.ctx, browserPatience)
		answer, err := chromedp.RunResponse(ctx,
			chromedp.SendKeys(chromedp.ID("token"), try.token), chromedp.Click(chromedp.CSS("button")))
		cancel()
		if err != nil {
			b.Fatalf("signing in: %v", err)
		}
		if answer.Status != try.status || answer.URL != try.place {
			b.Errorf("signing in leads to %d at %s, want %d at %s", answer.Status, answer.URL, try.status, try.place)
		}
	}
	if cookies := run(b, "reading the cookies", chromedp.Evaluate[string]("document.cookie")); cookies != "" {
		b.Errorf("scripts of the page see the cookies %s", cookies)
	}
}

// checkForeignPage checks that a page of another server on this computer, which the browser takes for the same site and
// to whose requests it adds our cookie, can neither act, nor read, nor show the interface in a frame.
func checkForeignPage(b *tab, s *apptest.Server) {
	b.Helper()
	foreign := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprintf(w, "<title>foreign</title><iframe src=%q></iframe>", s.URL()+"/temporal")
	}))
	b.Cleanup(foreign.Close)
	b.open(foreign.URL)
	terminate := s.URL() + temporalAPI + "/workflows/noted/terminate"
	for _, script := range []string{
		fmt.Sprintf("fetch(%q, {method: 'POST', mode: 'no-cors', credentials: 'include', body: '{}'}).then(r => r.type, () => 'failed')", terminate),
		fmt.Sprintf("fetch(%q, {credentials: 'include'}).then(r => 'read ' + r.status, () => 'failed')", s.URL()+temporalAPI+"/workflows"),
	} {
		if got := run(b, script, chromedp.Evaluate[string](script, chromedp.EvalAwaitPromise)); got != "failed" && got != "opaque" {
			b.Errorf("a foreign page gets %q from %s", got, script)
		}
	}
	if status, body := s.Get(temporalAPI + "/workflows/noted"); status != http.StatusOK ||
		!strings.Contains(string(body), "WORKFLOW_EXECUTION_STATUS_RUNNING") {
		b.Errorf("a foreign page ended a workflow: %d %s", status, body)
	}
}
