package identity

import (
	"context"
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
)

// noMachines knows no machine.
type noMachines struct{}

func (noMachines) Machine(context.Context, string) (automation.Machine, error) {
	return automation.Machine{}, automation.Errorf(automation.CodeNotFound, "there is no such machine")
}

// FuzzAuthenticate presents anything as a credential of a machine that does not exist: it is refused as
// unauthorized, never let in, and nothing breaks.
func FuzzAuthenticate(f *testing.F) {
	tokens, err := NewTokens(make([]byte, KeySize), "installation")
	if err != nil {
		f.Fatal(err)
	}
	verifier, err := NewVerifier(VerifierOptions{
		Machines: noMachines{}, Tokens: tokens, BaseURLs: []string{"http://127.0.0.1:7717"}, Now: func() time.Time { return time.Unix(1, 0) },
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add("", "")
	f.Add("Machine x", "a.b.c")
	f.Add("DPoP a.b.c", "eyJhbGciOiJub25lIiwidHlwIjoiZHBvcCtqd3QifQ.e30.")
	f.Add("Machine 0193f5a0-0000-7000-8000-000000000000", "eyJhbGciOiJub25lIiwidHlwIjoiZHBvcCtqd3QifQ.e30.")
	f.Fuzz(func(t *testing.T, authorization, proof string) {
		call := automation.Credential{
			Method: "POST", Path: "/v1/machine/hello", Authorization: []string{authorization}, Proof: []string{proof},
		}
		if _, err := verifier.AuthenticateMachine(t.Context(), call); automation.CodeOf(err) != automation.CodeUnauthorized {
			t.Errorf("%q with %q: %v", authorization, proof, err)
		}
		if _, err := verifier.IssueToken(t.Context(), call); automation.CodeOf(err) != automation.CodeUnauthorized {
			t.Errorf("a token for %q with %q: %v", authorization, proof, err)
		}
	})
}

// FuzzKeys reads anything as a device key and as a public key: what is accepted has a thumbprint, and a public
// key's canonical form is read as itself.
func FuzzKeys(f *testing.F) {
	for _, seed := range []string{``, `{}`, `{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}`, `{"kty":"oct","k":"AA"}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if key, err := parseDeviceKey(data); err == nil && key.Thumbprint() == "" {
			t.Errorf("%q is a device key without a thumbprint", data)
		}
		if _, canonical, err := parsePublicKey(data); err == nil {
			if _, again, err := parsePublicKey(canonical); err != nil || string(again) != string(canonical) {
				t.Errorf("%q became %q, which became %q, %v", data, canonical, again, err)
			}
		}
	})
}
