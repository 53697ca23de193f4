package apptest

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// markedFunction prints the processes whose mark begins with $1, for the guard.
const markedFunction = `
marked() {
	for file in /proc/[0-9]*/environ; do
		tr '\0' '\n' <"$file" 2>/dev/null | grep -q "^` + markVariable + `=$1" || continue
		file=${file#/proc/}
		echo "${file%/environ}"
	done
}
`

// variablesOf returns the environment that a process was started with; nothing for one that has ended, also
// when its parent has not taken notice yet.
func variablesOf(pid int) []string {
	content, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
	if err != nil || len(content) == 0 {
		return nil
	}
	return strings.Split(string(content), "\x00")
}

// processes returns the ids of all processes.
func processes() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Alive reports whether a process runs. One that has ended and whose parent has not taken notice does not.
func Alive(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return false
	}
	// The state follows the name, which is in parentheses and may contain some.
	_, rest, found := bytes.Cut(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" "))
	return found && len(rest) > 0 && rest[0] != 'Z' && rest[0] != 'X'
}

// ResidentBytes returns how much memory a process occupies, or 0.
func ResidentBytes(pid int) int64 {
	statm, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "statm"))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(statm))
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}
