package sealing_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/sealing"
)

const secret automation.WebhookSecret = "correct horse battery staple"

func vault(t *testing.T, id string, fill byte) *sealing.Vault {
	t.Helper()
	v, err := sealing.New(id, bytes.Repeat([]byte{fill}, sealing.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func seal(t *testing.T, v *sealing.Vault, id string) automation.SealedSecret {
	t.Helper()
	sealed, err := v.Seal(id, secret)
	if err != nil {
		t.Fatal(err)
	}
	return sealed
}

func TestSealedSecretOpens(t *testing.T) {
	t.Parallel()
	v := vault(t, "k1", 1)
	one, two := seal(t, v, "w"), seal(t, v, "w")
	if bytes.Equal(one.Ciphertext, two.Ciphertext) {
		t.Error("sealing twice gave the same bytes: the nonce is not random")
	}
	for _, sealed := range []automation.SealedSecret{one, two} {
		if bytes.Contains(sealed.Ciphertext, []byte(secret)) || sealed.KeyID != "k1" {
			t.Errorf("the sealed secret is %+v", sealed)
		}
		if got, err := vault(t, "k1", 1).Open("w", sealed); err != nil || got != secret {
			t.Errorf("it opens to a secret of %d bytes, %v", len(got), err)
		}
	}
}

func TestSealedSecretStaysShut(t *testing.T) {
	t.Parallel()
	v := vault(t, "k1", 1)
	sealed := seal(t, v, "w")
	if _, err := vault(t, "k2", 1).Open("w", sealed); !errors.Is(err, sealing.ErrOtherKey) {
		t.Errorf("under another key id: %v", err)
	}
	renamed := sealed
	renamed.KeyID = "k2"
	refused := map[string]func() error{
		"another key":      func() error { _, err := vault(t, "k1", 2).Open("w", sealed); return err },
		"another webhook":  func() error { _, err := v.Open("x", sealed); return err },
		"a renamed key id": func() error { _, err := vault(t, "k2", 1).Open("w", renamed); return err },
	}
	for i := range sealed.Ciphertext {
		damaged := automation.SealedSecret{KeyID: "k1", Ciphertext: slices.Clone(sealed.Ciphertext)}
		damaged.Ciphertext[i] ^= 1
		refused[fmt.Sprintf("byte %d flipped", i)] = func() error { _, err := v.Open("w", damaged); return err }
		cut := automation.SealedSecret{KeyID: "k1", Ciphertext: sealed.Ciphertext[:i]}
		refused[fmt.Sprintf("cut to %d bytes", i)] = func() error { _, err := v.Open("w", cut); return err }
	}
	for name, open := range refused {
		if open() == nil {
			t.Errorf("it opened with %s", name)
		}
	}
	if _, err := sealing.New("k", []byte("short")); err == nil {
		t.Error("a short key was accepted")
	}
}
