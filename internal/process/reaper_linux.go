package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// reapPause is the least time between two looks for dead children.
const reapPause = orphanAge / 4

// orphanAge is how long a dead child that this package did not start is left to whoever may be waiting for it.
const orphanAge = time.Second

// ForbidInspection keeps other processes of the same user, programs of steps among them, from reading this
// one's environment and memory and from attaching to it. It lasts until the process executes another program;
// children are not concerned.
func ForbidInspection() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("forbidding the inspection of this process: %w", err)
	}
	return nil
}

// AdoptOrphans makes this process the parent of what its programs leave behind, instead of the first process
// of the system, and reaps it until ctx ends, so that no zombie stays. It takes the status of no process that
// this package started, and of none that somebody in this program waits for: another dead child is first left
// alone for a while. A child that was started elsewhere must therefore be waited for when it ends.
func AdoptOrphans(ctx context.Context) error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("becoming the parent of orphaned processes: %w", err)
	}
	died := make(chan os.Signal, 1)
	signal.Notify(died, syscall.SIGCHLD)
	reaped := ownChildren.listen()
	go func() {
		defer signal.Stop(died)
		r := &reaper{}
		for {
			again := time.NewTimer(r.reap(time.Now()))
			select {
			case <-ctx.Done():
				again.Stop()
				return
			case <-died:
			case <-reaped:
			case <-again.C:
			}
			again.Stop()
			// However many die, one look in a while is enough.
			select {
			case <-ctx.Done():
				return
			case <-time.After(reapPause):
			}
		}
	}()
	return nil
}

// reaper takes the status of dead children that nobody waits for.
type reaper struct {
	firstSeen map[int]time.Time // of dead children that this package did not start, by number
}

// idleLook is how soon to look again when nothing is to be done, in case a signal got lost.
const idleLook = time.Minute

// reap takes what may be taken and returns how soon to look again. The first look is one cheap call, which
// shows one dead child; only when that is nobody's are all of them listed. When it is a process of ours,
// whose status is taken in a moment, the others wait until then.
func (r *reaper) reap(now time.Time) time.Duration {
	if pid := peekDead(); pid == 0 || ownChildren.has(pid) {
		return idleLook
	}
	seen := make(map[int]time.Time)
	for pid := range allProcesses() {
		stat, ok := readStat(pid)
		if !ok || stat.parent != os.Getpid() || stat.alive() || ownChildren.has(pid) {
			continue
		}
		first, known := r.firstSeen[pid]
		switch {
		case !known:
			seen[pid] = now
		case now.Sub(first) < orphanAge:
			seen[pid] = first
		default:
			_ = waitDead(unix.P_PID, pid, unix.WEXITED|unix.WNOHANG, nil)
		}
	}
	r.firstSeen = seen
	if len(seen) == 0 {
		return idleLook
	}
	return orphanAge
}

// peekDead returns the number of a dead child without taking its status; 0 when there is none.
func peekDead() int {
	var info childInfo
	if err := waitDead(unix.P_ALL, 0, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, &info); err != nil {
		return 0
	}
	return int(info.fields.pid)
}

// childInfo is siginfo_t as waitid fills it in.
type childInfo struct {
	_      [3]int32
	fields struct {
		_   [0]uintptr // aligned like the union that it is part of
		pid int32
	}
	_ [128]byte
}

func waitDead(kind, id, options int, info *childInfo) error {
	for {
		err := unix.Waitid(kind, id, (*unix.Siginfo)(unsafe.Pointer(info)), options, nil) //nolint:gosec // childInfo is at least as large
		runtime.KeepAlive(info)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
