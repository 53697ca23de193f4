package storetest

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
)

var enrolmentTests = []test{
	{"Code", testCode},
	{"CodeOfAMachine", testCodeOfAMachine},
	{"CodesOpen", testCodesOpen},
	{"CodeRace", testCodeRace},
	{"Change", testChangeMachine},
	{"Revoke", testRevoke},
	{"LoseRuns", testLoseRuns},
	{"AccessChanges", testAccessChanges},
}

// code saves an open code, for a machine or "" for a new one.
func (f *fixture) code(t *testing.T, hash, machineID string) {
	t.Helper()
	if err := f.SaveEnrollmentCode(t.Context(), f.newCode(hash, machineID)); err != nil {
		t.Fatalf("SaveEnrollmentCode: %v", err)
	}
}

func (f *fixture) newCode(hash, machineID string) automation.EnrollmentCode {
	return automation.EnrollmentCode{
		Hash: hash, OwnerID: f.owner, MachineID: machineID, ExpiresAt: f.clock.Now().Add(automation.EnrollmentCodeValidFor),
	}
}

func newcomer(key string) automation.NewMachine {
	return automation.NewMachine{Name: "server", Platform: "linux/arm64", Version: "v3", PublicKey: key}
}

func testCode(t *testing.T, f *fixture) {
	f.code(t, "hash", "")
	elsewhere := f.another(t)
	first, err := elsewhere.RedeemEnrollmentCode(t.Context(), "hash", newcomer("key"))
	if err != nil {
		t.Fatalf("RedeemEnrollmentCode: %v", err)
	}
	wantEqual(t, "the machine of a code", first, automation.Machine{
		ID: first.ID, OwnerID: f.owner, Name: "server", Platform: "linux/arm64", Version: "v3", Labels: map[string]string{},
		PublicKey: "key", State: automation.MachineActive, CreatedAt: f.clock.Now(),
	})
	again, err := f.RedeemEnrollmentCode(t.Context(), "hash", newcomer("key"))
	if err != nil {
		t.Fatalf("RedeemEnrollmentCode by the same key: %v", err)
	}
	wantEqual(t, "the machine of a repeat", again, first)
	_, err = f.RedeemEnrollmentCode(t.Context(), "hash", newcomer("other"))
	wantCode(t, "a used code", err, automation.CodeNotFound)
	_, err = f.RedeemEnrollmentCode(t.Context(), "unknown", newcomer("other"))
	wantCode(t, "a code that is none", err, automation.CodeNotFound)

	f.code(t, "late", "")
	f.clock.Advance(automation.EnrollmentCodeValidFor)
	_, err = f.RedeemEnrollmentCode(t.Context(), "late", newcomer("late"))
	wantCode(t, "an expired code", err, automation.CodeNotFound)
	_, err = f.RedeemEnrollmentCode(t.Context(), "hash", newcomer("key"))
	wantCode(t, "a repeat after the time of the code", err, automation.CodeNotFound)

	f.code(t, "wasted", "")
	wrong := newcomer("wasted")
	wrong.Labels = map[string]string{"a": strings.Repeat("x", 1<<20)}
	_, err = f.RedeemEnrollmentCode(t.Context(), "wasted", wrong)
	wantCode(t, "too many labels", err, automation.CodeValidationFailed)
	if _, err = f.RedeemEnrollmentCode(t.Context(), "wasted", newcomer("other")); err != nil {
		t.Errorf("a bad request has used the code up: %v", err)
	}

	theirs, _ := f.addOwner(t)
	stranger := f.newCode("theirs", "")
	stranger.OwnerID = theirs
	if err := f.SaveEnrollmentCode(t.Context(), stranger); err != nil {
		t.Fatalf("SaveEnrollmentCode: %v", err)
	}
	_, err = f.RedeemEnrollmentCode(t.Context(), "theirs", newcomer("key"))
	wantCode(t, "the key of another owner's machine", err, automation.CodeForbidden)
	f.db.Revoke(t, first.ID)
	f.code(t, "revoked", "")
	_, err = f.RedeemEnrollmentCode(t.Context(), "revoked", newcomer("key"))
	wantCode(t, "the key of a revoked machine", err, automation.CodeMachineRevoked)
}

func testCodeOfAMachine(t *testing.T, f *fixture) {
	_, theirs := f.addOwner(t)
	for _, id := range []string{theirs.ID, NewID(), "x"} {
		err := f.SaveEnrollmentCode(t.Context(), f.newCode("hash", id))
		wantCode(t, "a code for the machine "+id, err, automation.CodeNotFound)
	}
	if _, err := f.RevokeMachine(t.Context(), f.owner, f.machine.ID); err != nil {
		t.Fatalf("RevokeMachine: %v", err)
	}
	f.code(t, "hash", f.machine.ID)
	f.clock.Advance(time.Minute)
	taken := newcomer(theirs.PublicKey)
	_, err := f.RedeemEnrollmentCode(t.Context(), "hash", taken)
	wantCode(t, "a key that another machine has", err, automation.CodeForbidden)
	_, err = f.RedeemEnrollmentCode(t.Context(), "hash", newcomer(f.machine.PublicKey))
	wantCode(t, "the key that was revoked", err, automation.CodeMachineRevoked)

	renewed, err := f.RedeemEnrollmentCode(t.Context(), "hash", newcomer("new key"))
	if err != nil {
		t.Fatalf("RedeemEnrollmentCode: %v", err)
	}
	want := f.machine
	want.PublicKey, want.Platform, want.Version = "new key", "linux/arm64", "v3"
	wantEqual(t, "the machine with its new key", renewed, want)
	again, err := f.RedeemEnrollmentCode(t.Context(), "hash", newcomer("new key"))
	if err != nil {
		t.Fatalf("RedeemEnrollmentCode again: %v", err)
	}
	wantEqual(t, "the machine of a repeat", again, want)
	run := f.newRun(t, "one")
	f.complete(t, run, "one", `1`)

	f.code(t, "labelled", f.machine.ID)
	labelled := newcomer("newest key")
	labelled.Labels = map[string]string{"room": "cellar"}
	if renewed, err = f.RedeemEnrollmentCode(t.Context(), "labelled", labelled); err != nil || !maps.Equal(renewed.Labels, labelled.Labels) {
		t.Errorf("with labels the machine is %+v, %v", renewed, err)
	}
}

func testCodesOpen(t *testing.T, f *fixture) {
	for i, hash := range numbered("hash", automation.MaxOpenEnrollmentCodes) {
		f.code(t, hash, "")
		if i == 0 {
			f.clock.Advance(time.Minute)
		}
	}
	err := f.SaveEnrollmentCode(t.Context(), f.newCode("one more", ""))
	wantCode(t, "one code more than may be open", err, automation.CodeRateLimited)
	if refusal, ok := err.(*automation.Error); !ok || refusal.RetryAfter != automation.EnrollmentCodeValidFor-time.Minute { //nolint:errorlint // the suite wants the error itself
		t.Errorf("the refusal %+v does not say when the first code expires", err)
	}
	other, _ := f.addOwner(t)
	theirs := f.newCode("theirs", "")
	theirs.OwnerID = other
	if err := f.SaveEnrollmentCode(t.Context(), theirs); err != nil {
		t.Errorf("another owner's code: %v", err)
	}
	if _, err := f.RedeemEnrollmentCode(t.Context(), numbered("hash", 2)[1], newcomer("key")); err != nil {
		t.Fatalf("RedeemEnrollmentCode: %v", err)
	}
	f.code(t, "in its place", "")
	f.clock.Advance(automation.EnrollmentCodeValidFor)
	f.code(t, "after all have expired", "")
}

func testCodeRace(t *testing.T, f *fixture) {
	f.code(t, "hash", "")
	ledgers := []automation.Ledger{f.Ledger, f.another(t)}
	const callers = 8
	keys := numbered("key", callers)
	_, errs := together(callers, func(i int) (automation.Machine, error) {
		return ledgers[i%2].RedeemEnrollmentCode(t.Context(), "hash", newcomer(keys[i]))
	})
	enrolled := 0
	for _, err := range errs {
		if err == nil {
			enrolled++
			continue
		}
		wantCode(t, "the loser of the race", err, automation.CodeNotFound)
	}
	machines, _, err := f.Machines(t.Context(), f.owner, 0, "")
	if enrolled != 1 || len(machines) != 2 || err != nil {
		t.Errorf("%d enrolments with one code, %d machines, %v", enrolled, len(machines), err)
	}
}

func testChangeMachine(t *testing.T, f *fixture) {
	name, labels := strings.Repeat("ü", 200), map[string]string{"room": "cellar"}
	changed, err := f.ChangeMachine(t.Context(), f.owner, f.machine.ID, automation.MachineChange{Name: &name})
	if err != nil {
		t.Fatalf("ChangeMachine: %v", err)
	}
	want := automation.MachineLoad{Machine: f.machine}
	want.Name = name
	wantEqual(t, "the renamed machine", changed, want)
	if changed, err = f.ChangeMachine(t.Context(), f.owner, f.machine.ID, automation.MachineChange{Labels: labels}); err != nil {
		t.Fatalf("ChangeMachine: %v", err)
	}
	want.Labels = labels
	wantEqual(t, "the machine with other labels", changed, want)

	h := automation.Hello{
		Instance: automation.Instance{DirectoryID: "d", BootID: "b", Start: 1, Host: "h"}, Version: "v1", Platform: "linux/amd64", Concurrency: 1,
	}
	if _, err := f.Hello(t.Context(), f.machine.ID, h); err != nil {
		t.Fatalf("Hello: %v", err)
	}
	read, err := f.OwnedMachine(t.Context(), f.owner, f.machine.ID)
	if err != nil || read.Name != name || !maps.Equal(read.Labels, labels) {
		t.Errorf("after a hello without labels the machine is %+v, %v", read, err)
	}
	empty := ""
	_, err = f.ChangeMachine(t.Context(), f.owner, f.machine.ID, automation.MachineChange{Name: &empty})
	wantCode(t, "an empty name", err, automation.CodeValidationFailed)

	other, theirs := f.addOwner(t)
	for _, id := range []string{theirs.ID, NewID(), "x"} {
		_, err := f.OwnedMachine(t.Context(), f.owner, id)
		wantCode(t, "the machine "+id, err, automation.CodeNotFound)
		_, err = f.ChangeMachine(t.Context(), f.owner, id, automation.MachineChange{Name: &name})
		wantCode(t, "a change of the machine "+id, err, automation.CodeNotFound)
		_, err = f.RevokeMachine(t.Context(), f.owner, id)
		wantCode(t, "the end of the machine "+id, err, automation.CodeNotFound)
	}
	if kept, err := f.OwnedMachine(t.Context(), other, theirs.ID); err != nil || kept.Name != "theirs" || kept.State != automation.MachineActive {
		t.Errorf("another owner's machine became %+v, %v", kept, err)
	}
}

func testRevoke(t *testing.T, f *fixture) {
	a := f.create(t, f.definition("job", "one"))
	run := f.admit(t, a)
	revoked, err := f.RevokeMachine(t.Context(), f.owner, f.machine.ID)
	now := f.clock.Now()
	if err != nil {
		t.Fatalf("RevokeMachine: %v", err)
	}
	want := f.machine
	want.State, want.RevokedAt = automation.MachineRevoked, &now
	wantEqual(t, "the revoked machine", revoked, want)
	f.clock.Advance(time.Minute)
	if revoked, err = f.another(t).RevokeMachine(t.Context(), f.owner, f.machine.ID); err != nil {
		t.Fatalf("RevokeMachine again: %v", err)
	}
	wantEqual(t, "the machine that was revoked already", revoked, want)
	if answer := f.begin(t, run, "one"); answer.Decision != automation.BeginStop || answer.Stop != automation.StopRevoked {
		t.Errorf("a revoked machine begins: %+v", answer)
	}
	_, err = f.Admit(t.Context(), automation.Admission{
		OwnerID: f.owner, AutomationID: a.ID, Trigger: automation.Trigger{Kind: automation.TriggerManual},
	})
	wantCode(t, "a run for a revoked machine", err, automation.CodeMachineRevoked)
}

func testLoseRuns(t *testing.T, f *fixture) {
	healthy := f.newRun(t, "one")
	other := f.enroll(t, f.owner, "other")
	d := f.definition("job", "one", "two", "three")
	d.MachineID = other.ID
	a := f.create(t, d)
	pending, begun, done := f.admit(t, a), f.admit(t, a), f.admit(t, a)
	f.complete(t, begun, "one", `1`)
	execution := f.mustBegin(t, begun, "two")
	for _, step := range []string{"one", "two", "three"} {
		f.complete(t, done, step, `1`)
	}
	if lost, err := f.LoseRuns(t.Context(), 10); err != nil || len(lost) != 0 {
		t.Errorf("before the revocation %d runs are lost, %v", len(lost), err)
	}
	if _, err := f.RevokeMachine(t.Context(), f.owner, other.ID); err != nil {
		t.Fatalf("RevokeMachine: %v", err)
	}
	first, err := f.LoseRuns(t.Context(), 1)
	if err != nil || len(first) != 1 {
		t.Fatalf("LoseRuns: %d runs, %v", len(first), err)
	}
	rest, err := f.another(t).LoseRuns(t.Context(), 10)
	if err != nil || len(rest) != 1 {
		t.Fatalf("LoseRuns of another server: %d runs, %v", len(rest), err)
	}
	wantStatuses(t, f.read(t, pending), "failed: skipped skipped skipped")
	wantStatuses(t, f.read(t, done), "completed: completed completed completed")
	wantStatuses(t, f.read(t, healthy), "pending: pending")
	ended := f.read(t, begun)
	wantStatuses(t, ended, "failed: completed failed skipped")
	step := ended.Steps[1]
	if !step.Unconfirmed || step.Error == nil || step.Error.Code != automation.StepErrMachineLost ||
		ended.Error == nil || ended.Error.Code != string(automation.StepErrMachineLost) || ended.Error.StepID != "two" {
		t.Errorf("the begun step is %+v, the run's error %+v", step, ended.Error)
	}

	f.code(t, "hash", other.ID)
	if _, err := f.RedeemEnrollmentCode(t.Context(), "hash", newcomer("new key")); err != nil {
		t.Fatalf("RedeemEnrollmentCode: %v", err)
	}
	ends, err := f.OpenEnds(t.Context(), []string{other.ID})
	if err != nil || len(ends[other.ID]) != 1 {
		t.Errorf("the machine that came back is told of the ends %+v, %v", ends, err)
	}
	f.finish(t, begun, automation.FinishRequest{StepRef: ref(begun, "two"), Execution: execution, Outcome: automation.OutcomeCancelled})
	if f.read(t, begun).Steps[1].Unconfirmed {
		t.Error("the machine has confirmed the end, and the step is unconfirmed still")
	}
}

func testAccessChanges(t *testing.T, f *fixture) {
	began := f.clock.Now()
	read := func(since time.Time) []automation.AccessChange {
		t.Helper()
		changes, err := f.another(t).AccessChanges(t.Context(), since)
		if err != nil {
			t.Fatalf("AccessChanges: %v", err)
		}
		return changes
	}
	if changes := read(began.Add(-time.Hour)); len(changes) != 0 {
		t.Errorf("before any change there is %+v", changes)
	}
	f.clock.Advance(time.Second)
	revoked := f.clock.Now()
	if _, err := f.RevokeMachine(t.Context(), f.owner, f.machine.ID); err != nil {
		t.Fatalf("RevokeMachine: %v", err)
	}
	want := automation.AccessChange{MachineID: f.machine.ID, State: automation.MachineRevoked, At: revoked}
	wantEqual(t, "the changes", read(revoked), []automation.AccessChange{want})
	if changes := read(revoked.Add(time.Microsecond)); len(changes) != 0 {
		t.Errorf("after the change there is %+v", changes)
	}
	f.clock.Advance(time.Second)
	f.code(t, "hash", f.machine.ID)
	if _, err := f.RedeemEnrollmentCode(t.Context(), "hash", newcomer("new key")); err != nil {
		t.Fatalf("RedeemEnrollmentCode: %v", err)
	}
	want.State, want.At = automation.MachineActive, f.clock.Now()
	wantEqual(t, "the changes", read(revoked), []automation.AccessChange{want})
}
