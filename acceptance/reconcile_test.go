//go:build unix

package acceptance_test

import (
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	_ "modernc.org/sqlite" // the driver of the ledger that is written to from outside

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/apptest"
)

// withinAMinute is how soon the ledger must show what an operator did in Temporal.
const withinAMinute = time.Minute

// atTemporal is an installation on a Temporal of its own, with an operator who may do anything there.
type atTemporal struct {
	t        *testing.T
	server   *apptest.Server
	operator client.Client
	dir      string
}

// resetTo resets the workflow of a run to one of its workflow tasks: choose is given how many have completed, and
// returns which one.
func resetTo(t *testing.T, c client.Client, run automation.Run, choose func(n int) int) {
	t.Helper()
	var completed []int64
	events := c.GetWorkflowHistory(t.Context(), run.WorkflowID, "", false, enums.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for events.HasNext() {
		event, err := events.Next()
		if err != nil {
			t.Fatal(err)
		}
		if event.GetEventType() == enums.EVENT_TYPE_WORKFLOW_TASK_COMPLETED {
			completed = append(completed, event.GetEventId())
		}
	}
	if len(completed) == 0 {
		t.Fatal("the workflow has done nothing yet")
	}
	event := completed[choose(len(completed))]
	_, err := c.ResetWorkflowExecution(t.Context(), &workflowservice.ResetWorkflowExecutionRequest{
		Namespace: client.DefaultNamespace, WorkflowExecution: &commonpb.WorkflowExecution{WorkflowId: run.WorkflowID},
		Reason: "to see what happens", WorkflowTaskFinishEventId: event, RequestId: fmt.Sprint(run.WorkflowID, event, time.Now()),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("reset to event %d of the workflow tasks %v", event, completed)
}

// deleteWorkflow removes a workflow with its history, as an operator can.
func deleteWorkflow(t *testing.T, c client.Client, run automation.Run) {
	t.Helper()
	_, err := c.WorkflowService().DeleteWorkflowExecution(t.Context(), &workflowservice.DeleteWorkflowExecutionRequest{
		Namespace: client.DefaultNamespace, WorkflowExecution: &commonpb.WorkflowExecution{WorkflowId: run.WorkflowID},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// executing admits a run of the marker whose gate is closed, and waits until its program runs.
func (a *atTemporal) executing() (run automation.Run, gate string) {
	a.t.Helper()
	gate = filepath.Join(a.dir, fmt.Sprintf("gate%d", time.Now().UnixNano()))
	run = a.server.RunNow(a.server.Create(marker(filepath.Join(a.dir, "marks"), gate)), nil)
	run = a.server.AwaitRun(run.ID, "the step executes", func(run automation.Run) bool {
		return run.Steps[0].Status == automation.StepRunning
	})
	return run, gate
}

// marksOf counts how often a run has executed its step.
func (a *atTemporal) marksOf(run automation.Run) int {
	a.t.Helper()
	content, err := os.ReadFile(filepath.Join(a.dir, "marks"))
	if err != nil {
		a.t.Fatal(err)
	}
	return strings.Count(string(content), run.ID)
}

// becomes waits until a run stands as it should after what an operator did at a time, and checks that this took less
// than a minute.
func (a *atTemporal) becomes(run automation.Run, began time.Time, want automation.RunStatus) automation.Run {
	a.t.Helper()
	run = a.server.WaitRun(run.ID, want)
	took := time.Since(began)
	a.t.Logf("the ledger said %s after %s", want, took.Round(time.Millisecond))
	if took > withinAMinute {
		a.t.Errorf("the ledger took %s to become %s", took, want)
	}
	return run
}

// TestWhatAnOperatorDoes terminates, cancels, resets and deletes workflows of runs in Temporal, and writes a run into
// the database that no workflow carries.
func TestWhatAnOperatorDoes(t *testing.T) {
	t.Parallel()
	temporal := apptest.NewTemporal(t)
	temporal.Start()
	a := &atTemporal{t: t, server: apptest.Start(t, apptest.Options{Env: temporal.Env()}), operator: operator(t, temporal), dir: t.TempDir()}
	a.server.AwaitWorker()
	for _, test := range []struct {
		name string
		run  func(t *testing.T, a *atTemporal)
	}{
		{"terminates", testTerminated},
		{"cancels", testCancelledInTemporal},
		{"resets", testReset},
		{"deletes", testDeletedWorkflow},
		{"inserts a run", testInsertedRun},
		{"dispatches a step again", testDispatchedTwice},
	} {
		t.Run(test.name, func(t *testing.T) {
			mine := *a
			mine.t = t
			test.run(t, &mine)
		})
	}
}

func testTerminated(t *testing.T, a *atTemporal) {
	run, _ := a.executing()
	began := time.Now()
	if err := a.operator.TerminateWorkflow(t.Context(), run.WorkflowID, "", "it was the wrong day"); err != nil {
		t.Fatal(err)
	}
	run = a.becomes(run, began, automation.RunCancelled)
	if !strings.HasPrefix(run.CancelReason, "terminated in Temporal by ") || !strings.HasSuffix(run.CancelReason, ": it was the wrong day") {
		t.Errorf("cancelled because %q", run.CancelReason)
	}
	if run.Steps[0].Status != automation.StepCancelled || run.Steps[0].Unconfirmed || a.marksOf(run) != 1 {
		t.Errorf("the step is %s after %d executions", run.Steps[0].Status, a.marksOf(run))
	}
	if pids := a.server.StepProcesses(""); len(pids) > 0 {
		t.Errorf("these processes of the step live on: %v", pids)
	}
}

func testCancelledInTemporal(t *testing.T, a *atTemporal) {
	run, _ := a.executing()
	began := time.Now()
	if err := a.operator.CancelWorkflow(t.Context(), run.WorkflowID, ""); err != nil {
		t.Fatal(err)
	}
	run = a.becomes(run, began, automation.RunCancelled)
	if run.CancelReason != "cancelled in Temporal" || a.marksOf(run) != 1 {
		t.Errorf("cancelled because %q, after %d executions", run.CancelReason, a.marksOf(run))
	}
}

func testReset(t *testing.T, a *atTemporal) {
	run, gate := a.executing()
	resetTo(t, a.operator, run, func(int) int { return 0 })
	open(t, gate)
	run = a.becomes(run, time.Now(), automation.RunCompleted)
	if run.Steps[0].Attempt != 1 || a.marksOf(run) != 1 || run.Restarted != nil {
		t.Errorf("%d executions, %d attempts, restarted: %v", a.marksOf(run), run.Steps[0].Attempt, run.Restarted)
	}
	// The reset of what has ended executes nothing.
	workflows := "WorkflowId = '" + run.WorkflowID + "' AND ErrandAutomationId = '" + run.AutomationID + "'"
	awaitWorkflows(t, a.operator, workflows, run)
	resetTo(t, a.operator, run, func(int) int { return 0 })
	awaitWorkflows(t, a.operator, workflows, run, run)
	if after := a.server.Run(run.ID); after.Status != automation.RunCompleted || after.Steps[0].Attempt != 1 || a.marksOf(run) != 1 {
		t.Errorf("after the reset of a run that had ended: %s, %d executions", after.Status, a.marksOf(run))
	}
}

func testDeletedWorkflow(t *testing.T, a *atTemporal) {
	run, gate := a.executing()
	began := time.Now()
	deleteWorkflow(t, a.operator, run)
	restarted := a.server.AwaitRun(run.ID, "the run has a new workflow", func(run automation.Run) bool { return run.Restarted != nil })
	if restarted.Restarted.Count != 1 || restarted.Restarted.Reason != "Temporal does not know its workflow any more" || restarted.WorkflowID == run.WorkflowID {
		t.Errorf("restarted as %s: %+v", restarted.WorkflowID, restarted.Restarted)
	}
	open(t, gate)
	run = a.becomes(run, began, automation.RunCompleted)
	if run.Steps[0].Attempt != 1 || a.marksOf(run) != 1 {
		t.Errorf("%d executions, %d attempts", a.marksOf(run), run.Steps[0].Attempt)
	}
	awaitWorkflows(t, a.operator, "ErrandAutomationId = '"+run.AutomationID+"'", restarted)
}

// testDispatchedTwice has a step dispatched again that is executing, and one that waits for a machine that is away: each
// executes once.
func testDispatchedTwice(t *testing.T, a *atTemporal) {
	again := func(run automation.Run) {
		t.Helper()
		notice := automation.DispatchNotice{StepID: run.Steps[0].ID}
		if err := a.operator.SignalWorkflow(t.Context(), run.WorkflowID, "", automation.DispatchSignal.Name, notice); err != nil {
			t.Fatal(err)
		}
		a.server.Await(patience, "the workflow has dispatched the step twice", func() (string, bool) {
			description, err := a.operator.DescribeWorkflowExecution(t.Context(), run.WorkflowID, "")
			if err != nil {
				return err.Error(), false
			}
			n := len(description.GetPendingActivities())
			return fmt.Sprint(n), n == 2
		})
	}
	executing, gate := a.executing()
	again(executing)
	open(t, gate)
	executing = a.becomes(executing, time.Now(), automation.RunCompleted)

	a.server.Interrupt()
	a.server.Options.NoLocalWorker = true
	a.server.Restart()
	waiting := a.server.RunNow(executing.AutomationID, nil)
	waiting = a.server.AwaitRun(waiting.ID, "the run waits for its machine", func(run automation.Run) bool {
		return run.WaitingFor != nil && run.WaitingFor.Reason == automation.WaitMachineOffline
	})
	again(waiting)
	a.server.StartWorker()
	waiting = a.server.WaitRun(waiting.ID, automation.RunCompleted)
	for _, run := range []automation.Run{executing, waiting} {
		awaitWorkflows(t, a.operator, "WorkflowId = '"+run.WorkflowID+"' AND ErrandAutomationId = '"+run.AutomationID+"'", run)
		if run.Steps[0].Attempt != 1 || a.marksOf(run) != 1 {
			t.Errorf("%d executions, %d attempts", a.marksOf(run), run.Steps[0].Attempt)
		}
	}
}

// testInsertedRun copies a run in the database, once as one that Temporal is said to hold, and once as one that nobody
// has started.
func testInsertedRun(t *testing.T, a *atTemporal) {
	gate := filepath.Join(a.dir, "open")
	open(t, gate)
	run := a.server.RunNow(a.server.Create(marker(filepath.Join(a.dir, "marks"), gate)), nil)
	a.server.WaitRun(run.ID, automation.RunCompleted)
	db, err := sql.Open("sqlite", "file:"+filepath.Join(a.server.DataDir(), "errand.db")+"?_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	const first, second = "01930000-0000-7000-8000-000000000001", "01930000-0000-7000-8000-000000000002"
	began := time.Now()
	for _, copied := range []struct{ id, engine string }{{first, "engine_id"}, {second, "''"}} {
		// As columns are added, the copy takes them along: it lists those that it changes and takes the others as they are.
		for table, changes := range map[string]map[string]string{
			"runs": {
				"id": "'" + copied.id + "'", "engine_id": copied.engine, "status": "'pending'", "started_at": "NULL", "finished_at": "NULL",
				"created_at": "created_at - 60000000",
			},
			"snapshots": {"run_id": "'" + copied.id + "'"},
			"steps": {
				"run_id": "'" + copied.id + "'", "status": "'pending'", "attempt": "0", "begin_id": "''", "started_at": "NULL",
				"finished_at": "NULL", "output": "NULL",
			},
		} {
			copyRows(t, db, table, run.ID, changes)
		}
	}
	for _, id := range []string{first, second} {
		inserted := a.becomes(automation.Run{ID: id}, began, automation.RunCompleted)
		if a.marksOf(inserted) != 1 || (inserted.Restarted != nil) != (id == first) {
			t.Errorf("run %s: %d executions, restarted %v", id, a.marksOf(inserted), inserted.Restarted)
		}
	}
}

// copyRows copies the rows of a run in a table with changes.
func copyRows(t *testing.T, db *sql.DB, table, runID string, changes map[string]string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), `SELECT name FROM pragma_table_info('`+table+`')`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var columns, values []string
	for rows.Next() {
		var column string
		if err := rows.Scan(&column); err != nil {
			t.Fatal(err)
		}
		columns = append(columns, column)
		value := column
		if changed, ok := changes[column]; ok {
			value = changed
		}
		values = append(values, value)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	key := "run_id"
	if table == "runs" {
		key = "id"
	}
	_, err = db.ExecContext(t.Context(), `INSERT INTO `+table+` (`+strings.Join(columns, ", ")+`) SELECT `+strings.Join(values, ", ")+
		` FROM `+table+` WHERE `+key+` = ?`, runID)
	if err != nil {
		t.Fatal(err)
	}
}

// TestResetsOfALongRun resets and deletes the workflow of a run of 20 steps at random moments: each step leaves its
// marks once.
func TestResetsOfALongRun(t *testing.T) {
	t.Parallel()
	temporal := apptest.NewTemporal(t)
	temporal.Start()
	w := newMarkedRun(t, apptest.Options{Env: temporal.Env()}, 20)
	t.Logf("seed %d %d", w.seed[0], w.seed[1])
	c := operator(t, temporal)
	events := []string{"reset", "reset", "reset", "delete"}
	w.random.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
	for i, event := range events {
		w.awaitMarks(i, len(events))
		run := w.server.Run(w.id)
		t.Logf("%s after %d marks", event, len(w.marks()))
		if event == "delete" {
			deleteWorkflow(t, c, run)
			w.server.AwaitRun(w.id, "the run has a new workflow", func(run automation.Run) bool { return run.Restarted != nil })
			continue
		}
		resetTo(t, c, run, w.random.IntN)
	}
	w.check(w.server.WaitRun(w.id, automation.RunCompleted), 0)
}

// TestTerminatedLongRun terminates the workflow of a run of 20 steps: no step is executed twice, and none after the end.
func TestTerminatedLongRun(t *testing.T) {
	t.Parallel()
	temporal := apptest.NewTemporal(t)
	temporal.Start()
	w := newMarkedRun(t, apptest.Options{Env: temporal.Env()}, 20)
	w.awaitMarks(0, 1)
	if err := operator(t, temporal).TerminateWorkflow(t.Context(), w.server.Run(w.id).WorkflowID, "", "enough"); err != nil {
		t.Fatal(err)
	}
	run := w.server.WaitRun(w.id, automation.RunCancelled)
	marks := w.marks()
	for _, step := range run.Steps {
		begun := w.count("begin " + step.ID)
		if executed := step.Status == automation.StepCompleted || step.Status == automation.StepCancelled; begun > 1 || executed != (begun == 1) {
			t.Errorf("step %s is %s and began %d times", step.ID, step.Status, begun)
		}
	}
	w.server.Kill()
	w.server.Restart()
	if after := w.server.Run(w.id); after.Status != automation.RunCancelled || !slices.Equal(marks, w.marks()) {
		t.Errorf("after a restart the run is %s and the marks are %v, were %v", after.Status, w.marks(), marks)
	}
}

// TestTemporalsFileIsDeletedUnderneath deletes the directory of the embedded Temporal while errandd runs. SQLite goes on
// with the files that it has open, so nothing happens until the next start, which begins with an empty Temporal.
func TestTemporalsFileIsDeletedUnderneath(t *testing.T) {
	t.Parallel()
	w := newMarkedRun(t, apptest.Options{}, 20)
	t.Logf("seed %d %d", w.seed[0], w.seed[1])
	other := w.server.Create(map[string]any{
		"name": "Other", "workflow": map[string]any{"compiled": map[string]any{"version": 2, "steps": []any{
			map[string]any{"id": "true", "kind": "command", "command": "true"},
		}}},
	})
	for i, restart := range []func(){w.server.Kill, w.server.Terminate} {
		w.awaitMarks(i, 2)
		if err := os.RemoveAll(filepath.Join(w.server.DataDir(), "temporal")); err != nil {
			t.Fatal(err)
		}
		w.server.WaitRun(w.server.RunNow(other, nil).ID, automation.RunCompleted)
		waiting := len(w.marks())
		w.server.Await(patience, "the run goes on", func() (string, bool) {
			return fmt.Sprint(w.marks()), len(w.marks()) > waiting || w.server.Run(w.id).Status.Finished()
		})
		restart()
		w.server.Restart()
		w.server.WaitRun(w.server.RunNow(other, nil).ID, automation.RunCompleted)
	}
	run := w.server.WaitRun(w.id, automation.RunCompleted)
	if run.Restarted == nil || run.Restarted.Reason != "Temporal's data was replaced" {
		t.Errorf("restarted: %+v", run.Restarted)
	}
	w.check(run, 0)
}

// TestTemporalIsReplaced replaces an external Temporal by an empty one while errandd runs and is not restarted.
func TestTemporalIsReplaced(t *testing.T) {
	t.Parallel()
	temporal := apptest.NewTemporal(t)
	temporal.Start()
	a := &atTemporal{t: t, server: apptest.Start(t, apptest.Options{Env: temporal.Env()}), dir: t.TempDir()}
	run, gate := a.executing()
	temporal.Kill()
	temporal.Forget()
	temporal.Start()
	began := time.Now()
	restarted := a.server.AwaitRun(run.ID, "the run has a workflow in the new Temporal", func(run automation.Run) bool { return run.Restarted != nil })
	if restarted.Restarted.Reason != "Temporal's data was replaced" {
		t.Errorf("restarted: %+v", restarted.Restarted)
	}
	open(t, gate)
	run = a.becomes(run, began, automation.RunCompleted)
	if run.Steps[0].Attempt != 1 || a.marksOf(run) != 1 {
		t.Errorf("%d executions, %d attempts", a.marksOf(run), run.Steps[0].Attempt)
	}
	awaitWorkflows(t, operator(t, temporal), "ErrandAutomationId = '"+run.AutomationID+"'", restarted)
	next := a.server.RunNow(run.AutomationID, nil)
	a.server.WaitRun(next.ID, automation.RunCompleted)
}
