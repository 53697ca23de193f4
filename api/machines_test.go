package api_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
)

func TestMachineCommands(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	path := "/v1/machines/" + w.machine.ID
	made := w.do("POST", "/v1/machines/enrollment-codes", "")
	code := made.json(t)
	want := "errand machine enroll --server https://errand.example.com --code ABCD-EFGH-2345-WXYZ"
	if made.status != http.StatusCreated || code["command"] != want || code["server"] != "https://errand.example.com" || code["machineId"] != nil {
		t.Errorf("a code: %d %s", made.status, made.body)
	}
	if again := w.do("POST", "/v1/machines/enrollment-codes", `{"machine_id":"`+w.machine.ID+`"}`); again.status != http.StatusCreated ||
		again.json(t)["machineId"] != w.machine.ID {
		t.Errorf("a code for a machine: %d %s", again.status, again.body)
	}
	renamed := w.do("PATCH", path, `{"name":"attic","labels":{"room":"attic"}}`)
	if m := renamed.json(t); renamed.status != http.StatusOK || m["name"] != "attic" || m["id"] != w.machine.ID {
		t.Errorf("renaming: %d %s", renamed.status, renamed.body)
	}
	shown := w.do("GET", path, "").json(t)
	if labels, _ := shown["labels"].(map[string]any); shown["name"] != "attic" || labels["room"] != "attic" || shown["state"] != "active" {
		t.Errorf("the renamed machine: %v", shown)
	}
	for what, body := range map[string]string{
		"nothing":         `{}`,
		"a blank name":    `{"name":" "}`,
		"a control":       `{"name":"a\u0007"}`,
		"a long name":     `{"name":"` + strings.Repeat("x", 201) + `"}`,
		"a label of none": `{"labels":{"":"x"}}`,
		"null":            `{"name":null}`,
	} {
		if a := w.do("PATCH", path, body); a.status != http.StatusBadRequest || a.code(t) != "validation_failed" {
			t.Errorf("%s: %d %s", what, a.status, a.body)
		}
	}
	for _, refused := range []answer{
		w.do("POST", "/v1/machines/enrollment-codes", "", asMachine), w.do("PATCH", path, `{"name":"mine"}`, asMachine),
		w.do("POST", path+"/revoke", "", asMachine),
	} {
		if refused.status != http.StatusForbidden || !strings.Contains(string(refused.body), "needs a person") {
			t.Errorf("a machine hands out access: %d %s", refused.status, refused.body)
		}
	}
}

func TestRevocationEndsStreamAndRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	automationID := w.create()
	run := w.runNow(automationID)
	next, stop := w.stream()
	defer stop()
	if first := next(); first.Kind != automation.EventPing {
		t.Fatalf("the first event is %+v", first)
	}
	revoked := w.do("POST", "/v1/machines/"+w.machine.ID+"/revoke", "")
	if m := revoked.json(t); revoked.status != http.StatusOK || m["state"] != "revoked" || m["revokedAt"] == nil || m["pendingRuns"] != 0.0 {
		t.Errorf("the revocation: %d %s", revoked.status, revoked.body)
	}
	if event := next(); event.Kind != automation.EventRevoked {
		t.Errorf("the stream brought %+v", event)
	}
	ended := w.do("GET", "/v1/runs/"+run, "").json(t)
	if failure, _ := ended["error"].(map[string]any); ended["status"] != "failed" || failure["code"] != "machine_lost" {
		t.Errorf("the run: %v", ended)
	}
	w.mu.Lock()
	lost := strings.Join(w.lost, " ")
	w.mu.Unlock()
	if lost != run {
		t.Errorf("the workflows of %q were told, want %s", lost, run)
	}
	// The test's authenticator lets the machine in still; the stream looks for itself.
	if a := w.do("GET", "/v1/machine/events", "", asMachine); a.status != http.StatusConflict || a.code(t) != "machine_revoked" {
		t.Errorf("a stream of a revoked machine: %d %s", a.status, a.body)
	}
	if a := w.do("POST", "/v1/automations/"+automationID+"/runs", "{}"); a.status != http.StatusConflict || a.code(t) != "machine_revoked" {
		t.Errorf("a run on a revoked machine: %d %s", a.status, a.body)
	}
	if a := w.do("POST", "/v1/machines/"+w.machine.ID+"/revoke", ""); a.status != http.StatusOK {
		t.Errorf("revoking again: %d %s", a.status, a.body)
	}
	whole := string(w.do("GET", "/v1/audit", "").body)
	if !strings.Contains(whole, "revoke-machine") {
		t.Errorf("the audit does not tell of the revocation: %s", whole)
	}
}

func TestStreamOfAnOldKeyEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	next, stop := w.stream()
	defer stop()
	next()
	expires := time.Now().Add(time.Hour)
	code := automation.EnrollmentCode{Hash: "hash", OwnerID: w.owner, MachineID: w.machine.ID, ExpiresAt: expires}
	if err := w.ledger.SaveEnrollmentCode(t.Context(), code); err != nil {
		t.Fatal(err)
	}
	renewed := automation.NewMachine{Name: "laptop", PublicKey: `{"kty":"OKP","x":"new"}`}
	if _, err := w.ledger.RedeemEnrollmentCode(t.Context(), "hash", renewed); err != nil {
		t.Fatal(err)
	}
	w.api.MachineAccessChanged(w.machine.ID, false)
	if a := w.do("GET", "/v1/machine/events", "", asMachine); a.status != http.StatusUnauthorized || !strings.Contains(string(a.body), "another key now") {
		t.Errorf("a stream with the old key: %d %s", a.status, a.body)
	}
}

func TestStreamsOfOneMachineAreLimited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const most = 8
	for range most {
		next, stop := w.stream()
		defer stop()
		next()
	}
	a := w.do("GET", "/v1/machine/events", "", asMachine)
	if a.status != http.StatusTooManyRequests || a.header.Get("Retry-After") == "" {
		t.Errorf("one stream too many: %d %s", a.status, a.body)
	}
	w.observed.until(t, "limited under_way")
}

func TestTokenEndpoint(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	good := func(r *http.Request) { r.Header.Set("Authorization", "Machine "+w.machine.ID) }
	a := w.do("POST", "/v1/machine/token", "", good)
	if got := a.json(t); a.status != http.StatusOK || got["accessToken"] != machineToken || got["tokenType"] != "DPoP" || got["expiresInMs"] != 600_000.0 {
		t.Errorf("a token: %d %s", a.status, a.body)
	}
	if a.header.Get("Cache-Control") != "no-store" {
		t.Errorf("a token may be stored: %v", a.header)
	}
	for what, change := range map[string]func(*http.Request){
		"a person's token": func(*http.Request) {}, "a machine's access token": asMachine,
		"nothing": func(r *http.Request) { r.Header.Del("Authorization") },
	} {
		if a := w.do("POST", "/v1/machine/token", "", change); a.status != http.StatusUnauthorized {
			t.Errorf("%s: %d %s", what, a.status, a.body)
		}
	}
	if a := w.do("POST", "/v1/machine/alive", "{}", good); a.status != http.StatusUnauthorized {
		t.Errorf("a call without a token: %d %s", a.status, a.body)
	}
}

func TestBytesOfAMachineAreCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	body := "{" + strings.Repeat(" ", 100_000) + "}"
	if a := w.do("POST", "/v1/machine/alive", body, asMachine); a.status != http.StatusOK {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if got := w.received.Load(); got != int64(len(body)) {
		t.Errorf("%d bytes were counted, want %d", got, len(body))
	}
}

func TestEnrolmentsFromOneAddressAreLimited(t *testing.T) {
	t.Parallel()
	w := newWorldAt(t, stopped())
	body := `{"code":"ABCD-EFGH-2345-WXYZ","publicKey":{},"proof":"x","name":"m","platform":"linux/amd64","version":"v1"}`
	const burst = 200
	for i := range burst {
		if a := w.do("POST", "/v1/machine/enroll", body); a.status != http.StatusUnauthorized {
			t.Fatalf("try %d: %d %s", i, a.status, a.body)
		}
	}
	a := w.do("POST", "/v1/machine/enroll", body)
	if a.status != http.StatusTooManyRequests || a.header.Get("Retry-After") != "1" || !strings.Contains(string(a.body), "too many enrolments") {
		t.Errorf("one try too many: %d %s", a.status, a.body)
	}
	w.ahead.Add(int64(time.Second))
	if a := w.do("POST", "/v1/machine/enroll", body); a.status != http.StatusUnauthorized {
		t.Errorf("after the wait: %d %s", a.status, a.body)
	}
}
