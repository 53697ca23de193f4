package automation

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/errandhq/errand/automation/webhook"
)

// WebhookDefinition is what the author of a webhook decides: a part of [Definition].
type WebhookDefinition struct {
	ID      string // empty for a webhook that the ledger is to add
	Name    string
	Scheme  webhook.Scheme
	Enabled bool
	// Options are those of the scheme hmac, nil otherwise.
	Options *webhook.Options
	// Headers are the headers of its deliveries that the inputs of its runs keep.
	Headers webhook.KeptHeaders
	// Secrets changes the secrets; nil keeps them.
	Secrets *SecretChange
}

// Spec returns what decides how deliveries are read.
func (d WebhookDefinition) Spec() webhook.Spec {
	return webhook.Spec{Scheme: d.Scheme, Options: d.Options, Headers: d.Headers}
}

// Webhook is a stored webhook with what the control plane knows about it. Its definition has no change of secrets.
type Webhook struct {
	WebhookDefinition
	CreatedAt time.Time
	// LastDeliveryAt is when a delivery was admitted last, up to a second behind while many come.
	LastDeliveryAt *time.Time
	// SecretCount is how many secrets are valid: 2 after a rotation until the previous one is dropped.
	SecretCount int
}

// WebhookSecret is a secret in the clear, on its way into or out of a vault. It shows itself to nobody by accident.
type WebhookSecret string

const hiddenSecret = "[secret]"

// String returns a placeholder.
func (WebhookSecret) String() string { return hiddenSecret }

// GoString returns a placeholder.
func (WebhookSecret) GoString() string { return hiddenSecret }

// MarshalText returns a placeholder.
func (WebhookSecret) MarshalText() ([]byte, error) { return []byte(hiddenSecret), nil }

// SealedSecret is a secret encrypted under a key that is derived from the master key.
type SealedSecret struct {
	// KeyID names that master key.
	KeyID      string
	Ciphertext []byte
}

// SecretVault seals secrets under the master key. A sealed secret opens for its webhook alone.
type SecretVault interface {
	Seal(webhookID string, secret WebhookSecret) (SealedSecret, error)
	// Open returns a secret, or an error when it was sealed under another master key or for another webhook.
	Open(webhookID string, sealed SealedSecret) (WebhookSecret, error)
}

// SecretChange is what an author asks for: Secret, unless it is empty, becomes the newest one and the newest before
// stays valid beside it; without the previous one when that is to be dropped.
type SecretChange struct {
	Secret       WebhookSecret
	DropPrevious bool
}

// Apply returns the sealed secrets of a webhook after the change, the newest first, from those before it: at most
// [webhook.MaxSecrets]. A secret that is the newest already changes nothing.
func (c SecretChange) Apply(vault SecretVault, webhookID string, stored []SealedSecret) ([]SealedSecret, error) {
	after := stored
	if c.Secret != "" && !isNewest(vault, webhookID, c.Secret, stored) {
		sealed, err := vault.Seal(webhookID, c.Secret)
		if err != nil {
			return nil, fmt.Errorf("sealing a secret: %w", err)
		}
		after = append([]SealedSecret{sealed}, stored...)
	}
	most := webhook.MaxSecrets
	if c.DropPrevious {
		most = 1
	}
	return after[:min(len(after), most)], nil
}

// isNewest reports whether a secret is the newest of those that are stored. One that cannot be opened is another.
func isNewest(vault SecretVault, webhookID string, secret WebhookSecret, stored []SealedSecret) bool {
	if len(stored) == 0 {
		return false
	}
	newest, err := vault.Open(webhookID, stored[0])
	return err == nil && newest == secret
}

// WebhookTarget is what taking a delivery needs of a webhook.
type WebhookTarget struct {
	WebhookDefinition
	OwnerID      string
	AutomationID string
	Sealed       []SealedSecret
}

// WebhookDelivery is a verified delivery that asks for a run.
type WebhookDelivery struct {
	OwnerID      string
	AutomationID string
	WebhookID    string
	webhook.Delivery
	Input json.RawMessage
}

// Admission returns the request for the run of a delivery.
func (d WebhookDelivery) Admission() Admission {
	return Admission{
		OwnerID: d.OwnerID, AutomationID: d.AutomationID, Input: d.Input, DeliveryKeys: d.Keys,
		Trigger: Trigger{Kind: TriggerWebhook, ID: d.WebhookID, DeliveryID: d.ID},
	}
}

// WebhookStore is the part of the ledger that taking deliveries needs. It is not bound to an owner.
type WebhookStore interface {
	// WebhookTarget returns a webhook by its id, else not_found.
	WebhookTarget(ctx context.Context, id string) (WebhookTarget, error)
	// PurgeDeliveries removes at most limit deliveries that need not be recognised any more, the oldest first, and
	// returns how many.
	PurgeDeliveries(ctx context.Context, limit int) (int, error)
}

// SecretStore is the part of the ledger that keeps the sealed secrets to one master key.
type SecretStore interface {
	// BindMasterKey records which master key protects this ledger, by its id, when none is recorded; later it
	// refuses any other with forbidden. A ledger stores only secrets that are sealed under the recorded key.
	BindMasterKey(ctx context.Context, keyID string) error
	// ReplaceMasterKey records another master key and replaces every sealed secret by what reseal returns for it,
	// all or nothing; with a nil reseal every secret is forgotten. It returns how many secrets there were.
	ReplaceMasterKey(
		ctx context.Context, keyID string, reseal func(webhookID string, s SealedSecret) (SealedSecret, error),
	) (int, error)
}
