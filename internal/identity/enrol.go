package identity

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/errandhq/errand/automation"
)

const (
	// CodeValidFor is how long an enrolment code can be used.
	CodeValidFor = 10 * time.Minute

	codeBytes    = 10 // 80 bits, 16 characters
	codeGroup    = 4
	maxOpenCodes = 1_000
)

// EnrolmentCode is what is kept of a one-time code.
type EnrolmentCode struct {
	Hash      [sha256.Size]byte
	OwnerID   string
	ExpiresAt time.Time
	// UsedBy is the thumbprint of the key that took the code, or "".
	UsedBy string
}

// CodeStore keeps enrolment codes until they expire.
type CodeStore interface {
	// SaveCode keeps a new code. Error: rate_limited when too many codes are open.
	SaveCode(ctx context.Context, c EnrolmentCode, now time.Time) error
	// TakeCode gives an unexpired code to the key with the thumbprint, atomically: of several keys exactly
	// one gets it. The key that has it gets it again, so that an enrolment whose answer was lost can be
	// repeated. Error: not_found for any other code.
	TakeCode(ctx context.Context, hash [sha256.Size]byte, thumbprint string, now time.Time) (EnrolmentCode, error)
}

// MachineEnroller stores machines, as automation.MachineStore does.
type MachineEnroller interface {
	EnrollMachine(ctx context.Context, m automation.NewMachine) (automation.Machine, error)
}

// EnrollerOptions configure an [Enroller].
type EnrollerOptions struct {
	Codes    CodeStore
	Machines MachineEnroller
	Now      func() time.Time // default: time.Now
	Rand     io.Reader        // default: crypto/rand
}

// Enroller makes enrolment codes and enrols the machines that present them.
type Enroller struct{ o EnrollerOptions }

// NewEnroller returns an enroller.
func NewEnroller(o EnrollerOptions) *Enroller {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	return &Enroller{o: o}
}

// NewCode returns a code with which one machine of the owner can be enrolled, and when it expires. It is
// shown once; only its hash is kept.
func (e *Enroller) NewCode(ctx context.Context, ownerID string) (code string, expiresAt time.Time, err error) {
	random, err := randomBytes(e.o.Rand, codeBytes)
	if err != nil {
		return "", time.Time{}, err
	}
	normal := codeEncoding.EncodeToString(random)
	now := e.o.Now()
	expiresAt = now.Add(CodeValidFor)
	c := EnrolmentCode{Hash: hashCode(normal), OwnerID: ownerID, ExpiresAt: expiresAt}
	if err := e.o.Codes.SaveCode(ctx, c, now); err != nil {
		return "", time.Time{}, fmt.Errorf("keeping an enrolment code: %w", err)
	}
	return formatCode(normal), expiresAt, nil
}

// Enrolment is a machine's request to be enrolled.
type Enrolment struct {
	Code string `json:"code"`
	// PublicKey is the device key's public JSON Web Key.
	PublicKey json.RawMessage `json:"publicKey"`
	// Proof is the statement made by [EnrolmentProof].
	Proof    string            `json:"proof"`
	Name     string            `json:"name"`
	Platform string            `json:"platform"`
	Version  string            `json:"version"`
	Labels   map[string]string `json:"labels,omitempty"`
}

// Enroll checks that the caller holds the key and an open code, and stores the machine for the code's owner.
// A bad request does not use the code up. Repeating an enrolment with the same code and key returns the same
// machine. Errors: validation_failed, unauthorized, machine_revoked, and what the stores return.
func (e *Enroller) Enroll(ctx context.Context, r Enrolment) (automation.Machine, error) {
	if violations := r.check(); len(violations) > 0 {
		return automation.Machine{}, automation.Invalid(violations...)
	}
	key, canonical, err := parsePublicKey(r.PublicKey)
	if err != nil {
		return automation.Machine{}, automation.Invalid(automation.Violation{Path: "publicKey", Message: err.Error()})
	}
	normal, err := normalizeCode(r.Code)
	if err != nil {
		return automation.Machine{}, refuse("%s", badCode)
	}
	now := e.o.Now()
	if err := checkPossession(r.Proof, key, hashCode(normal), now); err != nil {
		return automation.Machine{}, err
	}
	code, err := e.o.Codes.TakeCode(ctx, hashCode(normal), key.thumbprint, now)
	if automation.CodeOf(err) == automation.CodeNotFound {
		return automation.Machine{}, refuse("%s", badCode)
	}
	if err != nil {
		return automation.Machine{}, fmt.Errorf("taking an enrolment code: %w", err)
	}
	m, err := e.o.Machines.EnrollMachine(ctx, automation.NewMachine{
		OwnerID: code.OwnerID, Name: r.Name, Platform: r.Platform, Version: r.Version,
		Labels: r.Labels, PublicKey: string(canonical),
	})
	if err != nil {
		return automation.Machine{}, fmt.Errorf("enrolling a machine: %w", err)
	}
	if m.State != automation.MachineActive {
		return automation.Machine{}, automation.Errorf(automation.CodeMachineRevoked,
			"the key belongs to the machine %s, which has been revoked; remove %s and enrol again with a new key", m.ID, DeviceKeyFile)
	}
	return m, nil
}

// badCode is one text for wrong, used and expired codes, so that it tells a guesser nothing.
const badCode = "the enrolment code is wrong, used or expired; make a new one"

// checkPossession verifies that the holder of the key signed for this code, now.
func checkPossession(proof string, key publicKey, code codeHash, now time.Time) error {
	if len(proof) > maxProofBytes {
		return refuse("the proof is too long")
	}
	signed, said, err := openProof(proof, typeEnrolment)
	if err != nil {
		return err
	}
	if err := signed.check(key); err != nil {
		return err
	}
	if err := checkTime(said, now); err != nil {
		return err
	}
	if subtle.ConstantTimeCompare([]byte(said.SecretHash), []byte(code.encode())) != 1 {
		return refuse("the proof was made for another enrolment code")
	}
	return nil
}

// Limits of what a machine says about itself.
const (
	maxMachineName = 200 // characters
	maxMachineText = 200 // bytes
	maxLabels      = 50
)

func (r Enrolment) check() []automation.Violation {
	var found []automation.Violation
	add := func(path, format string, args ...any) {
		found = append(found, automation.Violation{Path: path, Message: fmt.Sprintf(format, args...)})
	}
	if n := utf8.RuneCountInString(r.Name); n > maxMachineName || strings.TrimSpace(r.Name) == "" || !plain(r.Name) {
		add("name", "must have 1 to %d characters, not all blank and none a control character", maxMachineName)
	}
	for _, text := range []struct{ path, value string }{{"platform", r.Platform}, {"version", r.Version}} {
		if len(text.value) > maxMachineText || !plain(text.value) {
			add(text.path, "must have at most %d bytes and no control character", maxMachineText)
		}
	}
	if len(r.Labels) > maxLabels {
		add("labels", "must have at most %d members", maxLabels)
	}
	for name, value := range r.Labels {
		if name == "" || len(name) > maxMachineText || len(value) > maxMachineText || !plain(name) || !plain(value) {
			add("labels", "names and values must have at most %d bytes and no control character, and no name is empty", maxMachineText)
			break
		}
	}
	return found
}

func plain(s string) bool { return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl) }

var codeEncoding = base32.StdEncoding.WithPadding(base32.NoPadding)

// formatCode returns a code in groups that are easy to read out and type.
func formatCode(normal string) string {
	var groups []string
	for ; len(normal) > codeGroup; normal = normal[codeGroup:] {
		groups = append(groups, normal[:codeGroup])
	}
	return strings.Join(append(groups, normal), "-")
}

// misread are the characters that the alphabet does not have and people type for ones that it has.
var misread = strings.NewReplacer("-", "", " ", "", "0", "O", "1", "I", "8", "B")

// normalizeCode accepts a code in any case, with or without separators, with the usual misreadings.
func normalizeCode(code string) (string, error) {
	const longestTyped = 64
	if len(code) <= longestTyped {
		normal := misread.Replace(strings.ToUpper(strings.TrimSpace(code)))
		if b, err := codeEncoding.DecodeString(normal); err == nil && len(b) == codeBytes {
			return normal, nil
		}
	}
	return "", automation.Errorf(automation.CodeValidationFailed, "an enrolment code has %d letters and digits, like ABCD-EFGH-2345-WXYZ",
		codeEncoding.EncodedLen(codeBytes))
}

func hashCode(normal string) codeHash { return sha256.Sum256([]byte(normal)) }

// MemoryCodes keeps enrolment codes in this process; a restart forgets them. It is safe for concurrent use.
type MemoryCodes struct {
	mu    sync.Mutex
	codes map[[sha256.Size]byte]EnrolmentCode
}

// SaveCode implements [CodeStore]; at most 1,000 codes can be open.
func (s *MemoryCodes) SaveCode(_ context.Context, c EnrolmentCode, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for hash, other := range s.codes {
		if !now.Before(other.ExpiresAt) {
			delete(s.codes, hash)
		}
	}
	if len(s.codes) >= maxOpenCodes {
		e := automation.Errorf(automation.CodeRateLimited, "%d enrolment codes are open; wait until some have expired", maxOpenCodes)
		e.RetryAfter = time.Minute
		return e
	}
	if s.codes == nil {
		s.codes = map[[sha256.Size]byte]EnrolmentCode{}
	}
	s.codes[c.Hash] = c
	return nil
}

// TakeCode implements [CodeStore].
func (s *MemoryCodes) TakeCode(_ context.Context, hash [sha256.Size]byte, thumbprint string, now time.Time) (EnrolmentCode, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.codes[hash]
	if !ok || !now.Before(c.ExpiresAt) || (c.UsedBy != "" && c.UsedBy != thumbprint) {
		return EnrolmentCode{}, automation.Errorf(automation.CodeNotFound, "there is no such open code")
	}
	c.UsedBy = thumbprint
	s.codes[hash] = c
	return c, nil
}
