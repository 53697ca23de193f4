package identity

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
)

// A token that was opened before is checked like a new one: its time counts, and what differs from it by a
// character or comes from elsewhere is refused.
func TestOpenedTokenIsCheckedAgain(t *testing.T) {
	t.Parallel()
	tokens, err := NewTokens(make([]byte, KeySize), "installation")
	if err != nil {
		t.Fatal(err)
	}
	others, err := NewTokens(bytes.Repeat([]byte("o"), KeySize), "installation")
	if err != nil {
		t.Fatal(err)
	}
	issued := time.Unix(1_000_000, 0)
	token, err := tokens.issue("machine", "print", issued)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := others.issue("machine", "print", issued)
	if err != nil {
		t.Fatal(err)
	}
	last := issued.Add(TokenValidFor - time.Second)
	for range 2 {
		said, err := tokens.open(token, last)
		if err != nil || said.Subject != "machine" || said.Confirmation.Thumbprint != "print" {
			t.Fatalf("open = %+v, %v", said, err)
		}
		for name, refused := range map[string]string{
			"of another key": foreign, "without its signature": token[:strings.LastIndexByte(token, '.')+1],
			"with a character more": token + "A", "empty": "",
		} {
			if said, err := tokens.open(refused, last); automation.CodeOf(err) != automation.CodeUnauthorized {
				t.Errorf("a token %s: %+v, %v", name, said, err)
			}
		}
		if said, err := tokens.open(token, issued.Add(TokenValidFor)); automation.CodeOf(err) != automation.CodeUnauthorized {
			t.Errorf("an expired token: %+v, %v", said, err)
		}
	}
}

// However many tokens there are, a bounded number is remembered, and each opens.
func TestOpenedTokensAreBounded(t *testing.T) {
	t.Parallel()
	tokens, err := NewTokens(make([]byte, KeySize), "installation")
	if err != nil {
		t.Fatal(err)
	}
	for i := range maxCached + 1 {
		tokens.remember([32]byte{byte(i), byte(i >> 8)}, tokenClaims{})
	}
	if n := len(tokens.genuine); n != 1 {
		t.Errorf("%d tokens are remembered after one too many, want 1", n)
	}
	token, err := tokens.issue("machine", "print", time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tokens.open(token, time.Unix(2, 0)); err != nil {
		t.Error(err)
	}
}
