//go:build unix && !linux

package apptest

import (
	"os/exec"
	"strconv"
	"strings"
)

// markedFunction prints the processes whose mark begins with $1, for the guard.
const markedFunction = `
marked() { ps -AwwE -o pid=,command= | awk -v mark="` + markVariable + `=$1" 'index($0, " " mark) { print $1 }'; }
`

// variablesOf returns the environment that a process was started with, after its arguments, from which ps does
// not tell it apart.
func variablesOf(pid int) []string {
	return strings.Fields(ps("-wwE", "-o", "command=", "-p", strconv.Itoa(pid)))
}

// processes returns the ids of all processes.
func processes() []int {
	var pids []int
	for _, field := range strings.Fields(ps("-A", "-o", "pid=")) {
		if pid, err := strconv.Atoi(field); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Alive reports whether a process runs. One that has ended and whose parent has not taken notice does not.
func Alive(pid int) bool {
	state := strings.TrimSpace(ps("-o", "state=", "-p", strconv.Itoa(pid)))
	return state != "" && state[0] != 'Z'
}

// ResidentBytes returns how much memory a process occupies, or 0.
func ResidentBytes(pid int) int64 {
	kib, err := strconv.ParseInt(strings.TrimSpace(ps("-o", "rss=", "-p", strconv.Itoa(pid))), 10, 64)
	if err != nil {
		return 0
	}
	return kib << 10
}

func ps(args ...string) string {
	output, err := exec.Command("ps", args...).Output()
	if err != nil {
		return "" // no such process
	}
	return string(output)
}
