package process

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// zombie is SZOMB of <sys/proc.h>.
const zombie = 5

// BootID returns what tells this boot of the machine from any other; empty when the system does not say.
var BootID = sync.OnceValue(func() string {
	id, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return ""
	}
	return id
})

// sealDescriptors keeps descriptors that this process inherited from careless parents out of its children;
// those that Go opens are never inherited.
func sealDescriptors() { sealDescriptorDir() }

// spawnProcess starts a process. The system does not end it with its parent.
func spawnProcess(path string, argv []string, attr *os.ProcAttr, _ bool) (*os.Process, error) {
	return os.StartProcess(path, argv, attr)
}

// awaitExit reaps the process: here that comes before the sweep of its group.
func awaitExit(p *os.Process) ending {
	state, err := p.Wait()
	return ending{state: state, err: err}
}

// startTime names the boot and the microsecond in which a process started; empty when it is not there.
func startTime(pid int) string {
	info, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil {
		return ""
	}
	return startTimeOf(info)
}

func startTimeOf(info *unix.KinfoProc) string {
	at := info.Proc.P_starttime
	return fmt.Sprintf("%s/%d.%06d", BootID(), at.Sec, at.Usec)
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
func openTree(proc *os.Process, _ Spec, _ *cgroup) (*tree, Info) {
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

// members returns the live processes of the main group. The system has no list by session.
func (t *tree) members() []member {
	infos, err := unix.SysctlKinfoProcSlice("kern.proc.pgrp", t.id)
	if err != nil {
		return nil
	}
	var found []member
	for i := range infos {
		if infos[i].Proc.P_stat != zombie {
			found = append(found, member{pid: int(infos[i].Proc.P_pid), group: t.id})
		}
	}
	return found
}

func (t *tree) signalMember(pid int, sig syscall.Signal) { _ = syscall.Kill(pid, sig) }

// findTree returns the tree of an earlier process of ours if it can only be that: same boot, and its number
// not taken by a process that started at another time. The environment of other processes is not shown
// reliably here, so a marker finds nothing.
func findTree(known *Info, _ string) (*tree, bool) {
	if known == nil {
		return nil, false
	}
	info := *known
	boot, _, ok := strings.Cut(info.StartTime, "/")
	if !ok || boot != BootID() || info.PGID <= 1 || info.PID != info.PGID {
		return nil, false
	}
	if now := startTime(info.PID); now != "" && now != info.StartTime {
		return nil, false
	}
	return &tree{id: info.PGID}, true
}
