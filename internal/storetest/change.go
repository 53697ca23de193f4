package storetest

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/errandhq/errand/automation"
)

var changeTests = []test{
	{"Update", testUpdate},
	{"UpdateNothing", testUpdateNothing},
	{"UpdateRefusals", testUpdateRefusals},
	{"UpdateRace", testUpdateRace},
	{"UpdateLeavesRunsAlone", testUpdateLeavesRunsAlone},
	{"Delete", testDelete},
	{"DeleteWhileAdmitting", testDeleteWhileAdmitting},
}

func rename(name string) func(*automation.Definition) error {
	return func(d *automation.Definition) error {
		d.Name = name
		return nil
	}
}

func testUpdate(t *testing.T, f *fixture) {
	created := f.create(t, f.definition("before", "a"))
	second := f.enroll(t, f.owner, "second")
	f.clock.Advance(time.Second)
	got, err := f.UpdateAutomation(t.Context(), f.owner, created.ID, 1, func(d *automation.Definition) error {
		d.Name, d.Description, d.Enabled, d.MachineID = "after", "changed", false, second.ID
		d.Workflow = automation.Workflow{Script: "new"}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := automation.Automation{
		ID: created.ID, OwnerID: f.owner, Version: 2, Name: "after", Description: "changed", MachineID: second.ID,
		Workflow: automation.Workflow{Script: "new"}, CreatedAt: created.CreatedAt, UpdatedAt: f.clock.Now(),
	}
	wantEqual(t, "the changed automation", got, want)
	read, err := f.Automation(t.Context(), f.owner, created.ID)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "the changed automation read back", read, want)
	page, _, err := f.ListAutomations(t.Context(), f.owner, automation.AutomationFilter{Query: "AFTER", Limit: 10})
	if err != nil || len(page) != 1 {
		t.Errorf("the new name is not found: %v, %v", page, err)
	}
}

func testUpdateNothing(t *testing.T, f *fixture) {
	created := f.create(t, f.definition("same", "a"))
	f.clock.Advance(time.Second)
	got, err := f.UpdateAutomation(t.Context(), f.owner, created.ID, 0, rename("same"))
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "an automation that was saved unchanged", got, created)
}

func testUpdateRefusals(t *testing.T, f *fixture) {
	created := f.create(t, f.definition("mine", "a"))
	other, _ := f.addOwner(t)
	mine := errors.New("mine")
	tests := map[string]struct {
		owner, id string
		version   int64
		change    func(*automation.Definition) error
		want      automation.Code
	}{
		"unknown":         {f.owner, uuid.NewString(), 0, rename("x"), automation.CodeNotFound},
		"no id":           {f.owner, "x", 0, rename("x"), automation.CodeNotFound},
		"another owner's": {other, created.ID, 0, rename("x"), automation.CodeNotFound},
		"another version": {f.owner, created.ID, 2, rename("x"), automation.CodeVersionConflict},
		"a NUL":           {f.owner, created.ID, 0, rename("a\x00b"), automation.CodeValidationFailed},
		"no machine": {f.owner, created.ID, 0, func(d *automation.Definition) error {
			d.Name, d.MachineID = "x", uuid.NewString()
			return nil
		}, automation.CodeValidationFailed},
		"refused by the change": {f.owner, created.ID, 0, func(d *automation.Definition) error {
			d.Name = "x"
			return mine
		}, automation.CodeInternal},
	}
	for name, test := range tests {
		if _, err := f.UpdateAutomation(t.Context(), test.owner, test.id, test.version, test.change); automation.CodeOf(err) != test.want {
			t.Errorf("%s: %v, want %s", name, err, test.want)
		}
		if test.want == automation.CodeNotFound || test.want == automation.CodeVersionConflict {
			if err := f.DeleteAutomation(t.Context(), test.owner, test.id, test.version); automation.CodeOf(err) != test.want {
				t.Errorf("delete %s: %v, want %s", name, err, test.want)
			}
		}
		read, err := f.Automation(t.Context(), f.owner, created.ID)
		if err != nil {
			t.Fatal(err)
		}
		wantEqual(t, "the automation after "+name, read, created)
	}
}

// testUpdateRace changes one automation from two servers: with an expected version exactly one of them wins,
// without one no change is lost.
func testUpdateRace(t *testing.T, f *fixture) {
	created := f.create(t, f.definition("race", "a"))
	server := f.servers(t)
	const writers = 8
	var wg sync.WaitGroup
	won := make(chan error, writers)
	for i := range writers {
		wg.Go(func() {
			_, err := server(i).UpdateAutomation(t.Context(), f.owner, created.ID, 1, rename("winner"))
			won <- err
		})
	}
	wg.Wait()
	close(won)
	winners := 0
	for err := range won {
		if err == nil {
			winners++
		} else if automation.CodeOf(err) != automation.CodeVersionConflict {
			t.Errorf("a loser was told %v", err)
		}
	}
	if winners != 1 {
		t.Errorf("%d changes of version 1 won, want one", winners)
	}
	for i := range writers {
		wg.Go(func() {
			_, err := server(i).UpdateAutomation(t.Context(), f.owner, created.ID, 0, func(d *automation.Definition) error {
				d.Description += "x"
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	read, err := f.Automation(t.Context(), f.owner, created.ID)
	if err != nil || len(read.Description) != writers || read.Version != 2+writers {
		t.Errorf("%d changes left %q at version %d, %v", writers, read.Description, read.Version, err)
	}
}

func testUpdateLeavesRunsAlone(t *testing.T, f *fixture) {
	created := f.create(t, f.definition("snapshot", "a"))
	admitted := f.read(t, f.admit(t, created))
	_, err := f.UpdateAutomation(t.Context(), f.owner, created.ID, 0, func(d *automation.Definition) error {
		d.Name, d.Enabled, d.Workflow.Compiled = "other", false, nil
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "a run after a change of its automation", f.read(t, admitted), admitted)
	if answer := f.begin(t, admitted, "a"); answer.Decision != automation.BeginRun || answer.Step == nil {
		t.Errorf("the run does not execute its snapshot: %+v", answer)
	}
}

func testDelete(t *testing.T, f *fixture) {
	created := f.create(t, f.definition("gone", "a"))
	var runs []automation.Run
	for range 3 {
		runs = append(runs, f.admit(t, created))
		f.clock.Advance(time.Second)
	}
	f.complete(t, runs[0], "a", `{}`)
	if err := f.DeleteAutomation(t.Context(), f.owner, created.ID, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Automation(t.Context(), f.owner, created.ID); automation.CodeOf(err) != automation.CodeNotFound {
		t.Errorf("get: %v", err)
	}
	if page, _, err := f.ListAutomations(t.Context(), f.owner, automation.AutomationFilter{Limit: 10}); err != nil || len(page) > 0 {
		t.Errorf("list: %v, %v", page, err)
	}
	_, err := f.Admit(t.Context(), automation.Admission{
		OwnerID: f.owner, AutomationID: created.ID, Trigger: automation.Trigger{Kind: automation.TriggerManual},
	})
	if automation.CodeOf(err) != automation.CodeNotFound {
		t.Errorf("admit: %v", err)
	}
	if err := f.DeleteAutomation(t.Context(), f.owner, created.ID, 0); automation.CodeOf(err) != automation.CodeNotFound {
		t.Errorf("a second delete: %v", err)
	}
	ids, count, err := f.UnfinishedRuns(t.Context(), f.owner, created.ID, 1)
	if err != nil || count != 2 || len(ids) != 1 || ids[0] != runs[1].ID {
		t.Errorf("unfinished: %v of %d, %v; want the first of 2", ids, count, err)
	}
	page, _, err := f.ListRuns(t.Context(), f.owner, automation.RunFilter{AutomationID: created.ID, Limit: 10})
	if err != nil || len(page) != 3 || page[0].AutomationName != "gone" {
		t.Errorf("history: %v, %v", page, err)
	}
	f.complete(t, runs[1], "a", `{}`)
	if read := f.read(t, runs[1]); read.Status != automation.RunCompleted || read.Plan == nil {
		t.Errorf("a run of a deleted automation: %+v", read)
	}
}

// testDeleteWhileAdmitting deletes and admits at the same time: whatever was admitted is seen by the count that
// follows the delete, and nothing is admitted after it.
func testDeleteWhileAdmitting(t *testing.T, f *fixture) {
	created := f.create(t, f.definition("race", "a"))
	server := f.servers(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	admitted := 0
	for i := range 8 {
		wg.Go(func() {
			for range 5 {
				_, err := server(i).Admit(t.Context(), automation.Admission{
					OwnerID: f.owner, AutomationID: created.ID, Trigger: automation.Trigger{Kind: automation.TriggerManual},
				})
				mu.Lock()
				if err == nil {
					admitted++
				} else if automation.CodeOf(err) != automation.CodeNotFound {
					t.Errorf("admit: %v", err)
				}
				mu.Unlock()
			}
		})
	}
	if err := f.DeleteAutomation(t.Context(), f.owner, created.ID, 0); err != nil {
		t.Error(err)
	}
	_, count, err := f.UnfinishedRuns(t.Context(), f.owner, created.ID, 1)
	wg.Wait()
	_, later, laterErr := f.UnfinishedRuns(t.Context(), f.owner, created.ID, 1)
	if err != nil || laterErr != nil || count != later || later != admitted {
		t.Errorf("%d runs at the delete, %d later, %d admitted; %v, %v", count, later, admitted, err, laterErr)
	}
}
