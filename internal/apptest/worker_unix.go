//go:build unix

package apptest

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/errandhq/errand/internal/lockfile"
	"github.com/errandhq/errand/internal/machinestate"
)

func (s *Server) stateDir() string { return machinestate.Dir(s.DataDir()) }

// WorkerPID returns the process of the worker that runs, whoever started it.
func (s *Server) WorkerPID() (pid int, running bool) {
	s.tb.Helper()
	pid, running, err := lockfile.Probe(machinestate.LockPath(s.stateDir()))
	if err != nil {
		s.tb.Fatalf("looking for the worker: %v", err)
	}
	return pid, running && pid != 0
}

// AwaitWorker waits until a worker runs and returns its process.
func (s *Server) AwaitWorker() int {
	s.tb.Helper()
	var pid int
	s.Await(patience, "a worker runs", func() (string, bool) {
		var running bool
		pid, running = s.WorkerPID()
		return "none", running
	})
	return pid
}

// StartWorker starts a worker by hand, with more arguments, and waits until it has its lock. The machine must
// have been enrolled.
func (s *Server) StartWorker(args ...string) {
	s.tb.Helper()
	if pid, running := s.WorkerPID(); running {
		s.tb.Fatalf("a worker is running already, as pid %d", pid)
	}
	worker, err := startChild(filepath.Join(s.bin, "errand"), s.WorkerLogPath(), s.Options.Dir, s.Environment(),
		append([]string{"worker"}, args...)...)
	if err != nil {
		s.tb.Fatal(err)
	}
	s.worker = worker
	Eventually(s.tb, patience, "the worker has its lock", func() (string, bool) {
		if !worker.running() {
			s.tb.Fatalf("the worker has ended with exit code %d", worker.exitCode())
		}
		pid, running := s.WorkerPID()
		return fmt.Sprintf("held by pid %d: %t", pid, running), running && pid == worker.pid()
	})
}

// StopWorker drains the worker, whoever started it, and waits for its end.
func (s *Server) StopWorker() {
	s.tb.Helper()
	s.signalWorker(syscall.SIGTERM)
}

// KillWorker sends SIGKILL to the worker, whoever started it, and waits for its end. Programs of its steps stay.
func (s *Server) KillWorker() {
	s.tb.Helper()
	s.signalWorker(syscall.SIGKILL)
}

func (s *Server) signalWorker(signal syscall.Signal) {
	s.tb.Helper()
	pid := s.AwaitWorker()
	if err := syscall.Kill(pid, signal); err != nil {
		s.tb.Fatalf("sending %s to the worker, pid %d: %v", signal, pid, err)
	}
	Eventually(s.tb, patience, "the worker has ended", func() (string, bool) {
		// Its first thread may be gone before the last one, which gives the lock back.
		holder, held := s.WorkerPID()
		return fmt.Sprintf("pid %d alive: %t; lock held: %t, by pid %d", pid, Alive(pid), held, holder), !Alive(pid) && (!held || holder != pid)
	})
}

// StepProcesses returns the processes that run for a step of the given id, or for any step when it is empty:
// the program and whatever it has started with its environment.
func (s *Server) StepProcesses(step string) []int {
	return marked(s.mark, func(variables []string) bool {
		return slices.ContainsFunc(variables, func(variable string) bool {
			id, found := strings.CutPrefix(variable, stepVariable)
			return found && (step == "" || id == step)
		})
	})
}
