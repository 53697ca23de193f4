package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/fileutil"
)

// instanceFile keeps the identity of the state directory and the counter of its workers' starts.
const instanceFile = "instance.json"

type instanceState struct {
	DirectoryID string `json:"directoryId"`
	Start       int64  `json:"start"`
}

// nextInstance counts one more start of a worker on the directory; the caller holds its lock. A file that
// cannot be read is replaced by a new identity: that makes this worker a stranger to the control plane, which
// waits until the stream of the earlier one has ended, and so can never pass as its successor wrongly.
func nextInstance(o Options) (automation.Instance, error) {
	path := filepath.Join(o.StateDir, instanceFile)
	var state instanceState
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return automation.Instance{}, fmt.Errorf("reading the identity of the state directory: %w", err)
	default:
		if err := json.Unmarshal(text, &state); err != nil {
			o.Logger.Warn("The identity of the state directory cannot be read; it gets a new one.", "file", path, "error", err)
			state = instanceState{}
		}
	}
	if state.DirectoryID == "" {
		state = instanceState{DirectoryID: o.NewID()}
	}
	state.Start++
	if text, err = json.Marshal(state); err != nil {
		return automation.Instance{}, fmt.Errorf("encoding the identity of the state directory: %w", err)
	}
	if err := fileutil.WriteFile(path, text); err != nil {
		return automation.Instance{}, fmt.Errorf("writing the identity of the state directory: %w", err)
	}
	return automation.Instance{
		DirectoryID: state.DirectoryID, BootID: o.BootID, Start: state.Start, Host: o.Hostname,
	}, nil
}
