// Package machinestate names the files of a machine's state directory and reads and writes those that the
// worker shares with whoever installs it. The device key and the records of steps are in the same directory
// and belong to their own packages.
package machinestate

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/errandhq/errand/internal/fileutil"
)

// Dir returns the state directory of the machine whose application data is in dataDir.
func Dir(dataDir string) string { return filepath.Join(dataDir, "machine") }

// LockPath returns the lock that a running worker holds.
func LockPath(dir string) string { return filepath.Join(dir, "worker.lock") }

// Enrolled says which machine this is and where its control plane is.
type Enrolled struct {
	MachineID string `json:"machineId"`
	ServerURL string `json:"serverUrl"`
}

func enrolledPath(dir string) string { return filepath.Join(dir, "machine.json") }

// Load returns what the last enrolment wrote; false when there was none.
func Load(dir string) (Enrolled, bool, error) {
	content, err := os.ReadFile(enrolledPath(dir))
	if errors.Is(err, os.ErrNotExist) {
		return Enrolled{}, false, nil
	}
	if err != nil {
		return Enrolled{}, false, fmt.Errorf("reading the enrolment: %w", err)
	}
	var e Enrolled
	if err := json.Unmarshal(content, &e); err != nil || e.MachineID == "" || e.ServerURL == "" {
		return Enrolled{}, false, fmt.Errorf("%s is damaged: remove it and enrol this machine again", enrolledPath(dir))
	}
	return e, true, nil
}

// Save writes the enrolment whole.
func Save(dir string, e Enrolled) error {
	content, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the enrolment: %w", err)
	}
	if err := fileutil.WriteFile(enrolledPath(dir), append(content, '\n')); err != nil {
		return fmt.Errorf("writing the enrolment: %w", err)
	}
	return nil
}
