package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// event is one line of `go test -json` (see `go doc test2json`).
type event struct {
	Action     string  `json:"Action"`
	Package    string  `json:"Package"`
	ImportPath string  `json:"ImportPath"` // of a build event
	Test       string  `json:"Test"`
	Elapsed    float64 `json:"Elapsed"` // seconds
	Output     string  `json:"Output"`
}

// report adds up tests over several runs of go test and writes what a person
// wants to see of them.
type report struct {
	w                       io.Writer
	passed, failed, skipped int
	packages                map[string]*packageRun
	builds                  map[string]*strings.Builder // output of failing builds by import path
}

// packageRun collects one package until it ends.
type packageRun struct {
	output map[string]*strings.Builder // by test; "" for the package itself
	open   map[string]bool             // tests that have begun and not ended; false while one waits for its turn
	passed int
	failed []string
}

func newReport(w io.Writer) *report {
	return &report{w: w, packages: map[string]*packageRun{}, builds: map[string]*strings.Builder{}}
}

// Read takes the output of one go test. Lines that are no events are shown as
// they are.
func (r *report) Read(output io.Reader) error {
	lines := bufio.NewReader(output)
	for {
		line, err := lines.ReadString('\n')
		if strings.TrimSpace(line) != "" {
			r.line(line)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the output of go test: %w", err)
		}
	}
}

func (r *report) line(line string) {
	var e event
	if json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
		fmt.Fprintln(r.w, strings.TrimRight(line, "\n"))

		return
	}
	switch {
	case e.Action == "build-output":
		if r.builds[e.ImportPath] == nil {
			r.builds[e.ImportPath] = &strings.Builder{}
		}
		r.builds[e.ImportPath].WriteString(e.Output)
	case e.Action == "build-fail":
		fmt.Fprintf(r.w, "--- build of %s failed\n%s", e.ImportPath, r.builds[e.ImportPath])
	case e.Package == "":
	case e.Test != "":
		r.test(e)
	default:
		r.pkg(e)
	}
}

func (r *report) run(name string) *packageRun {
	run := r.packages[name]
	if run == nil {
		run = &packageRun{output: map[string]*strings.Builder{"": {}}, open: map[string]bool{}}
		r.packages[name] = run
	}

	return run
}

// test takes an event of a test or subtest.
func (r *report) test(e event) {
	run := r.run(e.Package)
	switch e.Action {
	case "run":
		run.open[e.Test] = true
		run.output[e.Test] = &strings.Builder{}
	case "pause", "cont":
		run.open[e.Test] = e.Action == "cont"
	case "output":
		if run.output[e.Test] == nil {
			run.output[e.Test] = &strings.Builder{}
		}
		run.output[e.Test].WriteString(e.Output)
	case "pass":
		r.passed++
		run.passed++
		run.end(e.Test)
	case "fail":
		r.failed++
		run.failed = append(run.failed, e.Test)
		delete(run.open, e.Test)
	case "skip":
		r.Skip(e.Package+" "+e.Test, skipReason(run.output[e.Test].String()))
		run.end(e.Test)
	}
}

// end forgets a test whose output nobody needs.
func (p *packageRun) end(test string) {
	delete(p.open, test)
	delete(p.output, test)
}

// pkg takes an event of a package as a whole.
func (r *report) pkg(e event) {
	run := r.run(e.Package)
	switch e.Action {
	case "output":
		run.output[""].WriteString(e.Output)

		return
	case "pass":
		fmt.Fprintf(r.w, "ok    %s  %.1fs  %d passed\n", e.Package, e.Elapsed, run.passed)
	case "fail":
		r.failPackage(e, run)
	case "skip": // no test files
	default:
		return
	}
	delete(r.packages, e.Package)
}

// failPackage shows what failed in a package. A package can fail without a
// failing test: it does not compile, it exits, it is ended in the midst of one.
func (r *report) failPackage(e event, run *packageRun) {
	maps.DeleteFunc(run.open, func(_ string, running bool) bool { return !running })
	unfinished := slices.Sorted(maps.Keys(run.open))
	if len(run.failed) == 0 {
		r.failed++
	}
	for _, test := range slices.Concat(run.failed, unfinished) {
		if out := run.output[test]; out != nil {
			fmt.Fprint(r.w, out)
		}
	}
	fmt.Fprint(r.w, run.output[""])
	fmt.Fprintf(r.w, "FAIL  %s  %.1fs  %d passed, %d failed", e.Package, e.Elapsed, run.passed, len(run.failed))
	if len(unfinished) > 0 {
		fmt.Fprintf(r.w, ", not finished: %s", strings.Join(unfinished, " "))
	}
	fmt.Fprintln(r.w)
}

// skipReason takes the last thing a skipped test said out of its output.
func skipReason(output string) string {
	reason := "no reason given"
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") {
			reason = line
		}
	}

	return reason
}

// Skip counts and shows something that was not run.
func (r *report) Skip(what, reason string) {
	r.skipped++
	fmt.Fprintf(r.w, "SKIP  %s: %s\n", what, reason)
}

// Fail counts and shows a failure outside of every package.
func (r *report) Fail(reason string) {
	r.failed++
	fmt.Fprintf(r.w, "FAIL  %s\n", reason)
}

// Close writes the closing line and reports whether all went well. A run
// without a test has not gone well.
func (r *report) Close() bool {
	if r.passed+r.failed == 0 {
		r.Fail("no test was run")
	}
	fmt.Fprintf(r.w, "%d passed, %d failed", r.passed, r.failed)
	if r.skipped > 0 {
		fmt.Fprintf(r.w, ", %d skipped", r.skipped)
	}
	fmt.Fprintln(r.w)

	return r.failed == 0
}
