//go:build unix

package acceptance_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/apptest"
	"github.com/errandhq/errand/internal/pgtest"
)

// marker is an automation of one step that appends its run and its home to a file, and then goes on until the gate
// exists.
func marker(marks, gate string) map[string]any {
	return map[string]any{
		"name": "Marker",
		"workflow": map[string]any{"compiled": map[string]any{"version": 2, "steps": []any{map[string]any{
			"id": "mark", "kind": "command", "command": "sh",
			"args": []string{"-c", `echo "$ERRAND_RUN_ID $HOME" >>"$0"; until [ -e "$1" ]; do sleep 0.05; done`, marks, gate},
		}}}},
	}
}

// open makes a gate pass.
func open(t *testing.T, gate string) {
	t.Helper()
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// checkMarks checks which runs have executed their step, each of them once, and in which home.
func checkMarks(t *testing.T, marks string, home string, runs ...string) {
	t.Helper()
	content, err := os.ReadFile(marks)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(strings.TrimSuffix(string(content), "\n"), "\n")
	var want []string
	for _, run := range runs {
		want = append(want, run+" "+home)
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("executions of steps (-want +got):\n%s", diff)
	}
}

// waitsForEngine waits until a run says that it waits for Temporal.
func waitsForEngine(s *apptest.Server, run string) {
	s.AwaitRun(run, "the run waits for Temporal", func(run automation.Run) bool {
		return run.Status == automation.RunPending && run.WaitingFor != nil && run.WaitingFor.Reason == automation.WaitEngineUnavailable
	})
}

// status sends a request without credentials.
func status(t *testing.T, s *apptest.Server, path string) int {
	t.Helper()
	request := s.Request(http.MethodGet, path, nil)
	request.Header.Del("Authorization")
	code, _ := s.Do(request)
	return code
}

// operator connects to Temporal as an operator does, who has a certificate. Without one nobody gets in.
func operator(t *testing.T, temporal *apptest.Temporal) client.Client {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(temporal.CertificateFile("client.pem"), temporal.CertificateFile("client.key"))
	if err != nil {
		t.Fatal(err)
	}
	authority, err := os.ReadFile(temporal.CertificateFile("ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(authority)
	settings := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: trusted, NextProtos: []string{"h2"}}
	if connection, err := tls.Dial("tcp", temporal.Address(), settings); err == nil {
		_, err = connection.Read(make([]byte, 1))
		if err == nil || !strings.Contains(err.Error(), "certificate required") {
			t.Errorf("without a certificate Temporal answers: %v", err)
		}
		_ = connection.Close() // it was refused
	}
	settings.Certificates = []tls.Certificate{pair}
	c, err := client.Dial(client.Options{HostPort: temporal.Address(), ConnectionOptions: client.ConnectionOptions{TLS: settings}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// awaitWorkflows waits until the closed workflows that a query finds are those of exactly these runs, one of each.
func awaitWorkflows(t *testing.T, c client.Client, query string, runs ...automation.Run) {
	t.Helper()
	var want []string
	for _, run := range runs {
		want = append(want, run.WorkflowID)
	}
	slices.Sort(want)
	apptest.Eventually(t, patience, "Temporal shows the workflows of "+query, func() (string, bool) {
		answer, err := c.ListWorkflow(t.Context(), &workflowservice.ListWorkflowExecutionsRequest{Query: query})
		if err != nil {
			return err.Error(), false
		}
		var got []string
		for _, execution := range answer.GetExecutions() {
			if execution.GetStatus() == enums.WORKFLOW_EXECUTION_STATUS_COMPLETED {
				got = append(got, execution.GetExecution().GetWorkflowId())
			}
		}
		slices.Sort(got)
		return fmt.Sprintf("%q, not %q", got, want), slices.Equal(got, want)
	})
}

// TestExternalTemporal uses PostgreSQL, and a Temporal in another process, with TLS on both sides, that is not always
// there.
func TestExternalTemporal(t *testing.T) {
	t.Parallel()
	temporal := apptest.NewTemporal(t)
	temporal.Start()
	c := operator(t, temporal)
	temporal.Kill()
	dir := t.TempDir()
	marks, gate := filepath.Join(dir, "marks"), filepath.Join(dir, "gate")
	open(t, gate)

	// Started while Temporal is down, errandd serves, says that it is not ready, and keeps what it is given.
	s := apptest.New(t, apptest.Options{DatabaseURL: pgtest.Database(t), Env: temporal.Env()})
	s.Launch()
	if health, ready := status(t, s, "/healthz"), status(t, s, "/readyz"); health != http.StatusOK || ready != http.StatusServiceUnavailable {
		t.Errorf("without Temporal /healthz answers %d and /readyz %d", health, ready)
	}
	id := s.Create(marker(marks, gate))
	first := s.RunNow(id, nil)
	waitsForEngine(s, first.ID)
	temporal.Start()
	first = s.WaitRun(first.ID, automation.RunCompleted)
	if ready := status(t, s, "/readyz"); ready != http.StatusOK {
		t.Errorf("with Temporal /readyz answers %d", ready)
	}

	// The worker has no credential of either. Where nobody may look at its environment, nobody sees one.
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", s.AwaitWorker()))
	if err == nil && (strings.Contains(string(environ), "TEMPORAL_") || strings.Contains(string(environ), "ERRAND_DATABASE_URL")) {
		t.Errorf("the worker's environment: %q", environ)
	}

	// Nothing of its own is embedded, and the search attributes that were missing are there.
	for _, name := range []string{"errand.db", "temporal"} {
		if _, err := os.Stat(filepath.Join(s.DataDir(), name)); err == nil {
			t.Errorf("there is %s in the data directory", name)
		}
	}
	attributes, err := c.OperatorService().ListSearchAttributes(t.Context(), &operatorservice.ListSearchAttributesRequest{Namespace: "default"})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ErrandAutomationId", "ErrandMachineId", "ErrandTrigger"} {
		if attributes.GetCustomAttributes()[name] != enums.INDEXED_VALUE_TYPE_KEYWORD {
			t.Errorf("search attribute %s: %v", name, attributes.GetCustomAttributes()[name])
		}
	}

	// Temporal is killed, runs are admitted, errandd is killed too, both are back: each run has started once.
	temporal.Kill()
	runs := []automation.Run{first}
	for range 3 {
		run := s.RunNow(id, nil)
		if run.Status != automation.RunPending {
			t.Errorf("admitted without Temporal, the run is %s", run.Status)
		}
		waitsForEngine(s, run.ID)
		runs = append(runs, run)
	}
	s.Await(patience, "errandd is not ready", func() (string, bool) {
		ready := status(t, s, "/readyz")
		return fmt.Sprint(ready), ready == http.StatusServiceUnavailable
	})
	s.Kill()
	s.Launch()
	waitsForEngine(s, runs[1].ID)
	temporal.Start()
	var ids []string
	for i := range runs {
		runs[i] = s.WaitRun(runs[i].ID, automation.RunCompleted)
		ids = append(ids, runs[i].ID)
	}
	checkMarks(t, marks, s.Home(), ids...)
	awaitWorkflows(t, c, "ErrandAutomationId = '"+id+"' AND ErrandTrigger = 'manual'", runs...)
	t.Run("another installation in the namespace", func(t *testing.T) {
		testAnotherInstallation(t, temporal, s, id, marks)
	})
}

// testAnotherInstallation checks that a second installation, on a database of its own, shares nothing with the first
// but the namespace.
func testAnotherInstallation(t *testing.T, temporal *apptest.Temporal, first *apptest.Server, firstAutomation, firstMarks string) {
	t.Helper()
	dir := t.TempDir()
	marks, gate := filepath.Join(dir, "marks"), filepath.Join(dir, "gate")
	open(t, gate)
	second := apptest.Start(t, apptest.Options{Env: temporal.Env()})
	if code, body := second.Get("/v1/runs"); code != http.StatusOK || string(body) != `{"runs":[]}`+"\n" && string(body) != `{"runs":[]}` {
		t.Errorf("the runs of a new installation: %d %s", code, body)
	}

	// A run of the first waits for its machine; the worker of the second does not take it.
	first.Interrupt()
	first.Options.NoLocalWorker = true
	first.Restart()
	before, err := os.ReadFile(firstMarks)
	if err != nil {
		t.Fatal(err)
	}
	waiting := first.RunNow(firstAutomation, nil)
	run := second.RunNow(second.Create(marker(marks, gate)), nil)
	run = second.WaitRun(run.ID, automation.RunCompleted)
	checkMarks(t, marks, second.Home(), run.ID)
	if state := first.Run(waiting.ID); state.Status != automation.RunPending || state.Steps[0].Attempt != 0 {
		t.Errorf("the run of the first is %s after %d attempts", state.Status, state.Steps[0].Attempt)
	}

	// The second can neither see nor cancel it, nor the other way round.
	for _, attempt := range []struct {
		server *apptest.Server
		run    string
	}{{second, waiting.ID}, {first, run.ID}} {
		if code, body := attempt.server.Get("/v1/runs/" + attempt.run); code != http.StatusNotFound {
			t.Errorf("reading a run of the other installation: %d %s", code, body)
		}
		if code, body := attempt.server.Post("/v1/runs/"+attempt.run+"/cancel", map[string]any{}); code != http.StatusNotFound {
			t.Errorf("cancelling a run of the other installation: %d %s", code, body)
		}
	}
	first.StartWorker()
	first.WaitRun(waiting.ID, automation.RunCompleted)
	after, err := os.ReadFile(firstMarks)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(after), string(before)+waiting.ID+" "+first.Home()+"\n"; got != want {
		t.Errorf("marks of the first:\n%swant:\n%s", got, want)
	}
	if waitingID, runID := installationOf(t, waiting), installationOf(t, run); waitingID == runID {
		t.Errorf("both installations are %s", runID)
	}
}

// installationOf returns the installation that a workflow id names.
func installationOf(t *testing.T, run automation.Run) string {
	t.Helper()
	installation, _, found := strings.Cut(run.WorkflowID, "/run/")
	if !found {
		t.Fatalf("%q is no workflow id", run.WorkflowID)
	}
	return installation
}

// TestTwoServers runs two errandd on one database and one Temporal. The one machine is connected to the first.
func TestTwoServers(t *testing.T) {
	t.Parallel()
	temporal := apptest.NewTemporal(t)
	temporal.Start()
	dir := t.TempDir()
	env := temporal.Env()
	env["ERRAND_MASTER_KEY_FILE"] = filepath.Join(dir, "master.key")
	options := apptest.Options{DatabaseURL: pgtest.Database(t), Env: env}
	a := apptest.Start(t, options)
	options.NoLocalWorker = true
	b := apptest.Start(t, options)
	marks, gate := filepath.Join(dir, "marks"), filepath.Join(dir, "gate")
	id := a.Create(marker(marks, gate))

	// What A admits, B shows, and who waits at B is answered when it ends.
	run := a.RunNow(id, nil)
	b.AwaitRun(run.ID, "B sees the step", func(run automation.Run) bool { return run.Steps[0].Status == automation.StepRunning })
	const wait = 50 * time.Second
	answered := make(chan []byte, 1)
	began := time.Now()
	go func() {
		_, body := b.Get(fmt.Sprintf("/v1/runs/%s?wait_ms=%d", run.ID, wait.Milliseconds()))
		answered <- body
	}()
	open(t, gate)
	body := <-answered
	var seen automation.Run
	if err := json.Unmarshal(body, &seen); err != nil || seen.Status != automation.RunCompleted || time.Since(began) >= wait {
		t.Errorf("after %s B has answered %s", time.Since(began), body)
	}

	// One key at both is one run.
	keyed := map[string]any{"idempotency_key": "once"}
	once, again := a.RunNow(id, keyed), b.RunNow(id, keyed)
	if once.ID != again.ID {
		t.Errorf("one idempotency key has admitted the runs %s and %s", once.ID, again.ID)
	}
	b.WaitRun(once.ID, automation.RunCompleted)

	// A cancel at B reaches the machine through A.
	if err := os.Remove(gate); err != nil {
		t.Fatal(err)
	}
	long := b.RunNow(id, nil)
	a.AwaitRun(long.ID, "the step executes", func(run automation.Run) bool { return run.Steps[0].Status == automation.StepRunning })
	a.Await(patience, "the program runs", func() (string, bool) { return "it does not", len(a.StepProcesses("mark")) > 0 })
	began = time.Now()
	if code, body := b.Post("/v1/runs/"+long.ID+"/cancel", map[string]any{}); code != http.StatusOK {
		t.Fatalf("the cancel was answered with %d: %s", code, body)
	}
	a.WaitRun(long.ID, automation.RunCancelled)
	t.Logf("cancelled through the other server after %s", time.Since(began))
	if pids := a.StepProcesses(""); len(pids) > 0 {
		t.Errorf("after the cancel these processes run: %v", pids)
	}
	open(t, gate)

	// What A has admitted and not started, B starts when A is dead and Temporal back.
	temporal.Kill()
	left := a.RunNow(id, nil)
	a.Kill()
	temporal.Start()
	c := operator(t, temporal)
	b.Await(patience, "B has started what A left behind", func() (string, bool) {
		description, err := c.DescribeWorkflowExecution(t.Context(), left.WorkflowID, "")
		if err != nil {
			return err.Error(), false
		}
		return description.GetWorkflowExecutionInfo().GetStatus().String(), true
	})
	// The machine goes on calling A until it is given another address.
	a.KillWorker()
	a.StartWorker("--server", b.URL())
	b.WaitRun(left.ID, automation.RunCompleted)
	checkMarks(t, marks, a.Home(), run.ID, once.ID, long.ID, left.ID)

	// A machine that is revoked at A is out at B, in the middle of a poll.
	a.Options.NoLocalWorker = true
	a.Restart()
	began = time.Now()
	if code, body := a.Post("/v1/machines/"+left.MachineID+"/revoke", map[string]any{}); code != http.StatusOK {
		t.Fatalf("the revocation was answered with %d: %s", code, body)
	}
	a.Await(patience, "the worker has left", func() (string, bool) {
		_, running := a.WorkerPID()
		return "it runs", !running
	})
	t.Logf("revoked through the other server after %s", time.Since(began))
	if log, err := os.ReadFile(a.WorkerLogPath()); err != nil || !strings.Contains(string(log), "This machine was revoked") {
		t.Errorf("the worker does not say why it leaves: %v\n%s", err, log)
	}
}
