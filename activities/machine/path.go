package machine

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/errandhq/errand/internal/process"
)

// SearchPath returns the PATH that steps are looked up on, for [Options.Path]: the configured one, if any. A
// worker that runs as a service otherwise uses the PATH of the user's login shell, followed by what its own
// has beside that, so that tools which the user calls by name are found; every other worker keeps its own.
// When the login shell does not answer, the result is the worker's own PATH and the error says why.
func SearchPath(configured string, environ []string) (string, error) {
	own := lookup(environ, "PATH")
	if configured != "" {
		return configured, nil
	}
	if !process.RunsAsService(environ) {
		return own, nil
	}
	home, err := HomeDirectory(environ)
	if err != nil {
		return own, err
	}
	// A service may have no HOME, and without it a login shell finds no start-up files.
	login, err := process.LoginPath(process.LoginShell(environ), home, process.WithVariables(environ, "HOME="+home))
	if err != nil {
		return own, err
	}
	return mergePaths(login, own), nil
}

// mergePaths returns the entries of first, then those of second, each once.
func mergePaths(first, second string) string {
	var entries []string
	for _, entry := range append(filepath.SplitList(first), filepath.SplitList(second)...) {
		if !slices.Contains(entries, entry) {
			entries = append(entries, entry)
		}
	}
	return strings.Join(entries, string(filepath.ListSeparator))
}

// lookup returns the value of a variable; empty when it is not set.
func lookup(environ []string, name string) string {
	for _, entry := range slices.Backward(environ) {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}
