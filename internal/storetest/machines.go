package storetest

import (
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
)

var machineTests = []test{
	{"Enroll", testEnroll},
	{"Pages", testMachinePages},
	{"Loads", testLoads},
	{"Touch", testTouch},
}

func testEnroll(t *testing.T, f *fixture) {
	n := automation.NewMachine{
		OwnerID: f.owner, Name: "büro", Platform: "darwin/arm64", Version: "v2",
		Labels: map[string]string{"b": "2", "a": "\x01 \""}, PublicKey: `{"kty":"OKP","x":"abc"}`,
	}
	first, err := f.EnrollMachine(t.Context(), n)
	if err != nil {
		t.Fatalf("EnrollMachine: %v", err)
	}
	wantEqual(t, "the enrolled machine", first, automation.Machine{
		ID: first.ID, OwnerID: f.owner, Name: n.Name, Platform: n.Platform, Version: n.Version, Labels: n.Labels,
		PublicKey: n.PublicKey, State: automation.MachineActive, CreatedAt: f.clock.Now(),
	})
	f.clock.Advance(time.Hour)
	again, err := f.another(t).EnrollMachine(t.Context(), n)
	if err != nil {
		t.Fatalf("EnrollMachine again: %v", err)
	}
	wantEqual(t, "the machine of a key that is enrolled", again, first)

	owner, _ := f.addOwner(t)
	n.OwnerID = owner
	_, err = f.EnrollMachine(t.Context(), n)
	wantCode(t, "the key of another owner's machine", err, automation.CodeForbidden)
	n.OwnerID, n.PublicKey = NewID(), "k"
	_, err = f.EnrollMachine(t.Context(), n)
	wantCode(t, "an owner that does not exist", err, automation.CodeNotFound)
	for _, id := range []string{NewID(), "x", ""} {
		_, err = f.Machine(t.Context(), id)
		wantCode(t, "the machine "+id, err, automation.CodeNotFound)
	}
	f.db.Revoke(t, first.ID)
	revoked, err := f.Machine(t.Context(), first.ID)
	if err != nil || revoked.State != automation.MachineRevoked || revoked.RevokedAt == nil {
		t.Errorf("the revoked machine reads %+v, %v", revoked, err)
	}
}

func testMachinePages(t *testing.T, f *fixture) {
	f.addOwner(t)
	want := []string{f.machine.ID}
	for i, name := range numbered("m", 9) {
		want = append(want, f.enroll(t, f.owner, name).ID)
		if i%4 == 3 {
			f.clock.Advance(time.Second)
		}
	}
	var got []string
	cursor := ""
	for {
		found, next, err := f.Machines(t.Context(), f.owner, 3, cursor)
		if err != nil {
			t.Fatalf("Machines: %v", err)
		}
		for _, m := range found {
			got = append(got, m.ID)
		}
		if cursor = next; next == "" {
			break
		}
	}
	wantEqual(t, "the pages, oldest first", got, want)
	_, runs, err := f.ListRuns(t.Context(), f.owner, automation.RunFilter{})
	if err != nil || runs != "" {
		t.Fatalf("ListRuns: cursor %q, %v", runs, err)
	}
	for _, wrong := range []string{"x", "====", "\x00"} {
		_, _, err := f.Machines(t.Context(), f.owner, 3, wrong)
		wantCode(t, "a wrong cursor", err, automation.CodeValidationFailed)
	}
}

func testLoads(t *testing.T, f *fixture) {
	idle := f.enroll(t, f.owner, "idle")
	a := f.create(t, f.definition("job", "one", "two"))
	f.admit(t, a)
	f.admit(t, a)
	between := f.admit(t, a)
	f.complete(t, between, "one", `1`)
	running := f.admit(t, a)
	f.mustBegin(t, running, "one")
	cancelled := f.admit(t, a)
	f.cancel(t, cancelled, false)
	forced := f.admit(t, a)
	f.mustBegin(t, forced, "one")
	f.cancel(t, forced, true)

	loads, err := f.MachineLoads(t.Context(), []string{f.machine.ID, idle.ID, NewID(), "x"})
	if err != nil {
		t.Fatalf("MachineLoads: %v", err)
	}
	want := map[string]automation.MachineLoad{
		f.machine.ID: {Machine: f.machine, RunningSteps: 1, PendingRuns: 2},
		idle.ID:      {Machine: idle},
	}
	wantEqual(t, "the loads", loads, want)
	page, _, err := f.Machines(t.Context(), f.owner, 0, "")
	if err != nil {
		t.Fatalf("Machines: %v", err)
	}
	wantEqual(t, "the listed loads", page, []automation.MachineLoad{want[f.machine.ID], want[idle.ID]})
}

func testTouch(t *testing.T, f *fixture) {
	other := f.another(t)
	touch := func(l automation.Ledger) {
		t.Helper()
		if err := l.TouchMachine(t.Context(), f.machine.ID, f.clock.Now()); err != nil {
			t.Fatalf("TouchMachine: %v", err)
		}
	}
	const behind = 10 * time.Second
	for range 30 {
		touch(f)
		touch(other)
		m, err := f.Machine(t.Context(), f.machine.ID)
		if err != nil || m.LastSeenAt == nil || f.clock.Now().Sub(*m.LastSeenAt) > behind {
			t.Fatalf("the machine was seen at %v, want at most %v before %v (%v)", m.LastSeenAt, behind, f.clock.Now(), err)
		}
		f.clock.Advance(3 * time.Second)
	}
	before, err := f.Machine(t.Context(), f.machine.ID)
	if err != nil {
		t.Fatalf("Machine: %v", err)
	}
	if err := f.another(t).TouchMachine(t.Context(), f.machine.ID, f.clock.Now().Add(-time.Hour)); err != nil {
		t.Fatalf("TouchMachine: %v", err)
	}
	f.db.Revoke(t, f.machine.ID)
	f.clock.Advance(time.Hour)
	touch(f)
	after, err := f.Machine(t.Context(), f.machine.ID)
	if err != nil {
		t.Fatalf("Machine: %v", err)
	}
	wantEqual(t, "when it was seen, after an older touch and one of a revoked machine", after.LastSeenAt, before.LastSeenAt)
	wantCode(t, "a machine that is not an id", f.TouchMachine(t.Context(), "x", f.clock.Now()), automation.CodeNotFound)
}
