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

// startProcess starts the program at path in a session, and so a process group, of its own, and in a cgroup
// of its own where there are any.
func startProcess(path string, spec Spec, files []*os.File, group *cgroup) (*os.Process, error) {
	sealDescriptors()
	argv := append([]string{spec.Program}, spec.Args...)
	attr := &os.ProcAttr{
		Dir:   spec.Dir,
		Env:   append([]string{}, spec.Env...), // never nil, which would mean our own environment
		Files: files,
		Sys:   &syscall.SysProcAttr{Setsid: true},
	}
	group.receive(attr.Sys)
	for try := 1; ; try++ {
		proc, err := spawnProcess(path, argv, attr, spec.DieWithUs)
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
