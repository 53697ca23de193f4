package catalog

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/automation/webhook"
)

// HooksPath is the path below which webhooks take deliveries, by their id.
const HooksPath = "/hooks/"

// WebhookResult is a webhook as commands return it. Its secrets are never shown.
type WebhookResult struct {
	ID      string               `json:"id" doc:"the webhook's id"`
	Name    string               `json:"name" doc:"what people call it"`
	Scheme  webhook.Scheme       `json:"scheme" enum:"standard,github,hmac" doc:"how the sender signs"`
	Enabled bool                 `json:"enabled" doc:"whether deliveries are taken"`
	URL     string               `json:"url" doc:"the address to give to the sender"`
	Options *webhook.Options     `json:"options,omitempty" doc:"which headers the sender uses, of the scheme hmac"`
	Headers []webhook.HeaderName `json:"headers" doc:"names of headers that the run's input keeps"`
	Secrets int                  `json:"secrets" doc:"how many secrets are valid: 2 after a new one, until the previous one is dropped"`
	// CreatedAt and LastDeliveryAt are the ledger's.
	CreatedAt      time.Time  `json:"createdAt" doc:"when it was added"`
	LastDeliveryAt *time.Time `json:"lastDeliveryAt,omitempty" doc:"when a delivery was admitted last, up to a second behind"`
}

// presentWebhooks returns the webhooks of an automation as commands show them; never nil.
func (s *Service) presentWebhooks(webhooks []automation.Webhook) []WebhookResult {
	results := make([]WebhookResult, 0, len(webhooks))
	for _, w := range webhooks {
		results = append(results, WebhookResult{
			ID: w.ID, Name: w.Name, Scheme: w.Scheme, Enabled: w.Enabled, URL: s.PublicURL + HooksPath + w.ID,
			Options: w.Options, Headers: append([]webhook.HeaderName{}, w.Headers...), Secrets: w.SecretCount,
			CreatedAt: w.CreatedAt, LastDeliveryAt: w.LastDeliveryAt,
		})
	}
	return results
}

// requestOf returns what must be equal for a repeat of a definition: everything, with secrets as their hashes.
func requestOf(d automation.Definition) any {
	request := struct {
		automation.Definition
		SecretHashes []string
	}{Definition: d}
	for _, w := range d.Webhooks {
		hash := ""
		if w.Secrets != nil {
			sum := sha256.Sum256([]byte(w.Secrets.Secret))
			hash = hex.EncodeToString(sum[:])
		}
		request.SecretHashes = append(request.SecretHashes, hash)
	}
	return request
}
