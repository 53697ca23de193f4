// Package lockfile keeps two processes from working on one directory. A lock is held by an open file of the
// operating system: it goes with its process, however that ends, and a stale one cannot exist. The file holds
// the process number of its holder, for messages.
package lockfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// A [Probe] holds the lock for an instant; whoever takes it in that instant tries again this often.
const (
	tries = 5
	pause = 50 * time.Millisecond
)

// HeldError says that another process has the lock.
type HeldError struct {
	Path string
	PID  int // 0 when the holder could not be told
}

// Error names the holder.
func (e *HeldError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("another process holds %s", e.Path)
	}
	return fmt.Sprintf("another process (pid %d) holds %s", e.PID, e.Path)
}

// errBusy is what tryLock returns when another process has the lock.
var errBusy = errors.New("the lock is held by another process")

// Take takes the lock until the returned file is closed or the process ends. It returns a [*HeldError] when
// another process has it.
func Take(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening a lock: %w", err)
	}
	for try := 1; ; try++ {
		err = tryLock(f, true)
		if err == nil {
			break
		}
		if errors.Is(err, errBusy) && try < tries {
			time.Sleep(pause)
			continue
		}
		holder := holderOf(f)
		_ = f.Close() // it was not written
		if errors.Is(err, errBusy) {
			return nil, &HeldError{Path: path, PID: holder}
		}
		return nil, fmt.Errorf("taking a lock: %w", err)
	}
	if err := writeHolder(f); err != nil {
		return nil, errors.Join(fmt.Errorf("writing a lock: %w", err), f.Close())
	}
	return f, nil
}

// Probe reports whether a process has the lock, and its number (0 when it cannot be told).
func Probe(path string) (pid int, held bool, err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("opening a lock: %w", err)
	}
	defer func() { _ = f.Close() }()
	switch err := tryLock(f, false); {
	case err == nil:
		return 0, false, nil
	case errors.Is(err, errBusy):
		return holderOf(f), true, nil
	default:
		return 0, false, fmt.Errorf("testing a lock: %w", err)
	}
}

func writeHolder(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

func holderOf(f *os.File) int {
	text, err := io.ReadAll(io.NewSectionReader(f, 0, 32))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	return pid
}
