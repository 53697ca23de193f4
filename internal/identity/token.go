package identity

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// TokenValidFor is how long an access token is good.
const TokenValidFor = 10 * time.Minute

// typeToken is the type of an access token (RFC 9068), so that nothing else that the key may sign passes for one.
const typeToken jose.ContentType = "at+jwt"

// tokenAlgorithm signs access tokens. Whoever checks them is whoever makes them, so the key is a secret that the
// servers of an installation share.
const tokenAlgorithm = jose.HS256

// Tokens makes access tokens of machines and reads them. A token names the machine and the key that it is bound
// to (RFC 9449, section 6.1): alone it opens nothing. Every server with the same key and issuer accepts it.
type Tokens struct {
	key    []byte
	issuer string
	signer jose.Signer

	mu sync.Mutex
	// genuine is what tokens say, by their hash, that were found to be ours: a machine sends the same one with each
	// of its calls for minutes.
	genuine map[[sha256.Size]byte]tokenClaims
}

// tokenClaims are the members of an access token, named as in RFC 7519 and RFC 7800.
type tokenClaims struct {
	Issuer       string       `json:"iss"`
	Subject      string       `json:"sub"` // the machine
	IssuedAt     int64        `json:"iat"` // seconds since 1970
	ExpiresAt    int64        `json:"exp"`
	Confirmation confirmation `json:"cnf"`
}

type confirmation struct {
	Thumbprint string `json:"jkt"`
}

// NewTokens returns tokens that are signed with a key of [KeySize] bytes, in the name of the issuer: the
// installation, whose tokens those of another one with the same key are not.
func NewTokens(key []byte, issuer string) (*Tokens, error) {
	if len(key) != KeySize || issuer == "" {
		return nil, errors.New("identity: access tokens need an issuer and a key of its size")
	}
	options := (&jose.SignerOptions{}).WithType(typeToken)
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: tokenAlgorithm, Key: key}, options)
	if err != nil {
		return nil, fmt.Errorf("preparing access tokens: %w", err)
	}
	return &Tokens{key: key, issuer: issuer, signer: signer, genuine: map[[sha256.Size]byte]tokenClaims{}}, nil
}

// issue returns a token for a machine that is bound to the key with the thumbprint.
func (t *Tokens) issue(machineID, thumbprint string, now time.Time) (string, error) {
	payload, err := json.Marshal(tokenClaims{
		Issuer: t.issuer, Subject: machineID, IssuedAt: now.Unix(), ExpiresAt: now.Add(TokenValidFor).Unix(),
		Confirmation: confirmation{Thumbprint: thumbprint},
	})
	if err != nil {
		return "", fmt.Errorf("encoding an access token: %w", err)
	}
	signed, err := t.signer.Sign(payload)
	if err != nil {
		return "", fmt.Errorf("signing an access token: %w", err)
	}
	return signed.CompactSerialize()
}

// open checks the signature, type, issuer and time of a token. There is one text for all that is not a token of
// ours: the cure is the same.
func (t *Tokens) open(token string, now time.Time) (tokenClaims, error) {
	hash := sha256.Sum256([]byte(token))
	t.mu.Lock()
	said, known := t.genuine[hash]
	t.mu.Unlock()
	if !known {
		var err error
		if said, err = t.verify(token); err != nil {
			return said, err
		}
		t.remember(hash, said)
	}
	if now.Unix() >= said.ExpiresAt {
		return said, refuse("the access token expired %s ago; get a new one", now.Sub(time.Unix(said.ExpiresAt, 0)).Truncate(time.Second))
	}
	return said, nil
}

// remember keeps what a genuine token says. A full memory is emptied: filling it again costs a verification each.
func (t *Tokens) remember(hash [sha256.Size]byte, said tokenClaims) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.genuine) >= maxCached {
		clear(t.genuine)
	}
	t.genuine[hash] = said
}

// verify checks the signature, type and issuer of a token.
func (t *Tokens) verify(token string) (tokenClaims, error) {
	var said tokenClaims
	foreign := refuse("the access token was not made by this installation; get a new one")
	jws, err := jose.ParseSignedCompact(token, []jose.SignatureAlgorithm{tokenAlgorithm})
	if err != nil || jws.Signatures[0].Protected.ExtraHeaders[jose.HeaderType] != string(typeToken) {
		return said, foreign
	}
	payload, err := jws.Verify(t.key)
	if err != nil || json.Unmarshal(payload, &said) != nil || said.Issuer != t.issuer {
		return said, foreign
	}
	return said, nil
}
