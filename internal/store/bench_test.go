package store_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/store"
	"github.com/errandhq/errand/internal/storetest"
)

// benchmarkRun is a store with an automation of as many steps as asked for.
func benchmarkAutomation(b *testing.B, k kind, steps int) (*store.Store, automation.Automation) {
	b.Helper()
	s := open(b, k.fresh(b), storetest.Options{Now: time.Now, NewID: storetest.NewID})
	installation, err := s.Installation(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	m, err := s.EnrollMachine(b.Context(), automation.NewMachine{OwnerID: installation.LocalOwnerID, Name: "m", PublicKey: "k"})
	if err != nil {
		b.Fatal(err)
	}
	plan := &automation.Plan{Version: 2}
	for i := range steps {
		plan.Steps = append(plan.Steps, automation.Step{ID: fmt.Sprintf("s%d", i), Kind: automation.KindCommand, Command: "true"})
	}
	a, err := s.CreateAutomation(b.Context(), installation.LocalOwnerID, automation.Definition{
		Name: "bench", Enabled: true, MachineID: m.ID, Workflow: automation.Workflow{Compiled: plan},
	}, automation.Idempotency{})
	if err != nil {
		b.Fatal(err)
	}
	return s, a
}

func benchmarkAdmit(b *testing.B, s *store.Store, a automation.Automation) automation.Run {
	b.Helper()
	run, err := s.Admit(b.Context(), automation.Admission{
		OwnerID: a.OwnerID, AutomationID: a.ID, Trigger: automation.Trigger{Kind: automation.TriggerManual},
	})
	if err != nil {
		b.Fatal(err)
	}
	return run
}

var benchmarkResult = json.RawMessage(`{"exitCode":0,"signal":null,"stdout":"","stderr":"","stdoutBytes":0,"stderrBytes":0,` +
	`"stdoutTruncated":false,"stderrTruncated":false,"durationMs":1,"leftovers":0}`)

// BenchmarkBeginFinish measures what the ledger adds to one step: the pair of begin and finish, in a run of 40 steps,
// one run at a time and 16 at a time.
func BenchmarkBeginFinish(b *testing.B) {
	const steps = 40
	for _, k := range kinds {
		for _, parallel := range []int{1, 16} {
			b.Run(fmt.Sprintf("%s/%d", k.name, parallel), func(b *testing.B) {
				s, a := benchmarkAutomation(b, k, steps)
				b.SetParallelism(parallel)
				if parallel == 1 {
					run := automation.Run{}
					for i := 0; b.Loop(); i++ {
						if i%steps == 0 {
							b.StopTimer()
							run = benchmarkAdmit(b, s, a)
							b.StartTimer()
						}
						beginFinish(b, s, run, i%steps)
					}
					return
				}
				b.RunParallel(func(pb *testing.PB) {
					run := benchmarkAdmit(b, s, a)
					for i := 0; pb.Next(); i++ {
						if i == steps {
							i, run = 0, benchmarkAdmit(b, s, a)
						}
						beginFinish(b, s, run, i)
					}
				})
			})
		}
	}
}

func beginFinish(b *testing.B, s *store.Store, run automation.Run, step int) {
	b.Helper()
	ref := automation.StepRef{RunID: run.ID, StepID: run.Steps[step].ID}
	begun, err := s.Begin(b.Context(), run.MachineID, automation.BeginRequest{StepRef: ref, Generation: 1, RequestID: storetest.NewID()})
	if err != nil || begun.Decision != automation.BeginRun {
		b.Fatalf("Begin = %+v, %v", begun, err)
	}
	answer, err := s.Finish(b.Context(), run.MachineID, automation.FinishRequest{
		StepRef: ref, Execution: begun.Execution, Outcome: automation.OutcomeCompleted, Result: benchmarkResult,
	})
	if err != nil || !answer.Accepted {
		b.Fatalf("Finish = %+v, %v", answer, err)
	}
}

// BenchmarkAdmit measures the admission of a run of one step.
func BenchmarkAdmit(b *testing.B) {
	for _, k := range kinds {
		b.Run(k.name, func(b *testing.B) {
			s, a := benchmarkAutomation(b, k, 1)
			for b.Loop() {
				benchmarkAdmit(b, s, a)
			}
		})
	}
}

// BenchmarkWaiting measures what is asked all the time, while 10,000 runs wait for a machine that is offline.
func BenchmarkWaiting(b *testing.B) {
	const waiting = 10_000
	for _, k := range kinds {
		s, a := benchmarkAutomation(b, k, 1)
		for range waiting {
			run := benchmarkAdmit(b, s, a)
			if err := s.MarkStarted(b.Context(), run.ID, 1, "engine"); err != nil {
				b.Fatal(err)
			}
		}
		for name, call := range map[string]func() error{
			"StartableRuns": func() error { _, err := s.StartableRuns(b.Context(), "engine", 100); return err },
			"OpenEnds":      func() error { _, err := s.OpenEnds(b.Context(), []string{a.MachineID}); return err },
			"MachineLoads":  func() error { _, err := s.MachineLoads(b.Context(), []string{a.MachineID}); return err },
			"ListRuns": func() error {
				_, _, err := s.ListRuns(b.Context(), a.OwnerID, automation.RunFilter{Status: automation.RunPending})
				return err
			},
			"ListRunsOfAutomation": func() error {
				_, _, err := s.ListRuns(b.Context(), a.OwnerID, automation.RunFilter{AutomationID: a.ID, Limit: 10})
				return err
			},
		} {
			b.Run(k.name+"/"+name, func(b *testing.B) {
				for b.Loop() {
					if err := call(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
