package workflows_test

import (
	"log/slog"
	"path/filepath"
	"testing"

	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/workflows"
)

// minHistories is how many histories are recorded at least; a replay of none proves nothing.
const minHistories = 18

// TestRecordedHistoriesReplay proves that workflows which are in flight during an upgrade go on: every history that
// an earlier version of them made leads today's code to the same commands.
func TestRecordedHistoriesReplay(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.json")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < minHistories {
		t.Fatalf("%d recorded histories, want at least %d", len(files), minHistories)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			replayer := worker.NewWorkflowReplayer()
			replayer.RegisterWorkflowWithOptions(workflows.AutomationRun, workflow.RegisterOptions{
				Name: automation.WorkflowAutomationRun,
			})
			replayer.RegisterWorkflowWithOptions(workflows.ScheduleTrigger, workflow.RegisterOptions{
				Name: automation.WorkflowScheduleTrigger,
			})
			quiet := log.NewStructuredLogger(slog.New(slog.DiscardHandler))
			if err := replayer.ReplayWorkflowHistoryFromJSONFile(quiet, file); err != nil {
				t.Error(err)
			}
		})
	}
}
