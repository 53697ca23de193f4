package process

import (
	"bytes"
	"errors"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// BootID returns what tells this boot of the machine from any other; empty when the system does not say.
var BootID = sync.OnceValue(func() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
})

// sealDescriptors keeps descriptors that this process inherited from careless parents out of its children;
// those that Go opens are never inherited.
func sealDescriptors() {
	if unix.CloseRange(3, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC) != nil {
		sealDescriptorDir()
	}
}

// growPipe lets a pipe hold maxPipeBytes, which is what Linux allows an ordinary user. A program that writes
// much then runs three times as fast as with the usual 64 KiB; memory is taken only while the pipe is full.
// It is no loss when the user's share of pipe memory is used up.
func growPipe(f *os.File) {
	conn, err := f.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, maxPipeBytes) })
}

// lastingThread runs functions on a thread that lives as long as this process: the system takes the end of the
// thread that started a process for the death of its parent.
var lastingThread = sync.OnceValue(func() chan<- func() {
	calls := make(chan func())
	go func() {
		runtime.LockOSThread()
		for call := range calls {
			call()
		}
	}()
	return calls
})

// spawnProcess starts a process, and has the system kill it when this process dies if that is asked for.
func spawnProcess(path string, argv []string, attr *os.ProcAttr, dieWithUs bool) (proc *os.Process, err error) {
	if !dieWithUs {
		return os.StartProcess(path, argv, attr)
	}
	attr.Sys.Pdeathsig = unix.SIGKILL
	done := make(chan struct{})
	lastingThread() <- func() {
		defer close(done)
		proc, err = os.StartProcess(path, argv, attr)
	}
	<-done
	return proc, err
}

// awaitExit blocks until the process has ended and leaves it to be reaped later, so it returns no state.
func awaitExit(p *os.Process) ending {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, p.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if err == nil {
			return ending{}
		}
		if !errors.Is(err, unix.EINTR) {
			return ending{err: err}
		}
	}
}

// procStat is what /proc tells about one process.
type procStat struct {
	state          byte
	parent         int
	group, session int
	threads        int
	startTicks     uint64
}

// alive is false for what only waits to be reaped. A process whose first thread has ended looks like a
// zombie while its other threads run.
func (s procStat) alive() bool {
	return s.state != 'X' && (s.state != 'Z' || s.threads > 1)
}

// readStat reads /proc/<pid>/stat; false when there is no such process.
func readStat(pid int) (procStat, bool) {
	var buf [1024]byte // the name has at most 64 bytes and the numbers are 50
	path := append(strconv.AppendInt([]byte("/proc/"), int64(pid), 10), "/stat"...)
	raw, ok := readOnce(string(path), buf[:])
	if !ok {
		return procStat{}, false
	}
	return parseStat(raw)
}

// readOnce reads the beginning of a file of the system into buf. A look at the processes reads so many of them
// that it is done with as few calls as possible.
func readOnce(path string, buf []byte) ([]byte, bool) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, false
	}
	defer func() { _ = unix.Close(fd) }()
	for {
		n, err := unix.Read(fd, buf)
		if !errors.Is(err, unix.EINTR) {
			return buf[:max(n, 0)], err == nil
		}
	}
}

// parseStat reads the fields after the program's name, which may itself hold spaces and parentheses.
func parseStat(raw []byte) (procStat, bool) {
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	const firstField = 3 // the number, in proc(5), of fields[0]
	if len(fields) <= 22-firstField {
		return procStat{}, false
	}
	number := func(field int) int {
		n, _ := strconv.Atoi(fields[field-firstField])
		return n
	}
	ticks, err := strconv.ParseUint(fields[22-firstField], 10, 64)
	if err != nil {
		return procStat{}, false
	}
	return procStat{
		state: fields[0][0], parent: number(4), group: number(5), session: number(6), threads: number(20), startTicks: ticks,
	}, true
}

// startTime names the boot and the clock tick in which the process started.
func (s procStat) startTime() string { return BootID() + "/" + strconv.FormatUint(s.startTicks, 10) }
