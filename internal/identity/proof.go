package identity

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// The headers of a call that a machine makes.
const (
	HeaderAuthorization = "Authorization"
	HeaderProof         = "DPoP"
)

// The schemes of the Authorization header. A machine asks for an access token under its id, which is no secret:
// the proof beside it carries the authority. Every other call carries the token.
const (
	schemeMachine = "Machine"
	schemeToken   = "DPoP"
)

// The types of what a device key signs. They differ, so that neither can stand in for the other.
const (
	typeProof     jose.ContentType = "dpop+jwt"
	typeEnrolment jose.ContentType = "errand-enrolment+jwt"
)

// claims are the members of both kinds of proof, named as in RFC 9449 and RFC 7519.
type claims struct {
	ID         string `json:"jti"`
	IssuedAt   *int64 `json:"iat"` // seconds since 1970
	Method     string `json:"htm,omitempty"`
	URL        string `json:"htu,omitempty"`
	Subject    string `json:"sub,omitempty"` // the machine that asks for a token
	SecretHash string `json:"ath,omitempty"` // of the access token, or of the enrolment code
}

// Headers authenticate one attempt of one call.
type Headers struct {
	Authorization string
	Proof         string
}

// SignerOptions replace what a [Signer] takes from its surroundings, for tests.
type SignerOptions struct {
	Now  func() time.Time // default: time.Now
	Rand io.Reader        // default: crypto/rand
}

// Signer makes the proofs of one machine. It is safe for concurrent use.
type Signer struct {
	key       *DeviceKey
	machineID string
	now       func() time.Time
	rand      io.Reader
}

// NewSigner returns the signer of an enrolled machine.
func NewSigner(key *DeviceKey, machineID string, o SignerOptions) *Signer {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	return &Signer{key: key, machineID: machineID, now: o.Now, rand: o.Rand}
}

// Proof returns the headers for one attempt of a call with an access token, or, when token is "", of the request
// for one. They are good once, for this token, method and address, and for about a minute: a retry needs new
// ones. Query and fragment of the address are not signed.
func (s *Signer) Proof(method, rawURL, token string) (Headers, error) {
	address, err := canonicalURL(rawURL)
	if err != nil {
		return Headers{}, fmt.Errorf("proving a call: %w", err)
	}
	said := claims{Method: method, URL: address}
	authorization := schemeToken + " " + token
	if token == "" {
		said.Subject = s.machineID
		authorization = schemeMachine + " " + s.machineID
	} else {
		said.SecretHash = tokenHash(token)
	}
	proof, err := signClaims(s.key, typeProof, s.now(), s.rand, said)
	if err != nil {
		return Headers{}, fmt.Errorf("proving a call: %w", err)
	}
	return Headers{Authorization: authorization, Proof: proof}, nil
}

// EnrolmentProof returns the statement that the holder of the key presents the enrolment code.
func EnrolmentProof(key *DeviceKey, code string, now time.Time) (string, error) {
	normal, err := normalizeCode(code)
	if err != nil {
		return "", err
	}
	proof, err := signClaims(key, typeEnrolment, now, rand.Reader, claims{SecretHash: hashCode(normal).encode()})
	if err != nil {
		return "", fmt.Errorf("proving possession of the device key: %w", err)
	}
	return proof, nil
}

// proofIDBytes makes 128-bit ids, which never meet by chance.
const proofIDBytes = 16

func signClaims(key *DeviceKey, typ jose.ContentType, now time.Time, random io.Reader, c claims) (string, error) {
	id, err := randomBytes(random, proofIDBytes)
	if err != nil {
		return "", err
	}
	at := now.Unix()
	c.ID, c.IssuedAt = base64.RawURLEncoding.EncodeToString(id), &at
	payload, err := json.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("encoding claims: %w", err)
	}
	return key.sign(typ, payload)
}

// canonicalURL returns the form in which both sides compare addresses: lower-case scheme and host, no default
// port, no query, no fragment, a path of at least "/".
func canonicalURL(raw string) (string, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return "", fmt.Errorf("the address %q is not a URL", raw)
	}
	scheme := strings.ToLower(u.Scheme)
	if (scheme != "http" && scheme != "https") || u.Host == "" || u.User != nil {
		return "", fmt.Errorf("the address %q is not an http or https URL with a host", raw)
	}
	host := strings.ToLower(u.Host)
	host = strings.TrimSuffix(host, ":"+map[string]string{"http": "80", "https": "443"}[scheme])
	path := u.EscapedPath()
	if path == "" {
		path = "/"
	}
	return scheme + "://" + host + path, nil
}

// canonicalBase returns the canonical form of a base URL without a slash at its end, for paths to be appended.
func canonicalBase(raw string) (string, error) {
	address, err := canonicalURL(raw)
	if err != nil {
		return "", err
	}
	return strings.TrimRight(address, "/"), nil
}

// codeHash is the SHA-256 hash of an enrolment code in its normal form.
type codeHash [sha256.Size]byte

func (h codeHash) encode() string { return base64.RawURLEncoding.EncodeToString(h[:]) }

// hex is the form in which the ledger keeps it.
func (h codeHash) hex() string { return hex.EncodeToString(h[:]) }

// tokenHash is the ath of RFC 9449, section 4.2.
func tokenHash(token string) string {
	sum := sha256.Sum256([]byte(token))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}
