package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

const pathSeparators = `/\:`

// BootID returns what tells this boot of the machine from any other: the time of the boot, to the minute,
// since clocks are adjusted while a machine runs.
var BootID = sync.OnceValue(func() string {
	return time.Now().Add(-windows.DurationSinceBoot()).UTC().Round(time.Minute).Format(time.RFC3339)
})

// startProcess starts the program at path in a console group of its own, so that it can be interrupted apart
// from us.
func startProcess(path string, spec Spec, files []*os.File, _ *cgroup) (*os.Process, error) {
	return os.StartProcess(path, append([]string{spec.Program}, spec.Args...), &os.ProcAttr{
		Dir:   spec.Dir,
		Env:   append([]string{}, spec.Env...), // never nil, which would mean our own environment
		Files: files,
		Sys:   &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP, HideWindow: true},
	})
}

// explainStart finds out what a failed start was about.
func explainStart(path string, spec Spec, cause error) *StartError {
	var startErr *StartError
	if errors.As(checkDir(spec.Dir), &startErr) {
		return startErr
	}
	switch {
	case errors.Is(cause, windows.ERROR_FILENAME_EXCED_RANGE):
		return startErrorf(ArgumentTooLong, cause, "the arguments together are longer than this machine can pass to a program: use stdin or a file")
	case errors.Is(cause, windows.ERROR_BAD_EXE_FORMAT):
		return explainFormat(path, cause)
	case errors.Is(cause, fs.ErrNotExist):
		return explainMissing(path, cause)
	case errors.Is(cause, fs.ErrPermission):
		return explainDenied(path, cause)
	}
	return startErrorf(SpawnFailed, cause, "%s could not be started: %s", path, plainCause(cause))
}

// executableFile returns path, or path with one of the extensions that mean a program, if that is a file.
func executableFile(path string) (string, error) {
	candidates := []string{path}
	if filepath.Ext(path) == "" {
		candidates = nil
		for _, ext := range []string{".exe", ".com", ".bat", ".cmd"} {
			candidates = append(candidates, path+ext)
		}
	}
	var first error
	for _, candidate := range candidates {
		info, err := os.Stat(candidate)
		if err == nil && info.IsDir() {
			err = errIsDirectory
		}
		if err == nil {
			return candidate, nil
		}
		if first == nil {
			first = err
		}
	}
	return "", first
}

// mayExecute leaves the question to the system, which asks access lists when the program starts.
func mayExecute(string) error { return nil }

func isNotDirectory(err error) bool { return errors.Is(err, windows.ERROR_PATH_NOT_FOUND) }

// readAvailable is not reached: reading a pipe cannot be interrupted here.
func readAvailable(*os.File, []byte) int { return 0 }

func exitOf(state *os.ProcessState) (*int, string) {
	code := state.ExitCode()
	return &code, ""
}

// tree is the job object that holds a process and everything it starts; 0 where none could be made.
type tree struct {
	pid int
	job windows.Handle
}

// openTree puts a process just started by us into a job object and returns what identifies it.
func openTree(proc *os.Process, _ Spec, _ *cgroup) (*tree, Info) {
	t := &tree{pid: proc.Pid}
	if job, err := windows.CreateJobObject(nil, nil); err == nil {
		err = proc.WithHandle(func(handle uintptr) {
			if windows.AssignProcessToJobObject(job, windows.Handle(handle)) == nil {
				t.job = job
			}
		})
		if err != nil || t.job == 0 {
			_ = windows.CloseHandle(job)
		}
	}
	return t, Info{PID: proc.Pid, PGID: proc.Pid, StartTime: startTime(proc.Pid)}
}

// jobAccounting is JOBOBJECT_BASIC_ACCOUNTING_INFORMATION.
type jobAccounting struct {
	totalUserTime, totalKernelTime, thisPeriodUserTime, thisPeriodKernelTime int64
	totalPageFaults, totalProcesses, activeProcesses, terminatedProcesses    uint32
}

func (t *tree) count() int {
	if t.job == 0 {
		if startTime(t.pid) == "" {
			return 0
		}
		return 1
	}
	var info jobAccounting
	const basicAccounting = 1
	err := windows.QueryInformationJobObject(t.job, basicAccounting,
		uintptr(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info)), nil)
	if err != nil {
		return 0
	}
	return int(info.activeProcesses)
}

// terminate asks console programs of the group to end; others do not hear it.
func (t *tree) terminate() {
	_ = windows.GenerateConsoleCtrlEvent(windows.CTRL_BREAK_EVENT, uint32(t.pid))
}

func (t *tree) kill() {
	if t.job != 0 {
		_ = windows.TerminateJobObject(t.job, 1)
		return
	}
	if proc, err := os.FindProcess(t.pid); err == nil {
		_ = proc.Kill()
		_ = proc.Release()
	}
}

func (t *tree) close() {
	if t.job != 0 {
		_ = windows.CloseHandle(t.job)
	}
}

// awaitExit reaps the process: its number stays taken while we hold a handle.
func awaitExit(p *os.Process) ending {
	state, err := p.Wait()
	return ending{state: state, err: err}
}

// startTime names the boot and the moment in which a running process started; empty when it is not there.
func startTime(pid int) string {
	handle, err := windows.OpenProcess(windows.PROCESS_QUERY_LIMITED_INFORMATION, false, uint32(pid))
	if err != nil {
		return ""
	}
	defer func() { _ = windows.CloseHandle(handle) }()
	var created, exited, kernel, user windows.Filetime
	err = windows.GetProcessTimes(handle, &created, &exited, &kernel, &user)
	if err != nil || exited != (windows.Filetime{}) {
		return ""
	}
	return fmt.Sprintf("%s/%d", BootID(), created.Nanoseconds())
}

// findTree returns the main process of an earlier process of ours if it still is that one. What it started
// cannot be found without its job object, which ended with its owner.
func findTree(known *Info, _ string) (*tree, bool) {
	if known == nil {
		return nil, false
	}
	info := *known
	if info.StartTime == "" || !strings.Contains(info.StartTime, "/") || startTime(info.PID) != info.StartTime {
		return nil, false
	}
	return &tree{pid: info.PID}, true
}
