//go:build unix

package bench_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/errandhq/errand/internal/apptest"
)

const (
	// hooks is how many webhooks there are, so that none reaches its limit, and deliveries how many come in all.
	hooks, deliveries = 20, 1000
	// Rounds of the three kinds of measurement: what takes seconds, about one, or a fraction of one.
	crowdRounds, rounds, shortRounds = 5, 9, 40
	longSteps                        = 40
	crowd, crowdSteps                = 50, 10
	starts                           = 10
	listed                           = 10
	// settle is how many short runs warm a contender up before it is measured.
	settle = 5
	// lifetime is how many runs the programs have executed when their memory is measured for the second time, and
	// abreast how many of these are open at once.
	lifetime, abreast = 1000, 20
	// calm is how long the programs are left alone before their memory is measured.
	calm = 10 * time.Second
)

// names are the contenders of everything that Temporal can do without us.
var names = []string{"bare workflow", "bare with commits", "errand"}

// BenchmarkRuns measures runs: one of many steps, many at once, and the shortest there is. The first contender is a bare
// workflow, the second makes as many synced commits as Errand does: one per run and one per step.
func BenchmarkRuns(b *testing.B) {
	t, o := startBare(b), startOurs(b)
	one, long, several := o.create(1), o.create(longSteps), o.create(crowdSteps)
	contest := func(rounds, count, steps int, automationID string, value func(time.Duration) float64) []sample {
		samples := make([]sample, len(names))
		for round := range rounds {
			for turn := range names {
				i := (round + turn) % len(names)
				var took time.Duration
				if i == len(names)-1 {
					took = o.run(b, count, automationID)
				} else {
					took = t.run(b, count, bareInput{Steps: steps, Commits: i == 1})
				}
				samples[i] = append(samples[i], value(took))
			}
		}
		return samples
	}
	milliseconds := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	contest(settle, 1, 1, one, milliseconds)

	b.Run("sequential", func(b *testing.B) {
		samples := contest(rounds, 1, longSteps, long, func(d time.Duration) float64 { return milliseconds(d) / longSteps })
		record(b, &measurement{What: "a run of 40 steps, one after another", Unit: "ms a step"}, names, samples,
			target{}, target{Limit: 1.25})
	})
	b.Run("concurrent", func(b *testing.B) {
		samples := contest(crowdRounds, crowd, crowdSteps, several, func(d time.Duration) float64 { return crowd * crowdSteps / d.Seconds() })
		record(b, &measurement{What: "50 runs of 10 steps at once", Unit: "steps a second"}, names, samples,
			target{}, target{Limit: 0.85, AtLeast: true})
	})
	b.Run("single", func(b *testing.B) {
		samples := contest(shortRounds, 1, 1, one, milliseconds)
		record(b, &measurement{What: "a run of one step, from the call to its end", Unit: "ms"}, names, samples,
			target{}, target{Limit: 1.5})
	})
}

// BenchmarkList measures `errand list` from its start to its end, beside a program that just does the same GET.
func BenchmarkList(b *testing.B) {
	o := startOurs(b)
	for range listed {
		o.create(1)
	}
	minimal := filepath.Join(b.TempDir(), "minimal")
	build := exec.CommandContext(b.Context(), "go", "build", "-ldflags", "-s -w", "-o", minimal, "./minimal")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		b.Fatalf("building the minimal program: %v", err)
	}
	run := func(program string, args ...string) float64 {
		command := exec.CommandContext(b.Context(), program, args...)
		command.Env = o.server.Environment()
		began := time.Now()
		output, err := command.Output()
		took := time.Since(began)
		if err != nil || strings.Count(string(output), "1 steps") != listed {
			b.Fatalf("%s: %v: %s", program, err, output)
		}
		return float64(took.Microseconds()) / 1000
	}
	samples := make([]sample, 2)
	for range shortRounds {
		samples[0] = append(samples[0], run(minimal, o.server.URL()+"/v1/automations", o.token))
		samples[1] = append(samples[1], run(filepath.Join(apptest.Binaries(b), "errand"), "list"))
	}
	record(b, &measurement{What: "errand list with 10 automations", Unit: "ms"}, []string{"minimal GET", "errand list"}, samples,
		target{Limit: 2})
}

// BenchmarkStart measures from the start of errandd to the first 200 of /readyz: on a new data directory, where both
// databases are made, and on one that was used before.
func BenchmarkStart(b *testing.B) {
	b.Run("first", func(b *testing.B) {
		var samples sample
		for range starts {
			s := apptest.New(b, apptest.Options{})
			samples = append(samples, float64(s.Restart().Milliseconds()))
			s.Close()
		}
		record(b, &measurement{What: "errandd, start to ready, new data directory", Unit: "ms"}, []string{"errandd"}, []sample{samples})
	})
	b.Run("again", func(b *testing.B) {
		s := apptest.Start(b, apptest.Options{})
		s.AwaitWorker()
		var samples sample
		for range starts {
			s.Interrupt()
			samples = append(samples, float64(s.Restart().Milliseconds()))
			s.AwaitWorker()
		}
		record(b, &measurement{What: "errandd, start to ready, used data directory", Unit: "ms"}, []string{"errandd"}, []sample{samples})
	})
}

// BenchmarkMemory measures what the programs occupy when they have nothing to do: after the first run, and after many.
func BenchmarkMemory(b *testing.B) {
	o := startOurs(b)
	one := o.create(1)
	o.run(b, 1, one)
	weigh := func(when string, daemon, worker target) {
		<-time.After(calm)
		for _, program := range []struct {
			name string
			pid  int
			target
		}{{"errandd", o.server.PID(), daemon}, {"errand worker", o.worker, worker}} {
			resident := float64(apptest.ResidentBytes(program.pid)) / (1 << 20)
			record(b, &measurement{What: program.name + ", memory idle " + when, Unit: "MiB", target: program.target},
				[]string{program.name}, []sample{{resident}})
		}
	}
	weigh("after a start", target{Limit: 300}, target{Limit: 40})
	for range lifetime / abreast {
		o.run(b, abreast, one)
	}
	weigh("after 1,000 runs", target{}, target{})
}
