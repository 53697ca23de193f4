package identity

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/errandhq/errand/automation"
)

const (
	// MaxClockSkew is how far a proof's time may be from the verifier's.
	MaxClockSkew = time.Minute
	// MachineCacheFor is how long a verifier works with what it has read about a machine: a revocation that
	// nobody tells it by Forget takes effect after that time.
	MachineCacheFor = 10 * time.Second

	// proofValidFor is the longest time from a proof's first acceptance to its last: from a minute early to a
	// minute late, in whole seconds.
	proofValidFor = 2*MaxClockSkew + time.Second

	maxProofBytes  = 4 << 10
	maxAuthBytes   = 2 << 10
	maxProofID     = 128
	maxCached      = 10_000
	defaultReplays = 1 << 20
)

// MachineReader reads enrolled machines, as automation.MachineStore does.
type MachineReader interface {
	// Machine returns one machine by id whoever owns it, else not_found.
	Machine(ctx context.Context, id string) (automation.Machine, error)
}

// VerifierOptions configure a [Verifier].
type VerifierOptions struct {
	Machines MachineReader
	// Tokens are the access tokens that are issued and accepted.
	Tokens *Tokens
	// BaseURLs are the addresses under which machines reach this service. At least one.
	BaseURLs []string
	Now      func() time.Time // default: time.Now
	// MaxReplays bounds how many proofs are remembered in the two minutes for which one can be valid; of
	// these a quarter may come from one machine. Default: 2^20, about 50 MB when full.
	MaxReplays int
}

// Verifier gives machines access tokens, and checks the tokens and proofs that they send with their calls. It is
// safe for concurrent use.
type Verifier struct {
	machines MachineReader
	tokens   *Tokens
	bases    []string
	now      func() time.Time
	seen     *replayCache

	mu    sync.Mutex
	known map[string]knownMachine
}

// knownMachine is a machine as read at a time.
type knownMachine struct {
	machine automation.Machine
	key     publicKey
	readAt  time.Time
}

// NewVerifier returns a verifier; it refuses base URLs that are none.
func NewVerifier(o VerifierOptions) (*Verifier, error) {
	if len(o.BaseURLs) == 0 || o.Tokens == nil {
		return nil, errors.New("identity: a verifier needs a base URL and tokens")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.MaxReplays <= 0 {
		o.MaxReplays = defaultReplays
	}
	v := &Verifier{
		machines: o.Machines, tokens: o.Tokens, now: o.Now, known: map[string]knownMachine{},
		seen: newReplayCache(o.MaxReplays, proofValidFor),
	}
	for _, raw := range o.BaseURLs {
		base, err := canonicalBase(raw)
		if err != nil {
			return nil, fmt.Errorf("preparing the verification of proofs: %w", err)
		}
		v.bases = append(v.bases, base)
	}
	return v, nil
}

// AuthenticateMachine returns the machine that made a call with an access token. The machine is shared and must
// not be changed. Errors: unauthorized with a sentence that tells the machine's user what is wrong,
// machine_revoked, rate_limited when the machine sends more proofs than can be remembered, and what reading the
// machine returns.
func (v *Verifier) AuthenticateMachine(ctx context.Context, c automation.Credential) (automation.Machine, error) {
	token, proof, err := presented(c, schemeToken, "<access token>")
	if err != nil {
		return automation.Machine{}, err
	}
	signed, said, err := openProof(proof, typeProof)
	if err != nil {
		return automation.Machine{}, err
	}
	if err := v.checkCall(c, said); err != nil {
		return automation.Machine{}, err
	}
	if subtle.ConstantTimeCompare([]byte(said.SecretHash), []byte(tokenHash(token))) != 1 {
		return automation.Machine{}, refuse("the proof was made for another access token than the call carries")
	}
	granted, err := v.tokens.open(token, v.now())
	if err != nil {
		return automation.Machine{}, err
	}
	if subtle.ConstantTimeCompare([]byte(granted.Confirmation.Thumbprint), []byte(signed.thumbprint)) != 1 {
		return automation.Machine{}, refuse("the proof is signed with another key than the access token is bound to")
	}
	return v.authenticate(ctx, granted.Subject, signed, said)
}

// IssueToken gives a machine that proves its device key an access token, bound to that key. Errors: as for
// [Verifier.AuthenticateMachine].
func (v *Verifier) IssueToken(ctx context.Context, c automation.Credential) (automation.TokenAnswer, error) {
	id, proof, err := presented(c, schemeMachine, "<machine id>")
	if err != nil {
		return automation.TokenAnswer{}, err
	}
	signed, said, err := openProof(proof, typeProof)
	if err != nil {
		return automation.TokenAnswer{}, err
	}
	if err := v.checkCall(c, said); err != nil {
		return automation.TokenAnswer{}, err
	}
	if said.Subject != id || said.SecretHash != "" {
		return automation.TokenAnswer{}, refuse("the proof was not made to get an access token for the machine that the call names")
	}
	if _, err := v.authenticate(ctx, id, signed, said); err != nil {
		return automation.TokenAnswer{}, err
	}
	token, err := v.tokens.issue(id, signed.thumbprint, v.now())
	if err != nil {
		return automation.TokenAnswer{}, err
	}
	return automation.TokenAnswer{AccessToken: token, TokenType: schemeToken, ExpiresInMs: TokenValidFor.Milliseconds()}, nil
}

// authenticate checks a proof with the enrolled key of the machine, and accepts it once.
func (v *Verifier) authenticate(ctx context.Context, id string, signed signedProof, said claims) (automation.Machine, error) {
	known, err := v.machine(ctx, id)
	if err != nil {
		return automation.Machine{}, err
	}
	if err := signed.check(known.key); err != nil {
		return automation.Machine{}, err
	}
	now := v.now()
	if err := checkTime(said, now); err != nil {
		return automation.Machine{}, err
	}
	if known.machine.State != automation.MachineActive {
		return automation.Machine{}, automation.Errorf(automation.CodeMachineRevoked,
			"the machine %s has been revoked; enrol it again to use it", id)
	}
	if err := v.seen.add(id, said.ID, now); err != nil {
		return automation.Machine{}, err
	}
	return known.machine, nil
}

// Forget makes the next call of a machine read it again. Call it when a machine is revoked or has a new key.
func (v *Verifier) Forget(machineID string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.known, machineID)
}

// presented returns what a call carries under a scheme, and its proof.
func presented(c automation.Credential, scheme, form string) (value, proof string, err error) {
	if len(c.Authorization) != 1 || len(c.Proof) != 1 {
		return "", "", refuse("the call must carry one %s header and one %s header", HeaderAuthorization, HeaderProof)
	}
	given, value, _ := strings.Cut(c.Authorization[0], " ")
	if !strings.EqualFold(given, scheme) || value == "" {
		return "", "", refuse("the %s header must have the form %q", HeaderAuthorization, scheme+" "+form)
	}
	if len(c.Authorization[0]) > maxAuthBytes || len(c.Proof[0]) > maxProofBytes {
		return "", "", refuse("the headers that authenticate the call are too long")
	}
	return value, c.Proof[0], nil
}

// checkCall compares what the proof was made for with the call that it came with.
func (v *Verifier) checkCall(c automation.Credential, said claims) error {
	if said.Method != c.Method {
		return refuse("the proof was made for the method %q, the call has %q", said.Method, c.Method)
	}
	address, err := canonicalURL(said.URL)
	if err != nil {
		return refuse("the proof names no valid address")
	}
	for _, base := range v.bases {
		if address == base+c.Path {
			return nil
		}
	}
	return refuse("the proof was made for %s, which is not the address of this call; "+
		"the machine must use the service's configured address (%s)", address, strings.Join(v.bases, " or "))
}

func (v *Verifier) machine(ctx context.Context, id string) (knownMachine, error) {
	now := v.now()
	v.mu.Lock()
	known, ok := v.known[id]
	v.mu.Unlock()
	if ok && now.Sub(known.readAt) < MachineCacheFor {
		return known, nil
	}
	m, err := v.machines.Machine(ctx, id)
	if automation.CodeOf(err) == automation.CodeNotFound {
		return knownMachine{}, refuse("the machine %q is not enrolled here", id)
	}
	if err != nil {
		return knownMachine{}, fmt.Errorf("reading machine %s: %w", id, err)
	}
	key, _, err := parsePublicKey([]byte(m.PublicKey))
	if err != nil {
		return knownMachine{}, fmt.Errorf("reading the enrolled key of machine %s: %w", id, err)
	}
	known = knownMachine{machine: m, key: key, readAt: now}
	v.remember(id, known)
	return known, nil
}

// remember caches a machine. A full cache is emptied: filling it again costs one read per machine.
func (v *Verifier) remember(id string, known knownMachine) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.known) >= maxCached {
		clear(v.known)
	}
	v.known[id] = known
}

// signedProof is a parsed statement whose signature has not been checked yet.
type signedProof struct {
	jws        *jose.JSONWebSignature
	thumbprint string // of the key that it names
}

// openProof parses a proof and reads its claims, which mean nothing before check has succeeded.
func openProof(proof string, typ jose.ContentType) (signedProof, claims, error) {
	jws, err := jose.ParseSignedCompact(proof, algorithms)
	if err != nil {
		return signedProof{}, claims{}, refuse("the proof is not a JWS in compact form signed with EdDSA or ES256")
	}
	header := jws.Signatures[0].Protected
	if header.ExtraHeaders[jose.HeaderType] != string(typ) {
		return signedProof{}, claims{}, refuse("the proof must have the type %q", typ)
	}
	if header.JSONWebKey == nil {
		return signedProof{}, claims{}, refuse("the proof does not name its public key")
	}
	print, err := thumbprint(*header.JSONWebKey)
	if err != nil {
		return signedProof{}, claims{}, refuse("the proof names no valid public key")
	}
	var said claims
	if err := json.Unmarshal(jws.UnsafePayloadWithoutVerification(), &said); err != nil {
		return signedProof{}, claims{}, refuse("the claims of the proof are not readable")
	}
	if said.ID == "" || len(said.ID) > maxProofID || said.IssuedAt == nil {
		return signedProof{}, claims{}, refuse("the proof must have an id (jti, at most %d bytes) and a time (iat)", maxProofID)
	}
	return signedProof{jws: jws, thumbprint: print}, said, nil
}

// check verifies the signature with a key that is known from elsewhere, never with the one in the proof.
func (p signedProof) check(key publicKey) error {
	if subtle.ConstantTimeCompare([]byte(p.thumbprint), []byte(key.thumbprint)) != 1 {
		return refuse("the proof is signed with another key than the enrolled one; if the machine was enrolled again elsewhere, its old key is no longer good")
	}
	if _, err := p.jws.Verify(key.jwk); err != nil {
		return refuse("the signature of the proof is wrong")
	}
	return nil
}

// checkTime compares a proof's time with now and names the difference, since a wrong clock is the usual cause.
func checkTime(said claims, now time.Time) error {
	issued := time.Unix(*said.IssuedAt, 0)
	skew := issued.Sub(now.Truncate(time.Second))
	if skew >= -MaxClockSkew && skew <= MaxClockSkew {
		return nil
	}
	direction := "ahead of"
	if skew < 0 {
		skew, direction = -skew, "behind"
	}
	return refuse("the machine's clock is %s %s the server's (at most %s is accepted); set the clock of one of them",
		skew, direction, MaxClockSkew)
}

func refuse(format string, args ...any) error {
	return automation.Errorf(automation.CodeUnauthorized, format, args...)
}

// replayCache remembers proofs for at least the time for which they can be valid. It keeps two generations:
// a new one is begun every window, and the one before the last is dropped whole.
type replayCache struct {
	window time.Duration
	limit  int // of one generation
	share  int // of one machine in one generation

	mu       sync.Mutex
	begun    time.Time
	current  map[proofHash]struct{}
	previous map[proofHash]struct{}
	counts   map[string]int // of the current generation, by machine
}

type proofHash [16]byte

func newReplayCache(limit int, window time.Duration) *replayCache {
	c := &replayCache{window: window, limit: max(limit/2, 1), share: max(limit/8, 1)}
	c.current, c.counts = map[proofHash]struct{}{}, map[string]int{}
	return c
}

// add remembers a proof and refuses one that it knows. It refuses rather than forget when it is full.
func (c *replayCache) add(machineID, proofID string, now time.Time) error {
	sum := sha256.Sum256([]byte(machineID + "\x00" + proofID))
	hash := proofHash(sum[:16])
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turn(now)
	_, inCurrent := c.current[hash]
	_, inPrevious := c.previous[hash]
	if inCurrent || inPrevious {
		return refuse("the proof has been used before; each attempt of a call needs its own")
	}
	if len(c.current) >= c.limit || c.counts[machineID] >= c.share {
		return automation.RateLimited(max(c.begun.Add(c.window).Sub(now), time.Second), "too many calls; slow down")
	}
	c.current[hash] = struct{}{}
	c.counts[machineID]++
	return nil
}

func (c *replayCache) turn(now time.Time) {
	switch age := now.Sub(c.begun); {
	case age < c.window:
		return
	case age < 2*c.window:
		c.previous = c.current
	default:
		c.previous = nil
	}
	c.begun = now
	c.current, c.counts = map[proofHash]struct{}{}, map[string]int{}
}
