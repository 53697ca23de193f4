//go:build unix

package acceptance_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/errandhq/errand/internal/apptest"
)

// identityProvider is an issuer on a real socket, which is away at first.
type identityProvider struct {
	*httptest.Server
	t   *testing.T
	up  atomic.Bool
	key jose.JSONWebKey
}

func newIdentityProvider(t *testing.T) *identityProvider {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p := &identityProvider{t: t, key: jose.JSONWebKey{Key: private, KeyID: "one", Algorithm: string(jose.ES256), Use: "sig"}}
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		p.answer(w, map[string]any{"issuer": p.URL, "jwks_uri": p.URL + "/keys"})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		p.answer(w, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{p.key.Public()}})
	})
	p.Server = httptest.NewServer(mux)
	t.Cleanup(p.Close)
	return p
}

func (p *identityProvider) answer(w http.ResponseWriter, body any) {
	if !p.up.Load() {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(body); err != nil {
		p.t.Error(err)
	}
}

// token is what somebody has who has signed in.
func (p *identityProvider) token(subject string, groups ...string) string {
	p.t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: p.key}, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	claims, err := json.Marshal(map[string]any{
		"iss": p.URL, "sub": subject, "aud": "errand", "exp": time.Now().Add(time.Hour).Unix(),
		"preferred_username": subject, "groups": groups,
	})
	if err != nil {
		p.t.Fatal(err)
	}
	signed, err := signer.Sign(claims)
	if err != nil {
		p.t.Fatal(err)
	}
	compact, err := signed.CompactSerialize()
	if err != nil {
		p.t.Fatal(err)
	}
	return compact
}

// as calls with a token and returns the status and the decoded answer.
func as(s *apptest.Server, token, method, path, body string) (int, map[string]any) {
	var content []byte
	if body != "" {
		content = []byte(body)
	}
	request := s.Request(method, path, content)
	request.Header.Set("Authorization", "Bearer "+token)
	status, answer := s.Do(request)
	var decoded map[string]any
	_ = json.Unmarshal(answer, &decoded) // what is no object has no members
	return status, decoded
}

// TestSigningIn starts errandd while the issuer is away, and lets two people and an administrator in when it is
// back: each is an owner, sees nothing of the others, and stays who they are over a restart.
func TestSigningIn(t *testing.T) {
	t.Parallel()
	p := newIdentityProvider(t)
	s := apptest.Start(t, apptest.Options{Args: []string{
		"--oidc-issuer", p.URL, "--oidc-audience", "errand", "--oidc-admin-claim", "groups=admins",
	}})
	ada, bea, root := p.token("ada", "people"), p.token("bea"), p.token("root", "people", "admins")
	if status, answer := as(s, ada, "GET", "/v1/whoami", ""); status != http.StatusServiceUnavailable || !strings.Contains(member(answer, "error", "message"), p.URL) {
		t.Errorf("while the issuer is away: %d %v", status, answer)
	}
	if status, _ := s.Get("/v1/whoami"); status != http.StatusOK {
		t.Errorf("the token of server.json meanwhile: %d", status)
	}
	p.up.Store(true)
	owners := map[string]string{}
	s.Await(patience, "the issuer is asked again", func() (string, bool) {
		status, answer := as(s, ada, "GET", "/v1/whoami", "")
		owners["ada"] = member(answer, "owner", "id")
		return member(answer, "error", "message"), status == http.StatusOK
	})
	for name, test := range map[string]struct{ token, scope string }{"ada": {ada, "person"}, "bea": {bea, "person"}, "root": {root, "admin"}} {
		status, answer := as(s, test.token, "GET", "/v1/whoami", "")
		owners[name] = member(answer, "owner", "id")
		if status != http.StatusOK || answer["scope"] != test.scope || member(answer, "owner", "name") != name || member(answer, "actor", "kind") != "user" {
			t.Errorf("%s: %d %v", name, status, answer)
		}
	}
	if len(owners) != 3 || owners["ada"] == owners["bea"] {
		t.Errorf("the owners: %v", owners)
	}

	// A person makes a key of their own, which sees their things and no others; and no key for somebody else.
	status, key := as(s, ada, "POST", "/v1/keys", `{"name":"hers","scope":"control"}`)
	secret, _ := key["secret"].(string)
	if status != http.StatusCreated || key["ownerId"] != owners["ada"] {
		t.Fatalf("create-key: %d %v", status, key)
	}
	if status, answer := as(s, secret, "GET", "/v1/machines", ""); status != http.StatusOK || len(answer["machines"].([]any)) != 0 {
		t.Errorf("the machines of Ada: %d %v", status, answer)
	}
	id := key["id"].(string)
	for name, test := range map[string]struct {
		token, method, path, body string
		status                    int
	}{
		"a larger key":             {ada, "POST", "/v1/keys", `{"name":"x","scope":"admin"}`, http.StatusForbidden},
		"a key for another":        {ada, "POST", "/v1/keys", `{"name":"x","scope":"read","owner_id":"` + owners["bea"] + `"}`, http.StatusForbidden},
		"another's keys":           {bea, "GET", "/v1/keys?owner_id=" + owners["ada"], "", http.StatusForbidden},
		"revoking another's key":   {bea, "POST", "/v1/keys/" + id + "/revoke", "", http.StatusNotFound},
		"the audit":                {ada, "GET", "/v1/audit", "", http.StatusForbidden},
		"Temporal":                 {ada, "GET", "/temporal/api/v1/namespaces", "", http.StatusForbidden},
		"Temporal, as root":        {root, "GET", "/temporal/api/v1/namespaces", "", http.StatusOK},
		"the audit, as root":       {root, "GET", "/v1/audit?actor_id=" + owners["ada"], "", http.StatusOK},
		"another's keys, as root":  {root, "GET", "/v1/keys?owner_id=" + owners["ada"], "", http.StatusOK},
		"a token without its end":  {ada[:len(ada)-20], "GET", "/v1/whoami", "", http.StatusUnauthorized},
		"a token of another realm": {strings.Replace(ada, ".", ".x", 1), "GET", "/v1/whoami", "", http.StatusUnauthorized},
	} {
		if status, answer := as(s, test.token, test.method, test.path, test.body); status != test.status {
			t.Errorf("%s: %d %v, want %d", name, status, answer, test.status)
		}
	}
	s.Terminate()
	s.Restart()
	if _, answer := as(s, ada, "GET", "/v1/whoami", ""); member(answer, "owner", "id") != owners["ada"] {
		t.Errorf("after a restart Ada is %v", answer)
	}
}

// member returns a text in an object of an object, or "".
func member(answer map[string]any, object, name string) string {
	inner, _ := answer[object].(map[string]any)
	text, _ := inner[name].(string)
	return text
}
