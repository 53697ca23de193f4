package storetest

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/errandhq/errand/automation"
)

var hostileTests = []test{
	{"Texts", testHostileTexts},
	{"StoredAsTheyAre", testStoredAsTheyAre},
}

// hostileTexts are values of which PostgreSQL, SQLite or a careless statement would choke on one or another.
var hostileTexts = map[string]string{
	"empty":         "",
	"NUL":           "a\x00b",
	"invalid UTF-8": "a\xff\xfeb",
	"surrogate":     "\xed\xa0\x80",
	"quotes":        `'"; DROP TABLE runs; --`,
	"wildcards":     `%_\`,
	"placeholders":  "$1 ? :x @y",
	"control":       "\x01\x1b\x7f\u0085",
	"long":          strings.Repeat("x", 1<<20),
	"long and odd":  strings.Repeat("𝔘\u202e", 1000),
	"almost an id":  "01930000-0000-7000-8000-00000000000g",
	"id in braces":  "{01930000-0000-7000-8000-000000000000}",
	"id as URN":     "urn:uuid:01930000-0000-7000-8000-000000000000",
}

// testHostileTexts hands each text to each parameter that takes one: the answer may be a refusal of the request,
// never trouble of the database, and nothing is left behind.
func testHostileTexts(t *testing.T, f *fixture) {
	ctx := t.Context()
	run := f.newRun(t, "one")
	a, err := f.Automation(ctx, f.owner, run.AutomationID)
	if err != nil {
		t.Fatalf("Automation: %v", err)
	}
	calls := map[string]func(text string) error{
		"Automation owner": func(s string) error { _, err := f.Automation(ctx, s, a.ID); return err },
		"Automation id":    func(s string) error { _, err := f.Automation(ctx, f.owner, s); return err },
		"Create owner": func(s string) error {
			_, err := f.CreateAutomation(ctx, s, f.definition("x", "a"), automation.Idempotency{})
			return err
		},
		"Create key": func(s string) error {
			_, err := f.CreateAutomation(ctx, f.owner, f.definition("x", "a"), automation.Idempotency{Operation: s, Key: s + "k", RequestHash: s})
			return err
		},
		"Create texts": func(s string) error {
			d := f.definition(s, "a")
			d.Description, d.Workflow.Script = s, s
			_, err := f.CreateAutomation(ctx, f.owner, d, automation.Idempotency{})
			return err
		},
		"Create plan": func(s string) error {
			d := f.definition("x", s)
			d.Workflow.Compiled.Steps[0].Env = map[string]string{s: s}
			created, err := f.CreateAutomation(ctx, f.owner, d, automation.Idempotency{})
			if err == nil {
				_, err = f.Admit(ctx, manual(created))
			}
			return err
		},
		"Create machine": func(s string) error {
			d := f.definition("x", "a")
			d.MachineID = s
			_, err := f.CreateAutomation(ctx, f.owner, d, automation.Idempotency{})
			return err
		},
		"ListAutomations": func(s string) error {
			_, _, err := f.ListAutomations(ctx, f.owner, automation.AutomationFilter{Query: s})
			return err
		},
		"ListAutomations ids": func(s string) error {
			_, _, err := f.ListAutomations(ctx, s, automation.AutomationFilter{MachineID: s})
			return err
		},
		"ListAutomations cursor": func(s string) error {
			_, _, err := f.ListAutomations(ctx, f.owner, automation.AutomationFilter{Cursor: s})
			return err
		},
		"Admit ids": func(s string) error {
			_, err := f.Admit(ctx, automation.Admission{OwnerID: f.owner, AutomationID: s, Trigger: run.Trigger})
			return err
		},
		"Admit owner": func(s string) error {
			_, err := f.Admit(ctx, automation.Admission{OwnerID: s, AutomationID: a.ID, Trigger: run.Trigger})
			return err
		},
		"Admit key": func(s string) error {
			q := manual(a)
			q.Key = automation.Idempotency{Operation: "o" + s, Key: "k" + s, RequestHash: "h"}
			_, err := f.Admit(ctx, q)
			return err
		},
		"Admit trigger": func(s string) error {
			q := manual(a)
			q.Trigger = automation.Trigger{Kind: automation.TriggerWebhook, ID: s, DeliveryID: s}
			q.DeliveryKeys = []string{s}
			_, err := f.Admit(ctx, q)
			return err
		},
		"Admit trigger kind": func(s string) error {
			q := manual(a)
			q.Trigger.Kind = automation.TriggerKind(s)
			_, err := f.Admit(ctx, q)
			return err
		},
		"Admit input": func(s string) error {
			q := manual(a)
			q.Input = json.RawMessage(s)
			_, err := f.Admit(ctx, q)
			return err
		},
		"Run":       func(s string) error { _, err := f.Run(ctx, f.owner, s); return err },
		"RunStatus": func(s string) error { _, err := f.RunStatus(ctx, s, run.ID); return err },
		"RunState":  func(s string) error { _, err := f.RunState(ctx, s, run.ID); return err },
		"ListRuns ids": func(s string) error {
			_, _, err := f.ListRuns(ctx, f.owner, automation.RunFilter{AutomationID: s, MachineID: s})
			return err
		},
		"ListRuns words": func(s string) error {
			_, _, err := f.ListRuns(ctx, f.owner, automation.RunFilter{Status: automation.RunStatus(s), Trigger: automation.TriggerKind(s), Cursor: s})
			return err
		},
		"RequestCancel":  func(s string) error { _, err := f.RequestCancel(ctx, f.owner, s, s, false); return err },
		"StartableRuns":  func(s string) error { _, err := f.StartableRuns(ctx, s, 10); return err },
		"StartableRun":   func(s string) error { _, _, err := f.StartableRun(ctx, s, run.ID); return err },
		"MarkStarted":    func(s string) error { return f.MarkStarted(ctx, s, 1, "engine") },
		"MarkStarted in": func(s string) error { return f.MarkStarted(ctx, run.ID, 9, s) },
		"FinalizeRun": func(s string) error {
			_, err := f.FinalizeRun(ctx, automation.FinalizeInput{RunID: s, Failure: &automation.RunError{Code: s, Message: s, StepID: s}})
			return err
		},
		"CancelRun": func(s string) error {
			_, err := f.CancelRun(ctx, automation.CancelInput{RunID: s, Reason: s})
			return err
		},
		"Lease": func(s string) error { _, err := f.Lease(ctx, s, s, 1); return err },
		"Hello": func(s string) error {
			h := hello(automation.Instance{DirectoryID: s, BootID: s, Host: s})
			h.Version, h.Platform, h.Labels = s, s, map[string]string{s: s}
			h.Held = []automation.Held{{StepRef: automation.StepRef{RunID: s, StepID: s}, State: automation.HeldState(s)}}
			_, err := f.Hello(ctx, f.enroll(t, f.owner, "m").ID, h)
			return err
		},
		"Begin": func(s string) error {
			_, err := f.Begin(ctx, f.machine.ID, automation.BeginRequest{StepRef: automation.StepRef{RunID: run.ID, StepID: s}, RequestID: s})
			return err
		},
		"Begin ids": func(s string) error {
			_, err := f.Begin(ctx, s, automation.BeginRequest{StepRef: automation.StepRef{RunID: s}})
			return err
		},
		"Begin request": func(s string) error {
			r := f.newRun(t, "one")
			_, err := f.Begin(ctx, r.MachineID, automation.BeginRequest{StepRef: ref(r, "one"), Generation: 1, RequestID: s})
			return err
		},
		"Finish": func(s string) error {
			r := f.newRun(t, "one")
			_, err := f.Finish(ctx, r.MachineID, automation.FinishRequest{
				StepRef: ref(r, "one"), Execution: 1, Outcome: automation.OutcomeFailed, Result: json.RawMessage(s),
				Error: &automation.StepError{Code: automation.StepCode(s), Message: s},
			})
			if err != nil {
				t.Errorf("Finish refused a report: %v", err)
			}
			return err
		},
		"OpenEnds": func(s string) error { _, err := f.OpenEnds(ctx, []string{s}); return err },
		"EnrollMachine": func(s string) error {
			_, err := f.EnrollMachine(ctx, automation.NewMachine{
				OwnerID: f.owner, Name: s, Platform: s, Version: s, Labels: map[string]string{s: s}, PublicKey: "k" + s,
			})
			return err
		},
		"EnrollMachine owner": func(s string) error {
			_, err := f.EnrollMachine(ctx, automation.NewMachine{OwnerID: s, Name: "m", PublicKey: "k"})
			return err
		},
		"SaveEnrollmentCode": func(s string) error {
			code := f.newCode(s, s)
			code.OwnerID = s
			return f.SaveEnrollmentCode(ctx, code)
		},
		"RedeemEnrollmentCode": func(s string) error {
			_, err := f.RedeemEnrollmentCode(ctx, s, automation.NewMachine{Name: s, Platform: s, PublicKey: s})
			return err
		},
		"OwnedMachine": func(s string) error { _, err := f.OwnedMachine(ctx, s, s); return err },
		"ChangeMachine": func(s string) error {
			_, err := f.ChangeMachine(ctx, f.owner, s, automation.MachineChange{Name: &s, Labels: map[string]string{s: s}})
			return err
		},
		"RevokeMachine": func(s string) error { _, err := f.RevokeMachine(ctx, f.owner, s); return err },
		"Machine":       func(s string) error { _, err := f.Machine(ctx, s); return err },
		"Machines":      func(s string) error { _, _, err := f.Machines(ctx, s, 0, s); return err },
		"MachineLoads":  func(s string) error { _, err := f.MachineLoads(ctx, []string{s}); return err },
		"TouchMachine":  func(s string) error { return f.TouchMachine(ctx, s, f.clock.Now()) },
	}
	for call, fn := range calls {
		for text, value := range hostileTexts {
			switch err := fn(value); automation.CodeOf(err) {
			case "", automation.CodeValidationFailed, automation.CodeNotFound, automation.CodeForbidden:
			default:
				t.Errorf("%s with %s: %v", call, text, err)
			}
		}
	}
	wantEqual(t, "the run after all of it", f.read(t, run), run)
}

func testStoredAsTheyAre(t *testing.T, f *fixture) {
	for name, text := range hostileTexts {
		if strings.ContainsRune(text, 0) || strings.ToValidUTF8(text, "") != text || len(text) > automation.MaxNameLength || text == "" {
			continue
		}
		d := f.definition(text, "one")
		d.Description, d.Workflow.Script = text, text
		d.Workflow.Compiled.Steps[0].Args = []string{text}
		got, err := f.Automation(t.Context(), f.owner, f.create(t, d).ID)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		wantEqual(t, name+": name", got.Name, text)
		wantEqual(t, name+": description", got.Description, text)
		wantEqual(t, name+": workflow", got.Workflow, d.Workflow)
		found, _, err := f.ListAutomations(t.Context(), f.owner, automation.AutomationFilter{Query: text})
		if err != nil || len(found) != 1 {
			t.Errorf("%s: the query finds %d automations, %v", name, len(found), err)
		}
	}
}
