// Package machineapp wires the program errand: the command line, and the worker that executes the steps of one
// machine. It links nothing of the control plane, so that the program stays small and quick to start.
package machineapp

import (
	"context"
	"errors"
	"os"
	"runtime"
	"syscall"

	"github.com/errandhq/errand/internal/buildinfo"
	"github.com/errandhq/errand/internal/cli"
	"github.com/errandhq/errand/internal/config"
)

// Main runs errand with its arguments, without its name, and returns the exit code.
func Main(args []string) int {
	program := &cli.Program{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv,
		DataDir:   func() (string, error) { return config.DataDir(os.Getenv) },
		Alive:     alive,
		Version:   buildinfo.Version(),
		RunWorker: runWorker,
		RunMCP:    runMCP,

		EnrollMachine: enrollMachine,
	}
	return program.Main(context.Background(), args)
}

// alive reports whether a process of that number exists.
func alive(pid int) bool {
	process, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	if runtime.GOOS == "windows" {
		return true // finding it there means opening it
	}
	err = process.Signal(syscall.Signal(0))
	return err == nil || errors.Is(err, os.ErrPermission)
}
