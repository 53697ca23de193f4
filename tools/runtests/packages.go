package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
)

const (
	temporalServer = "go.temporal.io/server/"
	binaryTests    = "github.com/errandhq/errand/internal/apptest"
	testBinary     = ".test" // ends the name that `go list -test` gives to a package's test binary
)

// pkg is what `go list -test -json` tells of a package or a test binary.
type pkg struct {
	ImportPath string   `json:"ImportPath"`
	Deps       []string `json:"Deps"` // all of them, also the indirect ones
}

// list returns the test binaries of all packages with their dependencies.
func list(ctx context.Context) ([]pkg, error) {
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", "list", "-test", "-json=ImportPath,Deps", "./...")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("running go list: %w\n%s", err, stderr.String())
	}

	return decodePackages(bytes.NewReader(out))
}

func decodePackages(r io.Reader) ([]pkg, error) {
	var all []pkg
	for d := json.NewDecoder(r); ; {
		var p pkg
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading the output of go list: %w", err)
		}
		if strings.HasSuffix(p.ImportPath, testBinary) {
			all = append(all, p)
		}
	}
}

// forRace returns the packages whose tests run under the race detector too.
func forRace(binaries []pkg) []string {
	var chosen []string
	for _, p := range binaries {
		if slices.ContainsFunc(p.Deps, excluded) {
			continue
		}
		chosen = append(chosen, strings.TrimSuffix(p.ImportPath, testBinary))
	}

	return chosen
}

func excluded(dependency string) bool {
	return strings.HasPrefix(dependency, temporalServer) || dependency == binaryTests
}

// raceUnavailable says why this computer cannot build for the race detector, or
// returns "". The build of the standard library's smallest user tells.
func raceUnavailable(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "go", "build", "-race", "-o", "/dev/null", "runtime/race").CombinedOutput()
	if err == nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")

	return "not available here, it needs a C compiler: " + lines[len(lines)-1]
}
