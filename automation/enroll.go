package automation

import (
	"encoding/json"
	"time"
)

const (
	// EnrollmentCodeValidFor is how long an enrolment code can be used.
	EnrollmentCodeValidFor = 10 * time.Minute
	// MaxOpenEnrollmentCodes is how many codes of one owner may be open: neither used nor expired.
	MaxOpenEnrollmentCodes = 1_000
)

// EnrollmentCode is what is kept of a one-time code; the code itself is shown once and stored nowhere.
type EnrollmentCode struct {
	// Hash is the SHA-256 hash of the code in hexadecimal.
	Hash    string
	OwnerID string
	// MachineID names the machine that gets a new key by the code; "" enrols a new machine.
	MachineID string
	ExpiresAt time.Time
}

// EnrollRequest admits a machine against a one-time code. Proof shows that the machine holds the private half
// of the public key, and is bound to the code.
type EnrollRequest struct {
	Code      string            `json:"code"`
	PublicKey json.RawMessage   `json:"publicKey"` // JSON Web Key, RFC 7517
	Proof     string            `json:"proof"`
	Name      string            `json:"name"`
	Platform  string            `json:"platform"`
	Version   string            `json:"version"`
	Labels    map[string]string `json:"labels,omitempty"`
}

// EnrollAnswer tells a machine who it is from now on.
type EnrollAnswer struct {
	MachineID string `json:"machineId"`
	Name      string `json:"name"`
}

// TokenAnswer is an access token for a machine. It is good for calls that carry a proof by the machine's key.
type TokenAnswer struct {
	AccessToken string `json:"accessToken"`
	TokenType   string `json:"tokenType"` // DPoP, RFC 9449
	ExpiresInMs int64  `json:"expiresInMs"`
}
