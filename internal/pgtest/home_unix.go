//go:build unix

package pgtest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	// dirPrefix starts the names of all cluster directories.
	dirPrefix = "errand-pg-"
	// lockName is the file in a cluster's directory that its test process and
	// its supervisor hold locked for as long as they live.
	lockName = "lock"
	// unlockedGrace is the age from which a directory without a lock file counts
	// as abandoned: between mkdir and the lock lie microseconds.
	unlockedGrace = 10 * time.Minute
)

// makeHome creates the directory of a cluster, locks it, and gives it to the
// server's user. The lock appears under its name only when it is held, so a
// reaper never sees a living directory unlocked.
func makeHome(base string, owner *syscall.Credential) (*home, error) {
	dir, err := os.MkdirTemp(base, dirPrefix)
	if err != nil {
		return nil, fmt.Errorf("creating the cluster's directory: %w", err)
	}
	path := filepath.Join(dir, lockName)
	lock, err := os.OpenFile(path+".new", os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("creating the cluster's lock: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, fmt.Errorf("locking the cluster's directory: %w", err)
	}
	if err := os.Rename(lock.Name(), path); err != nil {
		return nil, fmt.Errorf("publishing the cluster's lock: %w", err)
	}
	if owner != nil {
		if err := os.Chown(dir, int(owner.Uid), int(owner.Gid)); err != nil {
			return nil, fmt.Errorf("handing the cluster's directory to the server's user: %w", err)
		}
	}

	return &home{dir: dir, owner: owner, lock: lock}, nil
}

// reap removes the directories of clusters whose test process and supervisor
// both died without cleaning up (a crash of the computer, a SIGKILL to both).
// A server that outlived them notices within a minute that its directory is
// gone, and ends itself. What cannot be removed belongs to another user.
func reap(base string, now time.Time) {
	dirs, err := filepath.Glob(filepath.Join(base, dirPrefix+"*"))
	if err != nil {
		return
	}
	for _, dir := range dirs {
		if abandoned(dir, now) {
			_ = os.RemoveAll(dir)
		}
	}
}

func abandoned(dir string, now time.Time) bool {
	lock, err := os.Open(filepath.Join(dir, lockName))
	if errors.Is(err, fs.ErrNotExist) {
		info, err := os.Stat(dir)

		return err == nil && now.Sub(info.ModTime()) > unlockedGrace
	}
	if err != nil {
		return false
	}
	defer func() { _ = lock.Close() }()

	return syscall.Flock(int(lock.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) == nil
}
