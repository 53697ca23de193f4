package catalog_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/catalog"
	"github.com/errandhq/errand/internal/yamljson"
)

// TestCommandsAreWhole checks what every face relies on.
func TestCommandsAreWhole(t *testing.T) {
	t.Parallel()
	names, routes := map[string]bool{}, map[string]bool{}
	for _, c := range catalog.Commands() {
		route := c.Route.Method + " " + c.Route.Path
		if names[c.Name] || routes[route] {
			t.Errorf("%s or its route %s is there twice", c.Name, route)
		}
		names[c.Name], routes[route] = true, true
		if c.Summary == "" || c.Contract == "" || c.Route.Status/100 != 2 {
			t.Errorf("%s lacks a summary, a contract or a status", c.Name)
		}
		if !c.Scope.Known() || c.Scope == automation.ScopeRead && (c.Route.Method == http.MethodPatch || c.Route.Method == http.MethodDelete) {
			t.Errorf("%s, which is a %s, needs the scope %q", c.Name, c.Route.Method, c.Scope)
		}
		if c.Effect < catalog.EffectRead || c.Effect > catalog.EffectExecute {
			t.Errorf("%s does not say its Effect: EffectRead, EffectAdd, EffectChange or EffectExecute", c.Name)
		}
		if reads := c.Route.Method == http.MethodGet; reads && c.Effect != catalog.EffectRead {
			t.Errorf("%s is a GET, and its Effect is not EffectRead", c.Name)
		}
		for _, member := range catalog.Members(c.Input) {
			if member.Doc == "" {
				t.Errorf("%s: the member %s has no description", c.Name, member.Name)
			}
		}
		for _, match := range regexp.MustCompile(`\{([a-z_]+)\}`).FindAllStringSubmatch(c.Route.Path, -1) {
			if member, found := catalog.MemberOf(c.Input, match[1]); !found || !member.Required {
				t.Errorf("%s: the path names %s, which is no required member", c.Name, match[1])
			}
		}
		if codes := c.Codes(); len(codes) != len(slices.Compact(slices.Sorted(slices.Values(codes)))) {
			t.Errorf("%s names an error twice: %v", c.Name, codes)
		}
		for _, code := range append(slices.Clone(c.Errors), catalog.CommonErrors...) {
			if !code.Known() {
				t.Errorf("%s: %s is no code of the closed set", c.Name, code)
			}
		}
		if err := c.Check([]byte(c.Example)); err != nil {
			t.Errorf("%s: its example does not pass its own rules: %v", c.Name, err)
		}
		if found, ok := catalog.Find(c.Name); !ok || found.Name != c.Name {
			t.Errorf("%s is not found by its name", c.Name)
		}
	}
	if _, found := catalog.Find("destroy"); found {
		t.Error("a command that is none was found")
	}
}

func TestCheckNamesEveryPlace(t *testing.T) {
	t.Parallel()
	const id = "0193f5a0-0000-7000-8000-000000000000"
	tests := []struct {
		command, input string
		places         []string
	}{
		{"get", `{}`, []string{"automation_id"}},
		{"get", `{"automation_id":""}`, []string{"automation_id"}},
		{"run", `{"run_id":""}`, []string{"run_id"}},
		{"delete", `{"automation_id":""}`, []string{"automation_id"}},
		{"get", `{"automation_id":"x","runs_limit":0}`, []string{"automation_id", "runs_limit"}},
		{"list", `{"limit":201,"machine_id":"m","query":"` + strings.Repeat("x", 201) + `"}`, []string{"limit", "machine_id", "query"}},
		{"run-now", `{"automation_id":"` + id + `","wait_ms":-1,"idempotency_key":"` + strings.Repeat("k", 256) + `"}`, []string{"wait_ms", "idempotency_key"}},
		{"runs", `{"status":"","automation_id":"","machine_id":"","since":""}`, []string{"status", "automation_id", "machine_id", "since"}},
		{"runs", `{"status":"done","trigger":"luck","since":"now","until":"2026-01-01"}`, []string{"status", "trigger", "since", "until"}},
		{"cancel-run", `{"run_id":"` + id + `","reason":"` + strings.Repeat("x", 501) + `","force":1}`, []string{"force"}},
		{"update", `{"automation_id":"` + id + `","expected_version":0,"name":""}`, []string{"expected_version", "name"}},
		{"create", `{"name":"x","idempotency_key":"` + strings.Repeat("k", 256) + `","enabled":"yes"}`, []string{"idempotency_key", "enabled"}},
	}
	for _, test := range tests {
		command, _ := catalog.Find(test.command)
		var refusal *automation.Error
		if err := command.Check([]byte(test.input)); !errors.As(err, &refusal) || refusal.Code != automation.CodeValidationFailed {
			t.Errorf("%s %.100s: %v", test.command, test.input, err)
			continue
		}
		for _, place := range test.places {
			if !slices.ContainsFunc(refusal.Details, func(v automation.Violation) bool { return v.Path == place }) {
				t.Errorf("%s %.100s: nothing is said of %s: %v", test.command, test.input, place, refusal.Details)
			}
		}
	}
}

// TestTheExampleIsAnAutomation: the file that help offers is one that create takes.
func TestTheExampleIsAnAutomation(t *testing.T) {
	t.Parallel()
	create, _ := catalog.Find("create")
	for _, topic := range catalog.Topics() {
		if topic.Name != "example" {
			continue
		}
		converted, err := yamljson.Convert([]byte(topic.Text))
		if err == nil {
			err = create.Check(converted)
		}
		if err != nil {
			t.Error(err)
		}
		return
	}
	t.Error("there is no example")
}

// FuzzCheck sends anything to every command: it is accepted, or refused as validation_failed with a place, and
// what is accepted is a JSON object.
func FuzzCheck(f *testing.F) {
	for _, c := range catalog.Commands() {
		f.Add(c.Example)
	}
	for _, seed := range []string{`{}`, `[]`, ``, `null`, `{"limit":1e9}`, `{"a":{"a":1}}`, "{\"name\":\"\xff\"}", `{"input":{"$runInput":true}}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, input string) {
		for _, c := range catalog.Commands() {
			err := c.Check([]byte(input))
			var refusal *automation.Error
			if err != nil && (!errors.As(err, &refusal) || refusal.Code != automation.CodeValidationFailed || len(refusal.Details) == 0) {
				t.Errorf("%s %q: %v", c.Name, input, err)
			}
			var object map[string]json.RawMessage
			if err == nil && json.Unmarshal([]byte(input), &object) != nil {
				t.Errorf("%s accepted %q", c.Name, input)
			}
		}
	})
}

// auditLedger keeps the audit, and fails at whatever else is asked of it.
type auditLedger struct {
	catalog.Ledger
	entries []automation.AuditEntry
	err     error
}

func (l *auditLedger) AppendAudit(ctx context.Context, e automation.AuditEntry) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	l.entries = append(l.entries, e)
	return l.err
}

// TestExecuteAsksForTheScope shows that a command looks at nothing before the caller may use it: the input here
// is none, and the ledger would fail.
func TestExecuteAsksForTheScope(t *testing.T) {
	t.Parallel()
	scopes := []automation.Scope{"", automation.ScopeRead, automation.ScopeControl, automation.ScopePerson, automation.ScopeAdmin}
	for _, c := range catalog.Commands() {
		for _, scope := range scopes {
			want := automation.CodeForbidden
			if scope.Allows(c.Scope) {
				want = automation.CodeValidationFailed
			}
			l := &auditLedger{}
			_, err := c.Execute(t.Context(), &catalog.Service{Ledger: l, Now: time.Now}, catalog.Principal{Scope: scope}, []byte("["))
			if got := automation.CodeOf(err); got != want {
				t.Errorf("%s with the scope %q: %q, want %q", c.Name, scope, got, want)
			}
			if noted := len(l.entries) == 1; noted != (want == automation.CodeForbidden || c.Changes()) {
				t.Errorf("%s with the scope %q: the audit has %v", c.Name, scope, l.entries)
			}
		}
	}
}
