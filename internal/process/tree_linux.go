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
	"time"

	"golang.org/x/sys/unix"
)

// killRounds bounds how often one kill looks for processes that were started while it killed.
const killRounds = 20

// member is a live process of a tree.
type member struct {
	pid int
	procStat
}

// tree is a main process with everything that came from it: what is in its control group, in its session or
// in a group of it, what bears its marker, and the descendants of all these. One that was seen once stays a
// member, whatever it does about its session and its parent. It is not safe for concurrent use.
type tree struct {
	// id is the number of the main process, its session and its first group; 0 when that is not known.
	id int
	// started is when the main process started, in clock ticks after the boot. Nothing older is of its making.
	started uint64
	// spawned is when we started the main process; zero when an earlier process of ours did.
	spawned time.Time
	marker  string
	group   *cgroup
	seen    map[int]uint64 // start times of members, by number
}

// openTree returns the tree that a process just started by us leads, and what identifies it.
func openTree(proc *os.Process, spec Spec, group *cgroup) (*tree, Info) {
	t := &tree{id: proc.Pid, spawned: time.Now(), marker: spec.Marker, group: group}
	info := Info{PID: proc.Pid, PGID: proc.Pid, Cgroup: group.path()}
	// It is our child and not reaped, so it is there.
	if stat, ok := readStat(proc.Pid); ok {
		t.started = stat.startTicks
		info.StartTime = stat.startTime()
	}
	return t, info
}

// findTree returns the tree of an earlier process of ours, by what is known of its main process and by its
// marker; false when nothing can be found by either.
func findTree(known *Info, marker string) (*tree, bool) {
	t := &tree{marker: marker}
	if known != nil {
		t.adopt(*known)
	}
	return t, t.id != 0 || t.group != nil || marker != ""
}

// adopt takes over what identifies a main process if it can only be that one: same boot, and its number not
// taken by a process that started at another time. The main process may be gone; its number is not given away
// while anything of its session lives, so what carries the number as session then is the rest of the tree.
func (t *tree) adopt(info Info) {
	boot, ticks, ok := strings.Cut(info.StartTime, "/")
	if !ok || boot != BootID() || info.PGID <= 1 || info.PID != info.PGID {
		return
	}
	started, err := strconv.ParseUint(ticks, 10, 64)
	if err != nil {
		return
	}
	t.started = started
	t.group = openCgroup(info.Cgroup)
	if stat, there := readStat(info.PID); there && stat.startTicks != started {
		return
	}
	for pid := range allProcesses() {
		if session, err := unix.Getsid(pid); err != nil || session != info.PGID {
			continue
		}
		if stat, there := readStat(pid); there && stat.startTicks < started {
			return // older than the main process: not of its making
		}
	}
	t.id = info.PGID
}

// count returns how many processes of the tree are alive; those that only wait to be reaped are not.
func (t *tree) count() int {
	if t.isGone() {
		return 0
	}
	return len(t.members())
}

// A tree that is not older than youngTree, and after whose main process the system gave away no more than
// fewNumbers process numbers, is looked for among these.
const (
	youngTree  = rememberSessions
	fewNumbers = 1000
)

// isGone reports that certainly nothing of the tree is alive, without a look at every process of the machine, for
// most programs end soon and leave nothing behind. The system gives numbers away in ascending order, so while it has
// not begun again, whatever came from the main process has one of those since. Where they are not few, it has begun
// again, or one of them may be a member, which a mere thread of some process may be taken for as well, it is for
// [tree.members] to say.
func (t *tree) isGone() bool {
	if t.id == 0 || len(t.seen) > 0 || time.Since(t.spawned) > youngTree {
		return false
	}
	if last := lastPID(); last < t.id || last-t.id > fewNumbers {
		return false
	}
	l := newLookout(t, nil)
	return l.newcomers(t.id-1) && len(l.found) == 0 && !t.group.populated()
}

// terminate asks every process to end, and wakes the suspended ones, which would not see the request.
func (t *tree) terminate() { t.signal(syscall.SIGTERM, syscall.SIGCONT) }

// kill kills every process, and at once what these started in the meantime. In a control group that is one
// atomic step; without one, what forks in a loop and leaves its group each time is hunted for some rounds.
func (t *tree) kill() {
	t.group.kill()
	hit := map[int]uint64{}
	for range killRounds {
		fresh := false
		for _, m := range t.signal(syscall.SIGKILL) {
			fresh = fresh || hit[m.pid] != m.startTicks
			hit[m.pid] = m.startTicks
		}
		if !fresh {
			return
		}
	}
}

// signal reaches the members outside the main group one by one, and the group atomically, so that nothing in
// it can fork away from it. It looks first: what loses its parent by the signal may be known by that alone. It
// returns the members.
func (t *tree) signal(signals ...syscall.Signal) []member {
	members := t.members()
	if t.id > 1 { // 0 and 1 would mean our own group and everyone
		for _, sig := range signals {
			_ = syscall.Kill(-t.id, sig)
		}
	}
	for _, m := range members {
		if t.id == 0 || m.group != t.id {
			signalIf(m, signals...)
		}
	}
	return members
}

// signalIf signals a process that is still the one that was found. The handle is taken first and the process
// looked at after that, so that a number which was given away in between is not hit.
func signalIf(m member, signals ...syscall.Signal) {
	if m == unseen {
		return
	}
	proc, err := os.FindProcess(m.pid)
	if err != nil {
		return
	}
	defer func() { _ = proc.Release() }()
	if stat, ok := readStat(m.pid); !ok || stat.startTicks != m.startTicks {
		return
	}
	for _, sig := range signals {
		_ = proc.Signal(sig)
	}
}

func (t *tree) close() { t.group.remove() }

// groupLooks bounds how often the members of a control group are listed that has some and shows none.
const groupLooks = 8

// unseen stands for members of a control group that change too quickly to be listed.
var unseen = member{}

// members returns the live processes of the tree.
func (t *tree) members() []member {
	for try := 1; ; try++ {
		found := t.look()
		if len(found) > 0 || !t.group.populated() {
			return found
		}
		if try == groupLooks {
			return []member{unseen}
		}
	}
}

// look lists the live processes of the tree.
func (t *tree) look() []member {
	l := newLookout(t, t.group.members())
	l.all()
	for grown := true; grown; {
		grown = false
		for pid, stat := range l.others {
			if _, ours := l.found[stat.parent]; ours {
				l.found[pid], grown = stat, true
				delete(l.others, pid)
			}
		}
	}
	t.seen = make(map[int]uint64, len(l.found))
	members := make([]member, 0, len(l.found))
	for pid, stat := range l.found {
		t.seen[pid] = stat.startTicks
		members = append(members, member{pid, stat})
	}
	return members
}

// lookout is one look at the processes of the machine.
type lookout struct {
	tree    *tree
	grouped map[int]struct{}
	// young remembers by session whether it is not older than the main process. The system's own threads have
	// the session 0.
	young  map[int]bool
	found  map[int]procStat // members
	others map[int]procStat // those that may be descendants of members
}

func newLookout(t *tree, grouped map[int]struct{}) *lookout {
	return &lookout{tree: t, grouped: grouped, young: map[int]bool{0: false}, found: map[int]procStat{}, others: map[int]procStat{}}
}

// maxNewcomers bounds how many processes that were started during a look are looked at.
const maxNewcomers = 4096

// all looks at every process. That is not atomic: what forks and ends in a loop may be gone when it is its
// turn, while its child was not there yet when the list was made. So the numbers that the system gave away
// meanwhile are looked at too, until there are no more; that is quicker than anything can fork.
func (l *lookout) all() {
	last := lastPID()
	for pid := range allProcesses() {
		l.consider(pid)
	}
	l.newcomers(last)
}

// newcomers looks at the numbers that were given away after last, and are while it looks. It reports whether it has
// seen all of them.
func (l *lookout) newcomers(last int) bool {
	ascending := true
	for budget := maxNewcomers; budget > 0; {
		now := lastPID()
		if now == last {
			return ascending
		}
		if now < last {
			last, ascending = 0, false // the numbers began again
		}
		for last < now && budget > 0 {
			last++
			budget--
			l.consider(last)
		}
	}
	return false
}

// consider sorts one process in. All that have an older session are passed over at the price of one cheap
// call, which is what makes a look after every program affordable: a process can only move to a new session.
func (l *lookout) consider(pid int) {
	if pid <= 1 || pid == os.Getpid() {
		return
	}
	_, grouped := l.grouped[pid]
	if !grouped && !l.mayHold(pid) {
		return
	}
	stat, ok := readStat(pid)
	switch {
	case !ok || !stat.alive():
	case grouped:
		l.found[pid] = stat
	case stat.startTicks < l.tree.started:
	case l.tree.claims(pid, stat):
		l.found[pid] = stat
	default:
		l.others[pid] = stat
	}
}

// mayHold reports whether the session of a process is young enough for a member.
func (l *lookout) mayHold(pid int) bool {
	session, err := unix.Getsid(pid)
	if err != nil {
		return !errors.Is(err, unix.ESRCH)
	}
	young, known := l.young[session]
	if !known {
		started, there := sessionStarts.of(session)
		young = session == l.tree.id || !there || started >= l.tree.started
		l.young[session] = young
	}
	return young
}

// rememberSessions is how long the start of a session's leader is remembered. In that time no system gives
// away all its process numbers, so the number still means the same session.
const rememberSessions = time.Second

// sessionStarts spares programs that follow each other quickly from reading the same over and over.
var sessionStarts startCache

// startCache remembers when the leaders of sessions started. The zero value is empty.
type startCache struct {
	mu     sync.Mutex
	since  time.Time
	starts map[int]uint64
}

// of returns when the leader of a session started, in clock ticks; false when it is gone.
func (c *startCache) of(session int) (uint64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.since) > rememberSessions {
		c.since, c.starts = time.Now(), map[int]uint64{}
	}
	if started, ok := c.starts[session]; ok {
		return started, true
	}
	leader, there := readStat(session)
	if there {
		c.starts[session] = leader.startTicks
	}
	return leader.startTicks, there
}

// lastPID returns the process number that the system gave away last; 0 when it does not say.
func lastPID() int {
	var buf [128]byte
	load, ok := readOnce("/proc/loadavg", buf[:])
	if !ok {
		return 0
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(load[bytes.LastIndexByte(load, ' ')+1:])))
	return n
}

// claims reports whether a process shows by itself that it belongs to the tree.
func (t *tree) claims(pid int, stat procStat) bool {
	if t.id != 0 && (stat.session == t.id || pid == t.id) {
		return true
	}
	if started, seen := t.seen[pid]; seen && started == stat.startTicks {
		return true
	}
	return t.marker != "" && hasVariable(pid, t.marker)
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

// The environment of a process is empty for a moment while it executes a program, so an empty one is read
// again, environTries times.
const (
	environTries = 5
	environPause = 200 * time.Microsecond
)

// hasVariable reports whether a process was started with this NAME=value in its environment. That of other
// users' processes cannot be read, nor that of a process which forbids it.
func hasVariable(pid int, variable string) bool {
	path := "/proc/" + strconv.Itoa(pid) + "/environ"
	environ, err := os.ReadFile(path)
	for try := 1; err == nil && len(environ) == 0 && try < environTries; try++ {
		time.Sleep(environPause)
		environ, err = os.ReadFile(path)
	}
	for entry := range bytes.SplitSeq(environ, []byte{0}) {
		if string(entry) == variable {
			return true
		}
	}
	return false
}
