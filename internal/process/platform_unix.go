//go:build linux || darwin

package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const pathSeparators = "/"

// textBusyTries bounds how often a program that is just being written is tried again, 10 ms apart: a file
// that was closed a moment ago may still be open in a child of the writer that has forked but not executed.
const textBusyTries = 30

// startProcess starts the program at path in a session, and so a process group, of its own.
func startProcess(path string, spec Spec, files []*os.File) (*os.Process, error) {
	sealDescriptors()
	argv := append([]string{spec.Program}, spec.Args...)
	attr := &os.ProcAttr{
		Dir:   spec.Dir,
		Env:   append([]string{}, spec.Env...), // never nil, which would mean our own environment
		Files: files,
		Sys:   &syscall.SysProcAttr{Setsid: true},
	}
	for try := 1; ; try++ {
		proc, err := os.StartProcess(path, argv, attr)
		if !errors.Is(err, syscall.ETXTBSY) || try == textBusyTries {
			return proc, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// explainStart finds out what a failed start was about. The system's answer may mean the directory, the file
// or its interpreter, so each is looked at again.
func explainStart(path string, spec Spec, cause error) *StartError {
	var startErr *StartError
	if errors.As(checkDir(spec.Dir), &startErr) {
		return startErr
	}
	if _, err := findAbsolute(path); errors.As(err, &startErr) {
		return startErr
	}
	switch {
	case errors.Is(cause, syscall.E2BIG):
		return startErrorf(ArgumentTooLong, cause,
			"the arguments and the environment together are longer than this machine can pass to a program: use stdin or a file")
	case errors.Is(cause, fs.ErrNotExist):
		return explainMissing(path, cause)
	case errors.Is(cause, syscall.ENOEXEC):
		return explainFormat(path, cause)
	case errors.Is(cause, fs.ErrPermission), errors.Is(cause, syscall.ENOTDIR), errors.Is(cause, syscall.ELOOP):
		return explainDenied(path, cause)
	}
	return startErrorf(SpawnFailed, cause, "%s could not be started: %s", path, plainCause(cause))
}

// executableFile returns path if it is a file that this user may execute.
func executableFile(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if info.IsDir() {
		return "", errIsDirectory
	}
	if err := mayExecute(path); err != nil {
		return "", err
	}
	return path, nil
}

// mayExecute asks with the effective user: a bit in the mode is not enough (owner, group, noexec mounts).
func mayExecute(path string) error {
	return unix.Faccessat(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS)
}

func isNotDirectory(err error) bool { return errors.Is(err, syscall.ENOTDIR) }

// readAvailable reads from a pipe without waiting: 0 or less when it is empty or closed.
func readAvailable(f *os.File, buf []byte) int {
	conn, err := f.SyscallConn()
	if err != nil {
		return 0
	}
	n := 0
	_ = conn.Read(func(fd uintptr) bool {
		for {
			n, err = syscall.Read(int(fd), buf)
			if !errors.Is(err, syscall.EINTR) {
				return true
			}
		}
	})
	return n
}

// exitOf returns the exit code of a process that exited, or the name of the signal that ended it.
func exitOf(state *os.ProcessState) (*int, string) {
	status, ok := state.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		return nil, signalName(status.Signal())
	}
	code := state.ExitCode()
	return &code, ""
}

func signalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return fmt.Sprintf("SIG%d", int(sig))
}

// member is a live process of a tree.
type member struct {
	pid, group int
}

// tree is the session that a main process leads, with every group in it.
type tree struct {
	id int // of the session, of its first group and of the main process
}

// openTree returns the tree that a process just started by us leads, and what identifies it.
func openTree(proc *os.Process) (*tree, Info) {
	return &tree{id: proc.Pid}, Info{PID: proc.Pid, PGID: proc.Pid, StartTime: startTime(proc.Pid)}
}

// count returns how many processes of the tree are alive; those that only wait to be reaped are not.
func (t *tree) count() int { return len(t.members()) }

// terminate asks every process to end, and wakes the suspended ones, which would not see the request.
func (t *tree) terminate() { t.signal(syscall.SIGTERM, syscall.SIGCONT) }

func (t *tree) kill() { t.signal(syscall.SIGKILL) }

// signal reaches the main group atomically, so that nothing in it can fork away from it, and then each
// process of the session that has moved to a group of its own (job control).
func (t *tree) signal(signals ...syscall.Signal) {
	if t.id <= 1 {
		return // 0 and -1 would mean our own group and everyone
	}
	for _, sig := range signals {
		_ = syscall.Kill(-t.id, sig)
	}
	for _, m := range t.members() {
		if m.group == t.id {
			continue
		}
		for _, sig := range signals {
			t.signalMember(m.pid, sig)
		}
	}
}

func (t *tree) close() {}

// sealDescriptorDir marks every descriptor but the standard streams close-on-exec, one by one.
func sealDescriptorDir() {
	dir, err := os.Open("/dev/fd")
	if err != nil {
		return
	}
	names, _ := dir.Readdirnames(-1)
	dir.Close()
	for _, name := range names {
		var fd int
		if _, err := fmt.Sscan(name, &fd); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
}
