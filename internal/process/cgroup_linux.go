package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxGroupFailures is after how many failures in succession no more groups are made: the kernel, or what
// confines this process, does not let programs start in one.
const maxGroupFailures = 3

// cgroupPrefix begins the names of the control groups that this package makes.
const cgroupPrefix = "errand-"

// groupSerial numbers the groups of this process, whichever [Cgroups] makes them: they share one directory.
var groupSerial atomic.Int64

// Cgroups is a place in the tree of control groups (cgroup v2) where this process may make some. A process
// cannot leave its control group by changing its session, its parent or its environment, so with one
// everything that a program started is found. Its methods are safe for concurrent use and on a nil pointer.
type Cgroups struct {
	dir      string
	failures atomic.Int64 // in succession

	mu   sync.Mutex
	busy map[string]struct{} // groups that could not be removed yet: something that was spared lives in them
}

// FindCgroups returns the place where this process may make control groups; nil where it may not. Under
// systemd that takes a unit with `Delegate=yes`; elsewhere it is enough that the directory may be written.
// Empty groups that dead processes of ours left there are removed.
func FindCgroups() *Cgroups {
	dir := ownCgroup()
	if dir == "" || !isDelegated(dir) {
		return nil
	}
	c := &Cgroups{dir: dir}
	stale, _ := filepath.Glob(filepath.Join(dir, cgroupPrefix+"*"))
	for _, old := range stale {
		if !makerLives(filepath.Base(old)) {
			removeCgroup(old) // it fails, as it should, where something lives
		}
	}
	probe := c.create()
	if probe == nil {
		return nil
	}
	defer probe.remove()
	kind, err := os.ReadFile(filepath.Join(probe.dir, "cgroup.type"))
	if err != nil || strings.TrimSpace(string(kind)) != "domain" {
		return nil
	}
	return c
}

// makerLives reports whether the process that made a group is alive. An empty group of a living one is about
// to be used.
func makerLives(name string) bool {
	var pid int
	var started uint64
	if _, err := fmt.Sscanf(name, cgroupPrefix+"%d-%d-", &pid, &started); err != nil {
		return false
	}
	stat, there := readStat(pid)
	return there && stat.alive() && stat.startTicks == started
}

// ownCgroup returns the directory of the control group that this process is in; empty when there is none.
func ownCgroup() string {
	memberships, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return ""
	}
	return cgroupDir(string(memberships), string(mounts))
}

// cgroupDir finds the directory in the texts of /proc/self/cgroup and /proc/self/mountinfo.
func cgroupDir(memberships, mounts string) string {
	path := ""
	for line := range strings.Lines(memberships) {
		if rest, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok {
			path = rest
		}
	}
	if strings.HasPrefix(path, "/..") {
		return "" // outside of what this process sees
	}
	for line := range strings.Lines(mounts) {
		before, after, _ := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if !strings.HasPrefix(after, "cgroup2 ") || len(fields) < 5 {
			continue
		}
		below, err := filepath.Rel(fields[3], path)
		if err != nil || !filepath.IsLocal(below) {
			continue // another part of the tree is mounted there
		}
		return filepath.Join(fields[4], below)
	}
	return ""
}

// isDelegated reports whether a control group is ours to divide. systemd marks those that it has given away;
// in all others it takes itself for the only one who makes groups, also where root may write.
func isDelegated(dir string) bool {
	if _, err := os.Stat("/run/systemd/system"); errors.Is(err, fs.ErrNotExist) {
		return true
	}
	mark := make([]byte, 8)
	for _, name := range []string{"user.delegate", "trusted.delegate"} {
		if n, err := unix.Lgetxattr(dir, name, mark); err == nil && string(mark[:n]) == "1" {
			return true
		}
	}
	return false
}

// cgroup is a control group for one program and what it starts. Its methods do nothing on a nil pointer.
type cgroup struct {
	dir    string
	handle *os.File // of the directory; nil in a group that was made by an earlier process
	owner  *Cgroups // nil likewise
}

// create makes a group; nil when that is not possible.
func (c *Cgroups) create() *cgroup {
	if c == nil || c.failures.Load() >= maxGroupFailures {
		return nil
	}
	c.retryRemovals()
	// Unique while the machine is up: no other process has this number and this start time.
	stat, _ := readStat(os.Getpid())
	name := fmt.Sprintf("%s%d-%d-%d", cgroupPrefix, os.Getpid(), stat.startTicks, groupSerial.Add(1))
	g := &cgroup{dir: filepath.Join(c.dir, name), owner: c}
	if os.Mkdir(g.dir, 0o700) != nil {
		return nil
	}
	handle, err := os.Open(g.dir)
	if err != nil {
		_ = os.Remove(g.dir)
		return nil
	}
	g.handle = handle
	return g
}

// started notes that a program could be started in a group, or only without one.
func (c *Cgroups) started(inGroup bool) {
	if inGroup {
		c.failures.Store(0)
		return
	}
	c.failures.Add(1)
}

func (c *Cgroups) retryRemovals() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for dir := range c.busy {
		if removeCgroup(dir) {
			delete(c.busy, dir)
		}
	}
}

func (c *Cgroups) keepTrying(dir string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy == nil {
		c.busy = map[string]struct{}{}
	}
	c.busy[dir] = struct{}{}
}

// openCgroup returns a group that an earlier process of ours made; nil when it is gone.
func openCgroup(dir string) *cgroup {
	if !filepath.IsAbs(dir) || !strings.HasPrefix(filepath.Base(dir), cgroupPrefix) {
		return nil
	}
	if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err != nil {
		return nil
	}
	return &cgroup{dir: dir}
}

func (g *cgroup) path() string {
	if g == nil {
		return ""
	}
	return g.dir
}

// receive makes a process start in the group, with everything it ever starts.
func (g *cgroup) receive(attr *syscall.SysProcAttr) {
	if g != nil {
		attr.UseCgroupFD, attr.CgroupFD = true, int(g.handle.Fd())
	}
}

// members returns the numbers of the processes in the group and in groups that were made below it.
func (g *cgroup) members() map[int]struct{} {
	if g == nil {
		return nil
	}
	found := map[int]struct{}{}
	_ = filepath.WalkDir(g.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return nil //nolint:nilerr // a group that has just gone holds nothing
		}
		list, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		for line := range strings.FieldsSeq(string(list)) {
			if pid, err := strconv.Atoi(line); err == nil && pid > 0 {
				found[pid] = struct{}{}
			}
		}
		return nil
	})
	return found
}

// populated reports whether anything lives in the group or below it.
func (g *cgroup) populated() bool {
	if g == nil {
		return false
	}
	events, _ := os.ReadFile(filepath.Join(g.dir, "cgroup.events"))
	return strings.Contains(string(events), "populated 1")
}

// kill kills everything in the group at once. Kernels before 5.14 cannot; there the members are killed one by
// one, as without a group.
func (g *cgroup) kill() {
	if g != nil {
		_ = os.WriteFile(filepath.Join(g.dir, "cgroup.kill"), []byte("1"), 0)
	}
}

// remove removes the group, now or, when something that was spared lives in it, after that has ended.
func (g *cgroup) remove() {
	if g == nil {
		return
	}
	if g.handle != nil {
		g.handle.Close()
	}
	if !removeCgroup(g.dir) && g.owner != nil {
		g.owner.keepTrying(g.dir)
	}
}

// removeCgroup removes a group with the groups below it and reports whether it is gone.
func removeCgroup(dir string) bool {
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		if entry.IsDir() {
			removeCgroup(filepath.Join(dir, entry.Name()))
		}
	}
	err := unix.Rmdir(dir)
	return err == nil || errors.Is(err, unix.ENOENT)
}
