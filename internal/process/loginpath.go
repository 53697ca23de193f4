package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// loginPatience is how long a login shell may take to say its PATH: some load half a home directory first.
const loginPatience = 15 * time.Second

// serviceVariables are set for what a service manager starts.
var serviceVariables = []string{"INVOCATION_ID", "JOURNAL_STREAM", "NOTIFY_SOCKET", "SYSTEMD_EXEC_PID", "XPC_SERVICE_NAME"}

// RunsAsService reports whether environ is that of a process that a service manager started, with no shell of
// a user between: such a process has the manager's PATH, not the user's. A desktop's programs are services
// too, but what is started in a terminal of theirs has a shell above it.
func RunsAsService(environ []string) bool {
	if level, ok := variable(environ, "SHLVL"); ok && level != "0" {
		return false
	}
	for _, name := range serviceVariables {
		if value, ok := variable(environ, name); ok && value != "" && value != "0" {
			return true
		}
	}
	return false
}

// LoginShell returns the login shell of the user that this process runs as: that of the user database, else
// SHELL of environ, else sh.
func LoginShell(environ []string) string {
	if shell := shellOf(os.Getuid(), "/etc/passwd"); shell != "" {
		return shell
	}
	if shell, _ := variable(environ, "SHELL"); filepath.IsAbs(shell) {
		return shell
	}
	return "/bin/sh"
}

// shellOf returns the shell of a user in a file of the form of /etc/passwd; empty when it is not there.
func shellOf(uid int, file string) string {
	users, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(users)) {
		fields := strings.Split(strings.TrimSpace(line), ":")
		if len(fields) == 7 && fields[2] == strconv.Itoa(uid) && filepath.IsAbs(fields[6]) {
			return fields[6]
		}
	}
	return ""
}

// pathMark stands around the PATH in what a login shell writes, since its start-up files may write too.
const pathMark = "-- errand: PATH --"

// LoginPath asks a login shell, which starts in dir with environ, for its PATH. It takes as long as the
// shell's start-up files, at most 15 s.
func LoginPath(shell, dir string, environ []string) (string, error) {
	if runtime.GOOS == "windows" {
		return "", errors.New("there are no login shells on this platform")
	}
	p, err := Start(Spec{
		Program: shell,
		// Each of these words means the same to every shell.
		Args:           []string{"-l", "-c", "echo '" + pathMark + "'; printenv PATH; echo '" + pathMark + "'"},
		Dir:            dir,
		Env:            BaseEnvironment(environ),
		Timeout:        loginPatience,
		Grace:          time.Second,
		MaxOutputBytes: 256 << 10,
	})
	if err != nil {
		return "", fmt.Errorf("asking the login shell for its PATH: %w", err)
	}
	r := p.Wait()
	if r.Stopped == StopTimedOut {
		return "", fmt.Errorf("the login shell %s did not say its PATH within %s", shell, loginPatience)
	}
	parts := strings.Split(r.Stdout.Text, pathMark+"\n")
	if len(parts) != 3 || strings.TrimSpace(parts[1]) == "" {
		return "", fmt.Errorf("the login shell %s did not say its PATH: %.200q", shell, strings.TrimSpace(r.Stderr.Text))
	}
	return strings.TrimSuffix(parts[1], "\n"), nil
}
