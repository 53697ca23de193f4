package identity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/errandhq/errand/automation"
)

const (
	// TokenPath is where the machine API issues access tokens.
	TokenPath = "/v1/machine/token" //nolint:gosec // a path, and no token

	tokenTimeout   = 15 * time.Second
	maxTokenAnswer = 64 << 10
)

// TokenRefusedError is the answer of a control plane that gave no access token. It is passed on as it came, so
// that code and status survive.
type TokenRefusedError struct {
	Status int
	Header http.Header
	Body   []byte
	// Message is the sentence of the answer, or what there is instead.
	Message string
}

// Error returns the sentence.
func (e *TokenRefusedError) Error() string { return "no access token was given: " + e.Message }

// TokenSource gets access tokens from the machine API and keeps the current one. It is safe for concurrent use.
type TokenSource struct {
	signer  *Signer
	address string
	base    http.RoundTripper
	now     func() time.Time

	fetching chan struct{} // holds one token while somebody asks the control plane

	mu      sync.Mutex
	token   string
	renewAt time.Time
	expires time.Time
}

// NewTokenSource returns a source for the control plane at serverURL. base sends the requests; nil means
// http.DefaultTransport.
func NewTokenSource(signer *Signer, serverURL string, base http.RoundTripper) (*TokenSource, error) {
	server, err := canonicalBase(serverURL)
	if err != nil {
		return nil, fmt.Errorf("preparing access tokens: %w", err)
	}
	if base == nil {
		base = http.DefaultTransport
	}
	return &TokenSource{signer: signer, address: server + TokenPath, base: base, now: signer.now, fetching: make(chan struct{}, 1)}, nil
}

// Token returns an access token that is good for a while, and asks for a new one in the last fifth of its time.
// A token that cannot be renewed is used to its end. Errors: [*TokenRefusedError], or what went wrong on the way.
func (s *TokenSource) Token(ctx context.Context) (string, error) {
	token, fresh := s.current()
	if fresh {
		return token, nil
	}
	select {
	case s.fetching <- struct{}{}:
		defer func() { <-s.fetching }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if token, fresh = s.current(); fresh {
		return token, nil // somebody else got it meanwhile
	}
	answer, err := s.fetch(ctx)
	if err != nil {
		if token != "" {
			return token, nil
		}
		return "", err
	}
	s.keep(answer)
	return answer.AccessToken, nil
}

// Refuse drops a token that the control plane did not accept.
func (s *TokenSource) Refuse(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.token == token {
		s.token = ""
	}
}

// wall is the time without the monotonic clock, which stands still while a machine sleeps.
func (s *TokenSource) wall() time.Time { return s.now().Round(0) }

// current returns the token if it is good, and whether it needs no renewal yet.
func (s *TokenSource) current() (token string, fresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.wall()
	if s.token == "" || !now.Before(s.expires) {
		return "", false
	}
	return s.token, now.Before(s.renewAt)
}

func (s *TokenSource) keep(answer automation.TokenAnswer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	life := time.Duration(answer.ExpiresInMs) * time.Millisecond
	now := s.wall()
	s.token, s.expires, s.renewAt = answer.AccessToken, now.Add(life), now.Add(life*4/5)
}

func (s *TokenSource) fetch(ctx context.Context) (automation.TokenAnswer, error) {
	var answer automation.TokenAnswer
	ctx, cancel := context.WithTimeout(ctx, tokenTimeout)
	defer cancel()
	headers, err := s.signer.Proof(http.MethodPost, s.address, "")
	if err != nil {
		return answer, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.address, http.NoBody)
	if err != nil {
		return answer, fmt.Errorf("asking for an access token: %w", err)
	}
	headers.set(request)
	response, err := s.base.RoundTrip(request)
	if err != nil {
		return answer, fmt.Errorf("asking for an access token: %w", err)
	}
	defer response.Body.Close() // it is read below
	body, err := io.ReadAll(io.LimitReader(response.Body, maxTokenAnswer))
	if err != nil {
		return answer, fmt.Errorf("reading the answer to the request for an access token: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return answer, refusedToken(response, body)
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.AccessToken == "" {
		return answer, errors.New("the answer to the request for an access token did not come from a control plane")
	}
	return answer, nil
}

func refusedToken(response *http.Response, body []byte) error {
	var envelope struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	refused := &TokenRefusedError{Status: response.StatusCode, Header: response.Header, Body: body, Message: response.Status}
	if json.Unmarshal(body, &envelope) == nil && envelope.Error.Message != "" {
		refused.Message = envelope.Error.Message
	}
	return refused
}
