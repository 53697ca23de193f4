package storetest

import (
	"encoding/json"
	"sync/atomic"
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/automation/schedule"
)

var scheduleRaceTests = []test{
	{"Decide", testDecideRace},
	{"Occurrences", testOccurrencesRace},
	{"DeleteWhileFiring", testDeleteWhileFiring},
	{"EditWhileFiring", testEditWhileFiring},
	{"OrderWhileEnding", testOrderWhileEnding},
	{"EndWhileAdmitting", testEndWhileAdmitting},
	{"CancelRunning", testCancelRunningRace},
}

func testDecideRace(t *testing.T, f *fixture) {
	at := f.servers(t)
	a := f.scheduled(t, every("1m", catchUp(schedule.CatchUpAll)))
	f.clock.Advance(10 * time.Minute)
	admitted, errs := together(callers, func(i int) (int, error) {
		d, err := at(i).DecideSchedule(t.Context(), a.Schedules[0].ID)
		return len(d.Admitted), err
	})
	wantNoErrors(t, errs)
	ready := 0
	for _, n := range admitted {
		ready += n
	}
	if n := len(f.runsOf(t, a)); n != 10 || ready != 1 || f.only(t, a).Occurrences != 10 {
		t.Errorf("%d runs were admitted and %d of them ready, want 10 and 1", n, ready)
	}
}

func testOccurrencesRace(t *testing.T, f *fixture) {
	at := f.servers(t)
	a := f.scheduled(t, every("1s", atMost(7), overlap(schedule.OverlapParallel)))
	for range 10 {
		f.clock.Advance(time.Second)
		_, errs := together(4, func(i int) (automation.ScheduleDecision, error) {
			return at(i).DecideSchedule(t.Context(), a.Schedules[0].ID)
		})
		wantNoErrors(t, errs)
	}
	if s := f.only(t, a); len(f.runsOf(t, a)) != 7 || s.Occurrences != 7 || s.Status != schedule.StatusFinished {
		t.Errorf("%d runs were admitted; the schedule stands at %+v", len(f.runsOf(t, a)), s)
	}
}

// testDeleteWhileFiring deletes an automation while its schedules are decided: what is admitted was admitted before
// the delete.
func testDeleteWhileFiring(t *testing.T, f *fixture) {
	at := f.servers(t)
	for range 5 {
		a := f.scheduled(t, every("1m"), every("1m"))
		f.clock.Advance(time.Minute)
		_, errs := together(callers, func(i int) (struct{}, error) {
			if i == callers/2 {
				return struct{}{}, at(i).DeleteAutomation(t.Context(), f.owner, a.ID, 0)
			}
			_, err := at(i).DecideSchedule(t.Context(), a.Schedules[i%2].ID)
			return struct{}{}, err
		})
		wantNoErrors(t, errs)
		if n := len(f.runsOf(t, a)); n != 2 {
			t.Errorf("%d runs were admitted, want 2: one for each schedule", n)
		}
		f.clock.Advance(time.Minute)
		f.due(t)
		if n := len(f.runsOf(t, a)); n != 2 {
			t.Errorf("%d runs after the delete, want 2", n)
		}
	}
}

// testEditWhileFiring changes schedules while they are decided: each instant is admitted once, by the version that
// stood then.
func testEditWhileFiring(t *testing.T, f *fixture) {
	at := f.servers(t)
	a := f.scheduled(t, every("1m", overlap(schedule.OverlapParallel)), every("1m", overlap(schedule.OverlapQueue)))
	const minutes = 6
	for minute := range minutes {
		f.clock.Advance(time.Minute)
		_, errs := together(callers, func(i int) (struct{}, error) {
			if i%4 == 0 {
				_, err := at(i/4).UpdateAutomation(t.Context(), f.owner, a.ID, 0, func(d *automation.Definition) error {
					d.Schedules[i/4%2].Input = json.RawMessage(`"` + string(rune('a'+minute)) + `"`)
					d.Description += "x"
					return nil
				})
				return struct{}{}, err
			}
			_, err := at(i).DecideSchedule(t.Context(), a.Schedules[i/2%2].ID)
			return struct{}{}, err
		})
		wantNoErrors(t, errs)
	}
	if n := len(f.runsOf(t, a)); n != 2*minutes {
		t.Errorf("%d runs were admitted, want %d", n, 2*minutes)
	}
	if read := f.automation(t, a); len(read.Description) != minutes*callers/4 {
		t.Errorf("%d changes were kept, want %d", len(read.Description), minutes*callers/4)
	}
}

// testOrderWhileEnding fires a schedule while its runs are executed and end: at most one of them may start at a time,
// and each is said to be ready once.
func testOrderWhileEnding(t *testing.T, f *fixture) {
	at := f.servers(t)
	a := f.scheduled(t, every("1m"))
	id := a.Schedules[0].ID
	var ready readyLog
	workers := f.db.Open(t, Options{Now: f.clock.Now, NewID: NewID, OnRunReady: ready.record})
	const firings = 30
	var firing atomic.Bool
	firing.Store(true)
	_, errs := together(3, func(i int) (struct{}, error) {
		if i > 0 { // executes whatever may start
			return struct{}{}, executeAll(t, workers, &firing)
		}
		defer firing.Store(false)
		for n := range firings {
			f.clock.Advance(time.Minute)
			d, err := at(n).DecideSchedule(t.Context(), id)
			if err != nil {
				return struct{}{}, err
			}
			for _, run := range d.Admitted {
				ready.record(run)
			}
		}
		return struct{}{}, nil
	})
	wantNoErrors(t, errs)
	runs := f.runsOf(t, a)
	for i, run := range runs {
		wantStatuses(t, run, "completed: completed")
		if i > 0 && run.StartedAt.Before(*runs[i-1].FinishedAt) {
			t.Errorf("run %d began before run %d had ended", i, i-1)
		}
	}
	said := ready.take()
	if len(runs) != firings || len(said) != firings || len(distinct(said)) != firings {
		t.Errorf("%d runs, %d of them said to be ready, want %d", len(runs), len(said), firings)
	}
}

// testEndWhileAdmitting ends a run after the decision to hold the next one was made and before it is stored: the ledger
// makes the id of a run between the two. The end must wait for the admission, else nothing would release that run.
func testEndWhileAdmitting(t *testing.T, f *fixture) {
	a := f.scheduled(t, every("1m"))
	f.clock.Advance(time.Minute)
	f.due(t)
	first := f.runsOf(t, a)[0]
	f.mustBegin(t, first, "one")
	ended := make(chan error, 1)
	var armed atomic.Bool
	slow := f.db.Open(t, Options{Now: f.clock.Now, NewID: func() string {
		if armed.CompareAndSwap(true, false) {
			go func() {
				_, err := f.Finish(t.Context(), first.MachineID, automation.FinishRequest{
					StepRef: ref(first, "one"), Execution: 1, Outcome: automation.OutcomeCompleted,
				})
				ended <- err
			}()
			select {
			case err := <-ended:
				t.Errorf("the run ended in the middle of the admission: %v", err)
				ended <- err
			case <-time.After(300 * time.Millisecond): // it waits, as it must; how long cannot be observed
			}
		}
		return NewID()
	}})
	f.clock.Advance(time.Minute)
	f.ready.take()
	armed.Store(true)
	if _, err := slow.DecideSchedule(t.Context(), a.Schedules[0].ID); err != nil {
		t.Fatalf("DecideSchedule: %v", err)
	}
	if err := <-ended; err != nil || armed.Load() {
		t.Fatalf("Finish: %v; the race was met: %v", err, !armed.Load())
	}
	second := f.runsOf(t, a)[1]
	if second.WaitsFor != "" {
		t.Errorf("the second run waits for %q", second.WaitsFor)
	}
	wantEqual(t, "what may start", f.ready.take(), []string{second.ID})
}

// executeAll executes the runs that may start, while more are admitted and until none is left. Two of these may find
// the same run; the ledger gives its step to both, as executions 1 and 2, of which one counts.
func executeAll(t *testing.T, l automation.Ledger, more *atomic.Bool) error {
	for {
		last := !more.Load()
		runs, err := l.StartableRuns(t.Context(), "engine", 10)
		if err != nil {
			return err
		}
		if len(runs) > 1 {
			t.Errorf("%d runs of one schedule may start", len(runs))
		}
		for _, run := range runs {
			step := automation.StepRef{RunID: run.RunID, StepID: "one"}
			begun, err := l.Begin(t.Context(), run.MachineID, automation.BeginRequest{StepRef: step, Generation: 1, RequestID: NewID()})
			if err != nil {
				return err
			}
			if begun.Decision != automation.BeginRun {
				continue
			}
			if _, err := l.Finish(t.Context(), run.MachineID, automation.FinishRequest{
				StepRef: step, Execution: begun.Execution, Outcome: automation.OutcomeCompleted,
			}); err != nil {
				return err
			}
		}
		if last && len(runs) == 0 {
			return nil
		}
	}
}

// testCancelRunningRace fires a schedule that cancels its earlier runs while those begin and end.
func testCancelRunningRace(t *testing.T, f *fixture) {
	at := f.servers(t)
	a := f.scheduled(t, every("1m", overlap(schedule.OverlapCancelRunning)))
	id := a.Schedules[0].ID
	const firings = 20
	for range firings {
		f.clock.Advance(time.Minute)
		_, errs := together(6, func(i int) (struct{}, error) {
			if i < 2 {
				_, err := at(i).DecideSchedule(t.Context(), id)
				return struct{}{}, err
			}
			open, _, err := at(i).UnfinishedRuns(t.Context(), f.owner, a.ID, 10)
			for _, run := range open {
				if err == nil {
					err = beginAndFinish(t, at(i), f.machine.ID, run)
				}
			}
			return struct{}{}, err
		})
		wantNoErrors(t, errs)
	}
	runs := f.runsOf(t, a)
	if len(runs) != firings {
		t.Errorf("%d runs were admitted, want %d", len(runs), firings)
	}
	unfinished := 0
	for _, run := range runs {
		if !run.Status.Finished() {
			unfinished++
		}
	}
	if unfinished > 1 { // what had begun was finished by the one that began it
		t.Errorf("%d runs are unfinished, want at most the last one", unfinished)
	}
}

// beginAndFinish executes the step of a run, if it may begin now.
func beginAndFinish(t *testing.T, l automation.Ledger, machineID, runID string) error {
	step := automation.StepRef{RunID: runID, StepID: "one"}
	begun, err := l.Begin(t.Context(), machineID, automation.BeginRequest{StepRef: step, Generation: 1, RequestID: NewID()})
	if err != nil || begun.Decision != automation.BeginRun {
		return err
	}
	_, err = l.Finish(t.Context(), machineID, automation.FinishRequest{
		StepRef: step, Execution: begun.Execution, Outcome: automation.OutcomeCompleted,
	})
	return err
}
