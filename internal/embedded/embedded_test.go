package embedded_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	enumspb "go.temporal.io/api/enums/v1"
	namespacepb "go.temporal.io/api/namespace/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/errandhq/errand/internal/embedded"
)

type identity struct{ Cluster, Namespace string }

func identityOf(t *testing.T, server *embedded.Server) identity {
	t.Helper()
	c := dial(t, server)
	cluster, err := c.WorkflowService().GetClusterInfo(testContext(t), &workflowservice.GetClusterInfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return identity{Cluster: cluster.GetClusterId(), Namespace: namespaceOf(t, server).GetNamespaceInfo().GetId()}
}

func namespaceOf(t *testing.T, server *embedded.Server) *workflowservice.DescribeNamespaceResponse {
	t.Helper()
	request := &workflowservice.DescribeNamespaceRequest{Namespace: server.Namespace()}
	response, err := dial(t, server).WorkflowService().DescribeNamespace(testContext(t), request)
	if err != nil {
		t.Fatal(err)
	}
	return response
}

func retentionOf(t *testing.T, server *embedded.Server) time.Duration {
	t.Helper()
	return namespaceOf(t, server).GetConfig().GetWorkflowExecutionRetentionTtl().AsDuration()
}

func startWorkflow(t *testing.T, server *embedded.Server, o client.StartWorkflowOptions) {
	t.Helper()
	if _, err := dial(t, server).ExecuteWorkflow(testContext(t), o, "Nothing"); err != nil {
		t.Fatalf("starting workflow %s: %v", o.ID, err)
	}
}

// checkOpen fails the test unless the workflow is there and open.
func checkOpen(t *testing.T, server *embedded.Server, id string) {
	t.Helper()
	description, err := dial(t, server).DescribeWorkflowExecution(testContext(t), id, "")
	if err != nil {
		t.Fatalf("describing workflow %s: %v", id, err)
	}
	if status := description.GetWorkflowExecutionInfo().GetStatus(); status != enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING {
		t.Errorf("workflow %s is %s after the restart", id, status)
	}
}

func TestRestartKeepsData(t *testing.T) {
	t.Parallel()
	o := embedded.Options{Dir: filepath.Join(t.TempDir(), "not yet there", "a#b?c%20d")}
	server := start(t, o)
	before := identityOf(t, server)
	startWorkflow(t, server, openWorkflow("kept"))
	server.Stop()

	server = start(t, o)
	checkOpen(t, server, "kept")
	if diff := cmp.Diff(before, identityOf(t, server)); diff != "" {
		t.Errorf("a restart changed the ids (-before +after):\n%s", diff)
	}
	if path := server.SetAside(); path != "" {
		t.Errorf("a good file was set aside as %s", path)
	}
}

func TestFreshFilesDiffer(t *testing.T) {
	t.Parallel()
	a := identityOf(t, start(t, embedded.Options{Dir: t.TempDir()}))
	b := identityOf(t, start(t, embedded.Options{Dir: t.TempDir()}))
	if a.Cluster == b.Cluster || a.Namespace == b.Namespace {
		t.Errorf("two fresh files share an id: %+v and %+v", a, b)
	}
}

func TestKilledServerKeepsData(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	child := startChild(t, dir)

	if _, err := embedded.Start(testContext(t), embedded.Options{Dir: dir}); !errors.Is(err, embedded.ErrInUse) {
		t.Errorf("a second server on the directory: error %v, want ErrInUse", err)
	}
	crash(t, child)

	server := start(t, embedded.Options{Dir: dir})
	checkOpen(t, server, "of-child")
	if path := server.SetAside(); path != "" {
		t.Errorf("the file of a killed server was set aside as %s", path)
	}
}

func TestRetention(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	o := embedded.Options{Dir: t.TempDir()}
	server := start(t, o)
	if got := retentionOf(t, server); got != 30*day {
		t.Errorf("a fresh namespace keeps closed workflows for %s, want 30 days", got)
	}
	_, err := dial(t, server).WorkflowService().UpdateNamespace(testContext(t), &workflowservice.UpdateNamespaceRequest{
		Namespace: server.Namespace(),
		Config:    &namespacepb.NamespaceConfig{WorkflowExecutionRetentionTtl: durationpb.New(7 * day)},
	})
	if err != nil {
		t.Fatal(err)
	}
	server.Stop()

	server = start(t, o)
	if got := retentionOf(t, server); got != 7*day {
		t.Errorf("a restart set an operator's 7 days to %s", got)
	}
	server.Stop()

	o.Retention = 10 * day
	server = start(t, o)
	eventually(t, "the namespace follows the changed option", func() bool { return retentionOf(t, server) == 10*day })
}

func TestSearchAttributes(t *testing.T) {
	t.Parallel()
	server := start(t, embedded.Options{Dir: t.TempDir(), SearchAttributes: []string{"ErrandAutomationId"}})
	c := dial(t, server)
	_, err := c.OperatorService().AddSearchAttributes(testContext(t), &operatorservice.AddSearchAttributesRequest{
		Namespace: server.Namespace(),
		SearchAttributes: map[string]enumspb.IndexedValueType{
			"ErrandMachineId": enumspb.INDEXED_VALUE_TYPE_KEYWORD,
			"ErrandTrigger":   enumspb.INDEXED_VALUE_TYPE_KEYWORD,
		},
	})
	if err != nil {
		t.Fatalf("adding search attributes: %v", err)
	}

	atOnce := openWorkflow("at-once")
	atOnce.TypedSearchAttributes = temporal.NewSearchAttributes(keyword("ErrandAutomationId", "a-1"))
	startWorkflow(t, server, atOnce)
	added := openWorkflow("added")
	added.TypedSearchAttributes = temporal.NewSearchAttributes(
		keyword("ErrandAutomationId", "a-2"), keyword("ErrandMachineId", "m-2"), keyword("ErrandTrigger", "manual"))
	eventually(t, "the frontend knows the added attributes", func() bool {
		_, err := c.ExecuteWorkflow(testContext(t), added, "Nothing")
		return err == nil
	})

	for query, want := range map[string][]string{
		`ErrandAutomationId = "a-1"`:                                   {"at-once"},
		`ErrandMachineId = "m-2" AND ErrandTrigger = "manual"`:         {"added"},
		`ErrandMachineId = "m-2" AND ErrandAutomationId = "elsewhere"`: nil,
	} {
		eventually(t, "list "+query, func() bool { return cmp.Equal(list(t, c, query), want) })
	}
}

func keyword(name, value string) temporal.SearchAttributeUpdate {
	return temporal.NewSearchAttributeKeyKeyword(name).ValueSet(value)
}

func list(t *testing.T, c client.Client, query string) (ids []string) {
	t.Helper()
	response, err := c.ListWorkflow(testContext(t), &workflowservice.ListWorkflowExecutionsRequest{Query: query})
	if err != nil {
		t.Fatalf("listing %s: %v", query, err)
	}
	for _, execution := range response.GetExecutions() {
		ids = append(ids, execution.GetExecution().GetWorkflowId())
	}
	return ids
}

// A schedule fires only when the server's own worker service runs and gets through the frontend's mutual TLS.
func TestScheduleFires(t *testing.T) {
	t.Parallel()
	c := dial(t, start(t, embedded.Options{Dir: t.TempDir()}))
	schedule, err := c.ScheduleClient().Create(testContext(t), client.ScheduleOptions{
		ID:     "every-second",
		Spec:   client.ScheduleSpec{Intervals: []client.ScheduleIntervalSpec{{Every: time.Second}}},
		Action: &client.ScheduleWorkflowAction{ID: "fired", Workflow: "Nothing", TaskQueue: "nobody"},
	})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the schedule starts a workflow", func() bool {
		description, err := schedule.Describe(testContext(t))
		return err == nil && len(description.Info.RecentActions) > 0
	})
}

func TestStartEndsWithContext(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := embedded.Start(ctx, embedded.Options{Dir: dir}); !errors.Is(err, context.Canceled) {
		t.Errorf("a start with an ended context: error %v, want context.Canceled", err)
	}
	start(t, embedded.Options{Dir: dir})
}

// Start depends on this to try again on other ports.
func TestTakenPortIsNoticed(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	o := embedded.Options{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}
	err = embedded.LaunchFrontendOn(testContext(t), o, listener.Addr().(*net.TCPAddr).Port)
	if !errors.Is(err, embedded.ErrPortTaken) {
		t.Errorf("a launch on a taken port: error %v, want ErrPortTaken", err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]embedded.Options{
		"no directory":    {},
		"short retention": {Dir: t.TempDir(), Retention: time.Minute},
	} {
		if _, err := embedded.Start(testContext(t), o); err == nil {
			t.Errorf("%s: started", name)
		}
	}
}

func TestDynamicSettings(t *testing.T) {
	t.Parallel()
	want := map[string]any{ // Temporal reads names without case and keeps them in lower case
		"history.transferprocessormaxpollrps":        1000,
		"history.timerprocessormaxpollrps":           1000,
		"history.timerprocessormaxtimeshift":         50 * time.Millisecond,
		"history.longpollexpirationinterval":         2 * time.Second,
		"matching.numtaskqueuereadpartitions":        1,
		"matching.numtaskqueuewritepartitions":       1,
		"frontend.enablecancelworkerpollsonshutdown": true,
		"worker.schedulernamespacestartworkflowrps":  500.0,
	}
	if diff := cmp.Diff(want, embedded.DynamicSettings()); diff != "" {
		t.Errorf("settings differ (-want +got):\n%s", diff)
	}
}

// recorder keeps log records.
type recorder struct {
	mu      *sync.Mutex
	records *[]slog.Record
}

func newRecorder() recorder { return recorder{mu: new(sync.Mutex), records: new([]slog.Record)} }

func (r recorder) Enabled(context.Context, slog.Level) bool { return true }
func (r recorder) WithAttrs([]slog.Attr) slog.Handler       { return r }
func (r recorder) WithGroup(string) slog.Handler            { return r }

func (r recorder) Handle(_ context.Context, record slog.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	*r.records = append(*r.records, record)
	return nil
}

// atLeast returns the kept messages of a level or above, with their attributes.
func (r recorder) atLeast(level slog.Level) (messages []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, record := range *r.records {
		if record.Level < level {
			continue
		}
		message := record.Message
		record.Attrs(func(a slog.Attr) bool {
			message += " " + a.String()
			return true
		})
		messages = append(messages, message)
	}
	return messages
}

func TestOrdinaryLifeIsQuiet(t *testing.T) {
	t.Parallel()
	log := newRecorder()
	o := embedded.Options{Dir: t.TempDir(), Logger: slog.New(log)}
	for range 2 {
		server := start(t, o)
		c := dial(t, server)
		run, err := c.ExecuteWorkflow(testContext(t), openWorkflow("short"), "Nothing")
		if err != nil {
			t.Fatal(err)
		}
		if err := c.TerminateWorkflow(testContext(t), run.GetID(), run.GetRunID(), "test"); err != nil {
			t.Fatal(err)
		}
		c.Close()
		server.Stop()
	}
	messages := slices.DeleteFunc(log.atLeast(slog.LevelInfo), func(m string) bool {
		return strings.Contains(m, context.DeadlineExceeded.Error()) // the machine is overloaded, and the server says so
	})
	if len(messages) > 0 {
		t.Errorf("logged at info or above: %q", messages)
	}
	if len(log.atLeast(slog.LevelDebug)) == 0 {
		t.Error("nothing was logged at debug, so the server's log is lost")
	}
}
