package access_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/access"
)

// provider is a real issuer on a real socket, whose keys and health a test changes.
type provider struct {
	t       *testing.T
	server  *httptest.Server
	fetches atomic.Int64
	down    atomic.Bool

	mu   sync.Mutex
	keys []jose.JSONWebKey
	now  time.Time
}

func newProvider(t *testing.T) *provider {
	t.Helper()
	p := &provider{t: t, now: now}
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		p.answer(w, map[string]any{"issuer": p.server.URL, "jwks_uri": p.server.URL + "/keys"})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		p.fetches.Add(1)
		p.mu.Lock()
		defer p.mu.Unlock()
		public := make([]any, 0, len(p.keys)+1)
		for _, k := range p.keys {
			if k.IsPublic() || k.Public().Key == nil { // a shared secret has no public half
				public = append(public, k)
				continue
			}
			public = append(public, k.Public())
		}
		p.answer(w, map[string]any{"keys": append(public, map[string]any{"kty": "future", "kid": "x"})})
	})
	p.server = httptest.NewServer(mux)
	t.Cleanup(p.server.Close)
	return p
}

func (p *provider) answer(w http.ResponseWriter, body any) {
	if p.down.Load() {
		http.Error(w, "down", http.StatusBadGateway)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(body); err != nil {
		p.t.Error(err)
	}
}

func (p *provider) clock() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

func (p *provider) advance(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now = p.now.Add(d)
}

// rotate makes a new key the only one, and returns it.
func (p *provider) rotate(kid string) jose.JSONWebKey {
	p.t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		p.t.Fatal(err)
	}
	key := jose.JSONWebKey{Key: private, KeyID: kid, Use: "sig", Algorithm: string(jose.ES256)}
	p.publish(key)
	return key
}

func (p *provider) publish(keys ...jose.JSONWebKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys = keys
}

func (p *provider) checker(adminClaim string) *access.OIDC {
	p.t.Helper()
	o, err := access.NewOIDC(access.OIDCOptions{
		Issuer: p.server.URL, Audience: "errand", AdminClaim: adminClaim, HTTP: p.server.Client(), Now: p.clock, Logger: silent,
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return o
}

type claims map[string]any

// token signs claims, beside which it has a valid set of its own.
func (p *provider) token(algorithm jose.SignatureAlgorithm, key jose.JSONWebKey, changes claims) string {
	p.t.Helper()
	all := claims{
		"iss": p.server.URL, "aud": "errand", "sub": "ada", "email": "ada@example.com",
		"exp": now.Add(time.Hour).Unix(), "iat": now.Unix(),
	}
	for name, value := range changes {
		all[name] = value
		if value == nil {
			delete(all, name)
		}
	}
	return sign(p.t, algorithm, key, all)
}

func sign(t *testing.T, algorithm jose.SignatureAlgorithm, key any, all claims) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: key}, nil)
	if err != nil {
		t.Fatal(err)
	}
	payload, err := json.Marshal(all)
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

func TestOIDC(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	key := p.rotate("one")
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	rs := jose.JSONWebKey{Key: rsaKey, KeyID: "rsa"}
	shared := jose.JSONWebKey{Key: []byte(strings.Repeat("s", 64)), KeyID: "shared"}
	encryption := p.rotate("enc")
	encryption.Use, encryption.Algorithm = "enc", ""
	p.publish(key, rs, shared, encryption)
	der, err := x509.MarshalPKIXPublicKey(rsaKey.Public())
	if err != nil {
		t.Fatal(err)
	}
	published := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	publishedKey := jose.JSONWebKey{Key: published, KeyID: "rsa"}
	other := p.rotateAway(t)

	good := p.token(jose.ES256, key, nil)
	parts := strings.Split(good, ".")
	none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none","kid":"one"}`)) + "." + parts[1] + "."
	ends := func(after time.Duration) claims { return claims{"exp": now.Add(after).Unix()} }
	for name, test := range map[string]struct {
		token string
		ok    bool
	}{
		"good":                         {good, true},
		"RSA":                          {p.token(jose.RS256, rs, nil), true},
		"PSS":                          {p.token(jose.PS384, rs, nil), true},
		"several audiences":            {p.token(jose.ES256, key, claims{"aud": []string{"x", "errand"}}), true},
		"expired within the leeway":    {p.token(jose.ES256, key, ends(-59*time.Second)), true},
		"expired":                      {p.token(jose.ES256, key, ends(-61*time.Second)), false},
		"no expiry":                    {p.token(jose.ES256, key, claims{"exp": nil}), false},
		"not valid yet":                {p.token(jose.ES256, key, claims{"nbf": now.Add(time.Hour).Unix()}), false},
		"another audience":             {p.token(jose.ES256, key, claims{"aud": "other"}), false},
		"no audience":                  {p.token(jose.ES256, key, claims{"aud": nil}), false},
		"another issuer":               {p.token(jose.ES256, key, claims{"iss": "https://evil.example.com"}), false},
		"no subject":                   {p.token(jose.ES256, key, claims{"sub": nil}), false},
		"a long subject":               {p.token(jose.ES256, key, claims{"sub": strings.Repeat("x", 256)}), false},
		"none":                         {none, false},
		"no signature":                 {parts[0] + "." + parts[1] + ".", false},
		"another payload":              {parts[0] + "." + strings.Split(p.token(jose.ES256, key, claims{"sub": "root"}), ".")[1] + "." + parts[2], false},
		"HMAC with the published key":  {p.token(jose.HS256, publishedKey, nil), false},
		"HMAC with a listed secret":    {p.token(jose.HS256, shared, nil), false},
		"a key of another with our id": {p.token(jose.ES256, other, nil), false},
		"a key for encryption":         {p.token(jose.ES256, encryption, nil), false},
		"an unknown key":               {p.token(jose.ES256, jose.JSONWebKey{Key: other.Key, KeyID: "two"}, nil), false},
		"garbage":                      {"a.b.c", false},
		"much":                         {strings.Repeat("a", 1<<16) + ".b.c", false},
	} {
		person, err := p.checker("").Verify(t.Context(), test.token)
		if ok := err == nil; ok != test.ok || !ok && automation.CodeOf(err) != automation.CodeUnauthorized {
			t.Errorf("%s: %+v, %v", name, person, err)
		}
		if want := (access.Person{Issuer: p.server.URL, Subject: "ada", Name: "ada@example.com"}); test.ok && person != want {
			t.Errorf("%s: %+v, want %+v", name, person, want)
		}
	}
}

// rotateAway returns a key that is called "one" and is not the issuer's.
func (p *provider) rotateAway(t *testing.T) jose.JSONWebKey {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return jose.JSONWebKey{Key: private, KeyID: "one"}
}

func TestRotation(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	first := p.rotate("one")
	checker := p.checker("")
	verify := func(token string) automation.Code {
		_, err := checker.Verify(t.Context(), token)
		return automation.CodeOf(err)
	}
	for range 3 {
		if code := verify(p.token(jose.ES256, first, nil)); code != "" || p.fetches.Load() != 1 {
			t.Fatalf("the first key: %q, fetched %d times", code, p.fetches.Load())
		}
	}
	second := p.rotate("two")
	for range 50 { // made-up ids do not make us ask the issuer
		if code := verify(p.token(jose.ES256, second, nil)); code != automation.CodeUnauthorized {
			t.Fatalf("a new key within ten seconds: %q", code)
		}
	}
	if n := p.fetches.Load(); n != 1 {
		t.Errorf("the keys were fetched %d times", n)
	}
	p.advance(10 * time.Second)
	if code := verify(p.token(jose.ES256, second, nil)); code != "" {
		t.Errorf("a new key after ten seconds: %q", code)
	}
	if code := verify(p.token(jose.ES256, first, nil)); code != automation.CodeUnauthorized {
		t.Errorf("a key that the issuer has withdrawn: %q", code)
	}
	if n := p.fetches.Load(); n != 2 {
		t.Errorf("the keys were fetched %d times", n)
	}

	// Known keys go on while the issuer is away, and are fetched again when they are an hour old.
	p.down.Store(true)
	p.advance(30 * time.Minute)
	if code := verify(p.token(jose.ES256, second, nil)); code != "" {
		t.Errorf("while the issuer is away: %q", code)
	}
	p.down.Store(false)
	third := p.rotate("three")
	p.advance(30 * time.Minute)
	if code := verify(p.token(jose.ES256, second, nil)); code != "" {
		t.Errorf("a known key that has become old: %q", code)
	}
	for deadline := time.Now().Add(10 * time.Second); verify(p.token(jose.ES256, second, nil)) == "" && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	if code := verify(p.token(jose.ES256, second, nil)); code != automation.CodeUnauthorized {
		t.Errorf("a withdrawn key after an hour: %q", code)
	}
	if code := verify(p.token(jose.ES256, third, nil)); code != "" {
		t.Errorf("the key after it: %q", code)
	}
}

func TestTheIssuerIsAwayAtFirst(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	key := p.rotate("one")
	p.down.Store(true)
	checker := p.checker("")
	for range 3 {
		_, err := checker.Verify(t.Context(), p.token(jose.ES256, key, nil))
		if automation.CodeOf(err) != automation.CodeStoreUnavailable || !strings.Contains(err.Error(), p.server.URL) {
			t.Fatalf("while it is away: %v", err)
		}
	}
	p.down.Store(false)
	p.advance(10 * time.Second)
	if _, err := checker.Verify(t.Context(), p.token(jose.ES256, key, nil)); err != nil {
		t.Errorf("when it is back: %v", err)
	}
}

func TestAdminClaim(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	key := p.rotate("one")
	for _, test := range []struct {
		setting string
		claims  claims
		want    bool
	}{
		{"", claims{"groups": []string{"admins"}}, false},
		{"groups=admins", nil, false},
		{"groups=admins", claims{"groups": []string{"users", "admins"}}, true},
		{"groups=admins", claims{"groups": []string{"not-admins"}}, false},
		{"groups=admins", claims{"groups": "admins"}, true},
		{"groups=admins", claims{"groups": "admins, users"}, false},
		{"groups=admins", claims{"groups": map[string]any{"admins": true}}, false},
		{"admin=true", claims{"admin": true}, true},
		{"admin=true", claims{"admin": false}, false},
		{"admin=1", claims{"admin": 1}, false},
		{"realm_access.roles=root", claims{"realm_access": map[string]any{"roles": []string{"root"}}}, true},
		{"realm_access.roles=root", claims{"realm_access": "roles"}, false},
		{"https://x.example.com/role=a=b", claims{"https://x.example.com/role": "a=b"}, true},
	} {
		person, err := p.checker(test.setting).Verify(t.Context(), p.token(jose.ES256, key, test.claims))
		if err != nil || person.Admin != test.want {
			t.Errorf("%s with %v: %v, %v", test.setting, test.claims, person.Admin, err)
		}
	}
}

// anyHost takes every request to the provider, as somebody on the way could.
type anyHost struct {
	p     *provider
	hosts []string
}

func (a *anyHost) RoundTrip(r *http.Request) (*http.Response, error) {
	a.hosts = append(a.hosts, r.URL.Host)
	out := httptest.NewRecorder()
	a.p.server.Config.Handler.ServeHTTP(out, r)
	return out.Result(), nil
}

// TestTheIssuerRedirects: to an address of TLS, or of this computer, it is followed; to one in clear text it is not.
func TestTheIssuerRedirects(t *testing.T) {
	t.Parallel()
	for to, code := range map[string]automation.Code{
		"https://keys.example.com/keys?a=b": "",
		"/keys":                             "",
		"http://id.example.com/keys":        automation.CodeStoreUnavailable,
	} {
		p := newProvider(t)
		key := p.rotate("one")
		inner := p.server.Config.Handler
		way := &anyHost{p: p}
		p.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/keys" && r.URL.Host == strings.TrimPrefix(p.server.URL, "http://") && len(way.hosts) == 2 {
				http.Redirect(w, r, to, http.StatusFound)
				return
			}
			inner.ServeHTTP(w, r)
		})
		checker, err := access.NewOIDC(access.OIDCOptions{
			Issuer: p.server.URL, Audience: "errand", HTTP: &http.Client{Transport: way}, Now: p.clock, Logger: silent,
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := checker.Verify(t.Context(), p.token(jose.ES256, key, nil)); automation.CodeOf(err) != code {
			t.Errorf("to %s: %v", to, err)
		}
		if followed := len(way.hosts) == 3; followed != (code == "") {
			t.Errorf("to %s: it was asked at %v", to, way.hosts)
		}
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	key := p.rotate("one")
	for want, c := range map[string]claims{
		"ada":                         {"email": nil},
		"al":                          {"preferred_username": "al", "email": "x"},
		"Ada L":                       {"email": nil, "name": "Ada\u0000\u001b\r\n L"},
		strings.Repeat("é", 100):      {"preferred_username": strings.Repeat("é", 150)},
		"x" + strings.Repeat("é", 99): {"preferred_username": "x" + strings.Repeat("é", 150)},
		"unnamed":                     {"preferred_username": "\u0000"},
	} {
		person, err := p.checker("").Verify(t.Context(), p.token(jose.ES256, key, c))
		if err != nil || person.Name != want {
			t.Errorf("%v: %q, %v", c, person.Name, err)
		}
	}
}

func TestSettingsOfAnIssuer(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		options access.OIDCOptions
		says    string // empty when it is right
	}{
		"right":          {access.OIDCOptions{Issuer: "https://id.example.com/realm", Audience: "a", AdminClaim: "g=a"}, ""},
		"loopback":       {access.OIDCOptions{Issuer: "http://127.0.0.1:8080", Audience: "a"}, ""},
		"plain":          {access.OIDCOptions{Issuer: "http://id.example.com", Audience: "a"}, "ERRAND_OIDC_ISSUER"},
		"no address":     {access.OIDCOptions{Issuer: "id.example.com", Audience: "a"}, "ERRAND_OIDC_ISSUER"},
		"no audience":    {access.OIDCOptions{Issuer: "https://id.example.com"}, "ERRAND_OIDC_AUDIENCE"},
		"a name alone":   {access.OIDCOptions{Issuer: "https://id.example.com", Audience: "a", AdminClaim: "g"}, "ERRAND_OIDC_ADMIN_CLAIM"},
		"an empty value": {access.OIDCOptions{Issuer: "https://id.example.com", Audience: "a", AdminClaim: "g="}, "ERRAND_OIDC_ADMIN_CLAIM"},
	} {
		_, err := access.NewOIDC(test.options)
		if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
