package process_test

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/errandhq/errand/internal/process"
)

// state returns the state letter of a process, "" when there is none.
func state(pid int) string {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	after := string(raw[strings.LastIndexByte(string(raw), ')')+1:])
	return strings.Fields(after)[0]
}

// gone reports whether a process has ended; one that only waits for its parent to look has.
func gone(pid int) func() bool {
	return func() bool {
		s := state(pid)
		return s == "" || s == "Z" || s == "X"
	}
}

func suspended(pid int) func() bool { return func() bool { return state(pid) == "T" } }

func TestProcessLeadsItsOwnSession(t *testing.T) {
	t.Parallel()
	p := start(t, spec(t, "sleep", "600"))
	info := p.Info()
	group, err := unix.Getpgid(info.PID)
	if err != nil || group != info.PID || info.PGID != info.PID {
		t.Errorf("group %d, %v, want that of the process %d", group, err, info.PID)
	}
	if session, err := unix.Getsid(info.PID); err != nil || session != info.PID {
		t.Errorf("session %d, %v, want that of the process %d", session, err, info.PID)
	}
	if info.StartTime == "" || process.BootID() == "" {
		t.Errorf("start time %q, boot id %q", info.StartTime, process.BootID())
	}
}

func TestNoDescriptorIsInherited(t *testing.T) {
	t.Parallel()
	// As a careless parent would have left it to us: without close-on-exec.
	var leaked [2]int
	if err := syscall.Pipe(leaked[:]); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Close(leaked[0])
		_ = syscall.Close(leaked[1])
	})
	// Numbers high enough not to be taken by the helper's own runtime.
	args := make([]string, 0, 2)
	for i, fd := range leaked {
		high := 700 + i
		if err := syscall.Dup3(fd, high, 0); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Close(high) })
		args = append(args, strconv.Itoa(high))
	}
	if got := run(t, helperSpec(t, "descriptors", args...)).Stdout.Text; got != "" {
		t.Errorf("the program has descriptors of ours: %q", got)
	}
	if got := run(t, helperSpec(t, "descriptors", "0", "1", "2")).Stdout.Text; got != "0\n1\n2\n" {
		t.Errorf("standard streams: %q", got)
	}
}

// A file that is just being written cannot be executed; the writer is about to close it.
func TestProgramThatWasJustWritten(t *testing.T) {
	t.Parallel()
	s := spec(t, filepath.Join(t.TempDir(), "program"))
	writeFile(t, s.Program, "#!/bin/sh\necho ran\n", 0o755)
	busy, err := os.OpenFile(s.Program, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, func() { busy.Close() })
	if got := run(t, s).Stdout.Text; got != "ran\n" {
		t.Errorf("stdout %q", got)
	}
}

func TestLeftoverWithAConfusingNameIsFound(t *testing.T) {
	t.Parallel()
	s := spec(t, "bash", "-c", `set -m; "./a) Z 1 (b" 600 & echo $!`)
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(sleep, filepath.Join(s.Dir, "a) Z 1 (b")); err != nil {
		t.Fatal(err)
	}
	r := run(t, s)
	if r.Leftovers != 1 {
		t.Errorf("leftovers %d, stderr %q", r.Leftovers, r.Stderr.Text)
	}
	eventually(t, "it is gone", gone(pids(t, r.Stdout.Text)[0]))
}

// killedWorker starts `sh -c script` below a worker, kills the worker, and returns what identifies the program.
func killedWorker(t *testing.T, script string, environ ...string) process.Info {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	worker := exec.Command(exe, script)
	worker.Dir = t.TempDir()
	worker.Env = append(append(os.Environ(), helperVariable+"=worker"), environ...)
	out, err := worker.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var info process.Info
	if err := json.Unmarshal(line, &info); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = process.KillLeftover(&info, "", 0) })
	if err := worker.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = worker.Wait()
	return info
}

func TestKillLeftoverOfADeadWorker(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, script string
		grace        time.Duration
		ready        func(pid int) func() bool
		found        int
	}{
		{"the main process", "exec sleep 600", time.Minute, func(pid int) func() bool { return named(pid, "sleep") }, 1},
		{"one that ignores TERM", "trap '' TERM; exec sleep 600", 100 * time.Millisecond, func(pid int) func() bool { return named(pid, "sleep") }, 1},
		{"a group whose main process has ended", "sleep 600 & while kill -0 $PROCESS_TEST_WORKER 2>/dev/null; do sleep 0.01; done", time.Minute, gone, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			info := killedWorker(t, tt.script)
			eventually(t, "the program is as wanted", tt.ready(info.PID))
			n, err := process.KillLeftover(&info, "", tt.grace)
			if n != tt.found || err != nil {
				t.Errorf("KillLeftover = %d, %v, want %d", n, err, tt.found)
			}
			if n, err := process.KillLeftover(&info, "", 0); n != 0 || err != nil {
				t.Errorf("again: KillLeftover = %d, %v, want 0", n, err)
			}
		})
	}
}

func TestKillLeftoverSparesStrangers(t *testing.T) {
	t.Parallel()
	p := start(t, spec(t, "sleep", "600"))
	info := p.Info()
	boot, ticks, ok := strings.Cut(info.StartTime, "/")
	if !ok {
		t.Fatalf("start time %q", info.StartTime)
	}
	tests := map[string]process.Info{
		"a number that was given away": {PID: info.PID, PGID: info.PGID, StartTime: boot + "/1"},
		"an earlier boot":              {PID: info.PID, PGID: info.PGID, StartTime: "0000/" + ticks},
		"no start time":                {PID: info.PID, PGID: info.PGID},
		"nobody":                       {StartTime: info.StartTime},
		"init":                         {PID: 1, PGID: 1, StartTime: info.StartTime},
		"not a leader":                 {PID: info.PID, PGID: info.PGID + 1, StartTime: info.StartTime},
		"everyone":                     {PID: -1, PGID: -1, StartTime: info.StartTime},
	}
	for name, stranger := range tests {
		if n, err := process.KillLeftover(&stranger, "", 0); n != 0 || err != nil {
			t.Errorf("%s: KillLeftover = %d, %v, want 0", name, n, err)
		}
	}
	if gone(info.PID)() {
		t.Error("the stranger was ended")
	}
}

// named reports whether a process executes the named program yet.
func named(pid int, name string) func() bool {
	return func() bool {
		comm, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
		return err == nil && strings.TrimSpace(string(comm)) == name
	}
}

func TestKillLeftoverFindsTheMarker(t *testing.T) {
	t.Parallel()
	marker := "PROCESS_TEST_MARK=" + t.Name() + strconv.Itoa(os.Getpid())
	s := spec(t, "sh", "-c", "setsid sh -c 'trap \"\" TERM; touch ready; sleep 600 & wait; wait' & setsid sleep 600 & exec sleep 600")
	s.Env = append(s.Env, marker)
	p := start(t, s)
	other := s
	other.Program, other.Args, other.Env = "sleep", []string{"600"}, append(slices.Clone(s.Env[:2]), marker+"x")
	stranger := start(t, other)
	eventually(t, "the program is ready", exists(filepath.Join(s.Dir, "ready")))
	eventually(t, "all four processes are there", func() bool {
		n := 0
		for _, environ := range environs(t) {
			if strings.Contains(environ, marker+"\x00") {
				n++
			}
		}
		return n == 4
	})
	n, err := process.KillLeftover(nil, marker, 100*time.Millisecond)
	if n != 4 || err != nil {
		t.Errorf("KillLeftover = %d, %v, want 4", n, err)
	}
	if r := p.Wait(); r.Kind != process.Signalled || r.Signal != "SIGTERM" {
		t.Errorf("the main process ended as %s %s", r.Kind, r.Signal)
	}
	if n, err := process.KillLeftover(nil, marker, 0); n != 0 || err != nil {
		t.Errorf("again: KillLeftover = %d, %v, want 0", n, err)
	}
	if gone(stranger.Info().PID)() {
		t.Error("a process with another mark was ended")
	}
}

// environs returns the environments of all processes, as the system shows them.
func environs(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, path := range paths {
		if environ, err := os.ReadFile(path); err == nil {
			all = append(all, string(environ))
		}
	}
	return all
}

func TestProcessDiesWithUs(t *testing.T) {
	t.Parallel()
	dying := killedWorker(t, "trap '' TERM HUP; exec sleep 600", "PROCESS_TEST_DIE=1")
	eventually(t, "the program is gone with its worker", gone(dying.PID))
	living := killedWorker(t, "exec sleep 600")
	if gone(living.PID)() {
		t.Error("the program of the other worker is gone as well")
	}
}
