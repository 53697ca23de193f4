package storetest

import (
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/automation/schedule"
)

var retryTests = []test{
	{"Carries", testRetryCarries},
	{"Refusals", testRetryRefusals},
	{"Idempotent", testRetryIdempotent},
	{"Machine", testRetryKeepsMachine},
}

var manyCancelTests = []test{
	{"Selection", testCancelSelection},
	{"Thousands", testCancelMany},
	{"Queue", testCancelQueue},
}

var keyTests = []test{
	{"Purge", testPurgeKeys},
}

// retryRaceTests name the races of admission that are not in [raceTests].
var retryRaceTests = []test{
	{"RetryTwice", testRetryRace},
	{"RetryAndDelete", testRetryDeleteRace},
	{"CancelWhileStarting", testCancelStartRace},
	{"CancelRunsTwice", testCancelsRace},
	{"EditWhileAdmitting", testEditRace},
}

// failedRun is a run of three steps whose second has failed.
func (f *fixture) failedRun(t *testing.T) automation.Run {
	t.Helper()
	run := f.admitWith(t, automation.Admission{
		OwnerID: f.owner, AutomationID: f.create(t, f.definition("job", "one", "two", "three")).ID,
		Trigger: automation.Trigger{Kind: automation.TriggerManual}, Input: json.RawMessage(`{"z":1.50}`),
	})
	f.complete(t, run, "one", `{"first":"output"}`)
	f.clock.Advance(time.Minute)
	f.fail(t, run, "two")
	return f.read(t, run)
}

// fail begins a step and reports its failure.
func (f *fixture) fail(t *testing.T, r automation.Run, stepID string) {
	t.Helper()
	f.finish(t, r, automation.FinishRequest{
		StepRef: ref(r, stepID), Execution: f.mustBegin(t, r, stepID), Outcome: automation.OutcomeFailed,
		Result: json.RawMessage(`{"exitCode":1}`), Error: &automation.StepError{Code: automation.StepErrNonzeroExit, Message: "exit status 1"},
	})
}

func (f *fixture) retry(t *testing.T, r automation.Retry) automation.Run {
	t.Helper()
	run, err := f.Retry(t.Context(), r)
	if err != nil {
		t.Fatalf("Retry: %v", err)
	}
	return run
}

func testRetryCarries(t *testing.T, f *fixture) {
	first := f.failedRun(t)
	_, err := f.UpdateAutomation(t.Context(), f.owner, first.AutomationID, 0, func(d *automation.Definition) error {
		d.Name, d.Workflow.Compiled = "renamed", f.definition("", "other").Workflow.Compiled
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	f.clock.Advance(time.Hour)
	second := f.retry(t, automation.Retry{OwnerID: f.owner, RunID: first.ID})
	wantEqual(t, "the retry as it is read", f.read(t, second), second)
	wantStatuses(t, second, "pending: completed pending pending")
	wantEqual(t, "the snapshot", second.Plan, first.Plan)
	if second.ID == first.ID || second.RetryOf != first.ID || string(second.Input) != `{"z":1.50}` || second.AutomationName != "job" ||
		second.AutomationVersion != 1 || second.Trigger != (automation.Trigger{Kind: automation.TriggerManual}) {
		t.Errorf("the retry is %+v", second)
	}
	want := first.Steps[0]
	want.Attempt, want.BeginID, want.CarriedFrom = 0, "", first.ID
	wantEqual(t, "the carried step", second.Steps[0], want)

	if done := f.begin(t, second, "one"); done.Decision != automation.BeginDone || done.Outcome != automation.OutcomeCompleted {
		t.Errorf("a begin of the carried step = %+v", done)
	}
	f.complete(t, second, "two", `2`)
	f.fail(t, second, "three")
	third := f.retry(t, automation.Retry{OwnerID: f.owner, RunID: second.ID})
	wantStatuses(t, third, "pending: completed completed pending")
	if third.Steps[0].CarriedFrom != first.ID || third.Steps[1].CarriedFrom != second.ID || third.RetryOf != second.ID ||
		string(third.Steps[0].Output) != `{"first":"output"}` || string(third.Steps[1].Output) != `2` || third.Steps[2].Output != nil {
		t.Errorf("the retry of the retry has the steps %+v", third.Steps)
	}
	f.complete(t, third, "three", `3`)
	wantStatuses(t, f.read(t, third), "completed: completed completed completed")
	wantEqual(t, "the first run after all", f.read(t, first), first)

	again := f.retry(t, automation.Retry{OwnerID: f.owner, RunID: third.ID, FromStep: "two"})
	wantStatuses(t, again, "pending: completed pending pending")
	wantEqual(t, "the runs to start", startableIDs(f.startable(t, "engine", 10)), []string{again.ID})
}

func testRetryRefusals(t *testing.T, f *fixture) {
	other, _ := f.addOwner(t)
	unfinished, failed, deleted, disabled := f.newRun(t, "one"), f.failedRun(t), f.failedRun(t), f.failedRun(t)
	if err := f.DeleteAutomation(t.Context(), f.owner, deleted.AutomationID, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := f.UpdateAutomation(t.Context(), f.owner, disabled.AutomationID, 0, func(d *automation.Definition) error {
		d.Enabled = false
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	refused := func(name string, r automation.Retry, want automation.Code) {
		t.Helper()
		_, err := f.Retry(t.Context(), r)
		wantCode(t, name, err, want)
	}
	refused("a run that goes on", automation.Retry{OwnerID: f.owner, RunID: unfinished.ID}, automation.CodeNotFinished)
	refused("a step too far", automation.Retry{OwnerID: f.owner, RunID: failed.ID, FromStep: "three"}, automation.CodeValidationFailed)
	refused("a step of another plan", automation.Retry{OwnerID: f.owner, RunID: failed.ID, FromStep: "four"}, automation.CodeValidationFailed)
	refused("a deleted automation", automation.Retry{OwnerID: f.owner, RunID: deleted.ID}, automation.CodeNotFound)
	refused("a disabled automation", automation.Retry{OwnerID: f.owner, RunID: disabled.ID}, automation.CodeAutomationDisabled)
	refused("another owner's run", automation.Retry{OwnerID: other, RunID: failed.ID}, automation.CodeNotFound)
	refused("an unknown run", automation.Retry{OwnerID: f.owner, RunID: NewID()}, automation.CodeNotFound)
	f.db.Revoke(t, f.machine.ID)
	refused("a revoked machine", automation.Retry{OwnerID: f.owner, RunID: failed.ID}, automation.CodeMachineRevoked)
	stored, _, err := f.ListRuns(t.Context(), f.owner, automation.RunFilter{})
	if err != nil || len(stored) != 4 {
		t.Errorf("%d runs are stored, %v, want the four of before", len(stored), err)
	}
}

func testRetryIdempotent(t *testing.T, f *fixture) {
	first := f.failedRun(t)
	r := automation.Retry{OwnerID: f.owner, RunID: first.ID, Key: automation.Idempotency{Operation: "retry-run", Key: "k", RequestHash: "h"}}
	second := f.retry(t, r)
	f.complete(t, second, "two", `2`)
	if err := f.DeleteAutomation(t.Context(), f.owner, first.AutomationID, 0); err != nil {
		t.Fatal(err)
	}
	f.clock.Advance(2 * automation.IdempotencyFor)
	if again := f.retry(t, r); again.ID != second.ID || again.Status != automation.RunRunning {
		t.Errorf("a repeat answers run %s, %s, want %s as it stands", again.ID, again.Status, second.ID)
	}
	r.Key.RequestHash = "another"
	_, err := f.Retry(t.Context(), r)
	wantCode(t, "the key of another request", err, automation.CodeIdempotencyConflict)
}

// testRetryKeepsMachine retries a run of an automation that targets another machine by now.
func testRetryKeepsMachine(t *testing.T, f *fixture) {
	first := f.failedRun(t)
	moved := f.enroll(t, f.owner, "server")
	if _, err := f.UpdateAutomation(t.Context(), f.owner, first.AutomationID, 0, func(d *automation.Definition) error {
		d.MachineID = moved.ID
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	f.db.Revoke(t, moved.ID)
	if second := f.retry(t, automation.Retry{OwnerID: f.owner, RunID: first.ID}); second.MachineID != f.machine.ID {
		t.Errorf("the retry is on machine %s, want that of the run, %s", second.MachineID, f.machine.ID)
	}
}

func testRetryRace(t *testing.T, f *fixture) {
	at := f.servers(t)
	first := f.failedRun(t)
	r := automation.Retry{OwnerID: f.owner, RunID: first.ID, Key: automation.Idempotency{Operation: "retry-run", Key: "k", RequestHash: "h"}}
	ids, errs := together(callers, func(i int) (string, error) {
		run, err := at(i).Retry(t.Context(), r)
		return run.ID, err
	})
	wantNoErrors(t, errs)
	if len(distinct(ids)) != 1 {
		t.Errorf("one key has admitted the runs %v", distinct(ids))
	}
	ids, errs = together(callers, func(i int) (string, error) {
		run, err := at(i).Retry(t.Context(), automation.Retry{OwnerID: f.owner, RunID: first.ID})
		return run.ID, err
	})
	wantNoErrors(t, errs)
	if len(distinct(ids)) != callers {
		t.Errorf("%d retries without a key have admitted %d runs", callers, len(distinct(ids)))
	}
	stored, _, err := f.ListRuns(t.Context(), f.owner, automation.RunFilter{})
	if err != nil || len(stored) != callers+2 {
		t.Errorf("%d runs are stored, %v, want %d", len(stored), err, callers+2)
	}
}

// testRetryDeleteRace deletes an automation while its run is retried: nothing is admitted after the delete.
func testRetryDeleteRace(t *testing.T, f *fixture) {
	at := f.servers(t)
	first := f.failedRun(t)
	var admittedAfter []error
	var mu sync.Mutex
	_, errs := together(callers, func(i int) (struct{}, error) {
		if i == 0 {
			err := at(1).DeleteAutomation(t.Context(), f.owner, first.AutomationID, 0)
			_, late := at(0).Retry(t.Context(), automation.Retry{OwnerID: f.owner, RunID: first.ID})
			mu.Lock()
			admittedAfter = append(admittedAfter, late)
			mu.Unlock()
			return struct{}{}, err
		}
		_, err := at(i).Retry(t.Context(), automation.Retry{OwnerID: f.owner, RunID: first.ID})
		if automation.CodeOf(err) == automation.CodeNotFound {
			err = nil
		}
		return struct{}{}, err
	})
	wantNoErrors(t, errs)
	wantCode(t, "a retry after the delete", admittedAfter[0], automation.CodeNotFound)
}

// testCancelStartRace cancels runs while their workflows are started and their first step begins: the step never
// begins, or the machine is told to end it.
func testCancelStartRace(t *testing.T, f *fixture) {
	at := f.servers(t)
	a := f.create(t, f.definition("job", "one", "two"))
	for i := range callers {
		run := f.admit(t, a)
		var answer automation.BeginAnswer
		_, errs := together(3, func(who int) (struct{}, error) {
			var err error
			switch ledger := at(who + i); who {
			case 0:
				err = ledger.MarkStarted(t.Context(), run.ID, run.Generation, "engine")
			case 1:
				answer, err = ledger.Begin(t.Context(), run.MachineID, automation.BeginRequest{
					StepRef: ref(run, "one"), Generation: run.Generation, RequestID: NewID(),
				})
			default:
				_, err = ledger.RequestCancel(t.Context(), f.owner, run.ID, "", false)
			}
			return struct{}{}, err
		})
		wantNoErrors(t, errs)
		got := f.read(t, run)
		if answer.Decision != automation.BeginRun {
			wantStatuses(t, got, "cancelled: skipped skipped")
			continue
		}
		wantStatuses(t, got, "running: running skipped")
		f.finish(t, run, automation.FinishRequest{StepRef: ref(run, "one"), Execution: 1, Outcome: automation.OutcomeCancelled})
		wantStatuses(t, f.read(t, run), "cancelled: cancelled skipped")
	}
	if left := f.startable(t, "engine", 100); len(left) != 0 {
		t.Errorf("cancelled runs are to be started: %v", startableIDs(left))
	}
}

// testCancelsRace cancels one selection on two servers: each cancel is recorded, and counted, once.
func testCancelsRace(t *testing.T, f *fixture) {
	at := f.servers(t)
	a := f.create(t, f.definition("job", "one"))
	const runs = 40
	for range runs {
		f.admit(t, a)
	}
	counts, errs := together(4, func(i int) (int, error) {
		return cancelAll(t, at(i), f.owner, automation.RunSelection{AutomationID: a.ID})
	})
	wantNoErrors(t, errs)
	total := 0
	for _, n := range counts {
		total += n
	}
	if total != runs {
		t.Errorf("the servers say that they have cancelled %v runs, %d together, want %d", counts, total, runs)
	}
}

// cancelAll cancels a whole selection and returns how many runs were cancelled.
func cancelAll(t *testing.T, l automation.Ledger, owner string, s automation.RunSelection) (int, error) {
	t.Helper()
	for count := 0; ; {
		cancelled, err := l.RequestCancels(t.Context(), owner, s, "why not")
		if count += len(cancelled); err != nil || len(cancelled) == 0 {
			return count, err
		}
	}
}

// testEditRace edits an automation while it is admitted: each run has the whole of one version.
func testEditRace(t *testing.T, f *fixture) {
	at := f.servers(t)
	a := f.create(t, f.definition("v1", "one"))
	runs, errs := together(callers, func(i int) (automation.Run, error) {
		if i%4 > 0 {
			return at(i).Admit(t.Context(), manual(a))
		}
		_, err := at(i/4).UpdateAutomation(t.Context(), f.owner, a.ID, 0, func(d *automation.Definition) error {
			var version int
			if _, err := fmt.Sscanf(d.Name, "v%d", &version); err != nil {
				return err
			}
			name := fmt.Sprintf("v%d", version+1)
			*d = f.definition(name, name)
			return nil
		})
		return automation.Run{}, err
	})
	wantNoErrors(t, errs)
	for _, run := range runs {
		if run.ID == "" {
			continue
		}
		got := f.read(t, run)
		name := fmt.Sprintf("v%d", got.AutomationVersion)
		step := name
		if got.AutomationVersion == 1 {
			step = "one"
		}
		if got.AutomationName != name || len(got.Plan.Steps) != 1 || got.Plan.Steps[0].ID != step || got.Steps[0].ID != step {
			t.Errorf("a run of version %d has the name %q, the plan %+v", got.AutomationVersion, got.AutomationName, got.Plan.Steps)
		}
	}
}

func testCancelSelection(t *testing.T, f *fixture) {
	other, theirs := f.addOwner(t)
	second := f.enroll(t, f.owner, "server")
	on := func(owner, machine string) automation.Automation {
		d := f.definition("job", "one")
		d.MachineID = machine
		a, err := f.CreateAutomation(t.Context(), owner, d, automation.Idempotency{})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	a, b, c, foreign := on(f.owner, f.machine.ID), on(f.owner, f.machine.ID), on(f.owner, second.ID), on(other, theirs.ID)
	executing, cancelled, waiting := f.admit(t, a), f.admit(t, a), f.admit(t, a)
	f.mustBegin(t, executing, "one")
	f.cancel(t, cancelled, false)
	ofB, ofC, foreignRun := f.admit(t, b), f.admit(t, c), f.admit(t, foreign)
	before := f.clock.Now()
	f.clock.Advance(time.Second)
	late := f.admit(t, a)
	check := func(name string, s automation.RunSelection, want int) {
		t.Helper()
		if n, err := cancelAll(t, f, f.owner, s); err != nil || n != want {
			t.Errorf("%s: %d runs were cancelled, %v, want %d", name, n, err, want)
		}
	}
	check("another owner's", automation.RunSelection{AutomationID: foreign.ID}, 0)
	check("not an id", automation.RunSelection{MachineID: "x"}, 0)
	check("of an automation, on another machine", automation.RunSelection{AutomationID: a.ID, MachineID: second.ID}, 0)
	check("of an automation, up to a time", automation.RunSelection{AutomationID: a.ID, Until: before}, 2)
	check("the same again", automation.RunSelection{AutomationID: a.ID, Until: before}, 0)
	wantStatuses(t, f.read(t, executing), "running: running")
	wantStatuses(t, f.read(t, waiting), "cancelled: skipped")
	wantStatuses(t, f.read(t, late), "pending: pending")
	wantStatuses(t, f.read(t, ofB), "pending: pending")
	check("of a machine", automation.RunSelection{MachineID: f.machine.ID}, 2)
	wantStatuses(t, f.read(t, ofC), "pending: pending")
	wantStatuses(t, f.read(t, foreignRun), "pending: pending")
	if got := f.read(t, executing); got.CancelReason != "why not" || got.CancelRequestedAt == nil {
		t.Errorf("the reason is %q", got.CancelReason)
	}
}

func testCancelMany(t *testing.T, f *fixture) {
	a := f.create(t, f.definition("job", "one"))
	const runs = 450 // more than two batches
	_, errs := together(4, func(i int) (struct{}, error) {
		for n := i; n < runs; n += 4 {
			if _, err := f.Admit(t.Context(), manual(a)); err != nil {
				return struct{}{}, err
			}
		}
		return struct{}{}, nil
	})
	wantNoErrors(t, errs)
	n, err := cancelAll(t, f, f.owner, automation.RunSelection{MachineID: f.machine.ID})
	_, left, countErr := f.UnfinishedRuns(t.Context(), f.owner, a.ID, 1)
	if err != nil || countErr != nil || n != runs || left != 0 {
		t.Errorf("%d of %d runs were cancelled and %d are left; %v, %v", n, runs, left, err, countErr)
	}
}

// testCancelQueue cancels the runs of a schedule that wait for one another: none starts because one before it ended.
func testCancelQueue(t *testing.T, f *fixture) {
	var ready atomic.Int32
	l := f.db.Open(t, Options{NewID: NewID, Now: f.clock.Now, OnRunReady: func(string) { ready.Add(1) }})
	a := f.scheduled(t, every("1m", catchUp(schedule.CatchUpAll)))
	const runs = 250 // more than a batch
	f.clock.Advance(runs * time.Minute)
	for range 3 {
		f.decide(t, a.Schedules[0].ID)
	}
	if n, err := cancelAll(t, l, f.owner, automation.RunSelection{AutomationID: a.ID}); err != nil || n != runs {
		t.Errorf("%d runs were cancelled, %v, want %d", n, err, runs)
	}
	if n := ready.Load(); n > 0 {
		t.Errorf("%d runs were told to start before they were cancelled", n)
	}
}

func testPurgeKeys(t *testing.T, f *fixture) {
	keyed := func(name string) automation.Idempotency {
		return automation.Idempotency{Operation: "create", Key: name, RequestHash: "h"}
	}
	create := func(name string) string {
		a, err := f.CreateAutomation(t.Context(), f.owner, f.definition("job", "one"), keyed(name))
		if err != nil {
			t.Fatal(err)
		}
		return a.ID
	}
	old := create("old")
	admission := manual(automation.Automation{ID: old, OwnerID: f.owner})
	admission.Key = automation.Idempotency{Operation: "run-now", Key: "old", RequestHash: "h"}
	run := f.admitWith(t, admission)
	f.clock.Advance(automation.IdempotencyFor / 2)
	young := create("young")
	f.clock.Advance(automation.IdempotencyFor/2 + time.Second)
	for i, want := range []int{1, 0} {
		if n, err := f.PurgeKeys(t.Context(), 100); err != nil || n != want {
			t.Errorf("purge %d has forgotten %d keys, %v, want %d", i, n, err, want)
		}
	}
	if again := f.admitWith(t, admission); again.ID != run.ID {
		t.Error("the key of a run was forgotten while the run exists")
	}
	ids := []string{create("old"), create("young")}
	if ids[0] == old || ids[1] != young {
		t.Errorf("after the purge the keys lead to %v; the old one must be new and the young one %s", ids, young)
	}
}
