package storetest

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/automation/schedule"
)

var observeTests = []test{
	{"Runs", testObserveRuns},
	{"Refusals", testObserveRefusals},
	{"Schedules", testObserveSchedules},
	{"Cancels", testObserveCancels},
	{"Lost", testObserveLost},
	{"Race", testObserveRace},
	{"Census", testCensus},
	{"EmptyCensus", testEmptyCensus},
}

// sightings is an observer that keeps what it was told.
type sightings struct {
	mu   sync.Mutex
	told []string
}

func (s *sightings) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, fmt.Sprintf(format, args...))
}

// take returns what was told since the last call, in order of the text.
func (s *sightings) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	told := s.told
	s.told = nil
	slices.Sort(told)
	return told
}

func (s *sightings) RunAdmitted(trigger automation.TriggerKind) { s.note("admitted %s", trigger) }
func (s *sightings) RunEnded(status automation.RunStatus)       { s.note("run %s", status) }
func (s *sightings) StepBegun(kind automation.StepKind)         { s.note("begun %s", kind) }
func (s *sightings) StepInterrupted(kind automation.StepKind)   { s.note("interrupted %s", kind) }
func (s *sightings) InstantAdmitted(behind time.Duration)       { s.note("behind %v", behind) }

func (s *sightings) StepEnded(kind automation.StepKind, status automation.StepStatus) {
	s.note("step %s %s", kind, status)
}

func (s *sightings) InstantsDropped(reason schedule.Reason, count int64) {
	s.note("dropped %s %d", reason, count)
}

func testObserveRuns(t *testing.T, f *fixture) {
	a := f.create(t, f.definition("job", "one", "two"))
	key := automation.Idempotency{Operation: "run-now", Key: "k", RequestHash: "h"}
	admission := automation.Admission{
		OwnerID: a.OwnerID, AutomationID: a.ID, Trigger: automation.Trigger{Kind: automation.TriggerManual}, Key: key,
	}
	run := f.admitWith(t, admission)
	f.admitWith(t, admission) // a repeat admits nothing
	wantEqual(t, "the admission", f.observed.take(), []string{"admitted manual"})

	f.mustBegin(t, run, "one")
	f.finish(t, run, automation.FinishRequest{StepRef: ref(run, "one"), Execution: 1, Outcome: automation.OutcomeInterrupted})
	f.clock.Advance(time.Hour)
	second := f.mustBegin(t, run, "one")
	done := automation.FinishRequest{
		StepRef: ref(run, "one"), Execution: second, Outcome: automation.OutcomeCompleted, Result: json.RawMessage("1"),
	}
	f.finish(t, run, done)
	f.finish(t, run, done) // a repeat ends nothing
	wantEqual(t, "the first step", f.observed.take(), []string{
		"begun command", "begun command", "interrupted command", "step command completed",
	})
	f.finish(t, run, automation.FinishRequest{
		StepRef: ref(run, "two"), Execution: f.mustBegin(t, run, "two"), Outcome: automation.OutcomeFailed,
		Error: &automation.StepError{Code: automation.StepErrNonzeroExit, Message: "no"},
	})
	wantEqual(t, "the second step", f.observed.take(), []string{"begun command", "run failed", "step command failed"})

	again, err := f.Retry(t.Context(), automation.Retry{OwnerID: run.OwnerID, RunID: run.ID})
	if err != nil {
		t.Fatal(err)
	}
	f.complete(t, again, "two", "2")
	wantEqual(t, "the run that repeats it", f.observed.take(), []string{
		"admitted manual", "begun command", "run completed", "step command completed",
	})
}

func testObserveRefusals(t *testing.T, f *fixture) {
	d := f.definition("job", "one")
	d.Enabled = false
	a := f.create(t, d)
	_, err := f.Admit(t.Context(), automation.Admission{
		OwnerID: a.OwnerID, AutomationID: a.ID, Trigger: automation.Trigger{Kind: automation.TriggerManual},
	})
	wantCode(t, "an admission to a disabled automation", err, automation.CodeAutomationDisabled)
	if told := f.observed.take(); len(told) != 0 {
		t.Errorf("a refused admission was told as %v", told)
	}
}

func testObserveSchedules(t *testing.T, f *fixture) {
	a := f.scheduled(t, every("", spec(schedule.Spec{Every: "1m", Anchor: "2026-01-05T09:00:00Z"}), overlap(schedule.OverlapSkip)))
	id := a.Schedules[0].ID
	f.clock.Advance(3*time.Minute + 2*time.Second - 123_456*time.Microsecond) // the suite's clock stands a fraction after 09:00
	f.decide(t, id)
	f.decide(t, id) // nothing more is due
	wantEqual(t, "a firing after a pause", f.observed.take(), []string{"admitted schedule", "behind 2s", "dropped missed 2"})
	f.clock.Advance(time.Minute)
	f.decide(t, id)
	wantEqual(t, "a firing beside an unfinished run", f.observed.take(), []string{"dropped overlap 1"})

	f.clock.Advance(time.Minute)
	if err := f.DeleteAutomation(t.Context(), a.OwnerID, a.ID, 0); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "what was due at a deletion", f.observed.take(), []string{"dropped overlap 1"})
}

func testObserveCancels(t *testing.T, f *fixture) {
	a := f.scheduled(t, every("1m", overlap(schedule.OverlapCancelRunning)))
	f.clock.Advance(time.Minute)
	f.decide(t, a.Schedules[0].ID)
	f.observed.take()
	f.clock.Advance(time.Minute)
	f.decide(t, a.Schedules[0].ID)
	wantEqual(t, "a firing that cancels", f.observed.take(), []string{
		"admitted schedule", "behind 123.456ms", "run cancelled", "step command skipped",
	})
	run := f.newRun(t, "one", "two")
	f.mustBegin(t, run, "one")
	f.cancel(t, run, false)
	wantEqual(t, "a cancel during a step", f.observed.take(), []string{"admitted manual", "begun command", "step command skipped"})
	f.finish(t, run, automation.FinishRequest{StepRef: ref(run, "one"), Execution: 1, Outcome: automation.OutcomeCancelled})
	wantEqual(t, "its confirmation", f.observed.take(), []string{"run cancelled", "step command cancelled"})
}

func testObserveLost(t *testing.T, f *fixture) {
	run := f.newRun(t, "one", "two")
	f.mustBegin(t, run, "one")
	f.observed.take()
	if _, err := f.RevokeMachine(t.Context(), f.owner, f.machine.ID); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := f.LoseRuns(t.Context(), 10); err != nil {
			t.Fatal(err)
		}
	}
	wantEqual(t, "the loss of a machine", f.observed.take(), []string{"run failed", "step command failed", "step command skipped"})
}

// testObserveRace: of changes that race, those that came too late are told of by nobody.
func testObserveRace(t *testing.T, f *fixture) {
	run := f.newRun(t, "one")
	f.mustBegin(t, run, "one")
	f.observed.take()
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if _, err := f.Finish(t.Context(), run.MachineID, automation.FinishRequest{
				StepRef: ref(run, "one"), Execution: 1, Outcome: automation.OutcomeCompleted, Result: json.RawMessage("1"),
			}); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	wantEqual(t, "eight finishes of one step", f.observed.take(), []string{"run completed", "step command completed"})
}

func testEmptyCensus(t *testing.T, f *fixture) {
	census, err := f.Census(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "the census", census, automation.Census{Unfinished: map[automation.RunStanding]int{}, Enrolled: 1})
}

// testCensus compares the census with what each run says by itself, over runs that wait for everything there is.
func testCensus(t *testing.T, f *fixture) {
	busy, away, stalled, gone := f.enroll(t, f.owner, "busy"), f.enroll(t, f.owner, "away"), f.enroll(t, f.owner, "stalled"), f.enroll(t, f.owner, "gone")
	const slots = 4
	for _, machine := range []automation.Machine{f.machine, busy, stalled} {
		if _, err := f.Hello(t.Context(), machine.ID, automation.Hello{
			Instance: automation.Instance{DirectoryID: NewID(), BootID: NewID(), Start: 1, Host: "here"}, Concurrency: slots,
		}); err != nil {
			t.Fatal(err)
		}
	}
	runOn := func(machine automation.Machine) automation.Run {
		d := f.definition("job", "one", "two")
		d.MachineID = machine.ID
		run := f.admit(t, f.create(t, d))
		f.markStarted(t, run, 1, "engine")
		return run
	}
	f.newRun(t, "one") // not started
	a := f.scheduled(t, every("1m"))
	f.clock.Advance(time.Minute)
	f.decide(t, a.Schedules[0].ID)
	f.clock.Advance(time.Minute)
	f.decide(t, a.Schedules[0].ID) // held
	retrying := runOn(f.machine)
	f.mustBegin(t, retrying, "one")
	f.finish(t, retrying, automation.FinishRequest{StepRef: ref(retrying, "one"), Execution: 1, Outcome: automation.OutcomeInterrupted})
	ending := runOn(f.machine)
	f.mustBegin(t, ending, "one")
	f.cancel(t, ending, false)
	f.complete(t, runOn(f.machine), "one", "1") // between two steps
	f.mustBegin(t, runOn(away), "one")          // executes on a machine that is away
	for range slots {
		f.mustBegin(t, runOn(busy), "one")
	}
	runOn(busy)
	lost := runOn(stalled)
	if _, err := f.StallRun(t.Context(), automation.StalledStep{StepRef: ref(lost, "one"), Generation: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.RevokeMachine(t.Context(), f.owner, gone.ID); err != nil {
		t.Fatal(err)
	}
	for _, machine := range []automation.Machine{f.machine, busy, stalled} {
		if err := f.TouchMachine(t.Context(), machine.ID, f.clock.Now()); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[automation.WaitReason]bool{}
	for _, up := range []bool{true, false} {
		census, err := f.Census(t.Context(), up)
		if err != nil {
			t.Fatal(err)
		}
		want := automation.Census{Unfinished: f.standings(t, up), Enrolled: 4, Online: 3}
		wantEqual(t, fmt.Sprintf("the census with the engine up: %v", up), census, want)
		for standing := range want.Unfinished {
			seen[standing.Waits] = true
		}
	}
	if len(seen) != 9 {
		t.Errorf("the runs of this test wait for %v only", seen)
	}
}

// standings counts the unfinished runs of the fixture's owner one by one.
func (f *fixture) standings(t *testing.T, engineUp bool) map[automation.RunStanding]int {
	t.Helper()
	runs, _, err := f.ListRuns(t.Context(), f.owner, automation.RunFilter{Limit: 200})
	if err != nil {
		t.Fatal(err)
	}
	standings := map[automation.RunStanding]int{}
	for _, run := range runs {
		if run.Status.Finished() {
			continue
		}
		loads, err := f.MachineLoads(t.Context(), []string{run.MachineID})
		if err != nil {
			t.Fatal(err)
		}
		standing := automation.RunStanding{Status: run.Status}
		if waits := run.Waiting(loads[run.MachineID], engineUp, f.clock.Now()); waits != nil {
			standing.Waits = waits.Reason
		}
		standings[standing]++
	}
	return standings
}
