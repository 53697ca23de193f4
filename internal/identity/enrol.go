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
	"time"

	"github.com/errandhq/errand/automation"
)

const (
	codeBytes = 10 // 80 bits, 16 characters
	codeGroup = 4
)

// CodeLedger keeps enrolment codes and what they enrol, as automation.EnrollmentStore does.
type CodeLedger interface {
	SaveEnrollmentCode(ctx context.Context, c automation.EnrollmentCode) error
	RedeemEnrollmentCode(ctx context.Context, hash string, m automation.NewMachine) (automation.Machine, error)
}

// EnrollerOptions configure an [Enroller].
type EnrollerOptions struct {
	Ledger CodeLedger
	Now    func() time.Time // default: time.Now
	Rand   io.Reader        // default: crypto/rand
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

// NewCode returns a code with which one machine of the owner can be enrolled within the time that
// automation.EnrollmentCodeValidFor says, and when that ends. With a machine id it gives that machine a new key
// instead. The code is shown once; only its hash is kept, in the ledger, so that every server accepts it. Errors:
// rate_limited, and not_found for a machine that the owner does not have.
func (e *Enroller) NewCode(ctx context.Context, ownerID, machineID string) (code string, expiresAt time.Time, err error) {
	random, err := randomBytes(e.o.Rand, codeBytes)
	if err != nil {
		return "", time.Time{}, err
	}
	normal := codeEncoding.EncodeToString(random)
	expiresAt = e.o.Now().Add(automation.EnrollmentCodeValidFor)
	c := automation.EnrollmentCode{
		Hash: hashCode(normal).hex(), OwnerID: ownerID, MachineID: machineID, ExpiresAt: expiresAt,
	}
	if err := e.o.Ledger.SaveEnrollmentCode(ctx, c); err != nil {
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
// machine. Errors: validation_failed, unauthorized, forbidden, machine_revoked, and what the ledger returns.
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
	m, err := e.o.Ledger.RedeemEnrollmentCode(ctx, hashCode(normal).hex(), automation.NewMachine{
		Name: r.Name, Platform: r.Platform, Version: r.Version, Labels: r.Labels, PublicKey: string(canonical),
	})
	if automation.CodeOf(err) == automation.CodeNotFound {
		return automation.Machine{}, refuse("%s", badCode)
	}
	if err != nil {
		return automation.Machine{}, fmt.Errorf("enrolling a machine: %w", err)
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

func (r Enrolment) check() []automation.Violation {
	var found []automation.Violation
	for _, checked := range []struct{ path, problem string }{
		{"name", automation.MachineNameProblem(r.Name)},
		{"platform", automation.MachineTextProblem(r.Platform)},
		{"version", automation.MachineTextProblem(r.Version)},
		{"labels", automation.LabelsProblem(r.Labels)},
	} {
		if checked.problem != "" {
			found = append(found, automation.Violation{Path: checked.path, Message: checked.problem})
		}
	}
	return found
}

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
