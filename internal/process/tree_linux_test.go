package process_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/errandhq/errand/internal/process"
)

var platformHelpers = map[string]func(args []string){
	"adopter":   helperAdopter,
	"secretive": helperSecretive,
	"threaded":  helperThreaded,
}

// marked gives a program a marker that no other program has.
func marked(t *testing.T, s process.Spec) process.Spec {
	t.Helper()
	s.Marker = fmt.Sprintf("PROCESS_TEST_MARK=%s-%d", t.Name(), os.Getpid())
	s.Env = append(s.Env, s.Marker)
	return s
}

// cgroups returns where the test may make control groups.
func cgroups(t *testing.T) *process.Cgroups {
	t.Helper()
	c := process.FindCgroups()
	if c == nil {
		t.Skip("this process may make no control groups: it needs a delegated cgroup v2")
	}
	return c
}

// What leaves the session is found after every end, by its marker, by its parents, or by its control group.
func TestSweepFindsWhatLeftTheSession(t *testing.T) {
	t.Parallel()
	const sleep = "sh -c 'echo $$ >>pids; exec sleep 600' &"
	tests := []struct {
		name, script string
		stop         bool // when the file ready is there
		cgroup       bool
		ignoresTERM  bool
	}{
		{name: "a daemon, after a clean end", script: "setsid " + sleep + " while [ ! -s pids ]; do sleep 0.01; done"},
		{name: "a daemon that ignores TERM", script: "trap '' TERM; setsid " + sleep + " while [ ! -s pids ]; do sleep 0.01; done", ignoresTERM: true},
		{name: "a daemon, after a failure", script: "setsid " + sleep + " while [ ! -s pids ]; do sleep 0.01; done; exit 3"},
		{name: "a daemon, when the program is stopped", script: "setsid " + sleep + " while [ ! -s pids ]; do sleep 0.01; done; touch ready; exec sleep 600", stop: true},
		{
			name:   "a child without its environment, when the program is stopped",
			script: "setsid env -i " + sleep + " while [ ! -s pids ]; do sleep 0.01; done; touch ready; wait", stop: true,
		},
		{
			name:   "a grandchild without its environment whose parent ends on TERM",
			script: "setsid sh -c 'trap \"\" TERM; setsid env -i " + strings.ReplaceAll(sleep, "'", `"`) + " trap - TERM; while [ ! -s pids ]; do sleep 0.01; done; touch ready; wait' & wait",
			stop:   true, ignoresTERM: true,
		},
		{name: "a daemon without its environment, in a control group", script: "setsid env -i " + sleep + " while [ ! -s pids ]; do sleep 0.01; done", cgroup: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := marked(t, spec(t, "sh", "-c", strings.ReplaceAll(tt.script, "echo $$", `echo "$$"`)))
			s.Grace = time.Minute
			if tt.ignoresTERM {
				s.Grace = 100 * time.Millisecond
			}
			if tt.cgroup {
				s.Cgroups = cgroups(t)
			}
			p := start(t, s)
			if tt.stop {
				eventually(t, "the program is ready", exists(filepath.Join(s.Dir, "ready")))
				p.Stop(process.StopCancelled)
			}
			r := p.Wait()
			if r.Survivors != 0 || !tt.stop && r.Leftovers != 1 {
				t.Errorf("leftovers %d, survivors %d, stderr %q", r.Leftovers, r.Survivors, r.Stderr.Text)
			}
			list, err := os.ReadFile(filepath.Join(s.Dir, "pids"))
			if err != nil {
				t.Fatal(err)
			}
			for _, pid := range pids(t, string(list)) {
				if !gone(pid)() {
					t.Errorf("%d is alive after the end", pid)
				}
			}
			if dir := p.Info().Cgroup; tt.cgroup && (dir == "" || exists(dir)()) {
				t.Errorf("the control group %q is not removed", dir)
			}
		})
	}
}

// helperThreaded writes its number into the file pids when it has several threads, and stays.
func helperThreaded([]string) {
	for range 4 {
		go func() {
			runtime.LockOSThread()
			select {}
		}()
	}
	for threads := 0; threads < 5; {
		list, _ := os.ReadDir("/proc/self/task")
		threads = len(list)
	}
	if err := os.WriteFile("pids", fmt.Appendln(nil, os.Getpid()), 0o600); err != nil {
		panic(err)
	}
	_ = unix.Pause()
}

// The threads of a process have numbers like processes, and are none: what is left running counts once, and only
// that. A program that ends at once leaves nothing, whatever else is started meanwhile.
func TestSweepCountsProcessesOnly(t *testing.T) {
	t.Parallel()
	s := marked(t, helperSpec(t, "threaded"))
	s.Program, s.Args = "sh", []string{"-c", `setsid "$0" & while [ ! -s pids ]; do sleep 0.01; done`, s.Program}
	p := start(t, s)
	for !isDone(p) {
		if r := run(t, spec(t, "true")); r.Leftovers != 0 || r.Survivors != 0 {
			t.Fatalf("a program that leaves nothing: leftovers %d, survivors %d", r.Leftovers, r.Survivors)
		}
	}
	if r := p.Wait(); r.Leftovers != 1 || r.Survivors != 0 {
		t.Errorf("leftovers %d, survivors %d, stderr %q", r.Leftovers, r.Survivors, r.Stderr.Text)
	}
}

func isDone(p *process.Process) bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

// Strangers that start meanwhile, in sessions of their own, are left alone.
func TestSweepSparesStrangers(t *testing.T) {
	t.Parallel()
	s := marked(t, spec(t, "sh", "-c", "while [ ! -e go ]; do sleep 0.01; done; setsid sleep 600 & while ! kill -0 $!; do :; done"))
	p := start(t, s)
	other := spec(t, "sleep", "600")
	other.Env = append(other.Env, s.Marker+"-not")
	stranger := start(t, other)
	writeFile(t, filepath.Join(s.Dir, "go"), "", 0o644)
	if r := p.Wait(); r.Leftovers > 1 || r.Survivors != 0 {
		t.Errorf("leftovers %d, survivors %d", r.Leftovers, r.Survivors)
	}
	if gone(stranger.Info().PID)() {
		t.Error("the stranger was ended")
	}
}

// Each hop starts the next one and ends, so that whoever was listed is gone when the signal comes.
func TestForkingLoopIsEnded(t *testing.T) {
	t.Parallel()
	const hop = `trap "" TERM; n=$(($1 + 1)); [ $n -lt 100000 ] || exit; echo >>count; %s sh "$0" $n & exit`
	tests := []struct {
		name, leave string
		cgroup      bool
	}{
		{"in its group", "", false},
		{"in a session of its own each time", "setsid", false},
		{"in a control group, without its environment", "setsid env -i PATH=\"$PATH\"", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := spec(t, "sh", "-c", `sh ./hop 0 & while [ ! -s count ]; do :; done`)
			if tt.cgroup {
				s.Cgroups = cgroups(t)
			}
			s = marked(t, s)
			writeFile(t, filepath.Join(s.Dir, "hop"), fmt.Sprintf(hop, tt.leave), 0o644)
			if r := run(t, s); r.Survivors != 0 || *r.ExitCode != 0 {
				t.Errorf("exit code %d, leftovers %d, survivors %d, stderr %q", *r.ExitCode, r.Leftovers, r.Survivors, r.Stderr.Text)
			}
			count := func() int {
				n, _ := os.ReadFile(filepath.Join(s.Dir, "count"))
				return len(n)
			}
			before := count()
			if n, err := process.KillLeftover(nil, s.Marker, 0); n != 0 || err != nil {
				t.Errorf("%d processes were alive, %v", n, err)
			}
			if after := count(); after != before || before == 0 {
				t.Errorf("the loop went on from %d to %d", before, after)
			}
		})
	}
}

func TestControlGroupOfAKeptLeftover(t *testing.T) {
	t.Parallel()
	groups := cgroups(t)
	s := spec(t, "sh", "-c", "setsid env -i sleep 600 & echo $!")
	s.Cgroups, s.KeepLeftovers = groups, true
	p := start(t, s)
	r := p.Wait()
	dir := p.Info().Cgroup
	if r.Leftovers != 1 || !exists(dir)() {
		t.Fatalf("leftovers %d, control group %q", r.Leftovers, dir)
	}
	if n, err := killLeftover(p, time.Minute); n != 1 || err != nil {
		t.Errorf("KillLeftover = %d, %v, want 1", n, err)
	}
	eventually(t, "the control group is removed", func() bool { return !exists(dir)() })
}

func TestFindCgroupsRemovesWhatDeadProcessesLeft(t *testing.T) {
	t.Parallel()
	s := spec(t, "sleep", "600")
	s.Cgroups = cgroups(t)
	alive := start(t, s).Info().Cgroup
	// Of a process that is gone, and of this one, which is about to use it.
	stale := filepath.Join(filepath.Dir(alive), "errand-999999999-1-1")
	fresh := alive + "00"
	for _, dir := range []string{stale, fresh} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Remove(dir) })
	}
	process.FindCgroups()
	if exists(stale)() || !exists(fresh)() || !exists(alive)() {
		t.Errorf("stale there: %v, fresh there: %v, the used one there: %v", exists(stale)(), exists(fresh)(), exists(alive)())
	}
}

func TestCgroupDir(t *testing.T) {
	t.Parallel()
	const unified = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
	const hybrid = "31 23 0:27 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n32 23 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
	tests := []struct{ name, memberships, mounts, want string }{
		{"a service", "0::/user.slice/a b.service\n", unified, "/sys/fs/cgroup/user.slice/a b.service"},
		{"the root", "0::/\n", unified, "/sys/fs/cgroup"},
		{"beside version 1", "9:pids:/x\n0::/y\n", hybrid, "/sys/fs/cgroup/unified/y"},
		{"version 1 alone", "9:pids:/x\n", hybrid[:strings.Index(hybrid, "\n")+1], ""},
		{"a part of the tree is mounted", "0::/a/b/c\n", strings.Replace(unified, " / ", " /a/b ", 1), "/sys/fs/cgroup/c"},
		{"another part is mounted", "0::/a/x\n", strings.Replace(unified, " / ", " /a/b ", 1), ""},
		{"outside the namespace", "0::/../other\n", unified, ""},
		{"no memberships", "", unified, "/sys/fs/cgroup"},
	}
	for _, tt := range tests {
		if tt.memberships == "" {
			tt.want = ""
		}
		if got := process.CgroupDir(tt.memberships, tt.mounts); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// helperAdopter plays a worker that adopts orphans. Its programs leave some, others are waited for by somebody
// else in the worker, one of them late. It writes what went wrong and then, for each line that it reads, the
// numbers of its dead children.
func helperAdopter([]string) {
	if err := process.AdoptOrphans(neverEnds{}); err != nil {
		fmt.Println(err)
	}
	env := []string{"PATH=" + os.Getenv("PATH")}
	for i := range 20 {
		p, err := process.Start(process.Spec{
			Program: "sh", Args: []string{"-c", "(sleep 0.05 & exec sh -c 'exit 9') & exit " + strconv.Itoa(i)},
			Dir: "/", Env: env, MaxOutputBytes: 100, KeepLeftovers: true,
		})
		if err != nil {
			fmt.Println(err)
			continue
		}
		if err := exec.Command("true").Run(); err != nil {
			fmt.Println("somebody else's child:", err)
		}
		if r := p.Wait(); r.ExitCode == nil || *r.ExitCode != i {
			fmt.Printf("program %d: %+v\n", i, r)
		}
	}
	helperHoldsDead(env)
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		fmt.Println(deadChildren())
	}
}

// helperHoldsDead has an orphan die while a program of ours is dead but not reaped, because the rest of its
// tree still has its grace period.
func helperHoldsDead(env []string) {
	orphan, err := process.Start(process.Spec{
		Program: "sh", Args: []string{"-c", "sleep 0.5 & exit"}, Dir: "/", Env: env, MaxOutputBytes: 100, KeepLeftovers: true,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	orphan.Wait()
	dir, err := os.MkdirTemp("", "adopter")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	held, err := process.Start(process.Spec{
		Program: "sh", Args: []string{"-c", "(trap '' TERM; touch ready; exec sleep 2.8) & exec sleep 600"}, Dir: dir, Env: env,
		MaxOutputBytes: 100, Grace: time.Minute,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for !exists(filepath.Join(dir, "ready"))() {
		time.Sleep(time.Millisecond)
	}
	held.Stop(process.StopCancelled)
	if r := held.Wait(); r.Signal != "SIGTERM" {
		fmt.Printf("the status of a program was taken: %+v\n", r)
	}
}

// neverEnds is a context that lasts as long as the process.
type neverEnds struct{}

func (neverEnds) Deadline() (time.Time, bool) { return time.Time{}, false }
func (neverEnds) Done() <-chan struct{}       { return nil }
func (neverEnds) Err() error                  { return nil }
func (neverEnds) Value(any) any               { return nil }

func deadChildren() []int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	dead := []int{}
	for _, path := range stats {
		raw, _ := os.ReadFile(path)
		fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
		if len(fields) > 1 && fields[0] == "Z" && fields[1] == strconv.Itoa(os.Getpid()) {
			pid, _ := strconv.Atoi(strings.Fields(string(raw))[0])
			dead = append(dead, pid)
		}
	}
	return dead
}

func TestOrphansAreReapedAndNobodyIsRobbed(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	adopter := exec.Command(exe)
	adopter.Env = append(os.Environ(), helperVariable+"=adopter")
	in, err := adopter.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := adopter.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := adopter.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = adopter.Wait()
	})
	answers := bufio.NewScanner(out)
	for answers.Scan() && answers.Text() != "ready" {
		t.Error(answers.Text())
	}
	eventually(t, "no zombie stays", func() bool {
		if _, err := io.WriteString(in, "\n"); err != nil || !answers.Scan() {
			t.Fatalf("the adopter is gone: %v", err)
		}
		return answers.Text() == "[]"
	})
}

// helperSecretive tells whether a program of the same user can read its environment, before and after that
// was forbidden, and whether that program can itself be inspected.
func helperSecretive([]string) {
	environ := fmt.Sprintf("/proc/%d/environ", os.Getpid())
	readable := func() bool { return exec.Command("cat", environ).Run() == nil }
	before := readable()
	if err := process.ForbidInspection(); err != nil {
		panic(err)
	}
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err != nil {
		panic(err)
	}
	child := exec.Command("sh", "-c", "cat /proc/$$/environ >/dev/null").Run() == nil
	_ = json.NewEncoder(os.Stdout).Encode(map[string]bool{
		"before": before, "after": readable(), "forbidden": dumpable == 0, "child": child,
	})
}

func TestForbidInspection(t *testing.T) {
	t.Parallel()
	secretive := exec.Command("/proc/self/exe")
	secretive.Env = []string{"PATH=" + os.Getenv("PATH"), helperVariable + "=secretive"}
	if os.Getuid() == 0 {
		// The administrator may inspect everything, so somebody else has to try.
		exe, err := os.Open("/proc/self/exe")
		if err != nil {
			t.Fatal(err)
		}
		defer exe.Close()
		dir := t.TempDir()
		for _, open := range []string{dir, filepath.Dir(dir)} {
			if err := os.Chmod(open, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		program := filepath.Join(dir, "program")
		copyFile(t, exe, program)
		secretive.Path = program
		secretive.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		secretive.Dir = "/"
	}
	var out []byte
	eventually(t, "the program can be executed, because no child of another test holds it open", func() bool {
		again := exec.Cmd{Path: secretive.Path, Args: secretive.Args, Env: secretive.Env, Dir: secretive.Dir, SysProcAttr: secretive.SysProcAttr}
		var err error
		if out, err = again.Output(); err != nil && !errors.Is(err, syscall.ETXTBSY) {
			t.Fatalf("%v, %s", err, out)
		}
		return err == nil
	})
	if want := `{"after":false,"before":true,"child":true,"forbidden":true}` + "\n"; string(out) != want {
		t.Errorf("got %s, want %s", out, want)
	}
}

func copyFile(t *testing.T, from io.Reader, path string) {
	t.Helper()
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(to, from); err != nil {
		t.Fatal(err)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
}
