//go:build unix

package acceptance_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/taskqueue/v1"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/apptest"
	"github.com/errandhq/errand/internal/identity"
)

// person is somebody who has automations and machines, and calls REST with a key or the token of server.json.
type person struct {
	t     *testing.T
	s     *apptest.Server
	token string
}

// call sends a request and decodes the answer, which must have the status.
func (p person) call(method, path string, body any, want int, into any) {
	p.t.Helper()
	content, err := json.Marshal(body)
	if err != nil {
		p.t.Fatal(err)
	}
	if method == http.MethodGet {
		content = nil
	}
	request := p.s.Request(method, path, content)
	request.Header.Set("Authorization", "Bearer "+p.token)
	code, answer := p.s.Do(request)
	if code != want {
		p.t.Fatalf("%s %s was answered with %d: %s", method, path, code, answer)
	}
	if into != nil {
		if err := json.Unmarshal(answer, into); err != nil {
			p.t.Fatal(err)
		}
	}
}

func (p person) code(machineID string) string {
	p.t.Helper()
	body := map[string]any{}
	if machineID != "" {
		body["machine_id"] = machineID
	}
	var made struct{ Code string }
	p.call(http.MethodPost, "/v1/machines/enrollment-codes", body, http.StatusCreated, &made)
	return made.Code
}

// device is a machine that a test plays, with everything that an enrolled one has.
type device struct {
	t      *testing.T
	s      *apptest.Server
	id     string
	key    *identity.DeviceKey
	signer *identity.Signer
	tokens *identity.TokenSource
	http   *http.Client
	grpc   workflowservice.WorkflowServiceClient
}

// enrol presents a code with a new key.
func (p person) enrol(name, code string) *device {
	p.t.Helper()
	key, err := identity.LoadOrCreateKey(p.t.TempDir())
	if err != nil {
		p.t.Fatal(err)
	}
	status, body := present(p.t, p.s, key, name, code)
	var answer automation.EnrollAnswer
	if err := json.Unmarshal(body, &answer); status != http.StatusCreated || err != nil {
		p.t.Fatalf("enrolling %s: %d %s", name, status, body)
	}
	return newDevice(p.t, p.s, answer.MachineID, key)
}

// present sends an enrolment.
func present(t *testing.T, s *apptest.Server, key *identity.DeviceKey, name, code string) (int, []byte) {
	t.Helper()
	proof, err := identity.EnrolmentProof(key, code, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(automation.EnrollRequest{
		Code: code, PublicKey: key.Public(), Proof: proof, Name: name, Platform: "linux/amd64", Version: "v1",
	})
	if err != nil {
		t.Fatal(err)
	}
	request := s.Request(http.MethodPost, "/v1/machine/enroll", body)
	request.Header.Del("Authorization")
	return s.Do(request)
}

// newDevice is a machine with a key, whether it is enrolled with that key or not.
func newDevice(t *testing.T, s *apptest.Server, id string, key *identity.DeviceKey) *device {
	t.Helper()
	d := &device{t: t, s: s, id: id, key: key, signer: identity.NewSigner(key, id, identity.SignerOptions{})}
	var err error
	if d.tokens, err = identity.NewTokenSource(d.signer, s.URL(), nil); err != nil {
		t.Fatal(err)
	}
	d.http = &http.Client{Transport: &identity.Transport{Signer: d.signer, Tokens: d.tokens}}
	prove, err := identity.UnaryClientInterceptor(d.signer, d.tokens, s.URL())
	if err != nil {
		t.Fatal(err)
	}
	connection, err := grpc.NewClient(strings.TrimPrefix(s.URL(), "http://"),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithChainUnaryInterceptor(prove))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	d.grpc = workflowservice.NewWorkflowServiceClient(connection)
	return d
}

// post calls the machine API, or REST as the machine.
func (d *device) post(path string, body any) (int, string) {
	d.t.Helper()
	content, err := json.Marshal(body)
	if err != nil {
		d.t.Fatal(err)
	}
	response, err := d.http.Post(d.s.URL()+path, "application/json", bytes.NewReader(content))
	if err != nil {
		d.t.Fatal(err)
	}
	return read(d.t, response)
}

func read(t *testing.T, response *http.Response) (int, string) {
	t.Helper()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	return response.StatusCode, string(answer)
}

// poll polls the queue of a machine, which may be another one's.
func (d *device) poll(ctx context.Context, installation, machine string) (*workflowservice.PollActivityTaskQueueResponse, error) {
	return d.grpc.PollActivityTaskQueue(ctx, &workflowservice.PollActivityTaskQueueRequest{
		Namespace: "errand", TaskQueue: &taskqueue.TaskQueue{
			Name: automation.MachineQueue(installation, machine), Kind: enums.TASK_QUEUE_KIND_NORMAL,
		},
	})
}

// wantRefused checks the status and the text of an answer.
func wantRefused(t *testing.T, what string, status int, answer string, want int, code, part string) {
	t.Helper()
	if status != want || !strings.Contains(answer, `"`+code+`"`) || !strings.Contains(answer, part) {
		t.Errorf("%s: %d %s, want %d %s with %q", what, status, answer, want, code, part)
	}
}

func wantStatus(t *testing.T, what string, err error, want codes.Code) {
	t.Helper()
	if grpcstatus.Code(err) != want {
		t.Errorf("%s: %v, want %s", what, err, want)
	}
}

// TestMachinesOfTwoOwners plays three machines of two owners at a real server: each gets its own work, and nothing of
// another's whatever it presents.
func TestMachinesOfTwoOwners(t *testing.T) {
	t.Parallel()
	s := apptest.New(t, apptest.Options{NoLocalWorker: true})
	s.Restart()
	ann := person{t, s, s.Token()}
	var owner struct{ ID string }
	var key struct{ Secret string }
	ann.call(http.MethodPost, "/v1/owners", map[string]any{"name": "Bob"}, http.StatusCreated, &owner)
	ann.call(http.MethodPost, "/v1/keys", map[string]any{"name": "bob", "scope": "admin", "owner_id": owner.ID}, http.StatusCreated, &key)
	bob := person{t, s, key.Secret}

	used := ann.code("")
	a, other, b := ann.enrol("a", used), ann.enrol("other", ann.code("")), bob.enrol("b", bob.code(""))
	stranger, err := identity.LoadOrCreateKey(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for what, code := range map[string]string{"a used code": used, "a code that is none": "ABCD-EFGH-2345-WXYZ"} {
		code, answer := present(t, s, stranger, "c", code)
		wantRefused(t, what, code, string(answer), http.StatusUnauthorized, "unauthorized", "wrong, used or expired")
	}
	refuseCodeOfAnother(t, bob, a)

	run := admitOn(ann, a)
	installation := installationOf(t, run)
	task, err := a.poll(t.Context(), installation, a.id)
	if err != nil || len(task.GetTaskToken()) == 0 {
		t.Fatalf("A's poll: %v, %v", task, err)
	}
	step := automation.StepRef{RunID: run.ID, StepID: "only"}
	begin := automation.BeginRequest{StepRef: step, Generation: 1, RequestID: "first"}
	for _, foe := range []*device{other, b} {
		intrude(t, foe, a, installation, task.GetTaskToken(), run)
	}
	forge(t, a, b)

	// A itself begins, and reports.
	code, answer := a.post("/v1/machine/steps/begin", begin)
	if code != http.StatusOK || !strings.Contains(answer, `"decision":"run"`) {
		t.Fatalf("A's begin: %d %s", code, answer)
	}
	for _, foe := range []*device{other, b} {
		code, answer := foe.post("/v1/machine/steps/finish", automation.FinishRequest{StepRef: step, Execution: 1, Outcome: automation.OutcomeCompleted})
		wantRefused(t, "finish of A's begun step", code, answer, http.StatusNotFound, "not_found", "")
	}
	revokeInFlight(t, ann, a, installation, run)
	if code, answer := b.post("/v1/machine/alive", struct{}{}); code != http.StatusOK {
		t.Errorf("the revocation of A touched B: %d %s", code, answer)
	}
}

// admitOn admits a run of one step on a machine.
func admitOn(p person, d *device) automation.Run {
	p.t.Helper()
	var created struct{ ID string }
	definition := map[string]any{"name": "Work", "machineId": d.id, "workflow": map[string]any{"compiled": map[string]any{
		"version": 2, "steps": []any{map[string]any{"id": "only", "kind": "command", "command": "true"}},
	}}}
	p.call(http.MethodPost, "/v1/automations", definition, http.StatusCreated, &created)
	var run automation.Run
	p.call(http.MethodPost, "/v1/automations/"+created.ID+"/runs", map[string]any{}, http.StatusCreated, &run)
	return run
}

// refuseCodeOfAnother checks that nobody makes a code for another owner's machine, or revokes it, or sees it.
func refuseCodeOfAnother(t *testing.T, p person, d *device) {
	t.Helper()
	p.call(http.MethodPost, "/v1/machines/enrollment-codes", map[string]any{"machine_id": d.id}, http.StatusNotFound, nil)
	p.call(http.MethodPost, "/v1/machines/"+d.id+"/revoke", map[string]any{}, http.StatusNotFound, nil)
	p.call(http.MethodPatch, "/v1/machines/"+d.id, map[string]any{"name": "mine"}, http.StatusNotFound, nil)
	p.call(http.MethodGet, "/v1/machines/"+d.id, nil, http.StatusNotFound, nil)
}

// intrude does what a machine may try with what is another's.
func intrude(t *testing.T, foe, a *device, installation string, task []byte, run automation.Run) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := foe.poll(ctx, installation, a.id)
	wantStatus(t, "poll of A's queue", err, codes.PermissionDenied)
	complete := func(token []byte) error {
		_, err := foe.grpc.RespondActivityTaskCompleted(ctx, &workflowservice.RespondActivityTaskCompletedRequest{TaskToken: token})
		return err
	}
	wantStatus(t, "completion of A's task with A's task token", complete(task), codes.PermissionDenied)
	wantStatus(t, "completion of A's task with a bare one", complete(task[32:]), codes.PermissionDenied)
	_, err = foe.grpc.StartWorkflowExecution(ctx, &workflowservice.StartWorkflowExecutionRequest{})
	wantStatus(t, "a workflow of its own", err, codes.Unimplemented)

	ref := automation.StepRef{RunID: run.ID, StepID: "only"}
	code, answer := foe.post("/v1/machine/steps/begin", automation.BeginRequest{StepRef: ref, Generation: 1, RequestID: "x"})
	wantRefused(t, "begin of A's step", code, answer, http.StatusNotFound, "not_found", "")
	code, answer = foe.post("/v1/machine/steps/finish", automation.FinishRequest{StepRef: ref, Execution: 1, Outcome: automation.OutcomeCompleted})
	wantRefused(t, "finish of A's step", code, answer, http.StatusNotFound, "not_found", "")
	code, answer = foe.post("/v1/machines/enrollment-codes", struct{}{})
	wantRefused(t, "a code made by a machine", code, answer, http.StatusForbidden, "forbidden", "needs a person")

	// With A's own access token, which a thief may have read, and the foe's key.
	token, err := a.tokens.Token(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const method = "/temporal.api.workflowservice.v1.WorkflowService/RespondActivityTaskCompleted"
	headers, err := foe.signer.Proof(http.MethodPost, foe.s.URL()+method, token)
	if err != nil {
		t.Fatal(err)
	}
	bare := dial(t, foe.s)
	_, err = bare.RespondActivityTaskCompleted(metadata.AppendToOutgoingContext(ctx, "authorization", headers.Authorization, "dpop", headers.Proof),
		&workflowservice.RespondActivityTaskCompletedRequest{TaskToken: task})
	wantStatus(t, "completion of A's task with A's access token", err, codes.Unauthenticated)
}

// dial connects to the gateway without any identity.
func dial(t *testing.T, s *apptest.Server) workflowservice.WorkflowServiceClient {
	t.Helper()
	connection, err := grpc.NewClient(strings.TrimPrefix(s.URL(), "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	return workflowservice.NewWorkflowServiceClient(connection)
}

// forge presents credentials that are not right for A.
func forge(t *testing.T, a, b *device) {
	t.Helper()
	const path = "/v1/machine/alive"
	token, err := a.tokens.Token(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	proof := func(d *device, url, token string) identity.Headers {
		headers, err := d.signer.Proof(http.MethodPost, url, token)
		if err != nil {
			t.Fatal(err)
		}
		return headers
	}
	send := func(h identity.Headers) (int, string) {
		request := a.s.Request(http.MethodPost, path, []byte("{}"))
		request.Header.Set("Authorization", h.Authorization)
		request.Header.Set("DPoP", h.Proof)
		code, answer := a.s.Do(request)
		return code, string(answer)
	}
	good := proof(a, a.s.URL()+path, token)
	if code, answer := send(good); code != http.StatusOK {
		t.Fatalf("A's own call: %d %s", code, answer)
	}
	code, answer := send(good)
	wantRefused(t, "a replayed proof", code, answer, http.StatusUnauthorized, "unauthorized", "used before")

	bound := claimsOf(t, token)
	bound["cnf"] = map[string]any{"jkt": b.key.Thumbprint()}
	forged := join(t, map[string]any{"alg": "none", "typ": "at+jwt"}, bound, "")
	rebound := strings.Split(token, ".")[0] + "." + strings.Split(forged, ".")[1] + "." + strings.Split(token, ".")[2]
	tests := map[string]struct {
		headers identity.Headers
		part    string
	}{
		"another htu":             {proof(a, "https://errand.example.com"+path, token), "not the address of this call"},
		"another path":            {proof(a, a.s.URL()+"/v1/machine/hello", token), "not the address of this call"},
		"alg none":                {proof(b, a.s.URL()+path, forged), "not made by this installation"},
		"a forged jkt":            {proof(b, a.s.URL()+path, rebound), "not made by this installation"},
		"B's key under A's token": {proof(b, a.s.URL()+path, token), "another key"},
		"no token":                {proof(a, a.s.URL()+path, ""), "must have the form"},
	}
	for name, test := range tests {
		code, answer := send(test.headers)
		wantRefused(t, name, code, answer, http.StatusUnauthorized, "unauthorized", test.part)
	}
	late := identity.NewSigner(a.key, a.id, identity.SignerOptions{Now: func() time.Time { return time.Now().Add(-5 * time.Minute) }})
	headers, err := late.Proof(http.MethodPost, a.s.URL()+path, token)
	if err != nil {
		t.Fatal(err)
	}
	code, answer = send(headers)
	wantRefused(t, "a clock that is behind", code, answer, http.StatusUnauthorized, "unauthorized", "the machine's clock is 5m")
}

func claimsOf(t *testing.T, token string) map[string]any {
	t.Helper()
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	var claims map[string]any
	if err == nil {
		err = json.Unmarshal(payload, &claims)
	}
	if err != nil {
		t.Fatal(err)
	}
	return claims
}

func join(t *testing.T, header, claims map[string]any, signature string) string {
	t.Helper()
	parts := []string{}
	for _, part := range []map[string]any{header, claims} {
		content, err := json.Marshal(part)
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, base64.RawURLEncoding.EncodeToString(content))
	}
	return strings.Join(append(parts, signature), ".")
}

// revokeInFlight revokes A while a poll and an event stream of it are open and a step of it is begun.
func revokeInFlight(t *testing.T, ann person, a *device, installation string, run automation.Run) {
	t.Helper()
	response, err := a.http.Get(a.s.URL() + "/v1/machine/events")
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("A's event stream: %v, %v", response, err)
	}
	events := make(chan string, 100)
	go func() {
		defer close(events)
		for lines := bufio.NewScanner(response.Body); lines.Scan(); {
			if name, found := strings.CutPrefix(lines.Text(), "event: "); found {
				events <- name
			}
		}
	}()
	if first := <-events; first != "ping" {
		t.Fatalf("the first event is %q", first)
	}
	polled := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		task, err := a.poll(ctx, installation, a.id)
		if err == nil && len(task.GetTaskToken()) > 0 {
			err = fmt.Errorf("a task")
		}
		polled <- err
	}()

	began := time.Now()
	ann.call(http.MethodPost, "/v1/machines/"+a.id+"/revoke", map[string]any{}, http.StatusOK, nil)
	told := false
	for name := range events {
		told = told || name == "revoked"
	}
	streamEnded := time.Since(began)
	if !told {
		t.Error("the stream ended without the word revoked")
	}
	if err := <-polled; err != nil && grpcstatus.Code(err) != codes.Unauthenticated {
		t.Errorf("the open poll was answered with %v", err)
	}
	t.Logf("after the revocation the stream ended within %s, the poll within %s", streamEnded, time.Since(began))
	if took := time.Since(began); took > time.Minute {
		t.Errorf("the revocation took %s", took)
	}

	code, answer := a.post("/v1/machine/alive", struct{}{})
	wantRefused(t, "a revoked key with its token", code, answer, http.StatusConflict, "machine_revoked", "")
	_, err = a.poll(t.Context(), installation, a.id)
	wantStatus(t, "a poll of a revoked machine", err, codes.Unauthenticated)
	fresh := newDevice(t, a.s, a.id, a.key)
	code, answer = fresh.post("/v1/automations", struct{}{})
	wantRefused(t, "a revoked key without a token", code, answer, http.StatusConflict, "machine_revoked", "")
	ended := a.s.Run(run.ID)
	if ended.Status != automation.RunFailed || !ended.Steps[0].Unconfirmed || ended.Steps[0].Error.Code != automation.StepErrMachineLost {
		t.Errorf("the run of the revoked machine: %s", describeRun(ended))
	}
}

func describeRun(run automation.Run) string {
	run.Plan = nil
	text, err := json.Marshal(run)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
