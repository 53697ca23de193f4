//go:build unix

package apptest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// binDirVariable names the directory of binaries that were built before the tests.
const binDirVariable = "ERRAND_TEST_BIN_DIR"

// Binaries returns the directory that holds errand and errandd: that of ERRAND_TEST_BIN_DIR, else a temporary
// one into which both are built once per test process.
func Binaries(tb testing.TB) string {
	tb.Helper()
	dir, err := binaries()
	if err != nil {
		tb.Fatalf("preparing the programs to test: %v", err)
	}
	return dir
}

var binaries = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv(binDirVariable); dir != "" {
		for _, name := range []string{"errand", "errandd"} {
			if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
				return "", fmt.Errorf("%s names no directory with both programs: %w", binDirVariable, err)
			}
		}
		return filepath.Abs(dir)
	}
	guard, err := guard()
	if err != nil {
		return "", err
	}
	const module = "github.com/errandhq/errand"
	build := exec.Command("go", "build", "-o", guard.dir, module+"/cmd/errand", module+"/cmd/errandd")
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building errand and errandd: %w\n%s", err, output)
	}
	return guard.dir, nil
})
