// Package sealing encrypts the secrets that the ledger keeps for others, such as the signing secrets of webhooks:
// with XChaCha20-Poly1305 under a key that is derived from the installation's master key, each with a random nonce
// and bound to the id of the thing that it belongs to. Without the master key a stored secret, or a backup of the
// database, tells nothing but its length, and a sealed secret that is moved to another thing does not open.
//
// Which master key it was is kept beside each secret, by an id that tells nothing about the key, so that a
// replacement can be told from damage. Where keys come from and where sealed secrets are stored is left to others.
package sealing

import (
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"fmt"

	"golang.org/x/crypto/chacha20poly1305"

	"github.com/errandhq/errand/automation"
)

// KeySize is the length of a key in bytes.
const KeySize = chacha20poly1305.KeySize

// ErrOtherKey says that a secret was sealed under another master key than the vault's.
var ErrOtherKey = errors.New("the secret is sealed under another master key")

// Vault seals and opens secrets under one key. It is safe for concurrent use.
type Vault struct {
	keyID string
	aead  cipher.AEAD
}

var _ automation.SecretVault = (*Vault)(nil)

// New returns the vault of a key of [KeySize] bytes; keyID names the master key that it is derived from.
func New(keyID string, key []byte) (*Vault, error) {
	aead, err := chacha20poly1305.NewX(key)
	if err != nil {
		return nil, fmt.Errorf("preparing the encryption of secrets: %w", err)
	}
	return &Vault{keyID: keyID, aead: aead}, nil
}

// KeyID names the master key.
func (v *Vault) KeyID() string { return v.keyID }

// Seal implements [automation.SecretVault].
func (v *Vault) Seal(id string, secret automation.WebhookSecret) (automation.SealedSecret, error) {
	nonce := make([]byte, v.aead.NonceSize(), v.aead.NonceSize()+len(secret)+v.aead.Overhead())
	if _, err := rand.Read(nonce); err != nil {
		return automation.SealedSecret{}, fmt.Errorf("reading random bytes: %w", err)
	}
	return automation.SealedSecret{KeyID: v.keyID, Ciphertext: v.aead.Seal(nonce, nonce, []byte(secret), v.bound(id))}, nil
}

// Open implements [automation.SecretVault]. Errors: [ErrOtherKey], and one for a secret that is damaged or belongs
// to something else.
func (v *Vault) Open(id string, sealed automation.SealedSecret) (automation.WebhookSecret, error) {
	if sealed.KeyID != v.keyID {
		return "", fmt.Errorf("%w: %s instead of %s", ErrOtherKey, sealed.KeyID, v.keyID)
	}
	size := v.aead.NonceSize()
	if len(sealed.Ciphertext) < size {
		return "", errors.New("the sealed secret is too short: it is damaged")
	}
	secret, err := v.aead.Open(nil, sealed.Ciphertext[:size], sealed.Ciphertext[size:], v.bound(id))
	if err != nil {
		return "", errors.New("the sealed secret does not open: it is damaged, or belongs to something else")
	}
	return automation.WebhookSecret(secret), nil
}

// bound is what a sealed secret is tied to besides its key.
func (v *Vault) bound(id string) []byte {
	return []byte("errand webhook secret\x00" + v.keyID + "\x00" + id)
}
