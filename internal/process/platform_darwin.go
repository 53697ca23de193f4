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
// not taken by a process that started at another time.
func findTree(info Info) (*tree, bool) {
	boot, _, ok := strings.Cut(info.StartTime, "/")
	if !ok || boot != BootID() || info.PGID <= 1 || info.PID != info.PGID {
		return nil, false
	}
	if now := startTime(info.PID); now != "" && now != info.StartTime {
		return nil, false
	}
	return &tree{id: info.PGID}, true
}
