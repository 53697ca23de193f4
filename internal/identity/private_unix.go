//go:build unix

package identity

import (
	"fmt"
	"io/fs"
)

// checkPrivate refuses a file that its group or others may use.
func checkPrivate(path string, mode fs.FileMode) error {
	if perm := mode.Perm(); perm&0o077 != 0 {
		return fmt.Errorf("%s has mode %#o and may be used by others than its owner; run: chmod 600 %q", path, perm, path)
	}
	return nil
}
