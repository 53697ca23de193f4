// Command runtests runs the repository's tests and closes with one line, `N
// passed, N failed` (`, N skipped` when there were any). It runs every package
// once as it is, then those under the race detector for which that is useful:
// neither do they link the Temporal server, whose race build takes ten minutes
// and checks code that is not ours, nor do they drive the built binaries from
// outside, where the detector sees only the test. It shows the output of what
// failed and the reason of each skip, and exits with 1 when anything failed.
//
// A test that was run twice counts twice.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"time"
)

func main() {
	timeout := flag.Duration("timeout", 20*time.Minute, "limit for the tests of one package")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	report := newReport(os.Stdout)
	run(ctx, report, *timeout)
	stop()
	if !report.Close() {
		os.Exit(1)
	}
}

func run(ctx context.Context, report *report, timeout time.Duration) {
	packages, err := list(ctx)
	if err != nil {
		report.Fail(fmt.Sprintf("listing the packages: %v", err))

		return
	}
	limit := "-timeout=" + timeout.String()
	goTest(ctx, report, limit, "./...")

	raced := forRace(packages)
	if len(raced) == 0 {
		return
	}
	if reason := raceUnavailable(ctx); reason != "" {
		report.Skip("the race detector", reason)

		return
	}
	fmt.Printf("\nunder the race detector: %d packages\n", len(raced))
	goTest(ctx, report, append([]string{"-race", limit}, raced...)...)
}

// goTest runs one `go test -json` into the report. It is not ended by ctx: an
// interrupt from the terminal reaches it too, and it knows best how to end its
// tests.
func goTest(ctx context.Context, report *report, args ...string) {
	cmd := exec.CommandContext(context.WithoutCancel(ctx), "go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	output, err := cmd.StdoutPipe()
	if err != nil {
		report.Fail(err.Error())

		return
	}
	if err := cmd.Start(); err != nil {
		report.Fail(err.Error())

		return
	}
	failedBefore := report.failed
	readErr := report.Read(output)
	waitErr := cmd.Wait()
	switch {
	case readErr != nil:
		report.Fail(readErr.Error())
	case waitErr != nil && report.failed == failedBefore:
		report.Fail("go test: " + waitErr.Error())
	}
}
