package automation_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/errandhq/errand/automation"
)

func TestShorten(t *testing.T) {
	t.Parallel()
	const most = 400
	for _, text := range []string{
		"", "short", strings.Repeat("a", 400), strings.Repeat("a", 401), strings.Repeat("ä", 300), strings.Repeat("語", 200),
	} {
		got := automation.Shorten(text, most)
		if len(got) > most || !utf8.ValidString(got) {
			t.Errorf("%d bytes, valid %v", len(got), utf8.ValidString(got))
		}
		if len(text) <= most && got != text {
			t.Errorf("a text that fits was changed: %q", got)
		}
		if len(text) > most && (!strings.HasSuffix(got, "…") || len(got) < most-6) {
			t.Errorf("cut to %d bytes: %q", len(got), got)
		}
	}
}

func TestWorkflowSummaryFitsTemporal(t *testing.T) {
	t.Parallel()
	if got := automation.WorkflowSummary("Backup", automation.TriggerManual); got != "Backup · manual" {
		t.Errorf("%q", got)
	}
	if got := automation.WorkflowSummary(strings.Repeat("語", automation.MaxNameLength), automation.TriggerSchedule); len(got) > 400 {
		t.Errorf("%d bytes", len(got))
	}
}
