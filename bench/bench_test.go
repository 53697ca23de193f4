//go:build unix

// Package bench_test measures the built programs as a user sees them: how long errandd takes from its start until it
// is ready, how long a run of one step takes from the call to its end, what a step costs in a long run, and how much
// memory the programs occupy. `make bench` runs it and prints a table; figures mean something on an otherwise idle
// computer only.
package bench_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/apptest"
)

const (
	starts    = 10
	shortRuns = 50
	longRuns  = 5
	longSteps = 40
	// settle is how many short runs warm the programs up before anything but a start is measured.
	settle = 5
	// waitMs is how long a call waits for its run: more than any run here takes.
	waitMs = 50_000
)

// table collects the rows of all benchmarks.
var table [][]string

func TestMain(m *testing.M) {
	code := m.Run()
	if len(table) > 0 {
		w := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', 0)
		for _, row := range table {
			fmt.Fprintln(w, strings.Join(row, "\t"))
		}
		if err := w.Flush(); err != nil {
			code = 1
		}
	}
	os.Exit(code)
}

// report adds a row, and tells the benchmark its median in milliseconds per unit.
func report(b *testing.B, what, unit string, samples []time.Duration) {
	b.Helper()
	slices.Sort(samples)
	at := func(percent int) time.Duration { return samples[(len(samples)-1)*percent/100] }
	milliseconds := func(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }
	table = append(table, []string{
		what, fmt.Sprintf("n=%d", len(samples)), "min " + milliseconds(at(0)), "median " + milliseconds(at(50)),
		"p90 " + milliseconds(at(90)), "max " + milliseconds(at(100)),
	})
	b.ReportMetric(float64(at(50).Microseconds())/1000, "ms/"+unit)
	b.ReportMetric(0, "ns/op") // the benchmark's own loop is of no interest
}

// BenchmarkStart measures from the start of the process to the first 200 of /readyz: on a new data directory, where
// both databases are made, and on one that was used before.
func BenchmarkStart(b *testing.B) {
	b.Run("first", func(b *testing.B) {
		var samples []time.Duration
		for range starts {
			s := apptest.New(b, apptest.Options{})
			samples = append(samples, s.Restart())
			s.Close()
		}
		report(b, "errandd, start to ready, new data directory", "start", samples)
	})
	b.Run("again", func(b *testing.B) {
		s := apptest.Start(b, apptest.Options{})
		s.AwaitWorker()
		var samples []time.Duration
		for range starts {
			s.Interrupt()
			samples = append(samples, s.Restart())
			s.AwaitWorker()
		}
		report(b, "errandd, start to ready, used data directory", "start", samples)
	})
}

// BenchmarkRun measures runs from the call of run-now to its answer, which waits for the end, and then the memory.
func BenchmarkRun(b *testing.B) {
	s := apptest.Start(b, apptest.Options{})
	worker := s.AwaitWorker()
	short, long := s.Create(plan(1)), s.Create(plan(longSteps))
	for range settle {
		timed(b, s, short)
	}
	memory(s.PID(), worker, "before")

	var samples []time.Duration
	for range shortRuns {
		took, _ := timed(b, s, short)
		samples = append(samples, took)
	}
	report(b, "run of one step, call to completed", "run", samples)

	samples = nil
	for range longRuns {
		_, run := timed(b, s, long)
		samples = append(samples, run.FinishedAt.Sub(*run.StartedAt)/longSteps)
	}
	report(b, fmt.Sprintf("run of %d steps, per step", longSteps), "step", samples)
	memory(s.PID(), worker, "after")
}

// plan is a definition whose steps all run `true`.
func plan(steps int) map[string]any {
	list := make([]any, steps)
	for i := range list {
		list[i] = map[string]any{"id": fmt.Sprintf("s%d", i), "kind": "command", "command": "true"}
	}
	return map[string]any{
		"name": fmt.Sprintf("%d steps", steps), "workflow": map[string]any{"compiled": map[string]any{"version": 2, "steps": list}},
	}
}

func timed(b *testing.B, s *apptest.Server, automationID string) (time.Duration, automation.Run) {
	b.Helper()
	began := time.Now()
	run := s.RunNow(automationID, map[string]any{"wait_ms": waitMs})
	took := time.Since(began)
	if run.Status != automation.RunCompleted {
		b.Fatalf("the run is %s: %+v", run.Status, run.Error)
	}
	return took, run
}

// memory adds a row for what the two programs occupy.
func memory(daemon, worker int, when string) {
	mebibytes := func(pid int) string { return fmt.Sprintf("%.0f MiB", float64(apptest.ResidentBytes(pid))/(1<<20)) }
	table = append(table, []string{"resident memory " + when + " the runs", "", "errandd " + mebibytes(daemon), "worker " + mebibytes(worker)})
}
