//go:build unix

package apptest

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"
)

// child is a program that the test started and must wait for.
type child struct {
	command *exec.Cmd
	ended   chan struct{} // closed when the program has ended and was waited for
}

// startChild starts a program whose output is appended to a log.
func startChild(path, logPath, dir string, env []string, args ...string) (*child, error) {
	log, err := os.OpenFile(logPath, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening a log: %w", err)
	}
	defer log.Close() // the program has its own copy
	command := exec.Command(path, args...)
	command.Dir, command.Env = dir, env
	command.Stdout, command.Stderr = log, log
	// A group of its own: an interrupt from the terminal is for the tests, which end what they started.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", path, err)
	}
	c := &child{command: command, ended: make(chan struct{})}
	go func() {
		_ = command.Wait() // the exit code is in the command's state
		close(c.ended)
	}()
	return c, nil
}

func (c *child) pid() int { return c.command.Process.Pid }

func (c *child) running() bool {
	select {
	case <-c.ended:
		return false
	default:
		return true
	}
}

// stop sends a signal and waits for the end.
func (c *child) stop(signal syscall.Signal, within time.Duration) error {
	if err := c.command.Process.Signal(signal); err != nil && c.running() {
		return fmt.Errorf("sending %s to pid %d: %w", signal, c.pid(), err)
	}
	limit := time.NewTimer(within)
	defer limit.Stop()
	select {
	case <-c.ended:
		return nil
	case <-limit.C:
		return fmt.Errorf("pid %d has not ended within %s of %s", c.pid(), within, signal)
	}
}

// exitCode returns the exit code of a program that has ended; -1 after a signal.
func (c *child) exitCode() int { return c.command.ProcessState.ExitCode() }

// stepVariable is in the environment of a step's program and of everything below it.
const stepVariable = "ERRAND_STEP_ID="

// marked returns the processes that carry a mark and whose environment satisfies a condition.
func marked(mark string, condition func(variables []string) bool) []int {
	var pids []int
	for _, pid := range processes() {
		variables := variablesOf(pid)
		if slices.Contains(variables, markVariable+"="+mark) && condition(variables) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func anyProcess([]string) bool { return true }

// endMarked kills everything that carries a mark, again and again until nothing does, since what is being
// killed may just be starting something.
func endMarked(mark string) error {
	seen, ok := poll(patience, func() (string, bool) {
		pids := marked(mark, anyProcess)
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL) // one that has ended meanwhile is no trouble
		}
		return fmt.Sprint(pids), len(pids) == 0
	})
	if !ok {
		return fmt.Errorf("processes that do not end: %s", seen)
	}
	return nil
}
