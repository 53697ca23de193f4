package automation

import (
	"fmt"
	"slices"
	"strings"

	"github.com/errandhq/errand/automation/webhook"
	"github.com/errandhq/errand/internal/strictjson"
)

// WebhookInput is a new webhook as it is sent. null means default.
type WebhookInput struct {
	Name    NameText             `json:"name" strict:"required" doc:"what people call it, 1 to 200 characters"`
	Scheme  webhook.Scheme       `json:"scheme" strict:"required" enum:"standard,github,hmac" doc:"how the sender signs: standard, github or hmac"`
	Secret  WebhookSecret        `json:"secret" strict:"required" writeOnly:"true" doc:"the secret that the sender signs with, at least 24 random bytes; it is never shown again"`
	Enabled *bool                `json:"enabled,omitempty" doc:"whether deliveries are taken; default true"`
	Options *webhook.Options     `json:"options,omitempty" doc:"which headers the sender uses; required for hmac, and only there"`
	Headers *webhook.KeptHeaders `json:"headers,omitempty" doc:"names of headers that the run's input keeps; default none"`
}

// UnmarshalStrict implements [strictjson.Unmarshaler].
func (in *WebhookInput) UnmarshalStrict(v strictjson.Value) {
	type members WebhookInput
	if !v.Decode((*members)(in)) {
		return
	}
	if _, err := in.Scheme.Key(string(in.Secret)); err != nil {
		v.Member("secret").Report("%v", err)
	}
	switch {
	case in.Scheme == webhook.HMAC && in.Options == nil:
		v.Missing("options")
	case in.Scheme != webhook.HMAC && in.Options != nil:
		v.Member("options").Report("are those of the scheme hmac; leave them out")
	}
}

// Definition returns the webhook with its defaults applied.
func (in WebhookInput) Definition() WebhookDefinition {
	d := WebhookDefinition{
		Name: string(in.Name), Scheme: in.Scheme, Enabled: true, Options: in.Options,
		Secrets: &SecretChange{Secret: in.Secret},
	}
	if in.Enabled != nil {
		d.Enabled = *in.Enabled
	}
	if in.Headers != nil {
		d.Headers = *in.Headers
	}
	return d
}

// WebhookInputs are the webhooks of a new automation; null means none.
type WebhookInputs []WebhookInput

// UnmarshalStrict implements [strictjson.Unmarshaler].
func (in *WebhookInputs) UnmarshalStrict(v strictjson.Value) {
	if v.IsNull() || !v.Decode((*[]WebhookInput)(in)) {
		return
	}
	if len(*in) > MaxWebhooks {
		v.Report("are %d webhooks; an automation has at most %d", len(*in), MaxWebhooks)
	}
}

// WebhookUpdate changes a webhook. An absent member keeps what is there, null means default. The scheme is not
// changed: another scheme is another webhook.
type WebhookUpdate struct {
	ID                 string                                   `json:"id" strict:"required" doc:"the id of the webhook"`
	Name               *NameText                                `json:"name,omitempty" doc:"what people call it, 1 to 200 characters"`
	Secret             *WebhookSecret                           `json:"secret,omitempty" writeOnly:"true" doc:"a new secret; the one before stays valid beside it"`
	DropPreviousSecret bool                                     `json:"dropPreviousSecret,omitempty" doc:"ends the validity of the secret before the newest"`
	Enabled            strictjson.Optional[bool]                `json:"enabled,omitzero" doc:"whether deliveries are taken; null: true"`
	Options            *webhook.Options                         `json:"options,omitempty" doc:"which headers the sender uses, replaced together; hmac only"`
	Headers            strictjson.Optional[webhook.KeptHeaders] `json:"headers,omitzero" doc:"names of headers that the run's input keeps; null: none"`
}

// WebhookChanges are changes of an automation's webhooks.
type WebhookChanges struct {
	Add    WebhookInputs   `json:"add,omitempty" doc:"new webhooks"`
	Update []WebhookUpdate `json:"update,omitempty" doc:"changed webhooks, by id"`
	Remove []string        `json:"remove,omitempty" doc:"ids of webhooks to remove"`
}

// UnmarshalStrict implements [strictjson.Unmarshaler].
func (c *WebhookChanges) UnmarshalStrict(v strictjson.Value) {
	type members WebhookChanges // without this method
	decodeChanges(v, (*members)(c))
}

// Apply makes the changes to a definition. Its error is a validation_failed that names the places below path, and
// nothing is changed then.
func (c WebhookChanges) Apply(d *Definition, path string) error {
	after := slices.Clone(d.Webhooks)
	var wrong []Violation
	refuse := func(list string, i int, member, message string) {
		at := strictjson.PathElement(strictjson.PathMember(path, list), i)
		if member != "" {
			at = strictjson.PathMember(at, member)
		}
		wrong = append(wrong, Violation{Path: at, Message: message})
	}
	const unknown = "names no webhook of this automation, or one that this change names already"
	touched := map[string]bool{}
	find := func(id string) int {
		id = strings.ToLower(id)
		i := slices.IndexFunc(after, func(w WebhookDefinition) bool { return w.ID == id })
		if i < 0 || touched[id] {
			return -1
		}
		touched[id] = true
		return i
	}
	for i, change := range c.Update {
		at := find(change.ID)
		if at < 0 {
			refuse("update", i, "id", unknown)
			continue
		}
		for _, v := range change.apply(&after[at]) {
			refuse("update", i, v.Path, v.Message)
		}
	}
	for i, id := range c.Remove {
		at := find(id)
		if at < 0 {
			refuse("remove", i, "", unknown)
			continue
		}
		after = slices.Delete(after, at, at+1)
	}
	for _, added := range c.Add {
		after = append(after, added.Definition())
	}
	if len(after) > MaxWebhooks {
		wrong = append(wrong, Violation{
			Path:    path,
			Message: fmt.Sprintf("would be %d webhooks; an automation has at most %d", len(after), MaxWebhooks),
		})
	}
	if len(wrong) > 0 {
		return Invalid(wrong...)
	}
	d.Webhooks = after
	return nil
}

// apply makes one change, and returns what is wrong with it for a webhook of this scheme.
func (u WebhookUpdate) apply(d *WebhookDefinition) (wrong []Violation) {
	if u.Name != nil {
		d.Name = string(*u.Name)
	}
	if u.Enabled.Present {
		d.Enabled = u.Enabled.Null || u.Enabled.Value
	}
	if u.Headers.Present {
		d.Headers = u.Headers.Value
	}
	if u.Options != nil {
		if d.Scheme != webhook.HMAC {
			wrong = append(wrong, Violation{Path: "options", Message: "are those of the scheme hmac; leave them out"})
		}
		d.Options = u.Options
	}
	var secret WebhookSecret
	if u.Secret != nil {
		secret = *u.Secret
		if _, err := d.Scheme.Key(string(secret)); err != nil {
			wrong = append(wrong, Violation{Path: "secret", Message: err.Error()})
		}
	}
	if secret != "" || u.DropPreviousSecret {
		d.Secrets = &SecretChange{Secret: secret, DropPrevious: u.DropPreviousSecret}
	}
	return wrong
}
