package access

import (
	"context"
	"crypto"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"

	"github.com/errandhq/errand/automation"
)

const (
	// askAgainAfter is how long an issuer is left alone after it was asked, whatever it answered: tokens with
	// invented keys must not make this server a burden to it.
	askAgainAfter = 10 * time.Second
	// keysAge is after how long known keys are fetched again, so that a key that the issuer has withdrawn goes.
	keysAge = time.Hour
	// askWithin bounds one look at the issuer.
	askWithin = 5 * time.Second
	// maxKeySet bounds the list of keys, in bytes.
	maxKeySet = 1 << 20
)

// keySource holds the keys of an issuer. Whoever names a key that is known never waits for the issuer.
type keySource struct {
	issuer string
	client *http.Client
	now    func() time.Time
	logger *slog.Logger

	// asking is held by the one who asks the issuer.
	asking sync.Mutex

	mu        sync.Mutex
	address   string // of the list of keys; empty until it was discovered
	keys      []jose.JSONWebKey
	fetchedAt time.Time
	askedAt   time.Time
}

func newKeySource(issuer string, client *http.Client, now func() time.Time, logger *slog.Logger) *keySource {
	return &keySource{issuer: issuer, client: client, now: now, logger: logger}
}

// of returns the keys that a token may have been signed with; none when the issuer has no such key. Errors:
// store_unavailable when that is not known because the issuer has not been reached.
func (s *keySource) of(ctx context.Context, kid string, algorithm jose.SignatureAlgorithm) ([]crypto.PublicKey, error) {
	if keys := s.known(kid, algorithm); len(keys) > 0 {
		if s.stale() && s.asking.TryLock() {
			go func() {
				defer s.asking.Unlock()
				s.ask(context.WithoutCancel(ctx))
			}()
		}
		return keys, nil
	}
	s.asking.Lock()
	defer s.asking.Unlock()
	if keys := s.known(kid, algorithm); len(keys) > 0 {
		return keys, nil // another one has asked meanwhile
	}
	if s.mayAsk() {
		s.ask(context.WithoutCancel(ctx)) // others wait for the answer too
	}
	if keys := s.known(kid, algorithm); len(keys) > 0 {
		return keys, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fetchedAt.IsZero() {
		return nil, &automation.Error{
			Code: automation.CodeStoreUnavailable, RetryAfter: askAgainAfter,
			Message: "the token cannot be checked now, because its issuer " + s.issuer + " does not answer; try again shortly",
		}
	}
	return nil, nil
}

// known returns the matching keys among those that were fetched. A token without a key id may be of any.
func (s *keySource) known(kid string, algorithm jose.SignatureAlgorithm) []crypto.PublicKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []crypto.PublicKey
	for _, key := range s.keys {
		if kid != "" && key.KeyID != kid {
			continue
		}
		if public := usable(key, algorithm); public != nil {
			found = append(found, public)
		}
	}
	return found
}

func (s *keySource) stale() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now().Sub(s.fetchedAt) >= keysAge && s.now().Sub(s.askedAt) >= askAgainAfter
}

func (s *keySource) mayAsk() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.askedAt.IsZero() || s.now().Sub(s.askedAt) >= askAgainAfter
}

// ask fetches the keys. A failure leaves those that are there, and is logged.
func (s *keySource) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	s.mu.Lock()
	s.askedAt = s.now()
	address := s.address
	s.mu.Unlock()
	keys, address, err := s.fetch(ctx, address)
	if err != nil {
		s.logger.WarnContext(ctx, "the keys of the issuer could not be fetched", "issuer", s.issuer, "error", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys, s.address, s.fetchedAt = keys, address, s.now()
}

// fetch returns the issuer's keys and where they are.
func (s *keySource) fetch(ctx context.Context, address string) ([]jose.JSONWebKey, string, error) {
	if address == "" {
		provider, err := oidc.NewProvider(oidc.ClientContext(ctx, s.client), s.issuer)
		if err != nil {
			return nil, "", fmt.Errorf("discovering the issuer: %w", err)
		}
		var document struct {
			Keys string `json:"jwks_uri"`
		}
		if err := provider.Claims(&document); err != nil {
			return nil, "", fmt.Errorf("reading the issuer's discovery document: %w", err)
		}
		if err := checkAddress(document.Keys); err != nil {
			return nil, "", fmt.Errorf("the jwks_uri of the issuer %w", err)
		}
		address = document.Keys
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, "", fmt.Errorf("asking for the issuer's keys: %w", err)
	}
	response, err := s.client.Do(request)
	if err != nil {
		return nil, "", fmt.Errorf("asking for the issuer's keys: %w", err)
	}
	defer response.Body.Close() // it was read, or given up
	if response.StatusCode != http.StatusOK {
		return nil, "", fmt.Errorf("asking for the issuer's keys: %s", response.Status)
	}
	content, err := io.ReadAll(io.LimitReader(response.Body, maxKeySet))
	if err != nil {
		return nil, "", fmt.Errorf("reading the issuer's keys: %w", err)
	}
	keys, err := parseKeys(content)
	return keys, address, err
}

// parseKeys reads a list of keys. A key of a kind that is not known here does not spoil the others.
func parseKeys(content []byte) ([]jose.JSONWebKey, error) {
	var list struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(content, &list); err != nil {
		return nil, fmt.Errorf("reading the issuer's keys: %w", err)
	}
	var keys []jose.JSONWebKey
	for _, one := range list.Keys {
		var key jose.JSONWebKey
		if json.Unmarshal(one, &key) == nil {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("the issuer lists no key that is known here")
	}
	return keys, nil
}
