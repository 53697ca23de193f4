package catalog_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/catalog"
)

const (
	anAutomation = "0193f5a0-0000-7000-8000-00000000000a"
	aRun         = "0193f5a0-0000-7000-8000-00000000000b"
)

// runLedger admits runs, and lets no waiter see one end.
type runLedger struct {
	auditLedger
	refusal error
	waiting func()
}

func (l *runLedger) Admit(context.Context, automation.Admission) (automation.Run, error) {
	return automation.Run{ID: aRun, AutomationID: anAutomation}, l.refusal
}

func (l *runLedger) RunStatus(context.Context, string, string) (automation.RunStatus, error) {
	l.waiting()
	return "", automation.Errorf(automation.CodeStoreUnavailable, "gone")
}

type nothing struct{}

func (nothing) Admitted(string)                  {}
func (nothing) Cancelled(automation.Run, string) {}
func (nothing) Up() bool                         { return true }
func (nothing) Subscribe(string) (<-chan struct{}, func()) {
	return nil, func() {}
}

var (
	noon   = time.Date(2026, time.January, 5, 12, 0, 0, 0, time.UTC)
	caller = catalog.Principal{
		OwnerID: "owner", Scope: automation.ScopeControl, Actor: automation.Actor{Kind: automation.ActorKey, ID: "key"},
		Origin: automation.Origin{Address: "192.0.2.1", RequestID: "request"},
	}
)

func execute(t *testing.T, l catalog.Ledger, p catalog.Principal, command, input string) error {
	t.Helper()
	c, found := catalog.Find(command)
	if !found {
		t.Fatalf("there is no command %s", command)
	}
	service := &catalog.Service{Ledger: l, Engine: nothing{}, Changes: nothing{}, Now: func() time.Time { return noon }}
	_, err := c.Execute(t.Context(), service, p, []byte(input))
	return err
}

// TestTheAuditOfAChange shows that an admission is in the audit before its caller begins to wait for the run.
func TestTheAuditOfAChange(t *testing.T) {
	t.Parallel()
	l := &runLedger{}
	l.waiting = func() {
		if len(l.entries) != 1 {
			t.Errorf("while waiting the audit has %v", l.entries)
		}
	}
	err := execute(t, l, caller, "run-now", `{"automation_id":"`+anAutomation+`","wait_ms":10,"input":"a secret"}`)
	if automation.CodeOf(err) != automation.CodeStoreUnavailable {
		t.Errorf("the wait: %v", err)
	}
	want := []automation.AuditEntry{{
		At: noon, OwnerID: "owner", Actor: caller.Actor, Action: "run-now", ObjectID: anAutomation, ResultID: aRun,
		Outcome: "ok", Address: "192.0.2.1", RequestID: "request",
	}}
	if diff := cmp.Diff(want, l.entries); diff != "" {
		t.Errorf("the audit (-want +got):\n%s", diff)
	}
}

func TestTheAuditOfARefusal(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		command, input string
		refusal        error
		scope          automation.Scope
		want           string
	}{
		"refused by the ledger": {"run-now", `{"automation_id":"` + anAutomation + `"}`, automation.Errorf(automation.CodeAutomationDisabled, "off"), automation.ScopeControl, "run-now " + anAutomation + " automation_disabled"},
		"not our fault":         {"run-now", `{"automation_id":"` + anAutomation + `"}`, errors.New("broken"), automation.ScopeControl, "run-now " + anAutomation + " internal"},
		"bad input":             {"run-now", `{"automation_id":"` + anAutomation + `","wait_ms":"x"}`, nil, automation.ScopeControl, "run-now " + anAutomation + " validation_failed"},
		"a secret for an id":    {"run-now", `{"automation_id":"errand_0123456789"}`, nil, automation.ScopeControl, "run-now  validation_failed"},
		"a long id":             {"run-now", `{"automation_id":"` + anAutomation + anAutomation + `"}`, nil, automation.ScopeControl, "run-now  validation_failed"},
		"no input":              {"run-now", `[`, nil, automation.ScopeControl, "run-now  validation_failed"},
		"a scope":               {"run-now", `{"automation_id":"` + anAutomation + `"}`, nil, automation.ScopeRead, "run-now " + anAutomation + " forbidden"},
		"a scope for reading":   {"audit", `{"object_id":"` + aRun + `"}`, nil, automation.ScopePerson, "audit " + aRun + " forbidden"},
		"another owner's keys":  {"keys", `{"owner_id":"` + aRun + `"}`, nil, automation.ScopePerson, "keys  forbidden"},
		"a larger key":          {"create-key", `{"name":"x","scope":"admin"}`, nil, automation.ScopePerson, "create-key  forbidden"},
		"a key for another":     {"create-key", `{"name":"x","scope":"read","owner_id":"` + aRun + `"}`, nil, automation.ScopePerson, "create-key  forbidden"},
		"reading":               {"get", `{}`, nil, automation.ScopeControl, ""},
	} {
		l, p := &runLedger{refusal: test.refusal}, caller
		p.Scope = test.scope
		if err := execute(t, l, p, test.command, test.input); err == nil {
			t.Errorf("%s: it was done", name)
		}
		got := ""
		for _, e := range l.entries {
			got += strings.Join([]string{e.Action, e.ObjectID, e.Outcome}, " ")
		}
		if got != test.want {
			t.Errorf("%s: the audit has %q, want %q", name, got, test.want)
		}
	}
}

// TestNoChangeWithoutItsEntry shows that a change is not acknowledged when the audit cannot be written, and that a
// refusal is a refusal all the same.
func TestNoChangeWithoutItsEntry(t *testing.T) {
	t.Parallel()
	full := automation.Errorf(automation.CodeStoreUnavailable, "the disk is full")
	l := &runLedger{auditLedger: auditLedger{err: full}}
	if err := execute(t, l, caller, "run-now", `{"automation_id":"`+anAutomation+`"}`); !errors.Is(err, full) {
		t.Errorf("a change: %v", err)
	}
	if err := execute(t, l, caller, "audit", `{}`); automation.CodeOf(err) != automation.CodeForbidden {
		t.Errorf("a refusal: %v", err)
	}
}

// TestRefusalsAreBounded lets one caller be refused again and again, and another one once.
func TestRefusalsAreBounded(t *testing.T) {
	t.Parallel()
	l := &auditLedger{}
	now := noon
	service := &catalog.Service{Ledger: l, Now: func() time.Time { return now }}
	note := func(actor string, refusal error) {
		p := caller
		p.Actor.ID = actor
		if err := service.Note(t.Context(), p, "update", "", "", refusal); err != nil {
			t.Fatal(err)
		}
	}
	refused := automation.Errorf(automation.CodeForbidden, "no")
	for range 500 {
		note("noisy", refused)
	}
	note("quiet", refused)
	note("noisy", nil)
	if n := len(l.entries); n != 62 {
		t.Errorf("the audit has %d entries, want 60 refusals, one of another and one change", n)
	}
	now = now.Add(time.Minute)
	note("noisy", refused)
	if n := len(l.entries); n != 63 {
		t.Errorf("a minute later the audit has %d entries, want 63", n)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := service.Note(gone, caller, "update", "", "", nil); err != nil || len(l.entries) != 64 {
		t.Errorf("a caller who is gone: %v", err)
	}
}
