//go:build unix

package apptest

import (
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
)

// markVariable is in the environment of everything that a test starts, and is inherited by whatever that
// starts: the worker and the programs of steps, each in a session of its own. Its value is
// `<test process>.<server>`.
const markVariable = "APPTEST_MARK"

// guardian is a process that outlives this one. When this one is gone, however it ended, it ends everything
// that was started here and removes the directory.
type guardian struct {
	mark  string
	dir   string
	input io.WriteCloser // stays open until this process ends
}

// guardScript waits for the end of its input. It ignores interrupts: the terminal's are for the tests.
const guardScript = `
trap '' INT TERM HUP
read -r _
while pids=$(marked "$1") && [ -n "$pids" ]; do kill -KILL $pids 2>/dev/null; done
rm -rf "$2"
`

// guard starts the guardian of this process once.
var guard = sync.OnceValues(func() (*guardian, error) {
	dir, err := os.MkdirTemp("", "errand-apptest")
	if err != nil {
		return nil, fmt.Errorf("making a directory: %w", err)
	}
	g := &guardian{mark: strings.ToLower(rand.Text()), dir: dir}
	command := exec.Command("/bin/sh", "-c", markedFunction+guardScript, "errand-apptest-guard", g.mark+".", dir)
	command.Dir = "/"
	command.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if g.input, err = command.StdinPipe(); err != nil {
		return nil, fmt.Errorf("connecting the guard: %w", err)
	}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("starting the guard: %w", err)
	}
	return g, nil
})
