package process

import (
	"runtime"
	"slices"
	"strings"
)

// ownPrefixes mark variables of this product, of the program it replaces and of its transport. A child
// gets none of them from its parent: they hold addresses, keys and tokens.
var ownPrefixes = []string{"ERRAND_", "AMALGM_", "TEMPORAL_"}

// breakingVariables describe the service that the parent is, not the child: a program that believes them
// talks to the parent's supervisor, takes over its sockets, writes into its directories or logs itself out.
var breakingVariables = map[string]struct{}{
	"TMOUT":                           {}, // a shell would end after this many idle seconds
	"NOTIFY_SOCKET":                   {},
	"LISTEN_PID":                      {},
	"LISTEN_PIDFDID":                  {},
	"LISTEN_FDS":                      {},
	"LISTEN_FDNAMES":                  {},
	"FDSTORE":                         {},
	"WATCHDOG_PID":                    {},
	"WATCHDOG_USEC":                   {},
	"CREDENTIALS_DIRECTORY":           {},
	"ENCRYPTED_CREDENTIALS_DIRECTORY": {},
	"RUNTIME_DIRECTORY":               {},
	"STATE_DIRECTORY":                 {},
	"CACHE_DIRECTORY":                 {},
	"LOGS_DIRECTORY":                  {},
	"CONFIGURATION_DIRECTORY":         {},
	"JOURNAL_STREAM":                  {},
	"INVOCATION_ID":                   {},
	"MAINPID":                         {},
	"MANAGERPID":                      {},
	"MANAGERPIDFDID":                  {},
	"SYSTEMD_EXEC_PID":                {},
	"MEMORY_PRESSURE_WATCH":           {},
	"MEMORY_PRESSURE_WRITE":           {},
	"OLDPWD":                          {}, // the directory that the parent's shell left, of no meaning here
}

// BaseEnvironment returns the variables of environ that a child may inherit: the user's ordinary
// environment, so that installed tools stay signed in, without anything of ours (prefixes ERRAND_, AMALGM_,
// TEMPORAL_) and without what describes the parent as a service. Entries that are not NAME=value are
// dropped, and of several with one name the last stays.
func BaseEnvironment(environ []string) []string {
	kept := make([]string, 0, len(environ))
	for _, entry := range environ {
		name, _, ok := strings.Cut(entry, "=")
		if ok && name != "" && inheritable(name) {
			kept = append(kept, entry)
		}
	}
	return WithVariables(kept)
}

func inheritable(name string) bool {
	key := variableKey(name)
	for _, prefix := range ownPrefixes {
		if strings.HasPrefix(key, prefix) {
			return false
		}
	}
	_, breaking := breakingVariables[key]
	return !breaking
}

// WithVariables returns environ with the NAME=value entries of vars added; a later entry replaces an earlier
// one of the same name (on Windows whatever its case). environ is not changed.
func WithVariables(environ []string, vars ...string) []string {
	out := make([]string, 0, len(environ)+len(vars))
	place := make(map[string]int, len(environ)+len(vars))
	for _, list := range [][]string{environ, vars} {
		for _, entry := range list {
			key := variableKey(entry)
			if at, ok := place[key]; ok {
				out[at] = entry
				continue
			}
			place[key] = len(out)
			out = append(out, entry)
		}
	}
	return out
}

// variable returns the value of the last entry of environ with that name, and whether there is one.
func variable(environ []string, name string) (string, bool) {
	want := variableKey(name)
	for _, entry := range slices.Backward(environ) {
		if variableKey(entry) == want {
			_, value, _ := strings.Cut(entry, "=")
			return value, true
		}
	}
	return "", false
}

func variableKey(entry string) string {
	name, _, _ := strings.Cut(entry, "=")
	if runtime.GOOS == "windows" {
		return strings.ToUpper(name)
	}
	return name
}
