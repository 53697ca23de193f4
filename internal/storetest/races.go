package storetest

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
)

var raceTests = []test{
	{"Revision", testRevisionRace},
	{"Admit", testAdmitRace},
	{"AdmitAndMove", testAdmitMoveRace},
	{"Create", testCreateRace},
	{"Enroll", testEnrollRace},
	{"Begin", testBeginRace},
	{"BeginRepeated", testBeginRepeatedRace},
	{"FinishRepeated", testFinishRace},
	{"FinishAndCancel", testFinishCancelRace},
	{"ForeignEngine", testForeignEngineRace},
	{"Lease", testLeaseRace},
	{"ManyRuns", testManyRuns},
	{"Reading", testReadingRace},
}

// callers is how many calls of a race are made at once, alternately on two servers.
const callers = 16

// testRevisionRace changes a run on one server after another has read it and before that one writes: the ledger
// reads its clock between the two. The slower change must be decided again, on the new state.
func testRevisionRace(t *testing.T, f *fixture) {
	run := f.newRun(t, "one", "two")
	var armed atomic.Bool
	var decided atomic.Int32
	slow := f.db.Open(t, Options{NewID: NewID, Now: func() time.Time {
		decided.Add(1)
		if armed.CompareAndSwap(true, false) {
			f.cancel(t, run, false)
		}
		return f.clock.Now()
	}})
	armed.Store(true)
	decided.Store(0)
	answer, err := slow.Begin(t.Context(), run.MachineID, automation.BeginRequest{StepRef: ref(run, "one"), Generation: 1, RequestID: NewID()})
	if err != nil {
		t.Fatalf("Begin: %v", err)
	}
	if armed.Load() || decided.Load() != 2 {
		t.Fatalf("the race was not met: decided %d times, want 2", decided.Load())
	}
	if answer.Decision != automation.BeginStop || answer.Stop != automation.StopCancelled || answer.Step != nil {
		t.Errorf("Begin = %+v, want stop: the cancel came first", answer)
	}
	got := f.read(t, run)
	wantStatuses(t, got, "cancelled: skipped skipped")
	if got.Revision != run.Revision+1 {
		t.Errorf("the revision is %d, want %d: only the cancel changed the run", got.Revision, run.Revision+1)
	}
}

// servers opens a second ledger; even calls go to the first, odd ones to the second.
func (f *fixture) servers(t *testing.T) func(i int) automation.Ledger {
	t.Helper()
	second := f.another(t)
	return func(i int) automation.Ledger {
		if i%2 == 0 {
			return f.Ledger
		}
		return second
	}
}

func wantNoErrors(t *testing.T, errs []error) {
	t.Helper()
	for i, err := range errs {
		if err != nil {
			t.Errorf("call %d: %v", i, err)
		}
	}
}

// distinct returns the different values, sorted.
func distinct(values []string) []string { return slices.Compact(slices.Sorted(slices.Values(values))) }

func testAdmitRace(t *testing.T, f *fixture) {
	at := f.servers(t)
	admission := manual(f.create(t, f.definition("job", "one")))
	admission.Key = automation.Idempotency{Operation: "run-now", Key: "k", RequestHash: "h"}
	ids, errs := together(callers, func(i int) (string, error) {
		run, err := at(i).Admit(t.Context(), admission)
		return run.ID, err
	})
	wantNoErrors(t, errs)
	f.wantOneRun(t, ids)
}

// testAdmitMoveRace admits runs while the automation is moved from one machine to another and back: each admission
// comes before or after a move, and none finds nothing.
func testAdmitMoveRace(t *testing.T, f *fixture) {
	at := f.servers(t)
	a := f.create(t, f.definition("job", "one"))
	machines := []string{a.MachineID, f.enroll(t, f.owner, "other").ID}
	var admitted atomic.Int32
	_, errs := together(callers, func(i int) (string, error) {
		for admitted.Load() < 10*callers {
			if i == 0 {
				if _, err := f.UpdateAutomation(t.Context(), f.owner, a.ID, 0, func(d *automation.Definition) error {
					d.MachineID = machines[slices.Index(machines, d.MachineID)^1]
					return nil
				}); err != nil {
					return "", err
				}
				continue
			}
			run, err := at(i).Admit(t.Context(), manual(a))
			if err != nil {
				return "", err
			}
			if !slices.Contains(machines, run.MachineID) {
				return "", fmt.Errorf("run %s targets %s", run.ID, run.MachineID)
			}
			admitted.Add(1)
		}
		return "", nil
	})
	wantNoErrors(t, errs)
}

func (f *fixture) wantOneRun(t *testing.T, ids []string) {
	t.Helper()
	stored, _, err := f.ListRuns(t.Context(), f.owner, automation.RunFilter{})
	if err != nil {
		t.Fatalf("ListRuns: %v", err)
	}
	if len(distinct(ids)) != 1 || len(stored) != 1 || stored[0].ID != ids[0] {
		t.Errorf("%d runs were answered and %d stored, want the same one", len(distinct(ids)), len(stored))
	}
}

func testCreateRace(t *testing.T, f *fixture) {
	at := f.servers(t)
	key := automation.Idempotency{Operation: "create", Key: "k", RequestHash: "h"}
	ids, errs := together(callers, func(i int) (string, error) {
		a, err := at(i).CreateAutomation(t.Context(), f.owner, f.definition("job", "one"), key)
		return a.ID, err
	})
	wantNoErrors(t, errs)
	stored, _, err := f.ListAutomations(t.Context(), f.owner, automation.AutomationFilter{})
	if err != nil || len(distinct(ids)) != 1 || len(stored) != 1 {
		t.Errorf("%d automations were answered and %d stored, %v, want one", len(distinct(ids)), len(stored), err)
	}
}

func testEnrollRace(t *testing.T, f *fixture) {
	at := f.servers(t)
	ids, errs := together(callers, func(i int) (string, error) {
		m, err := at(i).EnrollMachine(t.Context(), automation.NewMachine{OwnerID: f.owner, Name: "new", PublicKey: "key"})
		return m.ID, err
	})
	wantNoErrors(t, errs)
	stored, _, err := f.Machines(t.Context(), f.owner, 0, "")
	if err != nil || len(distinct(ids)) != 1 || len(stored) != 2 {
		t.Errorf("%d machines were answered and %d stored, %v, want one beside the first", len(distinct(ids)), len(stored), err)
	}
}

// testBeginRace begins one step many times: each call gets a number of its own.
func testBeginRace(t *testing.T, f *fixture) {
	at := f.servers(t)
	run := f.newRun(t, "one")
	numbers, errs := together(callers, func(i int) (int64, error) {
		answer, err := at(i).Begin(t.Context(), run.MachineID, automation.BeginRequest{
			StepRef: ref(run, "one"), Generation: 1, RequestID: NewID(),
		})
		return answer.Execution, err
	})
	wantNoErrors(t, errs)
	slices.Sort(numbers)
	for i, n := range numbers {
		if n != int64(i)+1 {
			t.Fatalf("the executions have the numbers %v, want 1 to %d", numbers, callers)
		}
	}
	got := f.read(t, run)
	if got.Steps[0].Attempt != callers || got.Revision != run.Revision+callers {
		t.Errorf("the step has number %d and the run revision %d", got.Steps[0].Attempt, got.Revision)
	}
}

func testBeginRepeatedRace(t *testing.T, f *fixture) {
	at := f.servers(t)
	run := f.newRun(t, "one")
	request := automation.BeginRequest{StepRef: ref(run, "one"), Generation: 1, RequestID: NewID()}
	numbers, errs := together(callers, func(i int) (int64, error) {
		answer, err := at(i).Begin(t.Context(), run.MachineID, request)
		return answer.Execution, err
	})
	wantNoErrors(t, errs)
	if slices.Max(numbers) != 1 || slices.Min(numbers) != 1 {
		t.Errorf("the copies of one begin got the numbers %v, want 1", numbers)
	}
}

func testFinishRace(t *testing.T, f *fixture) {
	at := f.servers(t)
	run := f.newRun(t, "one", "two")
	f.mustBegin(t, run, "one")
	outcomes := []automation.Outcome{automation.OutcomeCompleted, automation.OutcomeFailed}
	answers, errs := together(callers, func(i int) (automation.Outcome, error) {
		outcome := outcomes[i/2%2]
		answer, err := at(i).Finish(t.Context(), run.MachineID, automation.FinishRequest{
			StepRef: ref(run, "one"), Execution: 1, Outcome: outcome, Result: json.RawMessage(`"` + string(outcome) + `"`),
		})
		return answer.Outcome, err
	})
	wantNoErrors(t, errs)
	got := f.read(t, run)
	recorded := string(got.Steps[0].Status)
	for i, answer := range answers {
		if string(answer) != recorded {
			t.Errorf("call %d was answered %q, and %q is recorded", i, answer, recorded)
		}
	}
	if output := string(got.Steps[0].Output); output != `"`+recorded+`"` {
		t.Errorf("the output is %s beside the outcome %q", output, recorded)
	}
}

// testFinishCancelRace completes the only step of many runs while they are cancelled. Whichever comes first, a run
// ends once, and says so to both.
func testFinishCancelRace(t *testing.T, f *fixture) {
	at := f.servers(t)
	a := f.create(t, f.definition("job", "one"))
	for i := range callers {
		run := f.admit(t, a)
		f.mustBegin(t, run, "one")
		_, errs := together(2, func(who int) (struct{}, error) {
			ledger := at(who + i)
			if who == 0 {
				answer, err := ledger.Finish(t.Context(), run.MachineID, automation.FinishRequest{
					StepRef: ref(run, "one"), Execution: 1, Outcome: automation.OutcomeCompleted,
				})
				if err == nil && (!answer.Accepted || answer.Outcome != automation.OutcomeCompleted) {
					t.Errorf("Finish = %+v", answer)
				}
				return struct{}{}, err
			}
			_, err := ledger.RequestCancel(t.Context(), f.owner, run.ID, "", false)
			return struct{}{}, err
		})
		if errs[0] != nil {
			t.Fatalf("Finish: %v", errs[0])
		}
		got := f.read(t, run)
		wantStatuses(t, got, "completed: completed")
		switch {
		case got.CancelRequestedAt == nil:
			wantCode(t, "a cancel that came second", errs[1], automation.CodeAlreadyFinished)
		case errs[1] != nil:
			t.Errorf("a recorded cancel was answered %v", errs[1])
		}
	}
	if ends := f.openEnds(t, f.machine.ID); len(ends) != 0 {
		t.Errorf("ends are left open: %v", ends)
	}
}

// testForeignEngineRace lets several servers find the same runs of a lost engine: the generation is raised once.
func testForeignEngineRace(t *testing.T, f *fixture) {
	at := f.servers(t)
	a := f.create(t, f.definition("job", "one"))
	for range 10 {
		f.markStarted(t, f.admit(t, a), 1, "lost")
	}
	found, errs := together(callers, func(i int) ([]automation.Startable, error) {
		return at(i).StartableRuns(t.Context(), "engine", 100)
	})
	wantNoErrors(t, errs)
	for _, runs := range append(found, f.startable(t, "engine", 100)) {
		for _, run := range runs {
			if run.Generation != 2 {
				t.Errorf("a run was given generation %d, want 2", run.Generation)
			}
		}
	}
	if left := f.startable(t, "engine", 100); len(left) != 10 {
		t.Errorf("%d runs are to be started, want 10", len(left))
	}
}

func testLeaseRace(t *testing.T, f *fixture) {
	at := f.servers(t)
	taken, errs := together(callers, func(i int) (bool, error) {
		return at(i).Lease(t.Context(), "starter", NewID(), time.Minute)
	})
	wantNoErrors(t, errs)
	holders := 0
	for _, ok := range taken {
		if ok {
			holders++
		}
	}
	if holders != 1 {
		t.Errorf("%d holders took the lease at once, want 1", holders)
	}
}

// testManyRuns works on many runs at once on two servers, so that commits are shared and locks are waited for.
func testManyRuns(t *testing.T, f *fixture) {
	at := f.servers(t)
	a := f.create(t, f.definition("job", "one", "two", "three"))
	ids, errs := together(2*callers, func(i int) (string, error) {
		ledger := at(i)
		run, err := ledger.Admit(t.Context(), manual(a))
		if err != nil {
			return "", err
		}
		for _, step := range run.Steps {
			begun, err := ledger.Begin(t.Context(), run.MachineID, automation.BeginRequest{
				StepRef: ref(run, step.ID), Generation: 1, RequestID: NewID(),
			})
			if err != nil {
				return "", err
			}
			if _, err = at(i+1).Finish(t.Context(), run.MachineID, automation.FinishRequest{
				StepRef: ref(run, step.ID), Execution: begun.Execution, Outcome: automation.OutcomeCompleted, Result: json.RawMessage(`1`),
			}); err != nil {
				return "", err
			}
		}
		return run.ID, nil
	})
	wantNoErrors(t, errs)
	if n := len(distinct(ids)); n != 2*callers {
		t.Errorf("%d runs were admitted, want %d", n, 2*callers)
	}
	for _, id := range ids {
		run, err := f.Run(t.Context(), f.owner, id)
		if err != nil {
			t.Fatalf("Run: %v", err)
		}
		wantStatuses(t, run, "completed: completed completed completed")
	}
}

// testReadingRace reads runs while they change: what is read is what stood at one revision.
func testReadingRace(t *testing.T, f *fixture) {
	at := f.servers(t)
	a := f.create(t, f.definition("job", "one", "two"))
	want := []string{
		"pending: pending pending", "running: running pending", "running: completed pending",
		"running: completed running", "completed: completed completed",
	}
	for range callers {
		run := f.admit(t, a)
		stop := make(chan struct{})
		_, errs := together(callers/2, func(i int) (struct{}, error) {
			if i == 0 {
				defer close(stop)
				f.complete(t, run, "one", `1`)
				f.complete(t, run, "two", `2`)
				return struct{}{}, nil
			}
			for {
				got, err := at(i).Run(t.Context(), f.owner, run.ID)
				if err != nil {
					return struct{}{}, err
				}
				if stood := want[got.Revision-1]; statuses(got) != stood {
					t.Errorf("revision %d was read as %q, want %q", got.Revision, statuses(got), stood)
				}
				for _, step := range got.Steps {
					if (step.Status == automation.StepCompleted) != (step.Output != nil) {
						t.Errorf("step %q was read as %s with the output %s", step.ID, step.Status, step.Output)
					}
				}
				select {
				case <-stop:
					return struct{}{}, nil
				default:
				}
			}
		})
		wantNoErrors(t, errs)
	}
}
