package automation_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/automation/webhook"
	"github.com/errandhq/errand/internal/strictjson"
)

const hookSecret = "Canary of a secret, 24 bytes"

func TestWebhooksOfADefinition(t *testing.T) {
	t.Parallel()
	one := `{"name":"a","scheme":"github","secret":"` + hookSecret + `"}`
	for document, place := range map[string]string{
		`[` + one + `]`: "",
		`null`:          "",
		`[{"name":"a","scheme":"hmac","secret":"` + hookSecret + `","options":{"signatureHeader":"x"},"headers":null,"enabled":null}]`: "",
		`[{"name":"a","scheme":"hmac","secret":"` + hookSecret + `"}]`:                                                                 "webhooks[0].options",
		`[{"name":"a","scheme":"github","secret":"` + hookSecret + `","options":{"signatureHeader":"x"}}]`:                             "webhooks[0].options",
		`[{"name":"a","scheme":"standard","secret":"` + hookSecret + `"}]`:                                                             "webhooks[0].secret",
		`[{"name":"a","scheme":"github","secret":"` + hookSecret[:23] + `"}]`:                                                          "webhooks[0].secret",
		`[{"name":"a","scheme":"GitHub","secret":"` + hookSecret + `"}]`:                                                               "webhooks[0].scheme",
		`[{"name":"a","scheme":"github","secret":"` + hookSecret + `","id":"x"}]`:                                                      "webhooks[0].id",
		`[` + strings.Repeat(one+",", automation.MaxWebhooks) + one + `]`:                                                              "webhooks",
	} {
		_, _, err := automation.DecodeDefinition([]byte(`{"name":"A","webhooks":` + document + `}`))
		if place == "" {
			if err != nil {
				t.Errorf("%s: %v", document, err)
			}
			continue
		}
		if found := refused(t, err); len(found) != 1 || found[0].Path != place || strings.Contains(fmt.Sprint(found), hookSecret[:23]) {
			t.Errorf("%.200s: %v, want one at %s", document, found, place)
		}
	}
}

// TestWebhookChanges: each change is made to its webhook, and a bad one leaves everything as it was.
func TestWebhookChanges(t *testing.T) {
	t.Parallel()
	before := automation.Definition{Webhooks: []automation.WebhookDefinition{
		{ID: "w1", Name: "one", Scheme: webhook.GitHub, Enabled: true, Headers: webhook.KeptHeaders{"x"}},
		{ID: "w2", Name: "two", Scheme: webhook.HMAC, Options: &webhook.Options{SignatureHeader: "s", Encoding: webhook.Hex}},
	}}
	decode := func(document string) automation.WebhookChanges {
		var c automation.WebhookChanges
		if violations := strictjson.Unmarshal([]byte(document), &c); len(violations) > 0 {
			t.Fatalf("%s: %v", document, violations)
		}
		return c
	}
	after := automation.Definition{Webhooks: slices.Clone(before.Webhooks)}
	err := decode(`{"update":[{"id":"w1","name":"uno","enabled":false,"headers":null,"secret":"`+hookSecret+`"},
		{"id":"w2","enabled":null,"options":{"signatureHeader":"t"},"dropPreviousSecret":true}],
		"add":[{"name":"three","scheme":"github","secret":"`+hookSecret+`"}]}`).Apply(&after, "webhooks")
	want := []automation.WebhookDefinition{
		{ID: "w1", Name: "uno", Scheme: webhook.GitHub, Secrets: &automation.SecretChange{Secret: hookSecret}},
		{ID: "w2", Name: "two", Scheme: webhook.HMAC, Enabled: true, Options: &webhook.Options{SignatureHeader: "t", Encoding: webhook.Hex}, Secrets: &automation.SecretChange{DropPrevious: true}},
		{Name: "three", Scheme: webhook.GitHub, Enabled: true, Secrets: &automation.SecretChange{Secret: hookSecret}},
	}
	if diff := cmp.Diff(want, after.Webhooks); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for document, place := range map[string]string{
		`{"update":[{"id":"w3","name":"x"}]}`:                                    "webhooks.update[0].id",
		`{"update":[{"id":"w1","name":"x"},{"id":"w1","name":"y"}]}`:             "webhooks.update[1].id",
		`{"remove":["w1","w1"]}`:                                                 "webhooks.remove[1]",
		`{"update":[{"id":"w1","name":"x"}],"remove":["w1"]}`:                    "webhooks.remove[0]",
		`{"update":[{"id":"w1","name":"x","options":{"signatureHeader":"s"}}]}`:  "webhooks.update[0].options",
		`{"update":[{"id":"w1","name":"x","secret":"` + hookSecret[:23] + `"}]}`: "webhooks.update[0].secret",
		`{"update":[{"id":"w1","secret":""}]}`:                                   "webhooks.update[0].secret",
		`{"add":[` + strings.Repeat(`{"name":"a","scheme":"github","secret":"`+hookSecret+`"},`, 18) + `{"name":"a","scheme":"github","secret":"` + hookSecret + `"}]}`: "webhooks",
	} {
		d := automation.Definition{Webhooks: slices.Clone(before.Webhooks)}
		found := refused(t, decode(document).Apply(&d, "webhooks"))
		if len(found) != 1 || found[0].Path != place || strings.Contains(fmt.Sprint(found), hookSecret[:23]) {
			t.Errorf("%.100s: %v, want one at %s", document, found, place)
		}
		if diff := cmp.Diff(before, d); diff != "" {
			t.Errorf("%.100s has changed something:\n%s", document, diff)
		}
	}
}

func TestSecretsHide(t *testing.T) {
	t.Parallel()
	change := automation.WebhookDefinition{Secrets: &automation.SecretChange{Secret: hookSecret}}
	encoded, err := json.Marshal(change)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{string(encoded), fmt.Sprintf("%v %+v %#v %s %q", *change.Secrets, *change.Secrets, *change.Secrets, change.Secrets.Secret, change.Secrets.Secret)} {
		if strings.Contains(text, "Canary") {
			t.Errorf("a secret shows itself: %s", text)
		}
	}
}
