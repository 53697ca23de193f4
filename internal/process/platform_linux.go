package process

import (
	"bytes"
	"errors"
	"iter"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

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
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return procStat{}, false
	}
	return parseStat(string(raw))
}

// parseStat reads the fields after the program's name, which may itself hold spaces and parentheses.
func parseStat(raw string) (procStat, bool) {
	fields := strings.Fields(raw[strings.LastIndexByte(raw, ')')+1:])
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
		state: fields[0][0], group: number(5), session: number(6), threads: number(20), startTicks: ticks,
	}, true
}

// startTime names the boot and the clock tick in which a process started; empty when it is not there.
func startTime(pid int) string {
	stat, ok := readStat(pid)
	if !ok {
		return ""
	}
	return BootID() + "/" + strconv.FormatUint(stat.startTicks, 10)
}

// members returns the live processes of the tree: everything in its session, which includes its main group.
func (t *tree) members() []member {
	var found []member
	for pid := range allProcesses() {
		// One cheap call settles it for nearly every process of the machine.
		if session, err := unix.Getsid(pid); err == nil && session != t.id || errors.Is(err, unix.ESRCH) {
			continue
		}
		if stat, ok := readStat(pid); ok && stat.alive() && stat.session == t.id {
			found = append(found, member{pid: pid, group: stat.group})
		}
	}
	return found
}

// allProcesses yields the number of every process that there is at the moment.
func allProcesses() iter.Seq[int] {
	return func(yield func(int) bool) {
		dir, err := os.Open("/proc")
		if err != nil {
			return
		}
		names, _ := dir.Readdirnames(-1)
		dir.Close()
		for _, name := range names {
			if pid, err := strconv.Atoi(name); err == nil && !yield(pid) {
				return
			}
		}
	}
}

// signalMember signals a process that is still in the tree.
func (t *tree) signalMember(pid int, sig syscall.Signal) {
	signalIf(pid, func() bool {
		stat, ok := readStat(pid)
		return ok && stat.session == t.id
	}, sig)
}

// signalIf signals a process that is still meant. The handle is taken first and the process looked at after
// that, so that a number which was given away in between is not hit.
func signalIf(pid int, meant func() bool, signals ...syscall.Signal) {
	proc, err := os.FindProcess(pid)
	if err != nil {
		return
	}
	defer func() { _ = proc.Release() }()
	if !meant() {
		return
	}
	for _, sig := range signals {
		_ = proc.Signal(sig)
	}
}

// marked is every process that was started with this NAME=value in its environment, except ourselves.
type marked string

func (m marked) count() int {
	n := 0
	for pid := range allProcesses() {
		if m.has(pid) {
			n++
		}
	}
	return n
}

func (m marked) terminate() { m.signal(syscall.SIGTERM, syscall.SIGCONT) }

func (m marked) kill() { m.signal(syscall.SIGKILL) }

func (m marked) signal(signals ...syscall.Signal) {
	for pid := range allProcesses() {
		if m.has(pid) {
			signalIf(pid, func() bool { return m.has(pid) }, signals...)
		}
	}
}

// has reports whether a process is alive and bears the mark. The environment of other users' processes cannot
// be read, nor that of one which only waits to be reaped.
func (m marked) has(pid int) bool {
	if pid == os.Getpid() {
		return false
	}
	environ, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	for entry := range bytes.SplitSeq(environ, []byte{0}) {
		if string(entry) == string(m) {
			stat, ok := readStat(pid)
			return ok && stat.alive()
		}
	}
	return false
}

// findTree returns the tree of an earlier process of ours if it can only be that: same boot, and its number
// not taken by a process that started at another time. The main process may be gone; its number is not given
// away while anything of its session lives, so what carries the number as group or session then is the rest
// of the tree.
func findTree(info Info) (*tree, bool) {
	boot, ticks, ok := strings.Cut(info.StartTime, "/")
	if !ok || boot != BootID() || info.PGID <= 1 || info.PID != info.PGID {
		return nil, false
	}
	started, err := strconv.ParseUint(ticks, 10, 64)
	if err != nil {
		return nil, false
	}
	if stat, there := readStat(info.PID); there && stat.startTicks != started {
		return nil, false
	}
	t := &tree{id: info.PGID}
	for _, m := range t.members() {
		if stat, there := readStat(m.pid); there && stat.startTicks < started {
			return nil, false // older than the main process: not of its making
		}
	}
	return t, true
}
