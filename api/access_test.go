package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/catalog"
)

// bearer makes a request somebody else's.
func bearer(token string) func(*http.Request) { return header("Authorization", "Bearer "+token) }

// key makes a key of a scope, for another owner when one is given, and returns it with its id.
func (w *world) key(scope, owner string) (secret, id string) {
	w.t.Helper()
	body := map[string]any{"name": "a key with " + scope, "scope": scope}
	if owner != "" {
		body["owner_id"] = owner
	}
	input, err := json.Marshal(body)
	if err != nil {
		w.t.Fatal(err)
	}
	a := w.do("POST", "/v1/keys", string(input))
	if a.status != http.StatusCreated {
		w.t.Fatalf("create-key: %d %s", a.status, a.body)
	}
	made := a.json(w.t)
	return made["secret"].(string), made["id"].(string)
}

// owner makes another owner.
func (w *world) otherOwner(name string) string {
	w.t.Helper()
	a := w.do("POST", "/v1/owners", `{"name":"`+name+`"}`)
	if a.status != http.StatusCreated {
		w.t.Fatalf("create-owner: %d %s", a.status, a.body)
	}
	return a.json(w.t)["id"].(string)
}

// call sends a command's example along its route, with every id in it replaced.
func (w *world) call(c catalog.Command, ids map[string]string, change ...func(*http.Request)) answer {
	w.t.Helper()
	var input map[string]any
	if err := json.Unmarshal([]byte(c.Example), &input); err != nil {
		w.t.Fatal(err)
	}
	for member, id := range ids {
		if _, there := input[member]; there {
			input[member] = id
		}
	}
	path := regexp.MustCompile(`\{[a-z_]+\}`).ReplaceAllStringFunc(c.Route.Path, func(placeholder string) string {
		member := strings.Trim(placeholder, "{}")
		value := fmt.Sprint(input[member])
		delete(input, member)
		return value
	})
	if c.Route.InQuery() {
		var query []string
		for member, value := range input {
			query = append(query, fmt.Sprintf("%s=%v", member, value))
		}
		return w.do(c.Route.Method, "/v1"+path+"?"+strings.Join(query, "&"), "", change...)
	}
	body, err := json.Marshal(input)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.do(c.Route.Method, "/v1"+path, string(body), change...)
}

// TestEveryCommandAsksForItsScope calls every command with a key of each scope: what the scope does not allow is
// forbidden, whatever the input, and named.
func TestEveryCommandAsksForItsScope(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, scope := range []automation.Scope{automation.ScopeRead, automation.ScopeControl, automation.ScopeAdmin} {
		secret, _ := w.key(string(scope), "")
		for _, c := range catalog.Commands() {
			a := w.call(c, nil, bearer(secret))
			refused := a.status == http.StatusForbidden
			if refused == scope.Allows(c.Scope) {
				t.Errorf("%s with a key of the scope %s: %d %s", c.Name, scope, a.status, a.body)
			}
			if names := strings.Contains(string(a.body), "scope "+string(c.Scope)) || c.Scope == automation.ScopePerson &&
				strings.Contains(string(a.body), "scope admin"); refused && !names {
				t.Errorf("%s does not name the scope: %s", c.Name, a.body)
			}
		}
	}
}

// TestAKeyGrantsNoMoreThanItsMaker goes through who may make which key.
func TestAKeyGrantsNoMoreThanItsMaker(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other := w.otherOwner("Ada")
	admin, _ := w.key("admin", "")
	theirs, theirID := w.key("admin", other)
	control, _ := w.key("control", "")
	read, _ := w.key("read", "")
	for name, test := range map[string]struct {
		maker, body string
		status      int
	}{
		"admin by admin":       {admin, `{"name":"x","scope":"admin"}`, 201},
		"for another by admin": {admin, `{"name":"x","scope":"control","owner_id":"` + other + `"}`, 201},
		"for nobody by admin":  {admin, `{"name":"x","scope":"control","owner_id":"` + newID() + `"}`, 404},
		"read by control":      {control, `{"name":"x","scope":"read"}`, 403},
		"read by read":         {read, `{"name":"x","scope":"read"}`, 403},
		"what no key has":      {admin, `{"name":"x","scope":"person"}`, 400},
		"no scope":             {admin, `{"name":"x"}`, 400},
		"no name":              {admin, `{"name":"","scope":"read"}`, 400},
		"a blank name":         {admin, `{"name":" ","scope":"read"}`, 400},
		"a name of two lines":  {admin, `{"name":"a\r\nb","scope":"read"}`, 400},
		"in the past":          {admin, `{"name":"x","scope":"read","expires_at":"2020-01-01T00:00:00Z"}`, 400},
		"no time":              {admin, `{"name":"x","scope":"read","expires_at":"soon"}`, 400},
	} {
		if a := w.do("POST", "/v1/keys", test.body, bearer(test.maker)); a.status != test.status {
			t.Errorf("%s: %d %s, want %d", name, a.status, a.body, test.status)
		}
	}
	a := w.do("GET", "/v1/whoami", "", bearer(theirs))
	want := map[string]any{"scope": "admin", "actor": map[string]any{"kind": "key", "id": theirID}}
	got := a.json(t)
	if owner, _ := got["owner"].(map[string]any); owner["id"] != other || owner["name"] != "Ada" {
		t.Errorf("whoami: %s", a.body)
	}
	delete(got, "owner")
	delete(got, "hint")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("whoami (-want +got):\n%s", diff)
	}
}

// TestTheLifeOfAKey makes, uses, lists, lets expire and revokes keys.
func TestTheLifeOfAKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	secret, id := w.key("control", "")
	ends := w.clock().Add(time.Hour).UTC().Format(time.RFC3339)
	short := w.do("POST", "/v1/keys", `{"name":"short","scope":"read","expires_at":"`+ends+`"}`).json(t)
	if a := w.do("GET", "/v1/automations", "", bearer(secret)); a.status != http.StatusOK {
		t.Fatalf("a fresh key: %d %s", a.status, a.body)
	}
	list := w.do("GET", "/v1/keys?limit=200", "")
	if strings.Contains(string(list.body), secret) || strings.Contains(string(list.body), "hash") {
		t.Errorf("the list holds a secret: %s", list.body)
	}
	var keys struct{ Keys []automation.APIKey }
	if err := json.Unmarshal(list.body, &keys); err != nil || len(keys.Keys) != 2 || keys.Keys[1].ID != id ||
		keys.Keys[1].LastUsedAt == nil || keys.Keys[0].LastUsedAt != nil || keys.Keys[1].CreatedBy.Kind != automation.ActorRuntime {
		t.Errorf("the list: %v %s", err, list.body)
	}

	w.ahead.Store(int64(2 * time.Hour))
	a := w.do("GET", "/v1/automations", "", bearer(short["secret"].(string)))
	if a.status != http.StatusUnauthorized || !strings.Contains(string(a.body), "expired at "+ends) {
		t.Errorf("an expired key: %d %s", a.status, a.body)
	}
	for range 2 {
		if a := w.do("POST", "/v1/keys/"+id+"/revoke", ""); a.status != http.StatusOK || a.json(t)["revokedAt"] == nil {
			t.Errorf("revoke-key: %d %s", a.status, a.body)
		}
	}
	if a := w.do("GET", "/v1/automations", "", bearer(secret)); a.status != http.StatusUnauthorized || !strings.Contains(string(a.body), "revoked") {
		t.Errorf("a revoked key: %d %s", a.status, a.body)
	}
	entries := w.audit("actor_id=" + id)
	if !slices.Contains(entries, "key authenticate "+id+" unauthorized") {
		t.Errorf("the audit does not have the refused key: %v", entries)
	}
}

// audit returns the entries that a query selects, the oldest first.
func (w *world) audit(query string) []string {
	w.t.Helper()
	a := w.do("GET", "/v1/audit?limit=200&"+query, "")
	var page struct{ Entries []automation.AuditEntry }
	if err := json.Unmarshal(a.body, &page); err != nil || a.status != http.StatusOK {
		w.t.Fatalf("audit: %d %s", a.status, a.body)
	}
	var lines []string
	for _, e := range page.Entries {
		if e.Address != "127.0.0.1" || e.RequestID == "" || e.OwnerID == "" || e.Actor.ID == "" || e.At.IsZero() {
			w.t.Errorf("an entry is not whole: %+v", e)
		}
		lines = append(lines, strings.Join([]string{string(e.Actor.Kind), e.Action, e.ObjectID, e.Outcome}, " "))
	}
	slices.Reverse(lines)
	return lines
}

// TestTheAudit does things as several callers and reads who did what.
func TestTheAudit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	secret, id := w.key("control", "")
	read, readID := w.key("read", "")
	automationID := w.create()
	w.do("PATCH", "/v1/automations/"+automationID, `{"description":"a private matter"}`, bearer(secret))
	w.do("PATCH", "/v1/automations/"+automationID, `{"expected_version":77,"name":"x"}`, bearer(secret))
	w.do("GET", "/v1/automations/"+automationID, "", bearer(secret))
	w.do("DELETE", "/v1/automations/"+automationID, "", bearer(read))
	w.do("POST", "/v1/automations/"+automationID+"/runs", "", asMachine)
	want := []string{
		"runtime create " + automationID + " ok",
		"key update " + automationID + " ok",
		"key update " + automationID + " version_conflict",
		"key delete " + automationID + " forbidden",
		"machine run-now " + automationID + " ok",
	}
	if diff := cmp.Diff(want, w.audit("object_id="+automationID)); diff != "" {
		t.Errorf("what was done to the automation (-want +got):\n%s", diff)
	}
	for query, n := range map[string]int{
		"actor_id=" + id: 2, "actor_id=" + readID: 1, "action=create-key": 2, "object_id=" + id: 1, "actor_id=" + w.machine.ID: 1,
		"until=2020-01-01T00:00:00Z": 0, "since=2020-01-01T00:00:00Z": 7, "owner_id=" + w.owner: 7, "owner_id=" + newID(): 0,
	} {
		if got := w.audit(query); len(got) != n {
			t.Errorf("%s: %v, want %d entries", query, got, n)
		}
	}
	whole := string(w.do("GET", "/v1/audit", "").body)
	for _, private := range []string{secret, read, "private matter", "a key with"} {
		if strings.Contains(whole, private) {
			t.Errorf("the audit holds %q", private)
		}
	}
}

// TestAnotherOwnersThings calls every command that takes an id with the ids of another owner, and with ids of
// nothing: the answers are alike, and nothing changes.
func TestAnotherOwnersThings(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stranger := w.otherOwner("Eve")
	admin, _ := w.key("admin", stranger)
	control, _ := w.key("control", stranger)
	mine := w.create()
	_, key := w.key("control", "")
	theirs := map[string]string{"automation_id": mine, "run_id": w.runNow(mine), "machine_id": w.machine.ID}
	before := w.do("GET", "/v1/automations/"+mine+"?include_runs=true", "").body
	nothing := map[string]string{}
	for member := range theirs {
		nothing[member] = newID()
	}
	compared := 0
	for _, c := range catalog.Commands() {
		var input map[string]any
		if err := json.Unmarshal([]byte(c.Example), &input); err != nil {
			t.Fatal(err)
		}
		var members []string
		for member := range theirs {
			if _, there := input[member]; there {
				members = append(members, member)
			}
		}
		if len(members) == 0 {
			continue
		}
		compared++
		for scope, token := range map[automation.Scope]string{automation.ScopeControl: control, automation.ScopeAdmin: admin} {
			refused := http.StatusNotFound
			if !scope.Allows(c.Scope) {
				refused = http.StatusForbidden
			}
			got, want := w.call(c, theirs, bearer(token)), w.call(c, nothing, bearer(token))
			gotText, wantText := string(got.body), string(want.body)
			for member, id := range theirs {
				gotText, wantText = strings.ReplaceAll(gotText, id, member), strings.ReplaceAll(wantText, nothing[member], member)
			}
			if got.status != want.status || gotText != wantText || strings.Contains(c.Route.Path, "{") && got.status != refused {
				t.Errorf("%s of another owner: %d %s\nof nobody: %d %s", c.Name, got.status, got.body, want.status, want.body)
			}
		}
	}
	if compared < 6 {
		t.Errorf("only %d commands take an id", compared)
	}
	if a := w.do("POST", "/v1/keys/"+key+"/revoke", "", bearer(control)); a.status != http.StatusForbidden {
		t.Errorf("revoking another owner's key: %d %s", a.status, a.body)
	}
	for _, path := range []string{"/v1/automations", "/v1/runs", "/v1/machines"} {
		if a := w.do("GET", path, "", bearer(control)); a.status != http.StatusOK || strings.Contains(string(a.body), mine) || strings.Contains(string(a.body), w.machine.ID) {
			t.Errorf("%s shows what is another's: %d %s", path, a.status, a.body)
		}
	}
	definitionThere := strings.Replace(definition, `{"name"`, `{"machineId":"`+w.machine.ID+`","name"`, 1)
	if a := w.do("POST", "/v1/automations", definitionThere, bearer(control)); a.status != http.StatusBadRequest || !strings.Contains(string(a.body), "machineId") {
		t.Errorf("an automation on another's machine: %d %s", a.status, a.body)
	}
	if after := w.do("GET", "/v1/automations/"+mine+"?include_runs=true", "").body; string(after) != string(before) {
		t.Errorf("something has changed:\n%s\n%s", before, after)
	}
}

// TestWrongCredentialsAreBounded sends many wrong keys from one address: they are refused ever more cheaply, while
// right ones from there are served, also when they come for the first time and are local.
func TestWrongCredentialsAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorldAt(t, stopped())
	good, _ := w.key("read", "")
	if a := w.do("GET", "/v1/whoami", "", bearer(good)); a.status != http.StatusOK {
		t.Fatalf("%d %s", a.status, a.body)
	}
	codes := map[int]int{}
	for range 600 {
		a := w.do("GET", "/v1/whoami", "", bearer("nonsense"))
		codes[a.status]++
		if a.status == http.StatusTooManyRequests && (a.header.Get("Retry-After") != "1" || a.code(t) != "rate_limited") {
			t.Fatalf("%v %s", a.header, a.body)
		}
		if a.status == http.StatusTooManyRequests && codes[a.status]%20 == 0 {
			for name, token := range map[string]string{"a known key": good, "the local token": userToken} {
				if a := w.do("GET", "/v1/whoami", "", bearer(token)); a.status != http.StatusOK {
					t.Errorf("%s: %d %s", name, a.status, a.body)
				}
			}
		}
	}
	if codes[http.StatusUnauthorized] < 200 || codes[http.StatusTooManyRequests] < 50 || len(codes) != 2 {
		t.Errorf("the answers: %v", codes)
	}
	if a := w.do("GET", "/v1/whoami", "", header("Authorization", "Machine nonsense")); a.status != http.StatusTooManyRequests {
		t.Errorf("a machine from there: %d %s", a.status, a.body)
	}
}

// TestForwardedAddress believes a proxy only that is trusted.
func TestForwardedAddress(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		trusted []string
		want    string
	}{
		{nil, "127.0.0.1"}, {[]string{"10.0.0.0/8"}, "127.0.0.1"}, {[]string{"127.0.0.0/8"}, "192.0.2.7"},
	} {
		w := newWorldWith(t, func(o *worldOptions) { o.proxies = test.trusted })
		w.do("POST", "/v1/owners", `{"name":"x"}`, header("X-Forwarded-For", "203.0.113.1, 192.0.2.7"))
		a := w.do("GET", "/v1/audit", "")
		if !strings.Contains(string(a.body), `"address":"`+test.want+`"`) {
			t.Errorf("with the proxies %v: %s", test.trusted, a.body)
		}
	}
}

// TestCallersAreLimited lets one key call too often, and another one as before.
func TestCallersAreLimited(t *testing.T) {
	t.Parallel()
	w := newWorldWith(t, func(o *worldOptions) { o.rate, o.now = 5, stopped() })
	busy, _ := w.key("read", "")
	quiet, _ := w.key("read", "")
	codes := map[int]int{}
	for range 40 {
		a := w.do("GET", "/v1/whoami", "", bearer(busy))
		codes[a.status]++
		if a.status == http.StatusTooManyRequests && a.header.Get("Retry-After") != "1" {
			t.Errorf("Retry-After: %v", a.header)
		}
	}
	if codes[http.StatusOK] < 10 || codes[http.StatusTooManyRequests] == 0 {
		t.Errorf("the answers: %v", codes)
	}
	for name, token := range map[string]string{"another key": quiet, "the local token": userToken} {
		if a := w.do("GET", "/v1/whoami", "", bearer(token)); a.status != http.StatusOK {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	w.ahead.Store(int64(time.Second))
	if a := w.do("GET", "/v1/whoami", "", bearer(busy)); a.status != http.StatusOK {
		t.Errorf("a second later: %d %s", a.status, a.body)
	}
}

// TestHeadersOfEveryAnswer looks at answers of each kind, also at those for nobody.
func TestHeadersOfEveryAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	seen := map[string]bool{}
	for name, a := range map[string]answer{
		"a result":      w.do("GET", "/v1/automations", ""),
		"unauthorized":  w.do("GET", "/v1/automations", "", bearer("x")),
		"another host":  w.do("GET", "/v1/automations", "", func(r *http.Request) { r.Host = "evil.example.com" }),
		"no route":      w.do("GET", "/nowhere", ""),
		"a panic":       w.do("GET", "/v1/automations/"+panicID, ""),
		"health":        w.do("GET", "/healthz", ""),
		"a bad method":  w.do("PUT", "/v1/automations", ""),
		"the document":  w.do("GET", "/openapi.json", ""),
		"machine calls": w.do("POST", "/v1/machine/hello", "{}"),
	} {
		for header, want := range map[string]string{
			"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
			"Cache-Control": "no-store", "Cross-Origin-Resource-Policy": "same-origin",
			"Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
		} {
			if got := a.header.Get(header); got != want {
				t.Errorf("%s: %s is %q, want %q", name, header, got, want)
			}
		}
		if id := a.header.Get("X-Request-Id"); id == "" || seen[id] {
			t.Errorf("%s: the request id is %q", name, id)
		} else {
			seen[id] = true
		}
	}
}
