package embedded_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/errandhq/errand/internal/embedded"
)

// uiAnswer is what the web interface, mounted at /temporal, says to a request.
func uiAnswer(t *testing.T, ui http.Handler, method, path, body string) *httptest.ResponseRecorder {
	t.Helper()
	request := httptest.NewRequestWithContext(testContext(t), method, path, strings.NewReader(body))
	request.Header.Set("Content-Type", "application/json")
	answer := httptest.NewRecorder()
	ui.ServeHTTP(answer, request)
	return answer
}

func TestUI(t *testing.T) {
	t.Parallel()
	server := start(t, embedded.Options{Dir: t.TempDir()})
	ui, err := server.UI("/temporal")
	if err != nil {
		t.Fatal(err)
	}
	const workflow = "installation/run/1 %&?" // ids hold slashes, and nothing of an address may be lost
	startWorkflow(t, server, openWorkflow(workflow))
	description, err := dial(t, server).DescribeWorkflowExecution(testContext(t), workflow, "")
	if err != nil {
		t.Fatal(err)
	}
	of := "/temporal/api/v1/namespaces/errand/workflows/" + url.PathEscape(workflow)
	run := description.GetWorkflowExecutionInfo().GetExecution().GetRunId()

	for _, c := range []struct{ method, path, body, want string }{
		{http.MethodGet, "/temporal/api/v1/settings", "", `"DefaultNamespace":"errand"`},
		{http.MethodGet, "/temporal/api/v1/namespaces", "", `"name": "errand"`},
		{http.MethodGet, of, "", "WORKFLOW_EXECUTION_STATUS_RUNNING"},
		{http.MethodGet, of + "/history?execution.runId=" + run, "", "EVENT_TYPE_WORKFLOW_EXECUTION_STARTED"},
		{http.MethodGet, of + "/run/" + run + "/history.json", "", `"event_id":1`},
		{http.MethodPost, of + "/terminate", `{"reason":"tested"}`, ""},
		{http.MethodGet, of, "", "WORKFLOW_EXECUTION_STATUS_TERMINATED"},
		{http.MethodGet, "/temporal/render?content=All+is+**well**", "", "All is <strong>well</strong>"},
		{http.MethodGet, "/temporal/_app/version.json", "", `"version"`},
	} {
		got := uiAnswer(t, ui, c.method, c.path, c.body)
		if got.Code != http.StatusOK || !strings.Contains(got.Body.String(), c.want) {
			t.Errorf("%s %s: %d %s, want %s", c.method, c.path, got.Code, got.Body, c.want)
		}
	}
	server.Stop()
	if got := uiAnswer(t, ui, http.MethodGet, "/temporal/api/v1/namespaces", ""); got.Code < http.StatusBadRequest || !json.Valid(got.Body.Bytes()) {
		t.Errorf("after the stop: %d %s", got.Code, got.Body)
	}
}

// TestUIPage checks what a browser needs to run the page below its path, under its policy.
func TestUIPage(t *testing.T) {
	t.Parallel()
	server := start(t, embedded.Options{Dir: t.TempDir()})
	ui, err := server.UI("/temporal")
	if err != nil {
		t.Fatal(err)
	}
	page := uiAnswer(t, ui, http.MethodGet, "/temporal", "")
	for _, path := range []string{"/temporal/", "/temporal/namespaces/errand/workflows/a%2Fb/history", "/temporal/index.html", "/temporal/_app"} {
		if got := uiAnswer(t, ui, http.MethodGet, path, ""); got.Code != http.StatusOK || got.Body.String() != page.Body.String() {
			t.Errorf("%s is not the page: %d %s", path, got.Code, got.Body)
		}
	}

	text := page.Body.String()
	if !strings.Contains(text, `base: "/temporal"`) || strings.Contains(strings.ToLower(text), "http-equiv") {
		t.Errorf("the page is not moved: %s", text)
	}
	scripts := regexp.MustCompile(`(?s)<script[^>]*>(.*?)</script>`).FindAllStringSubmatch(text, -1)
	if len(scripts) != 1 {
		t.Fatalf("the page has %d scripts", len(scripts))
	}
	hash := sha256.Sum256([]byte(scripts[0][1]))
	allowed := "script-src 'self' 'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "';"
	if policy := page.Header().Get("Content-Security-Policy"); !strings.Contains(policy, allowed) {
		t.Errorf("the policy %s does not say %s", policy, allowed)
	}

	references := regexp.MustCompile(`"(/[^"]+)"`).FindAllStringSubmatch(text, -1)
	if len(references) < 10 {
		t.Errorf("the page refers to %d files only", len(references))
	}
	for _, reference := range references {
		got := uiAnswer(t, ui, http.MethodGet, reference[1], "")
		if reference[1] == "/temporal" {
			continue
		}
		if got.Code != http.StatusOK || strings.HasPrefix(got.Header().Get("Content-Type"), "text/html") {
			t.Errorf("%s: %d %s", reference[1], got.Code, got.Header().Get("Content-Type"))
		}
		if immutable := strings.Contains(reference[1], "/immutable/"); immutable != strings.Contains(got.Header().Get("Cache-Control"), "immutable") {
			t.Errorf("%s has Cache-Control: %s", reference[1], got.Header().Get("Cache-Control"))
		}
	}
}
