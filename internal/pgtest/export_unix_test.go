//go:build unix

package pgtest

import "os"

// Reap removes abandoned directories.
var Reap = reap

// MakeHome creates a cluster's directory below base and returns it with its
// lock, which stands for the life of its test process.
func MakeHome(base string) (string, *os.File, error) {
	h, err := makeHome(base, nil)
	if err != nil {
		return "", nil, err
	}

	return h.dir, h.lock, nil
}
