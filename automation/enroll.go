package automation

import "encoding/json"

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
