//go:build !linux

package host

import "errors"

// exchange is not available.
func exchange(_, _ string) error { return errors.ErrUnsupported }
