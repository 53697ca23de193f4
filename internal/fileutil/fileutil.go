// Package fileutil writes small private files so that a reader, and a crash at any moment, sees the whole old
// content or the whole new one.
package fileutil

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// WriteFile writes a file readable by its user alone, in the place of an earlier one. It does not wait for
// the disk: a power cut may bring the earlier content back.
func WriteFile(path string, content []byte) error {
	temporary, err := os.CreateTemp(filepath.Dir(path), ".new-*") // CreateTemp makes files 0600
	if err != nil {
		return fmt.Errorf("making a file beside %s: %w", path, err)
	}
	_, err = temporary.Write(content)
	if err = errors.Join(err, temporary.Close()); err == nil {
		err = os.Rename(temporary.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("replacing %s: %w", path, err), os.Remove(temporary.Name()))
	}
	return nil
}
