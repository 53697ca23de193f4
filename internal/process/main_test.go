package process_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/errandhq/errand/internal/process"
)

// helperVariable makes the test binary play a child process instead of running tests.
const helperVariable = "PROCESS_TEST_HELPER"

func TestMain(m *testing.M) {
	role := os.Getenv(helperVariable)
	if role == "" {
		os.Exit(m.Run())
	}
	helper, ok := helpers[role]
	if !ok {
		helper, ok = platformHelpers[role]
	}
	if !ok {
		fmt.Fprintf(os.Stderr, "no helper %q\n", role)
		os.Exit(2)
	}
	helper(os.Args[1:])
	os.Exit(0)
}

var helpers = map[string]func(args []string){
	"argv":        func(args []string) { _ = json.NewEncoder(os.Stdout).Encode(args) },
	"env":         func([]string) { _ = json.NewEncoder(os.Stdout).Encode(os.Environ()) },
	"flood":       helperFlood,
	"descriptors": helperDescriptors,
	"worker":      helperWorker,
}

// helperFlood writes one line of args[0] bytes without a newline.
func helperFlood(args []string) {
	left, err := strconv.Atoi(args[0])
	if err != nil {
		panic(err)
	}
	chunk := []byte(strings.Repeat("x", 1<<16))
	for left > 0 {
		n, err := os.Stdout.Write(chunk[:min(left, len(chunk))])
		if err != nil {
			panic(err)
		}
		left -= n
	}
}

// helperDescriptors writes which of the descriptors in args are open.
func helperDescriptors(args []string) {
	for _, fd := range args {
		if _, err := os.Readlink("/proc/self/fd/" + fd); err == nil {
			fmt.Println(fd)
		}
	}
}

// helperWorker plays a worker that is killed while its program runs: it starts `sh -c args[0]`, writes what
// identifies the program and waits to die. The program finds the worker's number in PROCESS_TEST_WORKER.
func helperWorker(args []string) {
	p, err := process.Start(process.Spec{
		Program: "sh", Args: []string{"-c", args[0]}, Dir: "/", MaxOutputBytes: 1024,
		Env:       append(os.Environ(), "PROCESS_TEST_WORKER="+strconv.Itoa(os.Getpid())),
		DieWithUs: os.Getenv("PROCESS_TEST_DIE") != "",
	})
	if err != nil {
		panic(err)
	}
	_ = json.NewEncoder(os.Stdout).Encode(p.Info())
	p.Wait()
}

// spec returns what runs a program in a directory of its own with a small ordinary environment.
func spec(t *testing.T, program string, args ...string) process.Spec {
	t.Helper()
	return process.Spec{
		Program:        program,
		Args:           args,
		Dir:            t.TempDir(),
		Env:            []string{"PATH=" + os.Getenv("PATH"), "HOME=/"},
		MaxOutputBytes: 256 << 10,
	}
}

// helperSpec returns what runs the test binary as the named helper.
func helperSpec(t *testing.T, role string, args ...string) process.Spec {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := spec(t, exe, args...)
	s.Env = append(s.Env, helperVariable+"="+role)
	return s
}

func start(t *testing.T, s process.Spec) *process.Process {
	t.Helper()
	p, err := process.Start(s)
	if err != nil {
		t.Fatalf("Start(%s %.200q): %v", s.Program, s.Args, err)
	}
	t.Cleanup(func() {
		p.Stop(process.StopInterrupted)
		p.Wait()
	})
	return p
}

func run(t *testing.T, s process.Spec) process.Result {
	t.Helper()
	return start(t, s).Wait()
}

// killLeftover ends what is left of a process, as a later worker would.
func killLeftover(p *process.Process, grace time.Duration) (int, error) {
	info := p.Info()
	return process.KillLeftover(&info, "", grace)
}

// eventually waits for a condition, long enough for a machine that is busy with other tests.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("waited 30 s for this, in vain: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func exists(path string) func() bool {
	return func() bool {
		_, err := os.Stat(path)
		return err == nil
	}
}
