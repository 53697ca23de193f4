package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"testing"

	"github.com/go-jose/go-jose/v4"
)

// What an Ed25519 key signs under its prepared header is to the byte what the library makes of the same payload,
// and what a key on P-256 signs is verified by its public key.
func TestStatementsAreThoseOfTheLibrary(t *testing.T) {
	t.Parallel()
	file, err := newDeviceKey()
	if err != nil {
		t.Fatal(err)
	}
	edwards, err := parseDeviceKey(file)
	if err != nil {
		t.Fatal(err)
	}
	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if file, err = json.Marshal(jose.JSONWebKey{Key: p256}); err != nil {
		t.Fatal(err)
	}
	nist, err := parseDeviceKey(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, typ := range []jose.ContentType{typeProof, typeEnrolment} {
		for _, payload := range []string{"", "{}", `{"jti":"a","htu":"http://127.0.0.1:7717/v1/machine/hello"}`} {
			got, err := edwards.sign(typ, []byte(payload))
			if err != nil {
				t.Fatal(err)
			}
			signed, err := edwards.signers[typ].Sign([]byte(payload))
			if err != nil {
				t.Fatal(err)
			}
			if want, err := signed.CompactSerialize(); err != nil || got != want {
				t.Errorf("%s of %q\nis   %s\nwant %s, %v", typ, payload, got, want, err)
			}
			other, err := nist.sign(typ, []byte(payload))
			if err != nil {
				t.Fatal(err)
			}
			parsed, err := jose.ParseSignedCompact(other, algorithms)
			if err != nil {
				t.Fatal(err)
			}
			if said, err := parsed.Verify(&p256.PublicKey); err != nil || string(said) != payload {
				t.Errorf("a statement of a key on P-256 says %q, %v", said, err)
			}
		}
	}
}
