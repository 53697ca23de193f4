package store

import (
	"context"
	"fmt"

	"github.com/errandhq/errand/automation"
)

// boundMasterKey returns the id of the master key that the ledger is bound to, or "". It stays so until the commit.
func (s *Store) boundMasterKey(ctx context.Context, tx querier) (string, error) {
	var id string
	if err := tx.QueryRowContext(ctx, `SELECT master_key_id FROM installation`+s.dialect.own).Scan(&id); err != nil {
		return "", fmt.Errorf("reading which master key protects the database: %w", err)
	}
	return id, nil
}

func bindMasterKey(ctx context.Context, tx querier, keyID string) error {
	if _, err := tx.ExecContext(ctx, `UPDATE installation SET master_key_id = $1`, keyID); err != nil {
		return fmt.Errorf("recording which master key protects the database: %w", err)
	}
	return nil
}

// BindMasterKey implements [automation.SecretStore].
func (s *Store) BindMasterKey(ctx context.Context, keyID string) error {
	return retry(ctx, func() error {
		return s.write(ctx, durable, func(ctx context.Context, tx querier) error {
			bound, err := s.boundMasterKey(ctx, tx)
			switch {
			case err != nil:
				return err
			case bound == "":
				return bindMasterKey(ctx, tx, keyID)
			case bound != keyID:
				return automation.Errorf(automation.CodeForbidden,
					"the database is protected by the master key %s, and this server has the master key %s", bound, keyID)
			}
			return nil
		})
	})
}

// ReplaceMasterKey implements [automation.SecretStore]. reseal may be called more than once for a secret.
func (s *Store) ReplaceMasterKey(
	ctx context.Context, keyID string,
	reseal func(webhookID string, sealed automation.SealedSecret) (automation.SealedSecret, error),
) (int, error) {
	count := 0
	err := retry(ctx, func() error {
		return s.write(ctx, durable, func(ctx context.Context, tx querier) error {
			if _, err := s.boundMasterKey(ctx, tx); err != nil {
				return err
			}
			rows, err := tx.QueryContext(ctx, `SELECT webhook_id, position, key_id, ciphertext FROM webhook_secrets`)
			secrets, err := collect(rows, err, scanSecretRow)
			if err != nil {
				return fmt.Errorf("reading the secrets: %w", err)
			}
			if _, err := tx.ExecContext(ctx, `DELETE FROM webhook_secrets`); err != nil {
				return fmt.Errorf("replacing the secrets: %w", err)
			}
			if reseal != nil {
				if err := resealAll(ctx, tx, secrets, reseal); err != nil {
					return err
				}
			}
			count = len(secrets)
			return bindMasterKey(ctx, tx, keyID)
		})
	})
	return count, err
}

// secretRow is a sealed secret with its place.
type secretRow struct {
	webhookID string
	position  int
	sealed    automation.SealedSecret
}

func scanSecretRow(row scanner) (secretRow, error) {
	var r secretRow
	var keyID, ciphertext string
	err := row.Scan(&r.webhookID, &r.position, &keyID, &ciphertext)
	if err == nil {
		r.sealed, err = sealedSecret(keyID, ciphertext)
	}
	return r, err
}

func resealAll(
	ctx context.Context, tx querier, secrets []secretRow,
	reseal func(webhookID string, sealed automation.SealedSecret) (automation.SealedSecret, error),
) error {
	for _, r := range secrets {
		sealed, err := reseal(r.webhookID, r.sealed)
		if err != nil {
			return fmt.Errorf("sealing a secret of webhook %s again: %w", r.webhookID, err)
		}
		if err := insertSecret(ctx, tx, r.webhookID, r.position, sealed); err != nil {
			return err
		}
	}
	return nil
}
