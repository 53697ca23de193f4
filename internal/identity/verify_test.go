package identity_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/identity"
)

const (
	machineA = "0192d3a0-0000-7000-8000-00000000000a"
	machineB = "0192d3a0-0000-7000-8000-00000000000b"
	baseURL  = "https://errand.example.com"
	pollPath = "/temporal.api.workflowservice.v1.WorkflowService/PollActivityTaskQueue"
)

var start = time.Date(2026, 11, 30, 12, 0, 0, 123456789, time.UTC)

// clock is a time that only moves when it is told to.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// machines is a store of machines that counts its reads.
type machines struct {
	mu    sync.Mutex
	byID  map[string]automation.Machine
	fail  error
	reads int
}

func (m *machines) Machine(_ context.Context, id string) (automation.Machine, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads++
	if m.fail != nil {
		return automation.Machine{}, m.fail
	}
	machine, ok := m.byID[id]
	if !ok {
		return automation.Machine{}, automation.Errorf(automation.CodeNotFound, "there is no such machine")
	}
	return machine, nil
}

func (m *machines) set(id string, change func(*automation.Machine)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	machine := m.byID[id]
	change(&machine)
	m.byID[id] = machine
}

// world is a verifier with two enrolled machines.
type world struct {
	clock    *clock
	store    *machines
	keyA     *identity.DeviceKey
	keyB     *identity.DeviceKey
	privateA ed25519.PrivateKey
	privateB ed25519.PrivateKey
	tokens   *identity.Tokens
	verifier *identity.Verifier
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{clock: &clock{now: start}, tokens: newTokens(t, "installation")}
	w.keyA, w.privateA = newKey(t)
	w.keyB, w.privateB = newKey(t)
	w.store = &machines{byID: map[string]automation.Machine{
		machineA: {ID: machineA, State: automation.MachineActive, PublicKey: string(w.keyA.Public())},
		machineB: {ID: machineB, State: automation.MachineActive, PublicKey: string(w.keyB.Public())},
	}}
	w.verifier = newVerifier(t, identity.VerifierOptions{
		Machines: w.store, Tokens: w.tokens, BaseURLs: []string{baseURL, "http://127.0.0.1:7717/"}, Now: w.clock.Now,
	})
	return w
}

// newTokens returns the tokens of an issuer, always with the same key.
func newTokens(tb testing.TB, issuer string) *identity.Tokens {
	tb.Helper()
	tokens, err := identity.NewTokens(bytes.Repeat([]byte("k"), identity.KeySize), issuer)
	if err != nil {
		tb.Fatal(err)
	}
	return tokens
}

// newKey returns a device key and what its file holds, for forgeries.
func newKey(t *testing.T) (*identity.DeviceKey, ed25519.PrivateKey) {
	t.Helper()
	dir := t.TempDir()
	key := mustKey(t, dir)
	data, err := os.ReadFile(filepath.Join(dir, identity.DeviceKeyFile))
	if err != nil {
		t.Fatal(err)
	}
	var jwk jose.JSONWebKey
	if err := json.Unmarshal(data, &jwk); err != nil {
		t.Fatal(err)
	}
	return key, jwk.Key.(ed25519.PrivateKey)
}

func newVerifier(t *testing.T, o identity.VerifierOptions) *identity.Verifier {
	t.Helper()
	v, err := identity.NewVerifier(o)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// signer returns a signer of machine A.
func (w *world) signer() *identity.Signer {
	return identity.NewSigner(w.keyA, machineA, identity.SignerOptions{Now: w.clock.Now})
}

// credential is what a machine sends with a call, under a token of now.
func credential(t *testing.T, w *world, s *identity.Signer, method, address, path string) automation.Credential {
	t.Helper()
	h, err := s.Proof(method, address+path, w.tokens.TokenOf(s, w.clock.Now()))
	if err != nil {
		t.Fatal(err)
	}
	return automation.Credential{Method: method, Path: path, Authorization: []string{h.Authorization}, Proof: []string{h.Proof}}
}

func TestAuthenticateMachine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	addresses := []string{baseURL, "https://ERRAND.example.com:443", "http://127.0.0.1:7717", "HTTP://127.0.0.1:7717"}
	for _, address := range addresses {
		for _, method := range []string{http.MethodPost, http.MethodGet} {
			c := credential(t, w, w.signer(), method, address, pollPath)
			m, err := w.verifier.AuthenticateMachine(t.Context(), c)
			if err != nil || m.ID != machineA {
				t.Errorf("%s %s: machine %q, error %v", method, address, m.ID, err)
			}
		}
	}
	h, err := w.signer().Proof(http.MethodGet, baseURL+"/v1/machine/events?since=1#x", w.tokens.TokenOf(w.signer(), start))
	if err != nil {
		t.Fatal(err)
	}
	c := automation.Credential{
		Method: http.MethodGet, Path: "/v1/machine/events",
		Authorization: []string{strings.Replace(h.Authorization, "DPoP", "dpop", 1)}, Proof: []string{h.Proof},
	}
	if _, err := w.verifier.AuthenticateMachine(t.Context(), c); err != nil {
		t.Errorf("an address with a query: %v", err)
	}
}

// forged returns a proof with claims and header of the test's choice.
func forged(t *testing.T, algorithm jose.SignatureAlgorithm, key any, claims map[string]any, header map[jose.HeaderKey]any) string {
	t.Helper()
	options := &jose.SignerOptions{ExtraHeaders: map[jose.HeaderKey]any{"typ": "dpop+jwt"}}
	for k, v := range header {
		if v != nil {
			options.ExtraHeaders[k] = v
		}
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: key}, options)
	if err != nil {
		t.Fatal(err)
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	compact, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return compact
}

// goodClaims are those of a proof for a poll under machine A's token.
func goodClaims(w *world, change map[string]any) map[string]any {
	c := map[string]any{
		"jti": "abcdefghijklmnop", "iat": start.Unix(), "htm": "POST", "htu": baseURL + pollPath,
		"ath": identity.TokenHashOf(w.tokens.TokenOf(w.signer(), start)),
	}
	for k, v := range change {
		if v == nil {
			delete(c, k)
			continue
		}
		c[k] = v
	}
	return c
}

// part returns one decoded part of a compact JWS.
func part(proof string, i int) string {
	b, err := base64.RawURLEncoding.DecodeString(strings.Split(proof, ".")[i])
	if err != nil {
		panic(err)
	}
	return string(b)
}

// unsigned returns the claims of a proof under another header, without a signature.
func unsigned(proof, header string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + strings.Split(proof, ".")[1] + "."
}

func asJSON(proof string) string {
	p := strings.Split(proof, ".")
	return `{"protected":"` + p[0] + `","payload":"` + p[1] + `","signature":"` + p[2] + `"}`
}

func changeSignature(proof string) string {
	p := strings.Split(proof, ".")
	signature := []byte(part(proof, 2))
	signature[0] ^= 1
	return p[0] + "." + p[1] + "." + base64.RawURLEncoding.EncodeToString(signature)
}

func changeClaims(proof string) string {
	p := strings.Split(proof, ".")
	claims := strings.Replace(part(proof, 1), `"jti":"`, `"jti":"x`, 1)
	return p[0] + "." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + "." + p[2]
}

// goodGrant are the claims of machine A's token.
func goodGrant(w *world, change map[string]any) map[string]any {
	c := map[string]any{
		"iss": "installation", "sub": machineA, "iat": start.Unix(), "exp": start.Add(identity.TokenValidFor).Unix(),
		"cnf": map[string]any{"jkt": w.keyA.Thumbprint()},
	}
	for k, v := range change {
		if v == nil {
			delete(c, k)
			continue
		}
		c[k] = v
	}
	return c
}

func changeToken(token string) string {
	p := strings.Split(token, ".")
	claims := strings.Replace(part(token, 1), `"exp":1`, `"exp":2`, 1)
	return p[0] + "." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + "." + p[2]
}

func jwk(key any) map[jose.HeaderKey]any {
	return map[jose.HeaderKey]any{"jwk": jose.JSONWebKey{Key: key}}
}

func TestAuthenticateMachineRefusesAttacks(t *testing.T) {
	t.Parallel()
	_, stranger, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	type maker = func(*testing.T, *world) automation.Credential
	good := func(t *testing.T, w *world) automation.Credential {
		return credential(t, w, w.signer(), http.MethodPost, baseURL, pollPath)
	}
	// changed returns a good credential with a change.
	changed := func(change func(*automation.Credential)) maker {
		return func(t *testing.T, w *world) automation.Credential {
			c := good(t, w)
			change(&c)
			return c
		}
	}
	header := func(change func(string) string) maker {
		return changed(func(c *automation.Credential) { c.Authorization[0] = change(c.Authorization[0]) })
	}
	proof := func(change func(string) string) maker {
		return changed(func(c *automation.Credential) { c.Proof[0] = change(c.Proof[0]) })
	}
	// signed returns a credential whose proof is signed as given, for good claims.
	signed := func(algorithm jose.SignatureAlgorithm, key func(*world) (signWith, name any)) maker {
		return func(t *testing.T, w *world) automation.Credential {
			c := good(t, w)
			signWith, name := key(w)
			c.Proof[0] = forged(t, algorithm, signWith, goodClaims(w, nil), jwk(name))
			return c
		}
	}
	// claimed returns a credential whose proof is rightly signed over changed claims.
	claimed := func(change map[string]any) maker {
		return func(t *testing.T, w *world) automation.Credential {
			c := good(t, w)
			c.Proof[0] = forged(t, jose.EdDSA, w.privateA, goodClaims(w, change), jwk(w.privateA.Public()))
			return c
		}
	}
	// headed returns a credential whose proof is rightly signed and has another header.
	headed := func(change map[jose.HeaderKey]any) maker {
		return func(t *testing.T, w *world) automation.Credential {
			c := good(t, w)
			h := jwk(w.privateA.Public())
			maps.Copy(h, change)
			c.Proof[0] = forged(t, jose.EdDSA, w.privateA, goodClaims(w, nil), h)
			return c
		}
	}
	// under returns a credential with another token, for which its proof by machine A's key was made.
	under := func(token func(t *testing.T, w *world) string) maker {
		return func(t *testing.T, w *world) automation.Credential {
			h, err := w.signer().Proof(http.MethodPost, baseURL+pollPath, token(t, w))
			if err != nil {
				t.Fatal(err)
			}
			return automation.Credential{Method: "POST", Path: pollPath, Authorization: []string{h.Authorization}, Proof: []string{h.Proof}}
		}
	}
	// granted is a token that is signed as given, over changed claims.
	granted := func(algorithm jose.SignatureAlgorithm, key func(*world) any, typ string, change map[string]any) maker {
		return under(func(t *testing.T, w *world) string {
			return forged(t, algorithm, key(w), goodGrant(w, change), map[jose.HeaderKey]any{"typ": typ})
		})
	}
	secret := func(*world) any { return bytes.Repeat([]byte("k"), identity.KeySize) }
	signerB := func(w *world) *identity.Signer {
		return identity.NewSigner(w.keyB, machineB, identity.SignerOptions{Now: w.clock.Now})
	}
	const (
		foreign      = "access token was not made by this installation"
		otherBound   = "another key than the access token is bound to"
		notJWS       = "not a JWS in compact form signed with EdDSA or ES256"
		badSignature = "signature of the proof is wrong"
		otherKey     = "another key than the enrolled one"
		otherPlace   = "not the address of this call"
	)
	tests := map[string]struct {
		make maker
		want string
	}{
		"no headers":         {changed(func(c *automation.Credential) { c.Authorization, c.Proof = nil, nil }), "one Authorization header"},
		"no proof":           {changed(func(c *automation.Credential) { c.Proof = nil }), "one DPoP header"},
		"two proofs":         {changed(func(c *automation.Credential) { c.Proof = append(c.Proof, c.Proof[0]) }), "one DPoP header"},
		"two authorizations": {changed(func(c *automation.Credential) { c.Authorization = append(c.Authorization, c.Authorization[0]) }), "one Authorization"},

		"other scheme":           {header(func(s string) string { return "Bearer" + s[len("DPoP"):] }), "must have the form"},
		"no token":               {header(func(string) string { return "DPoP" }), "must have the form"},
		"a machine's name":       {header(func(string) string { return "Machine " + machineA }), "must have the form"},
		"oversize authorization": {header(func(s string) string { return s + strings.Repeat("x", 8<<10) }), "too long"},

		"oversize proof":     {proof(func(s string) string { return s + strings.Repeat("x", 8<<10) }), "too long"},
		"empty proof":        {proof(func(string) string { return "" }), notJWS},
		"JSON serialization": {proof(asJSON), notJWS},
		"detached payload":   {proof(func(s string) string { p := strings.Split(s, "."); return p[0] + ".." + p[2] }), "claims of the proof are not readable"},
		"no signature":       {proof(func(s string) string { return s[:strings.LastIndex(s, ".")+1] }), badSignature},
		"changed signature":  {proof(changeSignature), badSignature},
		"changed claims":     {proof(changeClaims), badSignature},

		"wrong method":      {changed(func(c *automation.Credential) { c.Method = "GET" }), `made for the method "POST", the call has "GET"`},
		"wrong path":        {changed(func(c *automation.Credential) { c.Path = "/v1/machine/hello" }), otherPlace},
		"wrong host":        {claimed(map[string]any{"htu": "https://evil.example.com" + pollPath}), "configured address (https://errand.example.com or"},
		"wrong scheme":      {claimed(map[string]any{"htu": "http://errand.example.com" + pollPath}), otherPlace},
		"wrong port":        {claimed(map[string]any{"htu": "https://errand.example.com:8443" + pollPath}), otherPlace},
		"host as user info": {claimed(map[string]any{"htu": "https://errand.example.com@evil.example.com" + pollPath}), "no valid address"},
		"relative htu":      {claimed(map[string]any{"htu": pollPath}), "no valid address"},
		"no htu":            {claimed(map[string]any{"htu": nil}), "no valid address"},
		"no htm":            {claimed(map[string]any{"htm": nil}), "made for the method"},
		"lower-case htm":    {claimed(map[string]any{"htm": "post"}), "made for the method"},
		"no ath":            {claimed(map[string]any{"ath": nil}), "another access token"},
		"ath of another":    {claimed(map[string]any{"ath": identity.TokenHashOf("x")}), "another access token"},
		"no jti":            {claimed(map[string]any{"jti": nil}), "must have an id"},
		"oversize jti":      {claimed(map[string]any{"jti": strings.Repeat("x", 1000)}), "must have an id"},
		"no iat":            {claimed(map[string]any{"iat": nil}), "must have an id"},
		"iat in text":       {claimed(map[string]any{"iat": "now"}), "not readable"},
		"iat out of range":  {claimed(map[string]any{"iat": int64(math.MaxInt64)}), "clock"},
		"iat long ago":      {claimed(map[string]any{"iat": int64(math.MinInt64)}), "clock"},
		"clock ahead":       {claimed(map[string]any{"iat": start.Unix() + 61}), "the machine's clock is 1m1s ahead of the server's"},
		"clock behind":      {claimed(map[string]any{"iat": start.Unix() - 3600}), "the machine's clock is 1h0m0s behind the server's"},

		"type JWT":           {headed(map[jose.HeaderKey]any{"typ": "JWT"}), `must have the type "dpop+jwt"`},
		"type of enrolment":  {headed(map[jose.HeaderKey]any{"typ": "errand-enrolment+jwt"}), `must have the type "dpop+jwt"`},
		"no key named":       {headed(map[jose.HeaderKey]any{"jwk": nil}), "does not name its public key"},
		"private key named":  {headed(map[jose.HeaderKey]any{"jwk": jose.JSONWebKey{Key: stranger}}), notJWS},
		"critical extension": {headed(map[jose.HeaderKey]any{"crit": []string{"x"}, "x": 1}), badSignature},

		"expired token": {under(func(_ *testing.T, w *world) string {
			return w.tokens.TokenOf(w.signer(), start.Add(-identity.TokenValidFor-time.Second))
		}), "expired 1s ago"},
		"token of another machine": {under(func(_ *testing.T, w *world) string { return w.tokens.TokenOf(signerB(w), start) }), otherBound},
		"token of another installation": {under(func(t *testing.T, w *world) string {
			return newTokens(t, "elsewhere").TokenOf(w.signer(), start)
		}), foreign},
		"token for B bound to A's key": {granted(jose.HS256, secret, "at+jwt", map[string]any{"sub": machineB}), otherKey},
		"token bound to no key":        {granted(jose.HS256, secret, "at+jwt", map[string]any{"cnf": nil}), otherBound},
		"token bound to another key":   {granted(jose.HS256, secret, "at+jwt", map[string]any{"cnf": map[string]any{"jkt": "x"}}), otherBound},
		"token without an end":         {granted(jose.HS256, secret, "at+jwt", map[string]any{"exp": nil}), "expired"},
		"token of another type":        {granted(jose.HS256, secret, "JWT", nil), foreign},
		"token signed by A's key":      {granted(jose.EdDSA, func(w *world) any { return w.privateA }, "at+jwt", nil), foreign},
		"token of another secret":      {granted(jose.HS256, func(*world) any { return make([]byte, identity.KeySize) }, "at+jwt", nil), foreign},
		"token of another algorithm":   {granted(jose.HS512, func(*world) any { return bytes.Repeat([]byte("k"), 64) }, "at+jwt", nil), foreign},
		"token with changed claims":    {under(func(_ *testing.T, w *world) string { return changeToken(w.tokens.TokenOf(w.signer(), start)) }), foreign},
		"token with alg none": {under(func(_ *testing.T, w *world) string {
			return unsigned(w.tokens.TokenOf(w.signer(), start), `{"alg":"none","typ":"at+jwt"}`)
		}), foreign},
		"a proof as token": {under(func(t *testing.T, w *world) string { return good(t, w).Proof[0] }), foreign},
		"no token at all":  {under(func(*testing.T, *world) string { return "x" }), foreign},

		"a stranger's key":        {signed(jose.EdDSA, func(*world) (any, any) { return stranger, stranger.Public() }), otherBound},
		"B's key":                 {signed(jose.EdDSA, func(w *world) (any, any) { return w.privateB, w.privateB.Public() }), otherBound},
		"B's key, A's named":      {signed(jose.EdDSA, func(w *world) (any, any) { return w.privateB, w.privateA.Public() }), badSignature},
		"ES256, A's named":        {signed(jose.ES256, func(w *world) (any, any) { return ec, w.privateA.Public() }), badSignature},
		"RS256":                   {signed(jose.RS256, func(*world) (any, any) { return rsaKey, &rsaKey.PublicKey }), notJWS},
		"HS256 with A's JWK":      {signed(jose.HS256, func(w *world) (any, any) { return []byte(w.keyA.Public()), w.privateA.Public() }), notJWS},
		"HS256 with A's raw key":  {signed(jose.HS256, func(w *world) (any, any) { return []byte(w.privateA[32:]), w.privateA.Public() }), notJWS},
		"alg none":                {proof(func(s string) string { return unsigned(s, `{"alg":"none","typ":"dpop+jwt"}`) }), notJWS},
		"alg absent":              {proof(func(s string) string { return unsigned(s, `{"typ":"dpop+jwt"}`) }), notJWS},
		"alg none, A's JWK named": {proof(func(s string) string { return unsigned(s, strings.Replace(part(s, 0), "EdDSA", "none", 1)) }), notJWS},

		"never enrolled": {func(t *testing.T, w *world) automation.Credential {
			s := identity.NewSigner(w.keyA, "0192d3a0-0000-7000-8000-0000000000ff", identity.SignerOptions{Now: w.clock.Now})
			return credential(t, w, s, http.MethodPost, baseURL, pollPath)
		}, "is not enrolled here"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			m, err := w.verifier.AuthenticateMachine(t.Context(), test.make(t, w))
			wantCode(t, err, automation.CodeUnauthorized, test.want)
			if m.ID != "" {
				t.Errorf("a refused call has the machine %q", m.ID)
			}
		})
	}
	t.Run("the forger's own good proof and token pass", func(t *testing.T) {
		t.Parallel()
		for _, make := range []maker{claimed(nil), granted(jose.HS256, secret, "at+jwt", nil)} {
			w := newWorld(t)
			if _, err := w.verifier.AuthenticateMachine(t.Context(), make(t, w)); err != nil {
				t.Fatal(err)
			}
		}
	})
	t.Run("the limits of the clock pass", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		for _, skew := range []int64{-60, 60} {
			c := claimed(map[string]any{"iat": start.Unix() + skew, "jti": "skew" + time.Duration(skew).String()})(t, w)
			if _, err := w.verifier.AuthenticateMachine(t.Context(), c); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestES256KeyIsAccepted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public, err := json.Marshal(jose.JSONWebKey{Key: &key.PublicKey})
	if err != nil {
		t.Fatal(err)
	}
	w.store.set(machineA, func(m *automation.Machine) { m.PublicKey = string(public) })
	print, err := (&jose.JSONWebKey{Key: &key.PublicKey}).Thumbprint(crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	bound := map[string]any{"cnf": map[string]any{"jkt": base64.RawURLEncoding.EncodeToString(print)}}
	token := forged(t, jose.HS256, bytes.Repeat([]byte("k"), identity.KeySize), goodGrant(w, bound), map[jose.HeaderKey]any{"typ": "at+jwt"})
	said := goodClaims(w, map[string]any{"ath": identity.TokenHashOf(token)})
	proof := forged(t, jose.ES256, key, said, map[jose.HeaderKey]any{"jwk": jose.JSONWebKey{Key: &key.PublicKey}})
	c := automation.Credential{Method: "POST", Path: pollPath, Authorization: []string{"DPoP " + token}, Proof: []string{proof}}
	if _, err := w.verifier.AuthenticateMachine(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

func TestProofIsGoodOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := credential(t, w, w.signer(), http.MethodPost, baseURL, pollPath)
	if _, err := w.verifier.AuthenticateMachine(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	const replays = 32
	var group sync.WaitGroup
	for range replays {
		group.Go(func() {
			_, err := w.verifier.AuthenticateMachine(t.Context(), c)
			if automation.CodeOf(err) != automation.CodeUnauthorized {
				t.Errorf("replay: %v", err)
			}
		})
	}
	group.Wait()
	_, err := w.verifier.AuthenticateMachine(t.Context(), c)
	wantCode(t, err, automation.CodeUnauthorized, "used before")
}

// A proof made a minute early lives longest: it must be remembered until it is more than a minute late, also
// when the cache begins a new generation right after its first use and the next one as early as it can.
func TestProofIsNeverForgottenWhileItIsValid(t *testing.T) {
	t.Parallel()
	tries := []int{1, 2, 3, 60, 115, 116, 117, 118, 119, 120, 121, 122, 240}
	for offset := 110 * time.Second; offset <= 130*time.Second; offset += time.Second {
		w := newWorld(t)
		call := func(c automation.Credential) error {
			_, err := w.verifier.AuthenticateMachine(t.Context(), c)
			return err
		}
		if err := call(credential(t, w, w.signer(), http.MethodPost, baseURL, pollPath)); err != nil {
			t.Fatal(err)
		}
		w.clock.Advance(offset)
		early := identity.NewSigner(w.keyA, machineA, identity.SignerOptions{
			Now: func() time.Time { return w.clock.Now().Add(identity.MaxClockSkew) },
		})
		c := credential(t, w, early, http.MethodPost, baseURL, pollPath)
		if err := call(c); err != nil {
			t.Fatal(err)
		}
		first := w.clock.Now()
		for _, after := range tries {
			w.clock.Advance(first.Add(time.Duration(after) * time.Second).Sub(w.clock.Now()))
			if err := call(credential(t, w, w.signer(), http.MethodPost, baseURL, pollPath)); err != nil {
				t.Fatal(err)
			}
			if call(c) == nil {
				t.Fatalf("offset %v: a replay %d s after the first use passed", offset, after)
			}
		}
	}
}

func TestReplayMemoryIsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const remembered = 64 // 8 of one machine in a window
	w.verifier = newVerifier(t, identity.VerifierOptions{
		Machines: w.store, Tokens: w.tokens, BaseURLs: []string{baseURL}, Now: w.clock.Now, MaxReplays: remembered,
	})
	call := func(s *identity.Signer) error {
		_, err := w.verifier.AuthenticateMachine(t.Context(), credential(t, w, s, http.MethodPost, baseURL, pollPath))
		return err
	}
	for i := range remembered / 8 {
		if err := call(w.signer()); err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
	}
	err := call(w.signer())
	wantCode(t, err, automation.CodeRateLimited, "too many calls")
	var refusal *automation.Error
	if !errors.As(err, &refusal) || refusal.RetryAfter <= 0 {
		t.Errorf("the refusal does not say when to come back: %v", err)
	}
	b := identity.NewSigner(w.keyB, machineB, identity.SignerOptions{Now: w.clock.Now})
	if err := call(b); err != nil {
		t.Errorf("one machine's calls shut out another: %v", err)
	}
	w.clock.Advance(refusal.RetryAfter)
	if err := call(w.signer()); err != nil {
		t.Errorf("after the wait: %v", err)
	}
}

func TestRevocationTakesEffect(t *testing.T) {
	t.Parallel()
	revoke := func(m *automation.Machine) { m.State = automation.MachineRevoked }
	call := func(w *world) error {
		_, err := w.verifier.AuthenticateMachine(t.Context(), credential(t, w, w.signer(), http.MethodPost, baseURL, pollPath))
		return err
	}
	t.Run("within the cache's time", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		if err := call(w); err != nil {
			t.Fatal(err)
		}
		w.store.set(machineA, revoke)
		w.clock.Advance(identity.MachineCacheFor)
		wantCode(t, call(w), automation.CodeMachineRevoked, "has been revoked")
	})
	t.Run("at once when told", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		if err := call(w); err != nil {
			t.Fatal(err)
		}
		w.store.set(machineA, revoke)
		w.verifier.Forget(machineA)
		wantCode(t, call(w), automation.CodeMachineRevoked, "has been revoked")
	})
	t.Run("only the key's holder is told", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.store.set(machineA, revoke)
		thief := identity.NewSigner(w.keyB, machineA, identity.SignerOptions{Now: w.clock.Now})
		_, err := w.verifier.AuthenticateMachine(t.Context(), credential(t, w, thief, http.MethodPost, baseURL, pollPath))
		wantCode(t, err, automation.CodeUnauthorized, "another key")
	})
	t.Run("a new key replaces the old one", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		if err := call(w); err != nil {
			t.Fatal(err)
		}
		w.store.set(machineA, func(m *automation.Machine) { m.PublicKey = string(w.keyB.Public()) })
		w.verifier.Forget(machineA)
		wantCode(t, call(w), automation.CodeUnauthorized, "another key")
	})
}

func TestMachinesAreReadRarely(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for range 50 {
		if _, err := w.verifier.AuthenticateMachine(t.Context(), credential(t, w, w.signer(), "POST", baseURL, pollPath)); err != nil {
			t.Fatal(err)
		}
	}
	if w.store.reads != 1 {
		t.Errorf("50 calls read the machine %d times", w.store.reads)
	}
}

func TestStoreTroubleIsNotUnauthorized(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.store.fail = automation.Errorf(automation.CodeStoreUnavailable, "the database does not answer")
	_, err := w.verifier.AuthenticateMachine(t.Context(), credential(t, w, w.signer(), http.MethodPost, baseURL, pollPath))
	wantCode(t, err, automation.CodeStoreUnavailable, "does not answer")
}

func TestNewVerifierRefusesBadAddresses(t *testing.T) {
	t.Parallel()
	for _, urls := range [][]string{nil, {""}, {"errand.example.com"}, {"ftp://errand.example.com"}, {"https://"}, {"https://user@host"}} {
		if _, err := identity.NewVerifier(identity.VerifierOptions{Tokens: newTokens(t, "x"), BaseURLs: urls}); err == nil {
			t.Errorf("%q was accepted", urls)
		}
	}
}

func wantCode(t *testing.T, err error, code automation.Code, part string) {
	t.Helper()
	if automation.CodeOf(err) != code || err == nil || !strings.Contains(err.Error(), part) {
		t.Fatalf("error %v, want %s with %q", err, code, part)
	}
}
