package automation

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// OnlineWithin is how recently a machine must have been seen to count as online.
const OnlineWithin = 30 * time.Second

// MachineState says whether a machine may work.
type MachineState string

// The states of a machine.
const (
	MachineActive  MachineState = "active"
	MachineRevoked MachineState = "revoked"
)

// Instance tells one start of a worker from another. A higher counter from the same directory and boot
// proves that the earlier process is gone (it held the lock); anything else does not.
type Instance struct {
	DirectoryID string `json:"directoryId"`
	BootID      string `json:"bootId"`
	Start       int64  `json:"start"`
	Host        string `json:"host"`
}

// Machine is an enrolled host with its own key and its own task queue.
type Machine struct {
	ID          string
	OwnerID     string
	Name        string
	Platform    string // GOOS/GOARCH
	Version     string // build of its worker
	Labels      map[string]string
	PublicKey   string // JSON Web Key, RFC 7517
	State       MachineState
	Concurrency int
	Instance    *Instance // the instance that said hello last; nil before the first
	LastSeenAt  *time.Time
	CreatedAt   time.Time
	RevokedAt   *time.Time
}

// MachineChange changes what people call a machine; nil keeps what is there.
type MachineChange struct {
	Name   *string
	Labels map[string]string
}

// AccessChange says that a machine was revoked, or has another key than before.
type AccessChange struct {
	MachineID string
	State     MachineState
	At        time.Time
}

// Online reports whether the machine has been seen within [OnlineWithin] of now.
func (m Machine) Online(now time.Time) bool {
	return m.State == MachineActive && m.LastSeenAt != nil && now.Sub(*m.LastSeenAt) <= OnlineWithin
}

// Limits of what people and machines say about a machine.
const (
	// MaxMachineText bounds the name and value of a label, the platform and the version of a machine, in bytes.
	MaxMachineText = 200
	// MaxLabels is how many labels a machine may have.
	MaxLabels = 50
)

// MachineNameProblem says what is wrong with the name of a machine; "" when nothing is.
func MachineNameProblem(name string) string {
	if n := utf8.RuneCountInString(name); n > MaxNameLength || strings.TrimSpace(name) == "" || !plainText(name) {
		return fmt.Sprintf("must have 1 to %d characters, not all blank and none a control character", MaxNameLength)
	}
	return ""
}

// MachineTextProblem says what is wrong with a platform or a version; "" when nothing is.
func MachineTextProblem(text string) string {
	if len(text) > MaxMachineText || !plainText(text) {
		return fmt.Sprintf("must have at most %d bytes and no control character", MaxMachineText)
	}
	return ""
}

// LabelsProblem says what is wrong with the labels of a machine; "" when nothing is.
func LabelsProblem(labels map[string]string) string {
	if len(labels) > MaxLabels {
		return fmt.Sprintf("must have at most %d members", MaxLabels)
	}
	for name, value := range labels {
		if name == "" || MachineTextProblem(name) != "" || MachineTextProblem(value) != "" {
			return fmt.Sprintf("names and values must have at most %d bytes and no control character, and no name is empty", MaxMachineText)
		}
	}
	return ""
}

func plainText(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}
