package storetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/automation/webhook"
)

var webhookTests = []test{
	{"Define", testDefineWebhooks},
	{"AllOrNothing", testWebhooksAllOrNothing},
	{"Secrets", testWebhookSecrets},
	{"Deliver", testDeliver},
	{"Remember", testRememberDeliveries},
	{"Refusals", testDeliveryRefusals},
	{"DeliverRace", testDeliverRace},
	{"DeliverAndRemove", testDeliverRemoveRace},
	{"MasterKey", testMasterKey},
	{"ReplaceMasterKey", testReplaceMasterKey},
}

// vault is a vault whose sealed secrets are told apart by looking at them. Its value is the id of its master key.
type vault string

func (v vault) Seal(webhookID string, secret automation.WebhookSecret) (automation.SealedSecret, error) {
	if secret == "unsealable" {
		return automation.SealedSecret{}, errors.New("this secret cannot be sealed")
	}
	return automation.SealedSecret{KeyID: string(v), Ciphertext: []byte(webhookID + "/" + string(secret))}, nil
}

func (v vault) Open(webhookID string, sealed automation.SealedSecret) (automation.WebhookSecret, error) {
	secret, found := strings.CutPrefix(string(sealed.Ciphertext), webhookID+"/")
	if sealed.KeyID != string(v) || !found {
		return "", errors.New("the secret does not open")
	}
	return automation.WebhookSecret(secret), nil
}

// masterKey is the id of the master key of the suite's ledgers.
const masterKey = "key-1"

// bind binds the ledger to the suite's master key, as a server does when it starts.
func (f *fixture) bind(t *testing.T) {
	t.Helper()
	if err := f.BindMasterKey(t.Context(), masterKey); err != nil {
		t.Fatalf("BindMasterKey: %v", err)
	}
}

func newSecret(secret automation.WebhookSecret) *automation.SecretChange {
	return &automation.SecretChange{Secret: secret}
}

// withWebhooks creates an automation with webhooks of the given names.
func (f *fixture) withWebhooks(t *testing.T, names ...string) automation.Automation {
	t.Helper()
	f.bind(t)
	d := f.definition("hooked", "one")
	for _, name := range names {
		d.Webhooks = append(d.Webhooks, automation.WebhookDefinition{
			Name: name, Scheme: webhook.GitHub, Enabled: true, Secrets: newSecret("secret of " + automation.WebhookSecret(name)),
		})
	}
	return f.create(t, d)
}

func (f *fixture) change(t *testing.T, a automation.Automation, fn func(*automation.Definition)) automation.Automation {
	t.Helper()
	changed, err := f.UpdateAutomation(t.Context(), a.OwnerID, a.ID, 0, func(d *automation.Definition) error {
		fn(d)
		return nil
	})
	if err != nil {
		t.Fatalf("UpdateAutomation: %v", err)
	}
	return changed
}

// secretsOf opens the secrets that deliveries of a webhook are verified with.
func (f *fixture) secretsOf(t *testing.T, webhookID string) []automation.WebhookSecret {
	t.Helper()
	target, err := f.WebhookTarget(t.Context(), webhookID)
	if err != nil {
		t.Fatalf("WebhookTarget: %v", err)
	}
	var secrets []automation.WebhookSecret
	for _, sealed := range target.Sealed {
		secret, err := vault(sealed.KeyID).Open(webhookID, sealed)
		if err != nil {
			t.Errorf("a secret of the webhook does not open: %v", err)
		}
		secrets = append(secrets, secret)
	}
	return secrets
}

// delivery is a delivery of an automation's webhook under its id and further names.
func delivery(a automation.Automation, webhookID, id string, keys ...string) automation.Admission {
	return automation.WebhookDelivery{
		OwnerID: a.OwnerID, AutomationID: a.ID, WebhookID: webhookID,
		Delivery: webhook.Delivery{ID: id, Keys: keys}, Input: json.RawMessage(`{"body":1.0}`),
	}.Admission()
}

func testDefineWebhooks(t *testing.T, f *fixture) {
	f.bind(t)
	d := f.definition("hooked", "one")
	d.Webhooks = []automation.WebhookDefinition{
		{Name: "forge", Scheme: webhook.GitHub, Enabled: true, Headers: webhook.KeptHeaders{"x-a", "x-b"}, Secrets: newSecret("s1")},
		{Name: "other", Scheme: webhook.HMAC, Secrets: newSecret("s2"), Options: &webhook.Options{
			SignatureHeader: "x-sig", SignaturePrefix: "v1=", Encoding: webhook.Base64, TimestampHeader: "x-time", DeliveryHeader: "x-id",
		}},
	}
	a := f.create(t, d)
	want := []automation.Webhook{
		{WebhookDefinition: d.Webhooks[0], CreatedAt: f.clock.Now(), SecretCount: 1},
		{WebhookDefinition: d.Webhooks[1], CreatedAt: f.clock.Now(), SecretCount: 1},
	}
	for i := range want {
		want[i].ID, want[i].Secrets = a.Webhooks[i].ID, nil
	}
	wantEqual(t, "the webhooks", a.Webhooks, want)
	if a.Webhooks[0].ID == a.Webhooks[1].ID || a.Webhooks[0].ID == "" {
		t.Errorf("the webhooks have the ids %q and %q", a.Webhooks[0].ID, a.Webhooks[1].ID)
	}
	target, err := f.WebhookTarget(t.Context(), a.Webhooks[1].ID)
	if err != nil {
		t.Fatalf("WebhookTarget: %v", err)
	}
	wantEqual(t, "the target", target, automation.WebhookTarget{
		WebhookDefinition: want[1].WebhookDefinition, OwnerID: a.OwnerID, AutomationID: a.ID, Sealed: target.Sealed,
	})

	unchanged := f.change(t, a, func(d *automation.Definition) { d.Webhooks[0].Enabled = true })
	wantEqual(t, "the automation after no change", unchanged, a)
	f.clock.Advance(time.Minute)
	changed := f.change(t, a, func(d *automation.Definition) {
		d.Webhooks[1].Name, d.Webhooks[1].Enabled, d.Webhooks[1].Options.SignatureHeader = "renamed", true, "x-other"
		d.Webhooks[1].Headers = webhook.KeptHeaders{"x-c"}
		d.Webhooks = append(d.Webhooks[1:], automation.WebhookDefinition{Name: "third", Scheme: webhook.Standard, Secrets: newSecret("s3")})
	})
	if changed.Version != 2 || len(changed.Webhooks) != 2 {
		t.Fatalf("after the change: version %d with %d webhooks", changed.Version, len(changed.Webhooks))
	}
	options := *d.Webhooks[1].Options
	options.SignatureHeader = "x-other"
	second := want[1]
	second.Name, second.Enabled, second.Headers, second.Options = "renamed", true, webhook.KeptHeaders{"x-c"}, &options
	wantEqual(t, "the changed webhook", changed.Webhooks[0], second)
	if third := changed.Webhooks[1]; third.Name != "third" || third.CreatedAt != f.clock.Now() || third.SecretCount != 1 {
		t.Errorf("the added webhook is %+v", third)
	}
	_, err = f.WebhookTarget(t.Context(), a.Webhooks[0].ID)
	wantCode(t, "the removed webhook", err, automation.CodeNotFound)
	listed, _, err := f.ListAutomations(t.Context(), f.owner, automation.AutomationFilter{})
	if err != nil || len(listed) != 1 || listed[0].Webhooks != nil {
		t.Errorf("the listing has %+v, %v", listed, err)
	}
	if err := f.DeleteAutomation(t.Context(), f.owner, a.ID, 0); err != nil {
		t.Fatalf("DeleteAutomation: %v", err)
	}
	_, err = f.WebhookTarget(t.Context(), a.Webhooks[1].ID)
	wantCode(t, "a webhook of a deleted automation", err, automation.CodeNotFound)
	for _, id := range []string{"", "x", NewID(), "\x00"} {
		_, err := f.WebhookTarget(t.Context(), id)
		wantCode(t, fmt.Sprintf("the webhook %q", id), err, automation.CodeNotFound)
	}
}

// testWebhooksAllOrNothing: a definition with one bad webhook changes nothing, neither webhooks nor the rest.
func testWebhooksAllOrNothing(t *testing.T, f *fixture) {
	a := f.withWebhooks(t, "first")
	foreign := f.withWebhooks(t, "foreign").Webhooks[0].WebhookDefinition
	for name, bad := range map[string]automation.WebhookDefinition{
		"unknown id":             {ID: NewID(), Name: "x", Scheme: webhook.GitHub},
		"of another automation":  foreign,
		"without a secret":       {Name: "x", Scheme: webhook.GitHub},
		"without a name":         {Scheme: webhook.GitHub, Secrets: newSecret("s")},
		"NUL in its name":        {Name: "a\x00", Scheme: webhook.GitHub, Secrets: newSecret("s")},
		"a secret not to seal":   {Name: "x", Scheme: webhook.GitHub, Secrets: newSecret("unsealable")},
		"an unusable other name": {Name: "\xff", Scheme: webhook.GitHub, Secrets: newSecret("s")},
	} {
		_, err := f.UpdateAutomation(t.Context(), f.owner, a.ID, 0, func(d *automation.Definition) error {
			d.Name = "changed"
			d.Webhooks = []automation.WebhookDefinition{{Name: "new", Scheme: webhook.GitHub, Secrets: newSecret("s")}, bad}
			return nil
		})
		if err == nil {
			t.Errorf("a webhook %s was accepted", name)
		}
		d := f.definition("refused", "one")
		d.Webhooks = []automation.WebhookDefinition{bad}
		if _, err := f.CreateAutomation(t.Context(), f.owner, d, automation.Idempotency{}); err == nil {
			t.Errorf("an automation with a webhook %s was created", name)
		}
		now, err := f.Automation(t.Context(), f.owner, a.ID)
		if err != nil {
			t.Fatalf("Automation: %v", err)
		}
		wantEqual(t, "the automation after a refused change", now, a)
	}
	wantEqual(t, "the secrets", f.secretsOf(t, a.Webhooks[0].ID), []automation.WebhookSecret{"secret of first"})
	all, _, err := f.ListAutomations(t.Context(), f.owner, automation.AutomationFilter{})
	if err != nil || len(all) != 2 {
		t.Errorf("there are %d automations, %v; want 2", len(all), err)
	}
}

func testWebhookSecrets(t *testing.T, f *fixture) {
	a := f.withWebhooks(t, "forge")
	id := a.Webhooks[0].ID
	for i, step := range []struct {
		change automation.SecretChange
		want   []automation.WebhookSecret
	}{
		{automation.SecretChange{}, []automation.WebhookSecret{"secret of forge"}},
		{automation.SecretChange{Secret: "two"}, []automation.WebhookSecret{"two", "secret of forge"}},
		{automation.SecretChange{Secret: "two"}, []automation.WebhookSecret{"two", "secret of forge"}},
		{automation.SecretChange{Secret: "three"}, []automation.WebhookSecret{"three", "two"}},
		{automation.SecretChange{DropPrevious: true}, []automation.WebhookSecret{"three"}},
		{automation.SecretChange{Secret: "four", DropPrevious: true}, []automation.WebhookSecret{"four"}},
	} {
		before := a.Version
		a = f.change(t, a, func(d *automation.Definition) { d.Webhooks[0].Secrets = &step.change })
		wantEqual(t, fmt.Sprintf("the secrets after step %d", i), f.secretsOf(t, id), step.want)
		if a.Webhooks[0].SecretCount != len(step.want) || a.Webhooks[0].Secrets != nil || a.Version != before+1 {
			t.Errorf("step %d: version %d, %+v", i, a.Version, a.Webhooks[0])
		}
	}
	renamed := f.change(t, a, func(d *automation.Definition) { d.Webhooks[0].Name = "renamed" })
	wantEqual(t, "the secrets of a renamed webhook", f.secretsOf(t, id), []automation.WebhookSecret{"four"})
	want := a.Webhooks[0]
	want.Name = "renamed"
	wantEqual(t, "the renamed webhook", renamed.Webhooks[0], want)
}

func testDeliver(t *testing.T, f *fixture) {
	a := f.withWebhooks(t, "one", "two")
	one, two := a.Webhooks[0].ID, a.Webhooks[1].ID
	runs := map[string]automation.Run{}
	for i, step := range []struct {
		name      string
		admission automation.Admission
	}{
		{"first", delivery(a, one, "d-1", "id 1", "content 1")},
		{"first", delivery(a, one, "d-1", "id 1", "content 1")},
		{"first", delivery(a, one, "d-9", "id 9", "content 1")},
		{"first", delivery(a, one, "d-1", "id 1", "content 9")},
		{"second", delivery(a, one, "d-2", "id 2", "content 2")},
		{"of the other webhook", delivery(a, two, "d-1", "id 1", "content 1")},
		{"untold", delivery(a, one, "")},
		{"untold too", delivery(a, one, "")},
		// Nothing of the refused repeats was remembered.
		{"new under a name of a repeat", delivery(a, one, "d-9", "id 9", "content 9")},
	} {
		run := f.admitWith(t, step.admission)
		before, repeated := runs[step.name]
		if repeated {
			wantEqual(t, fmt.Sprintf("the run of step %d", i), run, before)
			continue
		}
		for name, other := range runs {
			if other.ID == run.ID {
				t.Errorf("step %d, %s, gave the run of %s", i, step.name, name)
			}
		}
		runs[step.name] = f.read(t, run)
		wantEqual(t, "the trigger", run.Trigger, step.admission.Trigger)
		if string(runs[step.name].Input) != `{"body":1.0}` {
			t.Errorf("the input is %s", runs[step.name].Input)
		}
	}
	now, err := f.Automation(t.Context(), f.owner, a.ID)
	if err != nil {
		t.Fatalf("Automation: %v", err)
	}
	if last := now.Webhooks[0].LastDeliveryAt; last == nil || !last.Equal(f.clock.Now()) || now.Version != 1 {
		t.Errorf("after deliveries: version %d, last delivery %v", now.Version, last)
	}
}

// testRememberDeliveries: a delivery is recognised for 30 days, also after its webhook has changed, and a repeat is
// answered whatever became of the automation.
func testRememberDeliveries(t *testing.T, f *fixture) {
	a := f.withWebhooks(t, "forge")
	id := a.Webhooks[0].ID
	first := f.admitWith(t, delivery(a, id, "d-1", "id 1", "content 1"))
	f.complete(t, first, "one", `1`)
	f.clock.Advance(webhook.RememberFor / 2)
	later := f.admitWith(t, delivery(a, id, "d-2", "id 2", "content 2"))
	a = f.change(t, a, func(d *automation.Definition) { d.Enabled = false })
	f.clock.Advance(webhook.RememberFor / 2)
	if n, err := f.PurgeDeliveries(t.Context(), 100); n != 0 || err != nil {
		t.Errorf("PurgeDeliveries on the last day = %d, %v", n, err)
	}
	if run := f.admitWith(t, delivery(a, id, "d-1", "id 1", "content 1")); run.ID != first.ID {
		t.Errorf("on the last day the delivery gave another run")
	}
	f.change(t, a, func(d *automation.Definition) { d.Enabled = true })
	f.clock.Advance(time.Microsecond)
	again := f.admitWith(t, delivery(a, id, "d-1", "id 1", "content 1"))
	if again.ID == first.ID || again.Trigger.DeliveryID != "d-1" {
		t.Errorf("after 30 days the delivery gave the run %s of %s", again.ID, first.ID)
	}
	f.clock.Advance(webhook.RememberFor)
	for i, want := range []int{1, 1, 0} {
		if n, err := f.PurgeDeliveries(t.Context(), 1); n != want || err != nil {
			t.Errorf("PurgeDeliveries, call %d = %d, %v; want %d", i, n, err, want)
		}
	}
	if run := f.admitWith(t, delivery(a, id, "d-1", "id 1", "content 1")); run.ID != again.ID {
		t.Error("forgetting old deliveries has forgotten a younger one")
	}
	if run := f.admitWith(t, delivery(a, id, "d-2", "id 2", "content 2")); run.ID == later.ID {
		t.Error("a forgotten delivery was recognised")
	}
}

func testDeliveryRefusals(t *testing.T, f *fixture) {
	a := f.withWebhooks(t, "on", "off")
	a = f.change(t, a, func(d *automation.Definition) { d.Webhooks[1].Enabled = false })
	other := f.withWebhooks(t, "theirs")
	disabled := f.withWebhooks(t, "disabled")
	disabled = f.change(t, disabled, func(d *automation.Definition) { d.Enabled = false })
	draft := f.withWebhooks(t, "draft")
	draft = f.change(t, draft, func(d *automation.Definition) { d.Workflow.Compiled = nil })
	for name, tc := range map[string]struct {
		admission automation.Admission
		want      automation.Code
	}{
		"disabled webhook":      {delivery(a, a.Webhooks[1].ID, "1", "1"), automation.CodeUnauthorized},
		"unknown webhook":       {delivery(a, NewID(), "1", "1"), automation.CodeUnauthorized},
		"of another automation": {delivery(a, other.Webhooks[0].ID, "1", "1"), automation.CodeUnauthorized},
		"disabled automation":   {delivery(disabled, disabled.Webhooks[0].ID, "1", "1"), automation.CodeAutomationDisabled},
		"draft":                 {delivery(draft, draft.Webhooks[0].ID, "1", "1"), automation.CodeNotExecutable},
		"not an id":             {delivery(a, "x", "1", "1"), automation.CodeValidationFailed},
		"an empty name":         {delivery(a, a.Webhooks[0].ID, "1", ""), automation.CodeValidationFailed},
		"NUL in the id":         {delivery(a, a.Webhooks[0].ID, "\x00", "1"), automation.CodeValidationFailed},
	} {
		_, err := f.Admit(t.Context(), tc.admission)
		wantCode(t, name, err, tc.want)
	}
	f.db.Revoke(t, f.machine.ID)
	_, err := f.Admit(t.Context(), delivery(a, a.Webhooks[0].ID, "1", "1"))
	wantCode(t, "revoked machine", err, automation.CodeMachineRevoked)
	if runs, _, err := f.ListRuns(t.Context(), f.owner, automation.RunFilter{}); err != nil || len(runs) != 0 {
		t.Errorf("refused deliveries gave runs: %v, %v", runs, err)
	}
}

// testDeliverRace sends one delivery many times at once to two servers, in the ways in which it is a repeat.
func testDeliverRace(t *testing.T, f *fixture) {
	at := f.servers(t)
	a := f.withWebhooks(t, "forge")
	ids, errs := together(callers, func(i int) (string, error) {
		keys := []string{"id of the delivery", "content of the delivery"}
		if i%4 >= 2 {
			keys = []string{fmt.Sprint("an id of its own ", i), keys[1]}
		}
		run, err := at(i).Admit(t.Context(), delivery(a, a.Webhooks[0].ID, "d", keys...))
		return run.ID, err
	})
	wantNoErrors(t, errs)
	f.wantOneRun(t, ids)
}

// testDeliverRemoveRace removes a webhook while it is delivered to: what was admitted was admitted before.
func testDeliverRemoveRace(t *testing.T, f *fixture) {
	at := f.servers(t)
	a := f.withWebhooks(t, "forge")
	id := a.Webhooks[0].ID
	_, errs := together(callers, func(i int) (string, error) {
		if i == callers/2 {
			_, err := at(i).UpdateAutomation(t.Context(), f.owner, a.ID, 0, func(d *automation.Definition) error {
				d.Webhooks = nil
				return nil
			})
			return "", err
		}
		run, err := at(i).Admit(t.Context(), delivery(a, id, "d", fmt.Sprint("delivery ", i)))
		if automation.CodeOf(err) == automation.CodeUnauthorized {
			return "", nil
		}
		return run.ID, err
	})
	wantNoErrors(t, errs)
	_, err := f.Admit(t.Context(), delivery(a, id, "d", "a last one"))
	wantCode(t, "a delivery after the removal", err, automation.CodeUnauthorized)
}

func testMasterKey(t *testing.T, f *fixture) {
	d := f.definition("hooked", "one")
	d.Webhooks = []automation.WebhookDefinition{{Name: "forge", Scheme: webhook.GitHub, Secrets: newSecret("s")}}
	_, err := f.CreateAutomation(t.Context(), f.owner, d, automation.Idempotency{})
	wantCode(t, "a secret before the ledger is bound", err, automation.CodeStoreUnavailable)

	at := f.servers(t)
	keys := make([]string, callers)
	_, errs := together(callers, func(i int) (string, error) {
		keys[i] = fmt.Sprint("key-", i%2)
		return "", at(i).BindMasterKey(t.Context(), keys[i])
	})
	bound := map[string]bool{}
	for i, err := range errs {
		switch automation.CodeOf(err) {
		case "":
			bound[keys[i]] = true
		case automation.CodeForbidden:
		default:
			t.Errorf("BindMasterKey: %v", err)
		}
	}
	if len(bound) != 1 {
		t.Errorf("the ledger was bound to %d keys", len(bound))
	}
}

func testReplaceMasterKey(t *testing.T, f *fixture) {
	a := f.withWebhooks(t, "one", "two")
	id := a.Webhooks[0].ID
	a = f.change(t, a, func(d *automation.Definition) { d.Webhooks[0].Secrets = newSecret("newest") })
	const next vault = "key-2"
	calls := 0
	_, err := f.ReplaceMasterKey(t.Context(), string(next), func(string, automation.SealedSecret) (automation.SealedSecret, error) {
		if calls++; calls == 3 {
			return automation.SealedSecret{}, errors.New("damaged")
		}
		return automation.SealedSecret{KeyID: string(next), Ciphertext: []byte("half")}, nil
	})
	if err == nil || calls != 3 {
		t.Errorf("a replacement that fails at its last secret: %d calls, %v", calls, err)
	}
	f.bind(t)
	wantEqual(t, "the secrets after it", f.secretsOf(t, id), []automation.WebhookSecret{"newest", "secret of one"})

	n, err := f.ReplaceMasterKey(t.Context(), string(next), func(id string, s automation.SealedSecret) (automation.SealedSecret, error) {
		secret, err := vault(masterKey).Open(id, s)
		if err != nil {
			return s, err
		}
		return next.Seal(id, secret)
	})
	if n != 3 || err != nil {
		t.Fatalf("ReplaceMasterKey = %d, %v", n, err)
	}
	wantEqual(t, "the secrets under the new key", f.secretsOf(t, id), []automation.WebhookSecret{"newest", "secret of one"})
	wantCode(t, "binding to the old key", f.BindMasterKey(t.Context(), masterKey), automation.CodeForbidden)
	_, err = f.UpdateAutomation(t.Context(), f.owner, a.ID, 0, func(d *automation.Definition) error {
		d.Webhooks[0].Secrets = newSecret("sealed under the old key")
		return nil
	})
	wantCode(t, "a secret of a server with the old key", err, automation.CodeStoreUnavailable)

	if n, err := f.ReplaceMasterKey(t.Context(), masterKey, nil); n != 3 || err != nil {
		t.Fatalf("ReplaceMasterKey without the old key = %d, %v", n, err)
	}
	f.bind(t)
	wantEqual(t, "the forgotten secrets", f.secretsOf(t, id), []automation.WebhookSecret(nil))
	f.change(t, a, func(d *automation.Definition) { d.Webhooks[0].Secrets = newSecret("anew") })
	wantEqual(t, "a secret after that", f.secretsOf(t, id), []automation.WebhookSecret{"anew"})
}
