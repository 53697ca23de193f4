package automation

import "time"

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

// Online reports whether the machine has been seen within [OnlineWithin] of now.
func (m Machine) Online(now time.Time) bool {
	return m.State == MachineActive && m.LastSeenAt != nil && now.Sub(*m.LastSeenAt) <= OnlineWithin
}
