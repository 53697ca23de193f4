package host

import "golang.org/x/sys/unix"

// exchange swaps two files in one step that no reader sees the middle of.
func exchange(one, other string) error {
	return unix.Renameat2(unix.AT_FDCWD, one, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE)
}
