package store

import (
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/automation/webhook"
)

const webhookColumns = `w.id, w.name, w.scheme, w.enabled, w.options, w.headers, w.created_at, w.last_delivery_at`

// scanWebhook reads the columns of a webhook, and further ones into more.
func scanWebhook(row scanner, more ...any) (automation.Webhook, error) {
	var w automation.Webhook
	var options, headers string
	var created, delivered instant
	columns := []any{&w.ID, &w.Name, &w.Scheme, &w.Enabled, &options, &headers, &created, &delivered}
	if err := row.Scan(append(columns, more...)...); err != nil {
		return w, err
	}
	w.CreatedAt, w.LastDeliveryAt = created.time(), delivered.optional()
	if err := json.Unmarshal([]byte(options), &w.Options); err != nil {
		return w, fmt.Errorf("decoding the options of webhook %s: %w", w.ID, err)
	}
	if err := json.Unmarshal([]byte(headers), &w.Headers); err != nil {
		return w, fmt.Errorf("decoding the headers of webhook %s: %w", w.ID, err)
	}
	return w, nil
}

// webhooksOf returns the webhooks of an automation, in the order of their creation.
func webhooksOf(ctx context.Context, q querier, automationID string) ([]automation.Webhook, error) {
	rows, err := q.QueryContext(ctx, `SELECT `+webhookColumns+`,
			(SELECT count(*) FROM webhook_secrets s WHERE s.webhook_id = w.id)
		FROM webhooks w WHERE w.automation_id = $1 ORDER BY w.created_at, w.id`, automationID)
	found, err := collect(rows, err, func(row scanner) (automation.Webhook, error) {
		var secrets int
		w, err := scanWebhook(row, &secrets)
		w.SecretCount = secrets
		return w, err
	})
	if err != nil {
		return nil, fmt.Errorf("reading the webhooks of an automation: %w", err)
	}
	return found, nil
}

// checkWebhooks refuses what the database cannot hold.
func (v *violations) checkWebhooks(webhooks []automation.WebhookDefinition) {
	for i, w := range webhooks {
		at := fmt.Sprintf("webhooks[%d]", i)
		v.name(at+".name", w.Name, automation.MaxNameLength*utf8.UTFMax)
		v.name(at+".scheme", string(w.Scheme), maxKeyBytes)
	}
}

// replaceWebhooks makes the webhooks of an automation what a definition says: those without an id are new, those
// that are no longer there are removed.
func (s *Store) replaceWebhooks(
	ctx context.Context, tx querier, automationID string, before []automation.Webhook, after []automation.WebhookDefinition,
) error {
	for _, stored := range before {
		if slices.ContainsFunc(after, func(w automation.WebhookDefinition) bool { return w.ID == stored.ID }) {
			continue
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM webhooks WHERE id = $1`, stored.ID); err != nil {
			return fmt.Errorf("removing a webhook: %w", err)
		}
	}
	for i, w := range after {
		at := slices.IndexFunc(before, func(stored automation.Webhook) bool { return w.ID != "" && w.ID == stored.ID })
		switch {
		case at >= 0 && reflect.DeepEqual(before[at].WebhookDefinition, w):
			continue
		case at < 0 && (w.ID != "" || w.Secrets == nil):
			return automation.Invalid(automation.Violation{
				Path: fmt.Sprintf("webhooks[%d]", i), Message: "is not a webhook of this automation; a new one has no id, and a secret",
			})
		}
		if err := s.putWebhook(ctx, tx, automationID, w); err != nil {
			return err
		}
	}
	return nil
}

// putWebhook stores a webhook that is new or has changed.
func (s *Store) putWebhook(ctx context.Context, tx querier, automationID string, w automation.WebhookDefinition) error {
	options, err := encode(w.Options)
	if err != nil {
		return fmt.Errorf("encoding the options of a webhook: %w", err)
	}
	headers, err := encode(w.Headers)
	if err != nil {
		return fmt.Errorf("encoding the headers of a webhook: %w", err)
	}
	if w.ID == "" {
		w.ID = s.options.NewID()
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO webhooks (id, automation_id, name, scheme, enabled, options, headers, created_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
		ON CONFLICT (id) DO UPDATE SET name = excluded.name, enabled = excluded.enabled, options = excluded.options,
			headers = excluded.headers`,
		w.ID, automationID, w.Name, string(w.Scheme), w.Enabled, options, headers, at(s.now())); err != nil {
		return fmt.Errorf("storing a webhook: %w", err)
	}
	if w.Secrets == nil {
		return nil
	}
	return s.changeSecrets(ctx, tx, w.ID, *w.Secrets)
}

// changeSecrets applies a change to the secrets of a webhook. What is stored is sealed under the master key that the
// ledger is bound to, so that a server that has missed its replacement adds nothing that nobody can open.
func (s *Store) changeSecrets(ctx context.Context, tx querier, webhookID string, change automation.SecretChange) error {
	bound, err := s.boundMasterKey(ctx, tx)
	if err != nil {
		return err
	}
	stored, err := sealedSecrets(ctx, tx, webhookID)
	if err != nil {
		return err
	}
	if s.options.Vault == nil {
		return errors.New("this ledger was opened without a vault for secrets")
	}
	after, err := change.Apply(s.options.Vault, webhookID, stored)
	if err != nil {
		return fmt.Errorf("changing the secrets of webhook %s: %w", webhookID, err)
	}
	if _, err := tx.ExecContext(ctx, `DELETE FROM webhook_secrets WHERE webhook_id = $1`, webhookID); err != nil {
		return fmt.Errorf("replacing the secrets of a webhook: %w", err)
	}
	for i, sealed := range after {
		if sealed.KeyID != bound {
			return automation.Errorf(automation.CodeStoreUnavailable,
				"the master key of this installation has been replaced: start this server again with the new master.key")
		}
		if err := insertSecret(ctx, tx, webhookID, i, sealed); err != nil {
			return err
		}
	}
	return nil
}

func insertSecret(ctx context.Context, tx querier, webhookID string, position int, sealed automation.SealedSecret) error {
	if _, err := tx.ExecContext(ctx, `INSERT INTO webhook_secrets (webhook_id, position, key_id, ciphertext)
			VALUES ($1, $2, $3, $4)`,
		webhookID, position, sealed.KeyID, base64.StdEncoding.EncodeToString(sealed.Ciphertext)); err != nil {
		return fmt.Errorf("storing a secret: %w", err)
	}
	return nil
}

// sealedSecrets returns the secrets of a webhook, the newest first.
func sealedSecrets(ctx context.Context, q querier, webhookID string) ([]automation.SealedSecret, error) {
	rows, err := q.QueryContext(ctx,
		`SELECT key_id, ciphertext FROM webhook_secrets WHERE webhook_id = $1 ORDER BY position`, webhookID)
	found, err := collect(rows, err, func(row scanner) (automation.SealedSecret, error) {
		var keyID, ciphertext string
		if err := row.Scan(&keyID, &ciphertext); err != nil {
			return automation.SealedSecret{}, err
		}
		return sealedSecret(keyID, ciphertext)
	})
	if err != nil {
		return nil, fmt.Errorf("reading the secrets of a webhook: %w", err)
	}
	return found, nil
}

func sealedSecret(keyID, ciphertext string) (automation.SealedSecret, error) {
	decoded, err := base64.StdEncoding.DecodeString(ciphertext)
	return automation.SealedSecret{KeyID: keyID, Ciphertext: decoded}, err
}

// WebhookTarget implements [automation.WebhookStore].
func (s *Store) WebhookTarget(ctx context.Context, id string) (automation.WebhookTarget, error) {
	known, _ := canonicalID(id) // one that is no id is looked for all the same: it must not be answered sooner
	if known == "" {
		known = noID
	}
	var target automation.WebhookTarget
	rows, err := s.read.QueryContext(ctx, `SELECT `+webhookColumns+`, a.owner_id, a.id, s.key_id, s.ciphertext
		FROM webhooks w JOIN automations a ON a.id = w.automation_id
		LEFT JOIN webhook_secrets s ON s.webhook_id = w.id
		WHERE w.id = $1 AND a.deleted_at IS NULL ORDER BY s.position`, known)
	err = each(rows, err, func(row scanner) error {
		var keyID, ciphertext sql.NullString
		w, err := scanWebhook(row, &target.OwnerID, &target.AutomationID, &keyID, &ciphertext)
		target.WebhookDefinition = w.WebhookDefinition
		if err != nil || !keyID.Valid {
			return err
		}
		sealed, err := sealedSecret(keyID.String, ciphertext.String)
		target.Sealed = append(target.Sealed, sealed)
		return err
	})
	switch {
	case err != nil:
		return automation.WebhookTarget{}, translate(fmt.Errorf("reading webhook %s: %w", quoted(id), err))
	case target.ID == "":
		return automation.WebhookTarget{}, notFound("webhook", id)
	}
	return target, nil
}

// noID is an id that nothing has.
const noID = "00000000-0000-0000-0000-000000000000"

// deliveredBefore returns the run that a delivery has admitted when it came first, or "".
func deliveredBefore(ctx context.Context, tx querier, a automation.Admission, now time.Time) (string, error) {
	for _, key := range a.DeliveryKeys {
		var run string
		found, err := exists(tx.QueryRowContext(ctx, `SELECT run_id FROM webhook_deliveries
			WHERE webhook_id = $1 AND key = $2 AND created_at >= $3`, a.Trigger.ID, key, deliveryCutoff(now)).Scan(&run))
		if err != nil {
			return "", fmt.Errorf("looking for an earlier delivery: %w", err)
		}
		if found {
			return run, nil
		}
	}
	return "", nil
}

// deliveryCutoff is the time before which a delivery is forgotten.
func deliveryCutoff(now time.Time) instant { return at(now.Add(-webhook.RememberFor)) }

// openWebhook checks that the webhook of an admission still takes deliveries. It stays so until the commit, since
// whoever changes a webhook takes its automation first.
func openWebhook(ctx context.Context, tx querier, a automation.Admission) error {
	var enabled bool
	found, err := exists(tx.QueryRowContext(ctx, `SELECT enabled FROM webhooks WHERE id = $1 AND automation_id = $2`,
		a.Trigger.ID, a.AutomationID).Scan(&enabled))
	switch {
	case err != nil:
		return fmt.Errorf("reading the webhook of an admission: %w", err)
	case !found || !enabled:
		return automation.Errorf(automation.CodeUnauthorized, "the webhook was removed or disabled")
	}
	return nil
}

// lastDeliveryWithin is how far behind the stored time of the last delivery may be. Without it every delivery would
// wait for the commit of the one before.
const lastDeliveryWithin = time.Second

// claimDelivery records a delivery under all its names, in the transaction that admits its run. Of two transactions
// with the same delivery the second loses the race: it admits nothing and finds the first one's run.
func claimDelivery(ctx context.Context, tx querier, a automation.Admission, runID string, now time.Time) error {
	for _, key := range slices.Sorted(slices.Values(a.DeliveryKeys)) { // in one order, so that two never wait for each other
		first, err := affected(tx.ExecContext(ctx, `INSERT INTO webhook_deliveries (webhook_id, key, run_id, created_at)
				VALUES ($1, $2, $3, $4)
			ON CONFLICT (webhook_id, key) DO UPDATE SET run_id = excluded.run_id, created_at = excluded.created_at
			WHERE webhook_deliveries.created_at < $5`, a.Trigger.ID, key, runID, at(now), deliveryCutoff(now)))
		if err != nil {
			return fmt.Errorf("storing a delivery: %w", err)
		}
		if !first {
			return errLostRace
		}
	}
	if _, err := tx.ExecContext(ctx, `UPDATE webhooks SET last_delivery_at = $2
			WHERE id = $1 AND (last_delivery_at IS NULL OR last_delivery_at <= $3)`,
		a.Trigger.ID, at(now), at(now.Add(-lastDeliveryWithin))); err != nil {
		return fmt.Errorf("storing the time of a delivery: %w", err)
	}
	return nil
}

// PurgeDeliveries implements [automation.WebhookStore].
func (s *Store) PurgeDeliveries(ctx context.Context, limit int) (int, error) {
	return s.purge(ctx, "old deliveries of webhooks", `DELETE FROM webhook_deliveries WHERE (webhook_id, key) IN (
		SELECT webhook_id, key FROM webhook_deliveries WHERE created_at < $1 ORDER BY created_at LIMIT $2)`,
		deliveryCutoff(s.now()), limit)
}
