package access

import (
	"cmp"
	"context"
	"crypto"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"

	"github.com/errandhq/errand/automation"
)

const (
	// leeway is how far the issuer's clock may be from ours.
	leeway = time.Minute
	// maxPersonName and maxSubject bound what is taken over of a person, in bytes.
	maxPersonName = 200
	maxSubject    = 255
)

// algorithms are what an issuer may sign with: signatures by a private key that only it has. Without HMAC, whose
// key would be one that is published, and none.
var algorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
}

// OIDCOptions are the settings of an issuer.
type OIDCOptions struct {
	// Issuer is the address that tokens name in iss, below which its discovery document is.
	Issuer string
	// Audience must be in a token's aud.
	Audience string
	// AdminClaim is name=value: whose claim of that name is, or lists, that value is an administrator. A name
	// that is none as a whole is a path with dots, such as realm_access.roles. Empty means that nobody is.
	AdminClaim string
	HTTP       *http.Client
	Now        func() time.Time
	Logger     *slog.Logger
}

// OIDC checks tokens of one issuer. It is safe for concurrent use.
type OIDC struct {
	issuer, audience       string
	adminClaim, adminValue string
	keys                   *keySource
	now                    func() time.Time
	logger                 *slog.Logger
}

// NewOIDC returns the checker of an issuer, without asking it anything yet. A wrong setting is an error.
func NewOIDC(o OIDCOptions) (*OIDC, error) {
	if err := checkAddress(o.Issuer); err != nil {
		return nil, fmt.Errorf("ERRAND_OIDC_ISSUER %w", err)
	}
	if o.Audience == "" {
		return nil, errors.New("ERRAND_OIDC_AUDIENCE must be set beside ERRAND_OIDC_ISSUER: " +
			"else a token that was made for another service would be accepted")
	}
	claim, value, found := strings.Cut(o.AdminClaim, "=")
	if o.AdminClaim != "" && (!found || claim == "" || value == "") {
		return nil, fmt.Errorf("ERRAND_OIDC_ADMIN_CLAIM must be name=value, such as groups=errand-admins, not %q", o.AdminClaim)
	}
	return &OIDC{
		issuer: o.Issuer, audience: o.Audience, adminClaim: claim, adminValue: value,
		keys: newKeySource(o.Issuer, guarded(o.HTTP), o.Now, o.Logger), now: o.Now, logger: o.Logger,
	}, nil
}

// checkAddress refuses an address that somebody on the way could answer for.
func checkAddress(address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" || u.RawQuery != "" {
		return fmt.Errorf("must be an address such as https://id.example.com, not %q", address)
	}
	if ip := net.ParseIP(u.Hostname()); u.Scheme == "https" || u.Scheme == "http" && (u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()) {
		return nil
	}
	return fmt.Errorf("must begin with https://, not %q", address)
}

// guarded returns a client that follows the issuer to no address that somebody on the way could answer for.
func guarded(client *http.Client) *http.Client {
	const most = 5
	out := http.Client{}
	if client != nil {
		out = *client
	}
	out.CheckRedirect = func(r *http.Request, via []*http.Request) error {
		if len(via) > most {
			return fmt.Errorf("the issuer redirects more than %d times", most)
		}
		where := *r.URL
		where.RawQuery, where.Fragment = "", ""
		if err := checkAddress(where.String()); err != nil {
			return fmt.Errorf("the redirect of the issuer %w", err)
		}
		return nil
	}
	return &out
}

// Verify implements [Issuer].
func (o *OIDC) Verify(ctx context.Context, token string) (Person, error) {
	kid, algorithm, err := o.header(token)
	if err != nil {
		return Person{}, o.refused(ctx, err)
	}
	keys, err := o.keys.of(ctx, kid, algorithm)
	if err != nil {
		return Person{}, err
	}
	if len(keys) == 0 {
		return Person{}, o.refused(ctx, errors.New("the issuer has no key of that id"))
	}
	verifier := oidc.NewVerifier(o.issuer, &oidc.StaticKeySet{PublicKeys: keys}, &oidc.Config{
		ClientID: o.audience, SupportedSigningAlgs: []string{string(algorithm)},
		Now: func() time.Time { return o.now().Add(-leeway) },
	})
	verified, err := verifier.Verify(ctx, token)
	if expired, ok := errors.AsType[*oidc.TokenExpiredError](err); ok {
		return Person{}, automation.Errorf(automation.CodeUnauthorized, "the token expired at %s; sign in again",
			expired.Expiry.UTC().Format(time.RFC3339))
	}
	if err != nil {
		return Person{}, o.refused(ctx, err)
	}
	return o.person(ctx, verified)
}

// header reads what a token says about its signature, and that it claims to be of this issuer: nothing is
// fetched for a token that cannot be.
func (o *OIDC) header(token string) (kid string, algorithm jose.SignatureAlgorithm, err error) {
	signed, err := jose.ParseSignedCompact(token, algorithms)
	if err != nil {
		return "", "", err
	}
	var claims struct {
		Issuer string `json:"iss"`
	}
	if err := json.Unmarshal(signed.UnsafePayloadWithoutVerification(), &claims); err != nil || claims.Issuer != o.issuer {
		return "", "", errors.New("it is of another issuer")
	}
	header := signed.Signatures[0].Header
	return header.KeyID, jose.SignatureAlgorithm(header.Algorithm), nil
}

// refused says what a token must be. What was wrong with this one is for the log.
func (o *OIDC) refused(ctx context.Context, err error) error {
	o.logger.DebugContext(ctx, "a token of an issuer was refused", "error", err)
	return automation.Errorf(automation.CodeUnauthorized,
		"the token is not valid: it must be signed by %s, be for the audience %s, and not have expired", o.issuer, o.audience)
}

func (o *OIDC) person(ctx context.Context, token *oidc.IDToken) (Person, error) {
	if token.Subject == "" || len(token.Subject) > maxSubject {
		return Person{}, o.refused(ctx, errors.New("its subject is empty or too long"))
	}
	var named struct {
		Preferred string `json:"preferred_username"`
		Email     string `json:"email"`
		Name      string `json:"name"`
	}
	var claims map[string]any
	if err := errors.Join(token.Claims(&named), token.Claims(&claims)); err != nil {
		return Person{}, o.refused(ctx, err)
	}
	return Person{
		Issuer: o.issuer, Subject: token.Subject, Admin: o.adminClaim != "" && holds(claims, o.adminClaim, o.adminValue),
		Name: clipped(cmp.Or(named.Preferred, named.Email, named.Name, token.Subject)),
	}, nil
}

// holds reports whether a claim is a value or lists it.
func holds(claims map[string]any, name, value string) bool {
	claim, found := claims[name]
	if !found {
		first, rest, nested := strings.Cut(name, ".")
		inner, ok := claims[first].(map[string]any)
		return nested && ok && holds(inner, rest, value)
	}
	switch claim := claim.(type) {
	case string:
		return claim == value
	case bool:
		return claim && value == "true"
	case []any:
		for _, one := range claim {
			if one == value {
				return true
			}
		}
	}
	return false
}

// clipped makes a name storable, and harmless to show.
func clipped(name string) string {
	name = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(name, "\uFFFD"))
	if len(name) > maxPersonName {
		name = strings.ToValidUTF8(name[:maxPersonName], "")
	}
	return cmp.Or(name, "unnamed")
}

// usable returns the public key of an entry in an issuer's list, or nil for one that must not be used: a shared
// secret, a key for encryption, a key for another algorithm.
func usable(key jose.JSONWebKey, algorithm jose.SignatureAlgorithm) crypto.PublicKey {
	if !key.IsPublic() || !key.Valid() || key.Use != "" && key.Use != "sig" || key.Algorithm != "" && key.Algorithm != string(algorithm) {
		return nil
	}
	return key.Key
}
