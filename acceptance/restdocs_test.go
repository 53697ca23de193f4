//go:build unix

package acceptance_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/errandhq/errand/internal/apptest"
	"github.com/errandhq/errand/internal/catalog"
)

// TestRESTDocs looks at the page that describes REST as somebody does who has no token yet: it shows every command,
// and asks no other host for anything.
func TestRESTDocs(t *testing.T) {
	t.Parallel()
	b := openTab(t)
	s := apptest.Start(t, apptest.Options{NoLocalWorker: true})
	problems := b.watchConsole()
	if status := b.open(s.URL() + "/docs"); status != http.StatusOK {
		t.Fatalf("/docs is answered with %d", status)
	}
	b.awaitText("Errand", "OAS 3.1")
	var summaries []string
	for _, command := range catalog.Commands() {
		summaries = append(summaries, "/v1"+command.Route.Path, command.Summary)
	}
	b.awaitText(summaries...)
	b.follow("#operations-automations-update .opblock-summary-control")
	b.awaitText("If-Match", "expected_version", "version_conflict")
	for _, name := range run(b, "listing what was loaded", chromedp.Evaluate[[]string](
		"performance.getEntriesByType('resource').map(r => r.name)")) {
		if !strings.HasPrefix(name, s.URL()+"/") && !strings.HasPrefix(name, "data:") {
			t.Errorf("the page loads %s", name)
		}
	}
	if seen := problems(); len(seen) > 0 {
		t.Errorf("the console shows:\n%s", strings.Join(seen, "\n"))
	}
}
