package storetest

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
)

var automationTests = []test{
	{"Create", testCreate},
	{"CreateDraft", testCreateDraft},
	{"CreateOnMachine", testCreateOnMachine},
	{"CreateIdempotent", testCreateIdempotent},
	{"OwnerIsolation", testAutomationOwners},
	{"ListFilters", testListAutomations},
	{"ListPages", testAutomationPages},
}

func testCreate(t *testing.T, f *fixture) {
	d := automation.Definition{
		Name: "Call Mom <&>  ", Description: "every\nweek", Enabled: true, MachineID: strings.ToUpper(f.machine.ID),
		Workflow: automation.Workflow{Script: "Notify me", Compiled: &automation.Plan{Version: 2, Steps: []automation.Step{
			{
				ID: "notify", ActionID: "channels.notify_user",
				Input: json.RawMessage(`{"z":1.50,"a":"<b>&","n":12345678901234567890}`), Credential: "phone",
			},
			{
				ID: "pack", Kind: automation.KindCommand, Command: "/bin/tar", Args: []string{"", "a b"}, Cwd: "/srv",
				Env: map[string]string{"B": "2\n3", "A": ""}, Stdin: json.RawMessage(`{"$runInput":true}`), TimeoutMs: 5,
				MaxOutputBytes: 10, Leftovers: automation.LeftoversKeep,
			},
			{ID: "tell", Kind: automation.KindScript, Runtime: automation.RuntimeShell, Source: "echo \"a\u2028\""},
		}}},
	}
	created := f.create(t, d)
	want := automation.Automation{
		ID: created.ID, OwnerID: f.owner, Version: 1, Name: d.Name, Description: d.Description, Enabled: true,
		MachineID: f.machine.ID, Workflow: d.Workflow, CreatedAt: f.clock.Now(), UpdatedAt: f.clock.Now(),
	}
	wantEqual(t, "the created automation", created, want)
	read, err := f.Automation(t.Context(), f.owner, created.ID)
	if err != nil {
		t.Fatalf("Automation: %v", err)
	}
	wantEqual(t, "the automation read back", read, want)
}

func testCreateDraft(t *testing.T, f *fixture) {
	d := f.definition("draft")
	d.Workflow.Compiled = nil
	d.Enabled = false
	read, err := f.Automation(t.Context(), f.owner, f.create(t, d).ID)
	if err != nil {
		t.Fatalf("Automation: %v", err)
	}
	if read.Workflow.Compiled != nil || read.Enabled {
		t.Errorf("the draft reads back with plan %v, enabled %v", read.Workflow.Compiled, read.Enabled)
	}
}

func testCreateOnMachine(t *testing.T, f *fixture) {
	_, theirs := f.addOwner(t)
	revoked := f.enroll(t, f.owner, "old")
	f.db.Revoke(t, revoked.ID)
	for name, tc := range map[string]struct {
		machineID string
		want      automation.Code
	}{
		"unknown":  {NewID(), automation.CodeValidationFailed},
		"absent":   {"", automation.CodeValidationFailed},
		"not id":   {"laptop", automation.CodeValidationFailed},
		"of other": {theirs.ID, automation.CodeValidationFailed},
		"revoked":  {revoked.ID, automation.CodeMachineRevoked},
	} {
		d := f.definition("job", "one")
		d.MachineID = tc.machineID
		_, err := f.CreateAutomation(t.Context(), f.owner, d, automation.Idempotency{})
		wantCode(t, name, err, tc.want)
		if tc.want == automation.CodeValidationFailed && !slices.Equal(paths(err), []string{"machineId"}) {
			t.Errorf("%s: the error names %v, want machineId", name, paths(err))
		}
	}
	all, _, err := f.ListAutomations(t.Context(), f.owner, automation.AutomationFilter{})
	if err != nil || len(all) != 0 {
		t.Errorf("refused automations were stored: %v, %v", all, err)
	}
}

func testCreateIdempotent(t *testing.T, f *fixture) {
	ctx := t.Context()
	key := automation.Idempotency{Operation: "create", Key: "k", RequestHash: "h1"}
	first, err := f.CreateAutomation(ctx, f.owner, f.definition("one", "a"), key)
	if err != nil {
		t.Fatalf("CreateAutomation: %v", err)
	}
	f.clock.Advance(automation.IdempotencyFor)
	again, err := f.CreateAutomation(ctx, f.owner, f.definition("one", "a"), key)
	if err != nil {
		t.Fatalf("a repeated CreateAutomation: %v", err)
	}
	wantEqual(t, "the repeated result", again, first)

	other := key
	other.RequestHash = "h2"
	_, err = f.CreateAutomation(ctx, f.owner, f.definition("two", "a"), other)
	wantCode(t, "another request under the key", err, automation.CodeIdempotencyConflict)

	other.Operation = "apply"
	if _, err := f.CreateAutomation(ctx, f.owner, f.definition("two", "a"), other); err != nil {
		t.Errorf("the key of another operation: %v", err)
	}
	owner, machine := f.addOwner(t)
	d := f.definition("two", "a")
	d.MachineID = machine.ID
	if _, err := f.CreateAutomation(ctx, owner, d, automation.Idempotency{Operation: "create", Key: "k", RequestHash: "h3"}); err != nil {
		t.Errorf("the key of another owner: %v", err)
	}

	f.clock.Advance(time.Microsecond)
	later, err := f.CreateAutomation(ctx, f.owner, f.definition("one", "a"), key)
	if err != nil || later.ID == first.ID {
		t.Errorf("an expired key gave %s, %v, want a new automation", later.ID, err)
	}
	again, err = f.CreateAutomation(ctx, f.owner, f.definition("one", "a"), key)
	if err != nil || again.ID != later.ID {
		t.Errorf("the key that was taken anew gave %s, %v, want %s", again.ID, err, later.ID)
	}
}

func testAutomationOwners(t *testing.T, f *fixture) {
	ctx := t.Context()
	ours := f.create(t, f.definition("ours", "a"))
	owner, machine := f.addOwner(t)
	d := f.definition("theirs", "a")
	d.MachineID = machine.ID
	theirs, err := f.CreateAutomation(ctx, owner, d, automation.Idempotency{})
	if err != nil {
		t.Fatalf("CreateAutomation of another owner: %v", err)
	}
	_, err = f.Automation(ctx, owner, ours.ID)
	_, unknown := f.Automation(ctx, owner, ours.ID[:35]+"0")
	wantCode(t, "another owner's automation", err, automation.CodeNotFound)
	wantCode(t, "an unknown automation", unknown, automation.CodeNotFound)
	_, err = f.Admit(ctx, automation.Admission{
		OwnerID: owner, AutomationID: ours.ID, Trigger: automation.Trigger{Kind: automation.TriggerManual},
	})
	wantCode(t, "running another owner's automation", err, automation.CodeNotFound)
	_, err = f.CreateAutomation(ctx, NewID(), f.definition("nobody's", "a"), automation.Idempotency{})
	if err == nil {
		t.Error("an owner that does not exist created an automation")
	}
	for who, want := range map[string]string{f.owner: ours.ID, owner: theirs.ID} {
		all, _, err := f.ListAutomations(ctx, who, automation.AutomationFilter{})
		if err != nil || len(all) != 1 || all[0].ID != want {
			t.Errorf("owner %s lists %v, %v, want only %s", who, all, err, want)
		}
	}
}

func testListAutomations(t *testing.T, f *fixture) {
	second := f.enroll(t, f.owner, "server")
	for _, a := range []struct {
		name    string
		enabled bool
		machine string
	}{
		{"Backup photos", true, f.machine.ID},
		{"BACKUP 100% of mail_box", false, f.machine.ID},
		{`back\slash`, true, second.ID},
		{"Äpfel ernten ΣΤΟ", true, second.ID},
	} {
		d := f.definition(a.name, "a")
		d.Enabled, d.MachineID = a.enabled, a.machine
		f.create(t, d)
		f.clock.Advance(time.Second)
	}
	yes, no := true, false
	for name, tc := range map[string]struct {
		filter automation.AutomationFilter
		want   []string
	}{
		"all, newest first": {automation.AutomationFilter{}, []string{"Äpfel ernten ΣΤΟ", `back\slash`, "BACKUP 100% of mail_box", "Backup photos"}},
		"enabled":           {automation.AutomationFilter{Enabled: &yes, MachineID: f.machine.ID}, []string{"Backup photos"}},
		"disabled":          {automation.AutomationFilter{Enabled: &no}, []string{"BACKUP 100% of mail_box"}},
		"machine":           {automation.AutomationFilter{MachineID: second.ID}, []string{"Äpfel ernten ΣΤΟ", `back\slash`}},
		"unknown machine":   {automation.AutomationFilter{MachineID: NewID()}, nil},
		"not a machine":     {automation.AutomationFilter{MachineID: "x"}, nil},
		"query, any case":   {automation.AutomationFilter{Query: "bAcKuP"}, []string{"BACKUP 100% of mail_box", "Backup photos"}},
		"percent":           {automation.AutomationFilter{Query: "%"}, []string{"BACKUP 100% of mail_box"}},
		"underscore":        {automation.AutomationFilter{Query: "_"}, []string{"BACKUP 100% of mail_box"}},
		"backslash":         {automation.AutomationFilter{Query: `\`}, []string{`back\slash`}},
		"quote":             {automation.AutomationFilter{Query: `' OR 1=1 --`}, nil},
		"umlaut, any case":  {automation.AutomationFilter{Query: "äPFEL"}, []string{"Äpfel ernten ΣΤΟ"}},
		"greek, any case":   {automation.AutomationFilter{Query: "στο"}, []string{"Äpfel ernten ΣΤΟ"}},
		"nothing":           {automation.AutomationFilter{Query: "photos backup"}, nil},
	} {
		found, next, err := f.ListAutomations(t.Context(), f.owner, tc.filter)
		if err != nil || next != "" {
			t.Errorf("%s: cursor %q, error %v", name, next, err)
		}
		var names []string
		for _, a := range found {
			names = append(names, a.Name)
			if a.Workflow.Compiled != nil {
				t.Errorf("%s: %q is listed with its plan", name, a.Name)
			}
		}
		wantEqual(t, name, names, tc.want)
	}
}

func testAutomationPages(t *testing.T, f *fixture) {
	var want []string
	for i := range 25 {
		want = append([]string{f.create(t, f.definition("job", "a")).ID}, want...)
		if i%5 == 4 { // groups of five are of the same instant
			f.clock.Advance(time.Second)
		}
	}
	var got []string
	cursor := ""
	for {
		found, next, err := f.ListAutomations(t.Context(), f.owner, automation.AutomationFilter{Limit: 4, Cursor: cursor})
		if err != nil {
			t.Fatalf("ListAutomations: %v", err)
		}
		for _, a := range found {
			got = append(got, a.ID)
		}
		if cursor = next; next == "" {
			break
		}
		f.clock.Advance(time.Second)
		f.create(t, f.definition("newer", "a"))
	}
	wantEqual(t, "the pages", got, want)
}
