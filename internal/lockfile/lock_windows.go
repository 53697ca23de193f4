package lockfile

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// lockOffset lies behind the content: Windows locks forbid reading, and the holder's number is to be read.
const lockOffset = 1 << 30

// tryLock takes the lock on f without waiting. It goes with the process, however that ends.
func tryLock(f *os.File, exclusive bool) error {
	flags := uint32(windows.LOCKFILE_FAIL_IMMEDIATELY)
	if exclusive {
		flags |= windows.LOCKFILE_EXCLUSIVE_LOCK
	}
	err := windows.LockFileEx(windows.Handle(f.Fd()), flags, 0, 1, 0, &windows.Overlapped{Offset: lockOffset})
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return errBusy
	}
	return err
}
