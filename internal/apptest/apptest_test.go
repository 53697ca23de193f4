//go:build unix

package apptest_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/apptest"
)

// abandonVariable makes the test binary start an installation in the directory it names, and die.
const abandonVariable = "APPTEST_ABANDON"

const minute = time.Minute

// sleeper is an automation whose only step writes its process id to a file and goes on for a long time.
func sleeper(pidFile string) map[string]any {
	return map[string]any{
		"name": "Sleeper",
		"workflow": map[string]any{"compiled": map[string]any{"version": 2, "steps": []any{map[string]any{
			"id": "sleep", "kind": "command", "command": "sh", "cwd": filepath.Dir(pidFile),
			"args": []string{"-c", `echo $$ >"$0.new"; mv "$0.new" "$0"; sleep 3600`, pidFile},
		}}}},
	}
}

func awaitPID(t *testing.T, path string) int {
	t.Helper()
	var pid int
	apptest.Eventually(t, minute, path+" is written", func() (string, bool) {
		content, err := os.ReadFile(path)
		if err != nil {
			return err.Error(), false
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(content)))
		return string(content), err == nil
	})
	return pid
}

func TestInstallation(t *testing.T) {
	t.Parallel()
	pidFile := filepath.Join(t.TempDir(), "pid")
	t.Run("outlives its starts", func(t *testing.T) {
		s := apptest.Start(t, apptest.Options{})
		address, first := s.URL(), s.PID()
		if answer := s.CLI(`{"limit":1}`, "list", "--stdin"); answer.Exit != 0 || answer.Stdout != `{"result":{"automations":[]}}`+"\n" {
			t.Errorf("errand list: %+v", answer)
		}
		if answer := s.CLI("", "no-such-command"); answer.Exit != 2 {
			t.Errorf("errand no-such-command: %+v", answer)
		}
		run := s.RunNow(s.Create(sleeper(pidFile)), nil)
		s.AwaitRun(run.ID, "the step executes", func(run automation.Run) bool { return run.Steps[0].Status == automation.StepRunning })
		program := awaitPID(t, pidFile)
		if pids := s.StepProcesses("sleep"); len(pids) == 0 {
			t.Error("the program of the step was not found among the processes")
		}

		worker := s.AwaitWorker()
		s.Kill()
		s.Restart()
		s.Terminate()
		s.Restart()
		if s.URL() != address || s.PID() == first {
			t.Errorf("address %s as pid %d, before %s as pid %d", s.URL(), s.PID(), address, first)
		}
		if again := s.AwaitWorker(); again != worker {
			t.Errorf("worker pid %d, before %d", again, worker)
		}
		s.Kill() // so that nobody starts another worker, which would end the program
		s.KillWorker()
		if apptest.Alive(worker) || !apptest.Alive(program) {
			t.Errorf("after the kill of the worker: worker alive %t, program alive %t", apptest.Alive(worker), apptest.Alive(program))
		}
	})
	if pid := awaitPID(t, pidFile); apptest.Alive(pid) {
		t.Errorf("pid %d, the program of a step, is alive after the end of its test", pid)
	}
}

func TestWorkerByHand(t *testing.T) {
	t.Parallel()
	s := apptest.Start(t, apptest.Options{})
	s.AwaitWorker()
	s.Interrupt()
	if pid, running := s.WorkerPID(); running {
		t.Errorf("after Ctrl-C of errandd its worker, pid %d, is alive", pid)
	}
	s.Options.NoLocalWorker = true
	s.Restart()
	s.StartWorker("--drain", "1s")
	pid := s.AwaitWorker()
	s.StopWorker()
	if apptest.Alive(pid) {
		t.Errorf("the worker, pid %d, is alive after its stop", pid)
	}
}

// TestNothingSeesTheEnvironment checks with a program that prints its own.
func TestNothingSeesTheEnvironment(t *testing.T) {
	t.Setenv("ERRAND_API_URL", "http://127.0.0.1:1")
	t.Setenv("ERRAND_API_KEY", "outside")
	t.Setenv("OUTSIDE", "outside")
	s := apptest.Start(t, apptest.Options{Env: map[string]string{"INSIDE": "inside"}})
	run := s.RunNow(s.Create(map[string]any{
		"name": "Environment",
		"workflow": map[string]any{"compiled": map[string]any{"version": 2, "steps": []any{
			map[string]any{"id": "env", "kind": "command", "command": "env", "cwd": s.DataDir()},
		}}},
	}), nil)
	output := string(s.WaitRun(run.ID, automation.RunCompleted).Steps[0].Output)
	if strings.Contains(output, "outside") || !strings.Contains(output, "INSIDE=inside") || !strings.Contains(output, "HOME="+s.Home()) {
		t.Errorf("a step sees the environment %s", output)
	}
}

// TestKilledTestLeavesNothing kills a test process while errandd, its worker and a program of a step run.
func TestKilledTestLeavesNothing(t *testing.T) {
	t.Parallel()
	bin := apptest.Binaries(t)
	dir := t.TempDir()
	test := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAbandon$", "-test.v")
	test.Env = append(os.Environ(), abandonVariable+"="+dir, "ERRAND_TEST_BIN_DIR="+bin)
	var output bytes.Buffer
	test.Stdout, test.Stderr = &output, &output
	if err := test.Run(); err == nil {
		t.Fatalf("the test process was to be killed: %s", output.String())
	}
	for _, name := range []string{"errandd", "worker", "program"} {
		pid := awaitPID(t, filepath.Join(dir, name))
		apptest.Eventually(t, minute, name+" has ended", func() (string, bool) {
			return fmt.Sprintf("pid %d\n%s", pid, &output), !apptest.Alive(pid)
		})
	}
}

// TestAbandon is the process that [TestKilledTestLeavesNothing] starts.
func TestAbandon(t *testing.T) {
	t.Parallel()
	dir := os.Getenv(abandonVariable)
	if dir == "" {
		return
	}
	s := apptest.Start(t, apptest.Options{Dir: filepath.Join(dir, "installation")})
	s.RunNow(s.Create(sleeper(filepath.Join(dir, "program"))), nil)
	awaitPID(t, filepath.Join(dir, "program"))
	for name, pid := range map[string]int{"errandd": s.PID(), "worker": s.AwaitWorker()} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strconv.Itoa(pid)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-t.Context().Done()
}
