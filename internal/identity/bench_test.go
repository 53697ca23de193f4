package identity_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/identity"
)

// benchWorld is a verifier with one machine, by the real clock.
func benchWorld(b *testing.B) (*identity.Verifier, *identity.Signer, string) {
	b.Helper()
	key, err := identity.LoadOrCreateKey(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	store := &machines{byID: map[string]automation.Machine{
		machineA: {ID: machineA, State: automation.MachineActive, PublicKey: string(key.Public())},
	}}
	tokens := newTokens(b, "installation")
	v, err := identity.NewVerifier(identity.VerifierOptions{
		Machines: store, Tokens: tokens, BaseURLs: []string{baseURL}, MaxReplays: 1 << 26,
	})
	if err != nil {
		b.Fatal(err)
	}
	s := identity.NewSigner(key, machineA, identity.SignerOptions{})
	return v, s, tokens.TokenOf(s, time.Now())
}

// BenchmarkProof makes proofs for calls, on one core.
func BenchmarkProof(b *testing.B) {
	_, s, token := benchWorld(b)
	for b.Loop() {
		if _, err := s.Proof(http.MethodPost, baseURL+pollPath, token); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAuthenticateMachine checks calls with token and proof, on one core, and reports how many a second.
func BenchmarkAuthenticateMachine(b *testing.B) {
	v, s, token := benchWorld(b)
	calls := 0
	for b.Loop() {
		b.StopTimer()
		h, err := s.Proof(http.MethodPost, baseURL+pollPath, token)
		if err != nil {
			b.Fatal(err)
		}
		c := automation.Credential{Method: "POST", Path: pollPath, Authorization: []string{h.Authorization}, Proof: []string{h.Proof}}
		b.StartTimer()
		if _, err := v.AuthenticateMachine(b.Context(), c); err != nil {
			b.Fatal(err)
		}
		calls++
	}
	b.ReportMetric(float64(calls)/b.Elapsed().Seconds(), "calls/s")
}
