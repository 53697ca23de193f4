package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// MinVersion is the oldest major version of PostgreSQL that Errand supports.
const MinVersion = 15

// ErrNotInstalled reports that no PostgreSQL server of a supported version is
// on this computer; its text says how to get one.
var ErrNotInstalled = fmt.Errorf("PostgreSQL %d or later is not installed: "+
	"install it with `apt-get install postgresql` (Debian, Ubuntu) or `brew install postgresql@15` (macOS), or put its bin directory on the PATH", MinVersion)

// installedPatterns are where distributions and installers put the server's
// programs, which they often keep off the PATH.
var installedPatterns = []string{
	"/usr/lib/postgresql/*/bin",                          // Debian, Ubuntu
	"/usr/lib/postgresql*/bin",                           // SUSE, Alpine
	"/usr/libexec/postgresql*",                           // Alpine
	"/usr/pgsql-*/bin",                                   // PostgreSQL's own RPM packages
	"/usr/local/pgsql/bin",                               // built from source
	"/usr/local/opt/postgresql*/bin",                     // Homebrew on Intel
	"/opt/homebrew/opt/postgresql*/bin",                  // Homebrew on Apple silicon
	"/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",     // Homebrew on Linux
	"/Applications/Postgres.app/Contents/Versions/*/bin", // Postgres.app
	"/run/current-system/sw/bin",                         // NixOS
}

// Installation is one set of PostgreSQL server programs.
type Installation struct {
	BinDir string // holds postgres and initdb; symbolic links resolved
	Major  int    // for instance 15
}

// Locate returns the newest PostgreSQL of at least MinVersion that the PATH or
// the usual places of this platform have. The error is ErrNotInstalled, with
// the older versions that were found.
func Locate(ctx context.Context) (Installation, error) {
	candidates := filepath.SplitList(os.Getenv("PATH"))
	for _, pattern := range installedPatterns {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return Installation{}, fmt.Errorf("expanding %s: %w", pattern, err)
		}
		candidates = append(candidates, found...)
	}

	return newest(ctx, candidates)
}

func newest(ctx context.Context, dirs []string) (Installation, error) {
	var best Installation
	var old []string
	seen := map[string]bool{}
	for _, dir := range dirs {
		in, err := inspect(ctx, dir)
		if err != nil || seen[in.BinDir] {
			continue
		}
		seen[in.BinDir] = true
		if in.Major < MinVersion {
			old = append(old, fmt.Sprintf("version %d in %s", in.Major, in.BinDir))

			continue
		}
		if in.Major > best.Major {
			best = in
		}
	}
	if best.Major != 0 {
		return best, nil
	}
	if len(old) > 0 {
		return Installation{}, fmt.Errorf("%w (found only %s)", ErrNotInstalled, strings.Join(old, ", "))
	}

	return Installation{}, ErrNotInstalled
}

var versionOutput = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// inspect asks the server program in dir for its version. The PATH may name a
// lone symbolic link, so initdb is looked for beside the program itself.
func inspect(ctx context.Context, dir string) (Installation, error) {
	server, err := filepath.EvalSymlinks(filepath.Join(dir, "postgres"))
	if err != nil {
		return Installation{}, err
	}
	bin := filepath.Dir(server)
	if _, err := os.Stat(filepath.Join(bin, "initdb")); err != nil {
		return Installation{}, err
	}
	out, err := exec.CommandContext(ctx, server, "--version").Output()
	if err != nil {
		return Installation{}, fmt.Errorf("asking %s for its version: %w", server, err)
	}
	m := versionOutput.FindSubmatch(out)
	if m == nil {
		return Installation{}, errors.New(server + " does not tell a version")
	}
	major, err := strconv.Atoi(string(m[1]))
	if err != nil {
		return Installation{}, fmt.Errorf("reading the version of %s: %w", server, err)
	}

	return Installation{BinDir: bin, Major: major}, nil
}
