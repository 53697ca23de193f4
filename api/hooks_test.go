package api_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	standard "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/errandhq/errand/automation/webhook"
)

const (
	hubSecret      = "Canary of a secret, 24 bytes or more"
	standardSecret = "whsec_Q2FuYXJ5IG9mIGFub3RoZXIgc2VjcmV0LCAyNCBieXRlcw=="
)

const hooked = `{"name":"Hooked","workflow":{"compiled":{"version":2,"steps":[{"id":"greet","kind":"command","command":"echo"}]}},
	"webhooks":[{"name":"forge","scheme":"github","secret":"` + hubSecret + `","headers":["X-GitHub-Hook-ID"]},
		{"name":"other","scheme":"standard","secret":"` + standardSecret + `"},
		{"name":"off","scheme":"github","secret":"` + hubSecret + `","enabled":false}]}`

// newHookedWorld returns a world in which deliveries say where they come from.
func newHookedWorld(t *testing.T) *world {
	t.Helper()
	return newWorldWith(t, func(o *worldOptions) { o.proxies = []string{"127.0.0.1"} })
}

// hookedAutomation creates an automation with webhooks and returns its id and theirs.
func (w *world) hookedAutomation() (id string, webhooks []string) {
	w.t.Helper()
	a := w.do("POST", "/v1/automations", hooked)
	if a.status != http.StatusCreated {
		w.t.Fatalf("create: %d %s", a.status, a.body)
	}
	for _, each := range a.json(w.t)["webhooks"].([]any) {
		webhooks = append(webhooks, each.(map[string]any)["id"].(string))
	}
	return a.json(w.t)["id"].(string), webhooks
}

func hubSignature(secret, body string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(body))
	return "sha256=" + hex.EncodeToString(mac.Sum(nil))
}

// sources gives each delivery of a test a source address of its own, as a trusted proxy would report it.
var sources = func() func() string {
	next := make(chan int, 1)
	next <- 0
	return func() string {
		n := <-next
		next <- n + 1
		return fmt.Sprintf("10.%d.%d.%d", n>>16, n>>8&255, n&255)
	}
}()

// hub delivers as GitHub does.
func (w *world) hub(id, secret, delivery, body string, change ...func(*http.Request)) answer {
	w.t.Helper()
	return w.do("POST", "/hooks/"+id, body, append([]func(*http.Request){
		func(r *http.Request) { r.Header.Del("Authorization") },
		header("Content-Type", "application/json"), header("X-Hub-Signature-256", hubSignature(secret, body)),
		header("X-GitHub-Event", "push"), header("X-GitHub-Delivery", delivery), header("X-Forwarded-For", sources()),
	}, change...)...)
}

func (w *world) runOf(a answer) string {
	w.t.Helper()
	if a.status != http.StatusAccepted {
		w.t.Fatalf("the delivery was not taken: %d %s", a.status, a.body)
	}
	return a.json(w.t)["run_id"].(string)
}

func TestDeliveryBecomesARun(t *testing.T) {
	t.Parallel()
	w := newHookedWorld(t)
	automation, webhooks := w.hookedAutomation()
	const body = `{"key": "value",  "num": 1.0}`
	run := w.runOf(w.hub(webhooks[0], hubSecret, "d-1", body, header("X-GitHub-Hook-ID", "7"), header("X-Other", "no")))
	shown := w.do("GET", "/v1/runs/"+run, "").json(t)
	want := map[string]any{"kind": "webhook", "id": webhooks[0], "deliveryId": "d-1"}
	if diff := cmp.Diff(want, shown["trigger"]); diff != "" || shown["automationId"] != automation || shown["status"] != "pending" {
		t.Errorf("the run is of %v, %v, with the trigger (-want +got):\n%s", shown["automationId"], shown["status"], diff)
	}
	if whole := string(w.do("GET", "/v1/runs/"+run, "").body); !strings.Contains(whole,
		`"input":{"body":{"key":"value","num":1.0},"contentType":"application/json","event":"push","deliveryId":"d-1","headers":{"x-github-hook-id":"7"}}`) {
		t.Errorf("the run is %s", whole)
	}
	w.mu.Lock()
	if len(w.admitted) != 1 || w.admitted[0] != run {
		t.Errorf("the starts that were asked for: %v", w.admitted)
	}
	w.mu.Unlock()
	for name, again := range map[string]answer{
		"sent twice":            w.hub(webhooks[0], hubSecret, "d-1", body),
		"replayed under new id": w.hub(webhooks[0], hubSecret, "d-2", body),
	} {
		if got := w.runOf(again); got != run {
			t.Errorf("%s: the run is %s, not %s", name, got, run)
		}
	}
	if empty := w.do("GET", "/v1/runs/"+w.runOf(w.hub(webhooks[0], hubSecret, "d-3", "")), ""); !strings.Contains(string(empty.body), `"input":{"body":null,"contentType"`) {
		t.Errorf("an empty body gave %s", empty.body)
	}

	sender, err := standard.NewWebhook(standardSecret)
	if err != nil {
		t.Fatal(err)
	}
	deliver := func(at time.Time) answer {
		signature, err := sender.Sign("msg_1", at, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		return w.do("POST", "/hooks/"+webhooks[1], body, header("webhook-id", "msg_1"), header("webhook-signature", signature),
			header("webhook-timestamp", fmt.Sprint(at.Unix())), header("X-Forwarded-For", sources()))
	}
	first := w.runOf(deliver(time.Now()))
	if again := w.runOf(deliver(time.Now().Add(time.Minute))); again != first || first == run {
		t.Errorf("two deliveries of one id gave %s and %s", first, again)
	}
	if old := deliver(time.Now().Add(-6 * time.Minute)); old.status != http.StatusUnauthorized {
		t.Errorf("an old delivery: %d %s", old.status, old.body)
	}
}

// TestRefusalsTellNothing: whatever is not verified gets the same answer, byte by byte.
func TestRefusalsTellNothing(t *testing.T) {
	t.Parallel()
	w := newHookedWorld(t)
	automation, webhooks := w.hookedAutomation()
	const body = `{"a":1}`
	const wrong = "a secret that is not theirs, 24 bytes"
	removed, other := webhooks[1], w.do("GET", "/v1/automations/"+automation, "")
	if a := w.do("PATCH", "/v1/automations/"+automation, `{"webhooks":{"remove":["`+removed+`"]}}`); a.status != http.StatusOK {
		t.Fatalf("update: %d %s, %s", a.status, a.body, other.body)
	}
	answers := map[string]answer{
		"badly signed":                w.hub(webhooks[0], wrong, "d-1", body),
		"not signed":                  w.hub(webhooks[0], hubSecret, "d-1", body, func(r *http.Request) { r.Header.Del("X-Hub-Signature-256") }),
		"signed in another scheme":    w.hub(webhooks[0], wrong, "d-1", body, header("webhook-id", "1"), header("webhook-timestamp", "1")),
		"signed over another body":    w.hub(webhooks[0], hubSecret, "d-1", body, header("X-Hub-Signature-256", hubSignature(hubSecret, body+" "))),
		"a malformed signature":       w.hub(webhooks[0], hubSecret, "d-1", body, header("X-Hub-Signature-256", "sha256=zz")),
		"a malformed delivery id":     w.hub(webhooks[0], hubSecret, strings.Repeat("d", 300), body),
		"disabled":                    w.hub(webhooks[2], hubSecret, "d-1", body),
		"disabled and badly signed":   w.hub(webhooks[2], wrong, "d-1", body),
		"removed":                     w.hub(removed, hubSecret, "d-1", body),
		"unknown":                     w.hub(newID(), hubSecret, "d-1", body),
		"not an id":                   w.hub("x", hubSecret, "d-1", body),
		"the id of an automation":     w.hub(automation, hubSecret, "d-1", body),
		"with a token for everything": w.hub(webhooks[0], wrong, "d-1", body, header("Authorization", "Bearer "+userToken)),
	}
	var first answer
	for name, a := range answers {
		for _, varying := range []string{"X-Request-Id", "Date"} {
			a.header.Del(varying)
		}
		if first.header == nil {
			first = a
		}
		if a.status != http.StatusUnauthorized || a.code(t) != "unauthorized" {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
		if diff := cmp.Diff(first.header, a.header) + cmp.Diff(string(first.body), string(a.body)); diff != "" {
			t.Errorf("%s is told from the others:\n%s", name, diff)
		}
	}
	if runs := w.do("GET", "/v1/runs", "").json(t)["runs"].([]any); len(runs) != 0 {
		t.Errorf("refused deliveries gave %d runs", len(runs))
	}
	for _, reason := range []string{"there is no webhook of this id", "the webhook is disabled", "the signature was not made"} {
		if !strings.Contains(w.log.String(), reason) {
			t.Errorf("the log does not say that %s", reason)
		}
	}
}

// TestVerifiedDeliveriesAreToldTheReason: whoever has the secret learns why there is no run.
func TestVerifiedDeliveriesAreToldTheReason(t *testing.T) {
	t.Parallel()
	w := newHookedWorld(t)
	automation, webhooks := w.hookedAutomation()
	for i, step := range []struct{ change, code string }{
		{`{"enabled":false}`, "automation_disabled"},
		{`{"enabled":true,"workflow":null}`, "not_executable"},
	} {
		if a := w.do("PATCH", "/v1/automations/"+automation, step.change); a.status != http.StatusOK {
			t.Fatalf("update: %d %s", a.status, a.body)
		}
		if a := w.hub(webhooks[0], hubSecret, fmt.Sprint(i), fmt.Sprint(i)); a.status != http.StatusConflict || a.code(t) != step.code {
			t.Errorf("after %s: %d %s", step.change, a.status, a.body)
		}
		if a := w.hub(webhooks[0], hubSecret+".", fmt.Sprint(i), fmt.Sprint(i)); a.status != http.StatusUnauthorized {
			t.Errorf("after %s, badly signed: %d %s", step.change, a.status, a.body)
		}
	}
}

func TestDeliveryLimits(t *testing.T) {
	t.Parallel()
	w := newHookedWorld(t)
	_, webhooks := w.hookedAutomation()
	quoted := func(n int) string { return `"` + strings.Repeat("x", n-2) + `"` }
	text := header("Content-Type", "text/plain")
	chunked := func(r *http.Request) { r.ContentLength = -1 }
	for name, test := range map[string]struct {
		answer answer
		status int
	}{
		"the largest JSON":            {w.hub(webhooks[0], hubSecret, "1", quoted(webhook.MaxJSONBody)), 202},
		"one byte more":               {w.hub(webhooks[0], hubSecret, "2", quoted(webhook.MaxJSONBody+1)), 413},
		"one byte more, of no length": {w.hub(webhooks[0], hubSecret, "3", quoted(webhook.MaxJSONBody+1), chunked), 413},
		"the largest other body":      {w.hub(webhooks[0], hubSecret, "4", quoted(webhook.MaxOtherBody), text), 202},
		"one byte more of text":       {w.hub(webhooks[0], hubSecret, "5", quoted(webhook.MaxOtherBody+1), text), 413},
		"too large for nobody":        {w.hub(newID(), hubSecret, "6", quoted(webhook.MaxJSONBody+1)), 413},
		"kept headers too large":      {w.hub(webhooks[0], hubSecret, "7", "7", header("X-GitHub-Hook-ID", strings.Repeat("x", webhook.MaxKeptHeaders))), 413},
	} {
		if test.answer.status != test.status {
			t.Errorf("%s: %d %.200s", name, test.answer.status, test.answer.body)
		}
	}
	source := header("X-Forwarded-For", "203.0.113.9")
	refused := 0
	var last answer
	for ; refused < 60; refused++ {
		if last = w.hub(newID(), hubSecret, "1", "1", source); last.status != http.StatusUnauthorized {
			break
		}
	}
	if last.status != http.StatusTooManyRequests || last.code(t) != "rate_limited" || last.header.Get("Retry-After") == "" || refused < 20 {
		t.Errorf("after %d refusals: %d %v %s", refused, last.status, last.header, last.body)
	}
	if a := w.hub(webhooks[0], hubSecret, "8", "8"); a.status != http.StatusAccepted {
		t.Errorf("another source: %d %s", a.status, a.body)
	}
}

// TestSecretsGoInAndNeverComeOut reads everything that a user or a thief of the database can read.
func TestSecretsGoInAndNeverComeOut(t *testing.T) {
	t.Parallel()
	w := newHookedWorld(t)
	const rotated, refusedSecret = "Canary of a second secret, 24 bytes", "Canary of a refused secret"
	var seen bytes.Buffer
	do := func(method, path, body string, change ...func(*http.Request)) answer {
		a := w.do(method, path, body, change...)
		seen.Write(a.body)
		return a
	}
	created := do("POST", "/v1/automations", hooked, header("Idempotency-Key", "k"))
	id := created.json(t)["id"].(string)
	if again := do("POST", "/v1/automations", hooked, header("Idempotency-Key", "k")); again.json(t)["id"] != id {
		t.Errorf("a repeat gave %s", again.body)
	}
	if other := do("POST", "/v1/automations", strings.Replace(hooked, hubSecret, rotated, 1), header("Idempotency-Key", "k")); other.code(t) != "idempotency_conflict" {
		t.Errorf("another secret under the same key gave %s", other.body)
	}
	first := created.json(t)["webhooks"].([]any)[0].(map[string]any)
	want := map[string]any{
		"id": first["id"], "name": "forge", "scheme": "github", "enabled": true, "secrets": 1.0, "createdAt": first["createdAt"],
		"url": "https://errand.example.com/hooks/" + first["id"].(string), "headers": []any{"x-github-hook-id"},
	}
	if diff := cmp.Diff(want, first); diff != "" {
		t.Errorf("the webhook (-want +got):\n%s", diff)
	}
	hook := first["id"].(string)
	update := func(change string) answer {
		return do("PATCH", "/v1/automations/"+id, `{"webhooks":{"update":[{"id":"`+hook+`",`+change+`}]}}`)
	}
	for body, place := range map[string]string{
		`"secret":"` + refusedSecret[:20] + `"`: "webhooks.update[0].secret",
		`"secret":["` + refusedSecret + `"]`:    "webhooks.update[0].secret",
		`"sekret":"` + refusedSecret + `"`:      "webhooks.update[0].sekret",
		`"options":{"signatureHeader":"s"}`:     "webhooks.update[0].options",
		`"scheme":"hmac"`:                       "webhooks.update[0].scheme",
		`"name":""`:                             "webhooks.update[0].name",
	} {
		if a := update(body); a.status != http.StatusBadRequest || !strings.Contains(string(a.body), `"path":"`+place+`"`) {
			t.Errorf("%s: %d %s", body, a.status, a.body)
		}
	}
	if a := do("POST", "/v1/automations", strings.Replace(hooked, hubSecret, refusedSecret+`"x`, 1)); a.status != http.StatusBadRequest {
		t.Errorf("broken JSON: %d %s", a.status, a.body)
	}
	secrets := func(a answer) any { return a.json(t)["webhooks"].([]any)[0].(map[string]any)["secrets"] }
	if a := update(`"secret":"` + rotated + `"`); secrets(a) != 2.0 {
		t.Errorf("after the rotation: %s", a.body)
	}
	for i, secret := range []string{hubSecret, rotated} {
		w.runOf(w.hub(hook, secret, fmt.Sprint(i), fmt.Sprint(i)))
	}
	if a := update(`"dropPreviousSecret":true`); secrets(a) != 1.0 {
		t.Errorf("after its end: %s", a.body)
	}
	if a := w.hub(hook, hubSecret, "2", "2"); a.status != http.StatusUnauthorized {
		t.Errorf("the dropped secret: %d %s", a.status, a.body)
	}
	run := w.runOf(w.hub(hook, rotated, "3", "3"))
	do("GET", "/v1/runs/"+run, "")
	do("GET", "/v1/automations", "")
	if a := do("GET", "/v1/automations/"+id, ""); !strings.Contains(string(a.body), `"lastDeliveryAt"`) {
		t.Errorf("the automation is %s", a.body)
	}
	seen.WriteString(w.log.String())
	if err := w.ledger.Checkpoint(context.Background()); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(w.database + "*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		seen.Write(content)
	}
	if !bytes.Contains(seen.Bytes(), []byte("Hooked")) || !bytes.Contains(seen.Bytes(), []byte(run)) {
		t.Error("the search would find nothing")
	}
	raw, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(standardSecret, "whsec_"))
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{hubSecret, standardSecret, string(raw), rotated, refusedSecret, refusedSecret[:20]} {
		encoded, err := json.Marshal(secret)
		if err != nil {
			t.Fatal(err)
		}
		for _, form := range []string{secret, string(encoded), hex.EncodeToString([]byte(secret)), base64.RawStdEncoding.EncodeToString([]byte(secret))} {
			if at := bytes.Index(seen.Bytes(), []byte(form)); at >= 0 {
				t.Errorf("%q is there: %q", secret, seen.Bytes()[max(0, at-100):at+len(form)])
			}
		}
	}
}

// TestBodiesOfStrangersAreBoundedTogether begins deliveries from one network and never ends them. Another network is
// served, and so is this one when they are gone.
func TestBodiesOfStrangersAreBoundedTogether(t *testing.T) {
	t.Parallel()
	w := newHookedWorld(t)
	_, webhooks := w.hookedAutomation()
	const (
		address = "192.0.2.7"
		size    = 900 << 10
		fit     = (16 << 20) / size
	)
	var open []io.Closer
	begin := func() *bufio.Reader {
		connection, err := net.Dial("tcp", strings.TrimPrefix(w.server.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, connection)
		t.Cleanup(func() { _ = connection.Close() })
		// One that is refused at once may close the connection before it has all.
		_, _ = fmt.Fprintf(connection, "POST /hooks/%s HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Forwarded-For: %s\r\nContent-Type: application/json\r\n"+
			"Content-Length: %d\r\n\r\n%s", webhooks[0], address, size+1, strings.Repeat("x", size))
		return bufio.NewReader(connection)
	}
	// Which of them finds no room is decided by the network, which may also lose one, or the answer of one whose
	// connection is closed while its body is on its way: so there are some more than needed.
	const spare = 5
	answers := make(chan *http.Response, fit+spare)
	for range fit + spare {
		reader := begin()
		go func() {
			if response, err := http.ReadResponse(reader, nil); err == nil {
				answers <- response
			}
		}()
	}
	select {
	case response := <-answers:
		if body, _ := io.ReadAll(response.Body); response.StatusCode != http.StatusTooManyRequests || response.Header.Get("Retry-After") == "" {
			t.Errorf("a delivery without room: %d %s", response.StatusCode, body)
		}
	case <-time.After(20 * time.Second): // a body may take 30 s
		t.Fatal("all deliveries found room")
	}
	w.runOf(w.hub(webhooks[0], hubSecret, "d-elsewhere", `{"n":1}`))
	for _, connection := range open {
		_ = connection.Close()
	}
	for deadline := time.Now().Add(30 * time.Second); ; {
		a := w.hub(webhooks[0], hubSecret, "d-later", `{"n":"`+strings.Repeat("x", size)+`"}`, header("X-Forwarded-For", address))
		if a.status == http.StatusAccepted {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after the others have gone: %d %s", a.status, a.body)
		}
	}
}
