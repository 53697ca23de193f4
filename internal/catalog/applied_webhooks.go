package catalog

import (
	"fmt"
	"slices"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/automation/webhook"
	"github.com/errandhq/errand/internal/strictjson"
)

// ApplyDefinition is a definition as apply takes it: in the format of create, with webhooks whose secret may be left
// out, since export does not know it.
type ApplyDefinition struct {
	automation.DefinitionInput
	Webhooks []ApplyWebhook `json:"webhooks" doc:"what starts runs from outside, each with another name, at most 20; one that is new has its secret"`
}

func (in ApplyDefinition) definition() automation.Definition {
	d := in.Definition()
	for _, w := range in.Webhooks {
		d.Webhooks = append(d.Webhooks, w.definition())
	}
	return d
}

// webhookMembers are the members of a webhook without the rule that it has a secret.
type webhookMembers automation.WebhookInput

// ApplyWebhook is a webhook as apply takes it.
type ApplyWebhook struct {
	webhookMembers
	Secret automation.WebhookSecret `json:"secret,omitempty" writeOnly:"true" doc:"required for a webhook that is new; one that exists keeps its own"`
}

// UnmarshalStrict implements [strictjson.Unmarshaler].
func (w *ApplyWebhook) UnmarshalStrict(v strictjson.Value) {
	type members ApplyWebhook
	if !v.Decode((*members)(w)) {
		return
	}
	if w.Secret != "" {
		if _, err := w.Scheme.Key(string(w.Secret)); err != nil {
			v.Member("secret").Report("%v", err)
		}
	}
	switch {
	case w.Scheme == webhook.HMAC && w.Options == nil:
		v.Missing("options")
	case w.Scheme != webhook.HMAC && w.Options != nil:
		v.Member("options").Report("are those of the scheme hmac; leave them out")
	}
}

// definition returns the webhook with its defaults applied; without a change of secrets when none was given.
func (w ApplyWebhook) definition() automation.WebhookDefinition {
	d := automation.WebhookInput(w.webhookMembers).Definition()
	d.Secrets = nil
	if w.Secret != "" {
		d.Secrets = &automation.SecretChange{Secret: w.Secret}
	}
	return d
}

// checkWebhooks refuses webhooks of one definition that apply could not tell apart, and too many.
func (v *violations) checkWebhooks(path string, webhooks []ApplyWebhook) {
	if len(webhooks) > automation.MaxWebhooks {
		v.add(path, "are %d webhooks; an automation has at most %d", len(webhooks), automation.MaxWebhooks)
	}
	for i, w := range webhooks {
		same := func(other ApplyWebhook) bool { return other.Name == w.Name }
		if first := slices.IndexFunc(webhooks, same); first < i {
			v.add(fmt.Sprintf("%s[%d].name", path, i), "is the name of another webhook too; apply goes by name")
		}
	}
}

// nameWebhooks gives webhooks that were sent without ids the ids of stored ones of the same name and scheme, which
// keep their secrets, and puts those first, in the order in which they are stored. It reports new ones without a
// secret, and warns of secrets that change nothing.
func nameWebhooks(path string, stored []automation.Webhook, sent []automation.WebhookDefinition) (
	ordered []automation.WebhookDefinition, refused violations, warnings []automation.Violation,
) {
	var added []automation.WebhookDefinition
	known := map[string]automation.WebhookDefinition{}
	for i, w := range sent {
		same := func(s automation.Webhook) bool {
			return s.Name == w.Name && s.Scheme == w.Scheme && known[s.ID].ID == ""
		}
		at := slices.IndexFunc(stored, same)
		place := fmt.Sprintf("%s[%d].secret", path, i)
		switch {
		case at < 0 && w.Secrets == nil:
			refused.add(place, "is required: the automation has no webhook of this name and scheme")
		case at < 0:
			added = append(added, w)
		default:
			if w.Secrets != nil {
				warnings = append(warnings, automation.Violation{
					Path: place, Message: "changes nothing: the webhook keeps its secret; give a new one with update",
				})
			}
			w.ID, w.Secrets = stored[at].ID, nil
			known[w.ID] = w
		}
	}
	for _, s := range stored {
		if w, found := known[s.ID]; found {
			ordered = append(ordered, w)
		}
	}
	return append(ordered, added...), refused, warnings
}

// WebhookDocument is what the author of a webhook decides, in the format of create, without its secret.
type WebhookDocument struct {
	Name    string              `json:"name"`
	Scheme  webhook.Scheme      `json:"scheme"`
	Enabled bool                `json:"enabled"`
	Options *webhook.Options    `json:"options,omitempty"`
	Headers webhook.KeptHeaders `json:"headers,omitempty"`
}

func webhookDocuments(webhooks []automation.WebhookDefinition) []WebhookDocument {
	var documents []WebhookDocument
	for _, w := range webhooks {
		documents = append(documents, WebhookDocument{Name: w.Name, Scheme: w.Scheme, Enabled: w.Enabled, Options: w.Options, Headers: w.Headers})
	}
	return documents
}

func webhookDefinitions(webhooks []automation.Webhook) []automation.WebhookDefinition {
	var definitions []automation.WebhookDefinition
	for _, w := range webhooks {
		definitions = append(definitions, w.WebhookDefinition)
	}
	return definitions
}
