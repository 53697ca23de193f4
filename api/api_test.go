package api_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/errandhq/errand/api"
	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/access"
	"github.com/errandhq/errand/internal/catalog"
	"github.com/errandhq/errand/internal/hooks"
	"github.com/errandhq/errand/internal/logtest"
	"github.com/errandhq/errand/internal/notify"
	"github.com/errandhq/errand/internal/sealing"
	"github.com/errandhq/errand/internal/store"
)

const (
	userToken    = "user-token"
	machineToken = "machine-token" // as the value of Authorization: DPoP
)

// world is the API over a real ledger in SQLite.
type world struct {
	t       testing.TB
	server  *httptest.Server
	api     *api.API
	ledger  *store.Store
	owner   string
	machine automation.Machine
	log     *logtest.Buffer
	// received counts the bytes that the machine has sent.
	received atomic.Int64
	// database is the file of the ledger.
	database string
	observed calls

	now       func() time.Time
	ahead     atomic.Int64 // of the clock, in nanoseconds
	mu        sync.Mutex
	admitted  []string
	cancelled []string
	lost      []string
}

func newID() string { return uuid.Must(uuid.NewV7()).String() }

// worldOptions are what some tests want otherwise.
type worldOptions struct {
	proxies []string
	rate    int
	now     func() time.Time
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldWith(t, func(*worldOptions) {})
}

// newWorldAt returns a world with a clock of its own.
func newWorldAt(t *testing.T, now func() time.Time) *world {
	t.Helper()
	return newWorldWith(t, func(o *worldOptions) { o.now = now })
}

// stopped is a clock that goes on only when a test sets it ahead: what is measured by it depends on no computer's speed.
func stopped() func() time.Time {
	now := time.Now()
	return func() time.Time { return now }
}

func newWorldWith(t testing.TB, change func(*worldOptions)) *world {
	t.Helper()
	options := worldOptions{now: time.Now}
	change(&options)
	w := &world{t: t, now: options.now, log: &logtest.Buffer{}, observed: calls{make(chan string, 10_000)}}
	logger := slog.New(slog.NewTextHandler(w.log, nil))
	changes := notify.New()
	vault, err := sealing.New("key", bytes.Repeat([]byte{1}, sealing.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	w.database = filepath.Join(t.TempDir(), "errand.db")
	ledger, err := store.Open(t.Context(), store.Options{
		URL: w.database, Now: w.clock, NewID: newID, Logger: logger, Vault: vault,
		OnRunChange: func(runID, _ string) { changes.Notify(runID) },
	})
	if err != nil {
		t.Fatal(err)
	}
	w.ledger = ledger
	if err := ledger.BindMasterKey(t.Context(), vault.KeyID()); err != nil {
		t.Fatal(err)
	}
	receiver, err := hooks.New(hooks.Options{Ledger: ledger, Vault: vault, Admitted: w.Admitted, Now: w.clock, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	install, err := ledger.Installation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.owner = install.LocalOwnerID
	w.machine, err = ledger.EnrollMachine(t.Context(), automation.NewMachine{
		OwnerID: w.owner, Name: "laptop", Platform: "linux/amd64", PublicKey: `{"kty":"OKP"}`,
	})
	if err != nil {
		t.Fatal(err)
	}
	w.api, err = api.New(api.Options{
		Service: &catalog.Service{
			Ledger: panicking{ledger}, Engine: w, Enrolments: enrolments{w}, Changes: changes, Now: w.clock, NewKey: newKey,
			PublicURL: "https://errand.example.com",
		},
		Hooks: receiver,
		Users: access.New(access.Options{
			Store: ledger, Runtime: func(token string) bool { return token == userToken }, LocalOwnerID: w.owner,
			Now: w.clock, Logger: logger,
		}),
		Machines: machines{w}, Ledger: ledger,
		TrustedProxies: options.proxies, RateLimit: options.rate,
		InstallationID: install.ID, Namespace: "errand", AllowedHosts: []string{"127.0.0.1", "errand.example.com"},
		Ready: ledger.Ping, Version: "test", Observer: w.observed,
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, figures) }), Now: w.clock, NewID: newID, Logger: logger,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	running := make(chan struct{})
	go func() {
		w.api.Run(ctx)
		close(running)
	}()
	w.server = httptest.NewServer(w.api)
	t.Cleanup(func() {
		stop()
		<-running
		w.server.Close()
		if err := ledger.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// panicking is the ledger with one id that breaks the program.
type panicking struct{ *store.Store }

const panicID = "00000000-0000-7000-8000-00000000dead"

func (p panicking) Automation(ctx context.Context, ownerID, id string) (automation.Automation, error) {
	if id == panicID {
		panic("the secret reason")
	}
	return p.Store.Automation(ctx, ownerID, id)
}

func (w *world) Admitted(runID string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.admitted = append(w.admitted, runID)
}

func (w *world) Cancelled(run automation.Run, begun string) {
	w.mu.Lock()
	w.cancelled = append(w.cancelled, run.ID+"/"+begun)
	w.mu.Unlock()
	w.api.MachineHasEnds(run.MachineID)
}

func (w *world) Up() bool { return true }

// enrolments are codes without an enroller, and the real end of streams.
type enrolments struct{ w *world }

func (e enrolments) NewCode(ctx context.Context, ownerID, machineID string) (string, time.Time, error) {
	expires := time.Now().Add(automation.EnrollmentCodeValidFor)
	code := automation.EnrollmentCode{Hash: newID(), OwnerID: ownerID, MachineID: machineID, ExpiresAt: expires}
	return "ABCD-EFGH-2345-WXYZ", expires, e.w.ledger.SaveEnrollmentCode(ctx, code)
}

func (e enrolments) Revoked(machineID string) { e.w.api.MachineAccessChanged(machineID, true) }

func (e enrolments) Lost(runs []automation.Run) {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	for _, run := range runs {
		e.w.lost = append(e.w.lost, run.ID)
	}
}

func newKey() (secret, hash string, err error) {
	secret, err = access.NewKey(rand.Reader)
	return secret, access.HashKey(secret), err
}

// clock is the time, moved forward by the test.
func (w *world) clock() time.Time { return w.now().Add(time.Duration(w.ahead.Load())) }

type machines struct{ w *world }

func (m machines) AuthenticateMachine(_ context.Context, call automation.Credential) (automation.Machine, error) {
	if len(call.Authorization) != 1 || call.Authorization[0] != "DPoP "+machineToken {
		return automation.Machine{}, automation.Errorf(automation.CodeUnauthorized, "bad proof")
	}
	return m.w.machine, nil
}

func (m machines) IssueToken(_ context.Context, call automation.Credential) (automation.TokenAnswer, error) {
	if len(call.Authorization) != 1 || call.Authorization[0] != "Machine "+m.w.machine.ID || call.Path != "/v1/machine/token" {
		return automation.TokenAnswer{}, automation.Errorf(automation.CodeUnauthorized, "bad proof")
	}
	return automation.TokenAnswer{AccessToken: machineToken, TokenType: "DPoP", ExpiresInMs: 600_000}, nil
}

func (m machines) Received(_ string, bytes int) { m.w.received.Add(int64(bytes)) }

func (m machines) Enroll(context.Context, automation.EnrollRequest) (automation.Machine, error) {
	return automation.Machine{}, automation.Errorf(automation.CodeUnauthorized, "bad code")
}

// answer is what a request got.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) json(t testing.TB) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal(a.body, &v); err != nil {
		t.Fatalf("the answer is no JSON: %v\n%s", err, a.body)
	}
	return v
}

func (a answer) code(t *testing.T) string {
	t.Helper()
	var envelope api.ErrorEnvelope
	if err := json.Unmarshal(a.body, &envelope); err != nil {
		t.Fatalf("the answer is no JSON: %v\n%s", err, a.body)
	}
	return string(envelope.Error.Code)
}

func (w *world) do(method, path, body string, change ...func(*http.Request)) answer {
	w.t.Helper()
	request, err := http.NewRequestWithContext(w.t.Context(), method, w.server.URL+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+userToken)
	for _, c := range change {
		c(request)
	}
	response, err := w.server.Client().Do(request)
	if err != nil {
		w.t.Fatal(err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return answer{response.StatusCode, response.Header, content}
}

func asMachine(r *http.Request) { r.Header.Set("Authorization", "DPoP "+machineToken) }

func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

const definition = `{"name":"Hello","workflow":{"compiled":{"version":2,"steps":[
	{"id":"greet","kind":"command","command":"echo","args":["hello"]},
	{"id":"again","kind":"command","command":"echo"}]}}}`

func (w *world) create() string {
	w.t.Helper()
	a := w.do("POST", "/v1/automations", definition)
	if a.status != http.StatusCreated {
		w.t.Fatalf("create: %d %s", a.status, a.body)
	}
	return a.json(w.t)["id"].(string)
}

func (w *world) runNow(automationID string) string {
	w.t.Helper()
	a := w.do("POST", "/v1/automations/"+automationID+"/runs", "")
	if a.status != http.StatusCreated {
		w.t.Fatalf("run-now: %d %s", a.status, a.body)
	}
	return a.json(w.t)["id"].(string)
}

func TestEveryRouteButHealthIsAuthenticated(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	routes := []string{
		"GET /metrics", "POST /v1/machine/hello", "POST /v1/machine/alive", "POST /v1/machine/steps/begin", "POST /v1/machine/steps/finish",
		"GET /v1/machine/events", "POST /v1/machine/enroll",
	}
	for _, command := range catalog.Commands() {
		path := strings.NewReplacer("{automation_id}", newID(), "{run_id}", newID()).Replace(command.Route.Path)
		routes = append(routes, command.Route.Method+" /v1"+path)
	}
	credentials := map[string]func(*http.Request){
		"no credential":        func(r *http.Request) { r.Header.Del("Authorization") },
		"a wrong token":        header("Authorization", "Bearer nonsense"),
		"an empty token":       header("Authorization", "Bearer "),
		"a wrong machine":      header("Authorization", "Machine nonsense"),
		"another scheme":       header("Authorization", "Basic dXNlcjp0b2tlbg=="),
		"two credentials":      func(r *http.Request) { r.Header.Add("Authorization", "Bearer nonsense") },
		"a token in the query": func(r *http.Request) { r.Header.Del("Authorization"); r.URL.RawQuery = "token=" + userToken },
	}
	for _, route := range routes {
		method, path, _ := strings.Cut(route, " ")
		for name, credential := range credentials {
			body := ""
			if strings.HasSuffix(path, "/enroll") {
				body = `{"code":"","publicKey":{},"proof":"","name":"","platform":"","version":""}`
			}
			if a := w.do(method, path, body, credential); a.status != http.StatusUnauthorized || a.code(t) != "unauthorized" {
				t.Errorf("%s with %s: %d %s", route, name, a.status, a.body)
			}
		}
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if a := w.do("GET", path, "", func(r *http.Request) { r.Header.Del("Authorization") }); a.status != http.StatusOK {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
}

func TestAUserIsNoMachine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if a := w.do("POST", "/v1/machine/hello", "{}"); a.status != http.StatusUnauthorized {
		t.Errorf("a user's token opened the machine API: %d %s", a.status, a.body)
	}
	if a := w.do("GET", "/v1/automations", "", asMachine); a.status != http.StatusOK {
		t.Errorf("a machine controls what its owner owns: %d %s", a.status, a.body)
	}
}

func TestHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for host, want := range map[string]int{
		"errand.example.com": 200, "ERRAND.example.com:7717": 200, "127.0.0.1:1": 200,
		"evil.example.com": 403, "evil.example.com:7717": 403, "127.0.0.1.evil.com": 403, "localhost": 403,
	} {
		a := w.do("GET", "/v1/automations", "", func(r *http.Request) { r.Host = host })
		if a.status != want {
			t.Errorf("host %s: %d, want %d: %s", host, a.status, want, a.body)
		}
	}
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	step := `{"id":"a","kind":"command","command":"true"}`
	plan := func(steps string) string {
		return `{"name":"x","workflow":{"compiled":{"version":2,"steps":[` + steps + `]}}}`
	}
	tests := map[string]struct {
		body  string
		paths []string
	}{
		"unknown member":    {`{"name":"x","colour":"red"}`, []string{"colour"}},
		"duplicate member":  {`{"name":"x","name":"y"}`, []string{"name"}},
		"wrong type":        {`{"name":7}`, []string{"name"}},
		"duplicate step id": {plan(step + "," + step), []string{"workflow.compiled.steps[1].id"}},
		"version 3":         {`{"name":"x","workflow":{"compiled":{"version":3,"steps":[` + step + `]}}}`, []string{"workflow.compiled.version"}},
		"empty steps":       {plan(""), []string{"workflow.compiled.steps"}},
		"relative cwd":      {plan(`{"id":"a","kind":"command","command":"true","cwd":"src"}`), []string{"workflow.compiled.steps[0].cwd"}},
		"2 MiB plan": {
			plan(`{"id":"a","kind":"command","command":"cat","stdin":"` + strings.Repeat("x", 2<<20) + `"}`), []string{"workflow.compiled"},
		},
		"invalid UTF-8":    {"{\"name\":\"\xff\"}", nil},
		"deep nesting":     {`{"name":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + `}`, nil},
		"NUL":              {`{"name":"a\u0000b"}`, []string{"name"}},
		"no JSON":          {`name: x`, []string{""}},
		"nothing":          {``, []string{"name"}},
		"trailing data":    {`{"name":"x"} {}`, nil},
		"an array":         {`[]`, nil},
		"several mistakes": {`{"nam":"x","enabled":"yes"}`, []string{"nam", "enabled", "name"}},
		"a schedule that never fires": {
			`{"name":"x","schedules":[{"every":"1h"},{"cron":"0 0 30 2 *","timezone":"UTC"}]}`, []string{"schedules[1].cron"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := w.do("POST", "/v1/automations", test.body)
			if a.status != http.StatusBadRequest || a.code(t) != "validation_failed" {
				t.Fatalf("%d %.300s", a.status, a.body)
			}
			var envelope api.ErrorEnvelope
			if err := json.Unmarshal(a.body, &envelope); err != nil {
				t.Fatal(err)
			}
			if len(envelope.Error.Details) == 0 || envelope.Error.Message == "" {
				t.Fatalf("the answer does not say what is wrong: %s", a.body)
			}
			for _, path := range test.paths {
				found := false
				for _, detail := range envelope.Error.Details {
					found = found || detail.Path == path && detail.Message != ""
				}
				if !found {
					t.Errorf("no violation at %q: %s", path, a.body)
				}
			}
		})
	}
	t.Cleanup(func() {
		left, _, err := w.ledger.ListAutomations(context.Background(), w.owner, automation.AutomationFilter{Limit: 10})
		if err != nil || len(left) > 0 {
			t.Errorf("something was stored: %v, %v", left, err)
		}
	})
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.create()
	draft := w.do("POST", "/v1/automations", `{"name":"draft"}`).json(t)["id"].(string)
	disabled := w.do("POST", "/v1/automations", strings.Replace(definition, `"name":"Hello"`, `"name":"off","enabled":false`, 1)).json(t)["id"].(string)
	tests := map[string]struct {
		method, path, body string
		status             int
		code               string
	}{
		"an unknown automation":        {"GET", "/v1/automations/" + newID(), "", 404, "not_found"},
		"a query with a semicolon":     {"DELETE", "/v1/automations/" + id + "?expected_version=99;", "", 400, "validation_failed"},
		"a query that is malformed":    {"GET", "/v1/runs?limit=%zz", "", 400, "validation_failed"},
		"a query that is no UTF-8":     {"GET", "/v1/automations?query=%ff", "", 400, "validation_failed"},
		"a malformed query of a POST":  {"POST", "/v1/automations/" + id + "/runs?a;b", "", 400, "validation_failed"},
		"a body on DELETE":             {"DELETE", "/v1/automations/" + id, `{"expected_version":99}`, 400, "validation_failed"},
		"a body on GET":                {"GET", "/v1/automations/" + id, `{}`, 400, "validation_failed"},
		"an id that is none":           {"GET", "/v1/automations/x", "", 400, "validation_failed"},
		"an id with a NUL":             {"GET", "/v1/automations/%00", "", 400, "validation_failed"},
		"an id that is no UTF-8":       {"GET", "/v1/automations/%ff", "", 400, "validation_failed"},
		"an unknown run":               {"GET", "/v1/runs/" + newID(), "", 404, "not_found"},
		"an unknown query":             {"GET", "/v1/runs?colour=red", "", 400, "validation_failed"},
		"a repeated query":             {"GET", "/v1/runs?limit=1&limit=2", "", 400, "validation_failed"},
		"a limit that is no number":    {"GET", "/v1/runs?limit=many", "", 400, "validation_failed"},
		"a limit that is too large":    {"GET", "/v1/runs?limit=201", "", 400, "validation_failed"},
		"a cursor that is none":        {"GET", "/v1/runs?cursor=x", "", 400, "validation_failed"},
		"a status that is none":        {"GET", "/v1/runs?status=done", "", 400, "validation_failed"},
		"a time that is none":          {"GET", "/v1/runs?since=yesterday", "", 400, "validation_failed"},
		"a truth value that is none":   {"GET", "/v1/automations?enabled=1", "", 400, "validation_failed"},
		"an id in path and body":       {"POST", "/v1/automations/" + id + "/runs", `{"automation_id":"` + id + `"}`, 400, "validation_failed"},
		"a query beside a body":        {"POST", "/v1/automations/" + id + "/runs?wait_ms=5", "", 400, "validation_failed"},
		"a wait that is too long":      {"POST", "/v1/automations/" + id + "/runs", `{"wait_ms":55001}`, 400, "validation_failed"},
		"a run input of over 1 MiB":    {"POST", "/v1/automations/" + id + "/runs", `{"input":"` + strings.Repeat("x", 1<<20) + `"}`, 400, "validation_failed"},
		"a body of over 8 MiB":         {"POST", "/v1/automations/" + id + "/runs", strings.Repeat(" ", 8<<20+1), 413, "payload_too_large"},
		"a draft":                      {"POST", "/v1/automations/" + draft + "/runs", "", 409, "not_executable"},
		"a disabled automation":        {"POST", "/v1/automations/" + disabled + "/runs", "", 409, "automation_disabled"},
		"a route that is none":         {"GET", "/v2/automations", "", 404, "not_found"},
		"a method that is none":        {"PUT", "/v1/automations", "", 404, "not_found"},
		"a machine that is not there":  {"POST", "/v1/automations", `{"name":"x","machineId":"` + newID() + `"}`, 400, "validation_failed"},
		"a run that is none to cancel": {"POST", "/v1/runs/" + newID() + "/cancel", "", 404, "not_found"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if a := w.do(test.method, test.path, test.body); a.status != test.status || a.code(t) != test.code {
				t.Errorf("%d %.300s, want %d %s", a.status, a.body, test.status, test.code)
			}
		})
	}
}

func TestPanicIsInternalAndSaysNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.do("GET", "/v1/automations/"+panicID, "")
	if a.status != 500 || a.code(t) != "internal" || strings.Contains(string(a.body), "secret") {
		t.Fatalf("%d %s", a.status, a.body)
	}
	id := a.header.Get("X-Request-Id")
	if id == "" || !strings.Contains(string(a.body), id) {
		t.Errorf("the answer must name its request id %q: %s", id, a.body)
	}
	if log := w.log.String(); !strings.Contains(log, "the secret reason") || !strings.Contains(log, id) {
		t.Errorf("the log must hold the reason and the request id:\n%s", log)
	}
	if a := w.do("GET", "/healthz", ""); a.status != 200 {
		t.Errorf("the server is harmed: %d", a.status)
	}
}

func TestCreateGetList(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.create()
	got := w.do("GET", "/v1/automations/"+id+"?include_runs=true&runs_limit=3", "").json(t)
	if got["name"] != "Hello" || got["machineId"] != w.machine.ID || got["version"] != 1.0 || got["enabled"] != true {
		t.Errorf("%v", got)
	}
	if diff := cmp.Diff([]any{}, got["schedules"]); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]any{}, got["runs"]); diff != "" {
		t.Error(diff)
	}
	for range 4 {
		w.create()
	}
	seen, cursor := map[string]bool{}, ""
	for {
		page := w.do("GET", "/v1/automations?limit=2&cursor="+cursor, "").json(t)
		for _, a := range page["automations"].([]any) {
			item := a.(map[string]any)
			seen[item["id"].(string)] = true
			if _, found := item["workflow"].(map[string]any)["compiled"]; found {
				t.Error("a list must not carry plans")
			}
		}
		next, more := page["next_cursor"].(string)
		if !more {
			break
		}
		cursor = next
	}
	if len(seen) != 5 {
		t.Errorf("%d automations over the pages, want 5", len(seen))
	}
}

func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.create()
	path := "/v1/automations/" + id + "/runs"
	first := w.do("POST", path, `{"input":1}`, header("Idempotency-Key", "k")).json(t)["id"]
	if again := w.do("POST", path, `{"input":1,"idempotency_key":"k"}`).json(t)["id"]; again != first {
		t.Errorf("header and member are the same thing: %v and %v", first, again)
	}
	if again := w.do("POST", path, `{"input":1,"idempotency_key":"k","wait_ms":1}`).json(t)["id"]; again != first {
		t.Errorf("how long to wait is not part of the request: %v and %v", first, again)
	}
	if a := w.do("POST", path, `{"input":2,"idempotency_key":"k"}`); a.status != 409 || a.code(t) != "idempotency_conflict" {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := w.do("POST", path, `{"input":1,"idempotency_key":"k"}`, header("Idempotency-Key", "l")); a.code(t) != "validation_failed" {
		t.Errorf("%d %s", a.status, a.body)
	}
	for name, keys := range map[string][]string{"two keys": {"k", "l"}, "an empty key": {""}, "no UTF-8": {"k\xe9"}} {
		a := w.do("POST", path, `{"input":1}`, func(r *http.Request) { r.Header["Idempotency-Key"] = keys })
		if a.status != 400 || a.code(t) != "validation_failed" {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	one := w.do("POST", "/v1/automations", definition, header("Idempotency-Key", "k")).json(t)["id"]
	two := w.do("POST", "/v1/automations", definition, header("Idempotency-Key", "k")).json(t)["id"]
	if one != two {
		t.Errorf("create under one key made %v and %v", one, two)
	}
}

func TestRunThroughTheMachineAPI(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	automationID := w.create()
	runID := w.runNow(automationID)
	if diff := cmp.Diff([]string{runID}, w.admitted); diff != "" {
		t.Errorf("the engine was not asked to start the run: %s", diff)
	}
	hello := w.do("POST", "/v1/machine/hello", `{"instance":{"directoryId":"d","bootId":"b","start":1,"host":"h"},
		"version":"1","platform":"linux/amd64","concurrency":2}`, asMachine).json(t)
	if hello["machineId"] != w.machine.ID || !strings.HasSuffix(hello["taskQueue"].(string), "/machine/"+w.machine.ID) {
		t.Errorf("hello: %v", hello)
	}
	for _, step := range []string{"greet", "again"} {
		begun := w.do("POST", "/v1/machine/steps/begin", fmt.Sprintf(
			`{"runId":%q,"stepId":%q,"generation":1,"requestId":%q}`, runID, step, newID()), asMachine).json(t)
		if begun["decision"] != "run" || begun["execution"] != 1.0 || begun["step"].(map[string]any)["command"] != "echo" {
			t.Fatalf("begin: %v", begun)
		}
		done := w.do("POST", "/v1/machine/steps/finish", fmt.Sprintf(
			`{"runId":%q,"stepId":%q,"execution":1,"outcome":"completed","result":{"exitCode":0,"stdout":"a\u0000b"}}`, runID, step),
			asMachine).json(t)
		if done["accepted"] != true {
			t.Fatalf("finish: %v", done)
		}
	}
	run := w.do("GET", "/v1/runs/"+runID+"?wait_ms=20000", "").json(t)
	if run["status"] != "completed" {
		t.Fatalf("%v", run)
	}
	output := run["steps"].([]any)[0].(map[string]any)["output"].(map[string]any)
	if output["stdout"] != "a\x00b" {
		t.Errorf("output %v", output)
	}
	if a := w.do("POST", "/v1/machine/steps/begin", `{"runId":"x"}`, asMachine); a.status != 404 && a.status != 400 {
		t.Errorf("a begin of nothing: %d %s", a.status, a.body)
	}
}

func TestWaitReturnsWhenTheRunEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	runID := w.runNow(w.create())
	waited := make(chan map[string]any, 1)
	go func() { waited <- w.do("GET", "/v1/runs/"+runID+"?wait_ms=50000", "").json(t) }()
	if a := w.do("POST", "/v1/runs/"+runID+"/cancel", `{"reason":"enough"}`); a.status != 200 || a.json(t)["status"] != "cancelled" {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if run := <-waited; run["status"] != "cancelled" {
		t.Errorf("%v", run)
	}
	if a := w.do("POST", "/v1/runs/"+runID+"/cancel", ""); a.status != 409 || a.code(t) != "already_finished" {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// stream reads a machine's events.
func (w *world) stream() (next func() automation.Event, stop func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, w.server.URL+"/v1/machine/events", nil)
	if err != nil {
		w.t.Fatal(err)
	}
	asMachine(request)
	response, err := w.server.Client().Do(request)
	if err != nil {
		w.t.Fatal(err)
	}
	lines := bufio.NewScanner(response.Body)
	next = func() automation.Event {
		w.t.Helper()
		for lines.Scan() {
			if data, found := strings.CutPrefix(lines.Text(), "data: "); found {
				var event automation.Event
				if err := json.Unmarshal([]byte(data), &event); err != nil {
					w.t.Fatal(err)
				}
				return event
			}
		}
		w.t.Fatalf("the stream has ended: %v", lines.Err())
		return automation.Event{}
	}
	return next, func() {
		cancel()
		response.Body.Close()
	}
}

// TestOnlyAMachineShowsThatItIsThere: a stream that is open proves nothing, what a machine sends does.
func TestOnlyAMachineShowsThatItIsThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if a := w.do("POST", "/v1/machine/alive", "{}", asMachine); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	machine, err := w.ledger.Machine(t.Context(), w.machine.ID)
	if err != nil || machine.LastSeenAt == nil {
		t.Errorf("%+v, %v", machine, err)
	}
}

func TestEventsPushEndsAndRepeatThem(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	runID := w.runNow(w.create())
	w.do("POST", "/v1/machine/steps/begin", fmt.Sprintf(`{"runId":%q,"stepId":"greet","generation":1,"requestId":"r"}`, runID), asMachine)
	next, stop := w.stream()
	if event := next(); event.Kind != automation.EventPing {
		t.Errorf("a stream begins with a ping: %+v", event)
	}
	seen, err := w.ledger.Machine(t.Context(), w.machine.ID)
	if err != nil || seen.LastSeenAt == nil {
		t.Errorf("a stream shows that the machine is there: %+v, %v", seen, err)
	}
	if run := w.do("POST", "/v1/runs/"+runID+"/cancel", "").json(t); run["status"] != "running" ||
		run["waitingFor"].(map[string]any)["reason"] != "cancel_confirmation" {
		t.Errorf("%v", run)
	}
	want := automation.Event{
		Kind: automation.EventEnd, StepRef: automation.StepRef{RunID: runID, StepID: "greet"}, Execution: 1,
	}
	if diff := cmp.Diff(want, next()); diff != "" {
		t.Error(diff)
	}
	stop()
	next, stop = w.stream()
	defer stop()
	next()
	if diff := cmp.Diff(want, next()); diff != "" {
		t.Errorf("after a reconnect: %s", diff)
	}
	w.do("POST", "/v1/machine/steps/finish", fmt.Sprintf(`{"runId":%q,"stepId":"greet","execution":1,"outcome":"cancelled"}`, runID), asMachine)
	if run := w.do("GET", "/v1/runs/"+runID, "").json(t); run["status"] != "cancelled" {
		t.Errorf("%v", run)
	}
}

func TestUpdateAndDelete(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.create()
	path := "/v1/automations/" + id
	changed := w.do("PATCH", path, `{"expected_version":1,"name":"New","enabled":false,"description":"d"}`).json(t)
	if changed["version"] != 2.0 || changed["name"] != "New" || changed["enabled"] != false || changed["description"] != "d" {
		t.Fatalf("%v", changed)
	}
	if changed["workflow"].(map[string]any)["compiled"] == nil {
		t.Error("an absent member must keep what is there")
	}
	reset := w.do("PATCH", path, `{"enabled":null,"description":null,"workflow":null,"machine_id":null}`).json(t)
	if reset["enabled"] != true || reset["description"] != "" || reset["machineId"] != w.machine.ID ||
		reset["workflow"].(map[string]any)["compiled"] != nil {
		t.Errorf("null means default: %v", reset)
	}
	refusals := map[string]struct {
		body   string
		status int
		code   string
		place  string
	}{
		"another version":     {`{"expected_version":1,"name":"x"}`, 409, "version_conflict", ""},
		"a version of none":   {`{"expected_version":0}`, 400, "validation_failed", "expected_version"},
		"a blank name":        {`{"name":" "}`, 400, "validation_failed", "name"},
		"an unknown member":   {`{"nmae":"x"}`, 400, "validation_failed", "nmae"},
		"a bad plan":          {`{"name":"x","workflow":{"compiled":{"version":2,"steps":[]}}}`, 400, "validation_failed", "workflow.compiled.steps"},
		"a machine of none":   {`{"name":"x","machine_id":"` + newID() + `"}`, 400, "validation_failed", "machine_id"},
		"a bad schedule":      {`{"schedules":{"add":[{"cron":"* * * * *"}]}}`, 400, "validation_failed", "schedules.add[0].timezone"},
		"no such schedule":    {`{"schedules":{"remove":["` + newID() + `"]}}`, 400, "validation_failed", "schedules.remove[0]"},
		"a trigger to remove": {`{"webhooks":{"remove":["x"]}}`, 400, "validation_failed", "webhooks.remove[0]"},
	}
	for name, test := range refusals {
		a := w.do("PATCH", path, test.body)
		if a.status != test.status || a.code(t) != test.code || test.place != "" && !strings.Contains(string(a.body), `"path":"`+test.place+`"`) {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	if now := w.do("GET", path, "").json(t); now["name"] != "New" || now["version"] != reset["version"] {
		t.Errorf("a refused change changed something: %v", now)
	}
	if a := w.do("PATCH", "/v1/automations/"+newID(), `{"name":"x"}`); a.status != 404 {
		t.Errorf("%d %s", a.status, a.body)
	}

	w.do("PATCH", path, `{"workflow":{"compiled":{"version":2,"steps":[{"id":"a","kind":"command","command":"true"}]}}}`)
	waiting, executing := w.runNow(id), w.runNow(id)
	w.do("POST", "/v1/machine/steps/begin", fmt.Sprintf(`{"runId":%q,"stepId":"a","generation":1,"requestId":"r"}`, executing), asMachine)
	if a := w.do("DELETE", path+"?expected_version=1", ""); a.status != 409 {
		t.Errorf("%d %s", a.status, a.body)
	}
	deleted := w.do("DELETE", path+"?cancel_runs=true", "").json(t)
	hint := map[string]any{
		"command": "runs", "input": map[string]any{"automation_id": id},
		"about": "lists its runs; unfinished ones go on, cancel-run ends one",
	}
	if diff := cmp.Diff(map[string]any{"automation_id": id, "deleted": true, "unfinished_runs": 1.0, "hint": hint}, deleted); diff != "" {
		t.Errorf("one run waits for its machine: %s", diff)
	}
	for run, want := range map[string]string{waiting: "cancelled", executing: "running"} {
		if got := w.do("GET", "/v1/runs/"+run, "").json(t); got["status"] != want || got["cancelRequestedAt"] == nil {
			t.Errorf("%v", got)
		}
	}
	if a := w.do("GET", path, ""); a.status != 404 {
		t.Errorf("%d %s", a.status, a.body)
	}
	if history := w.do("GET", "/v1/runs?automation_id="+id, "").json(t)["runs"].([]any); len(history) != 2 {
		t.Errorf("history: %v", history)
	}
}

func TestMachines(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.do("POST", "/v1/machine/hello", `{"instance":{"directoryId":"d","bootId":"b","start":1,"host":"h"},
		"version":"7","platform":"linux/amd64","concurrency":2}`, asMachine)
	run := w.runNow(w.create())
	w.runNow(w.create())
	w.do("POST", "/v1/machine/steps/begin", fmt.Sprintf(`{"runId":%q,"stepId":"greet","generation":1,"requestId":"r"}`, run), asMachine)
	page := w.do("GET", "/v1/machines", "").json(t)["machines"].([]any)
	if len(page) != 1 {
		t.Fatalf("%v", page)
	}
	got := page[0].(map[string]any)
	for name, want := range map[string]any{
		"id": w.machine.ID, "name": "laptop", "state": "active", "online": true, "runningSteps": 1.0, "pendingRuns": 1.0,
		"concurrency": 2.0, "version": "7", "platform": "linux/amd64",
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
}

// TestABodyThatEndsEarly is the caller's fault, and no line of an operator's log.
func TestABodyThatEndsEarly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, request := range map[string]string{
		"cut off":         "Content-Length: 100\r\n\r\n{\"name\":\"x\"}",
		"malformed chunk": "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
	} {
		connection, err := net.Dial("tcp", strings.TrimPrefix(w.server.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer connection.Close()
		_, err = fmt.Fprintf(connection, "POST /v1/automations HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\n%s", userToken, request)
		if err != nil {
			t.Fatal(err)
		}
		if err := connection.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReader(connection), nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		body, _ := io.ReadAll(response.Body)
		if response.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), "validation_failed") {
			t.Errorf("%s: %d %s", name, response.StatusCode, body)
		}
	}
	if log := w.log.String(); strings.Contains(log, "level=ERROR") {
		t.Errorf("the log:\n%s", log)
	}
}

// TestAReadDeadlineEndsWithTheBody: a call that waits for a run is not cut off by the deadline of its body.
func TestAReadDeadlineEndsWithTheBody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	deadlines := &deadlineRecorder{ResponseRecorder: httptest.NewRecorder()}
	request := httptest.NewRequest(http.MethodPost, "/v1/automations", strings.NewReader(definition))
	request.Host = "127.0.0.1"
	request.Header.Set("Authorization", "Bearer "+userToken)
	w.api.ServeHTTP(deadlines, request)
	if len(deadlines.set) != 2 || deadlines.set[0].IsZero() || !deadlines.set[1].IsZero() {
		t.Errorf("read deadlines %v, want one and its end", deadlines.set)
	}
	request = httptest.NewRequest(http.MethodPost, "/v1/automations", strings.NewReader(definition))
	request.Host = "127.0.0.1"
	stranger := &deadlineRecorder{ResponseRecorder: httptest.NewRecorder()}
	w.api.ServeHTTP(stranger, request)
	if stranger.Code != http.StatusUnauthorized || len(stranger.set) != 1 || stranger.set[0].IsZero() {
		t.Errorf("a stranger: %d, read deadlines %v, want one that stays", stranger.Code, stranger.set)
	}
}

// TestABodyThatNobodyReadsHasADeadline: the server itself reads it to its end before the next request.
func TestABodyThatNobodyReadsHasADeadline(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, path := range []string{"/healthz", "/docs", "/nowhere", "/v1/machine/token"} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			request := httptest.NewRequest(method, path, strings.NewReader("x"))
			request.Host = "127.0.0.1"
			deadlines := &deadlineRecorder{ResponseRecorder: httptest.NewRecorder()}
			w.api.ServeHTTP(deadlines, request)
			if len(deadlines.set) != 1 || deadlines.set[0].IsZero() {
				t.Errorf("%s %s: read deadlines %v, want one that stays", method, path, deadlines.set)
			}
		}
	}
	request := httptest.NewRequest(http.MethodGet, "/healthz", http.NoBody)
	request.Host = "127.0.0.1"
	deadlines := &deadlineRecorder{ResponseRecorder: httptest.NewRecorder()}
	if w.api.ServeHTTP(deadlines, request); len(deadlines.set) > 0 {
		t.Errorf("without a body: read deadlines %v, of which nothing would lift one", deadlines.set)
	}
}

// TestAnAnswerIsWrittenInPieces: each has a deadline of its own, so that a client that does not read is given up and
// one that reads slowly is not.
func TestAnAnswerIsWrittenInPieces(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	request := httptest.NewRequest(http.MethodGet, "/docs/swagger-ui-bundle.js", http.NoBody)
	request.Host = "127.0.0.1"
	out := &deadlineRecorder{ResponseRecorder: httptest.NewRecorder()}
	w.api.ServeHTTP(out, request)
	pieces := (out.Body.Len() + 64<<10 - 1) / (64 << 10)
	if pieces < 10 || len(out.written) != 1+1+pieces {
		t.Fatalf("%d bytes with %d write deadlines, want the end of an earlier one, one for the header and %d", out.Body.Len(), len(out.written), pieces)
	}
	for i, deadline := range out.written {
		if deadline.IsZero() != (i == 0) {
			t.Errorf("write deadline %d is %v", i, deadline)
		}
	}
	whole := w.do("GET", "/docs/swagger-ui-bundle.js", "")
	if !bytes.Equal(whole.body, out.Body.Bytes()) {
		t.Errorf("%d bytes arrived instead of %d", len(whole.body), out.Body.Len())
	}
}

// deadlineRecorder remembers the read and write deadlines of a connection.
type deadlineRecorder struct {
	*httptest.ResponseRecorder
	set, written []time.Time
}

func (d *deadlineRecorder) SetWriteDeadline(t time.Time) error {
	d.written = append(d.written, t)
	return nil
}

func (d *deadlineRecorder) SetReadDeadline(t time.Time) error {
	d.set = append(d.set, t)
	return nil
}
