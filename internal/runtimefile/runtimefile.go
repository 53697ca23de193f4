// Package runtimefile is the form of server.json and worker.json: where a running service is, and a token for
// it that lives until its next start. Whoever can read the file has the authority of its user.
package runtimefile

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/errandhq/errand/internal/fileutil"
)

// File is what a runtime file holds.
type File struct {
	URL       string    `json:"url"`
	MCPURL    string    `json:"mcpUrl"`
	Token     string    `json:"token"`
	PID       int       `json:"pid"`
	StartedAt time.Time `json:"startedAt"`
}

// Write writes the file whole, readable by its user alone, in the place of an earlier one.
func Write(path string, f File) error {
	content, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding a runtime file: %w", err)
	}
	if err := fileutil.WriteFile(path, append(content, '\n')); err != nil {
		return fmt.Errorf("writing a runtime file: %w", err)
	}
	return nil
}

// Read reads a runtime file.
func Read(path string) (File, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return File{}, fmt.Errorf("reading a runtime file: %w", err)
	}
	var f File
	if err := json.Unmarshal(content, &f); err != nil {
		return File{}, fmt.Errorf("reading the runtime file %s: %w", path, err)
	}
	return f, nil
}
