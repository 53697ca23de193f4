package storetest

import (
	"slices"
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/automation/webhook"
)

var runTests = []test{
	{"OwnerIsolation", testRunOwners},
	{"ListFilters", testListRuns},
	{"ListPages", testRunPages},
	{"PageSizes", testPageSizes},
}

func testRunOwners(t *testing.T, f *fixture) {
	run := f.newRun(t, "one")
	owner, _ := f.addOwner(t)
	for _, id := range []string{run.ID, NewID(), "x", ""} {
		_, err := f.Run(t.Context(), owner, id)
		wantCode(t, "Run "+id, err, automation.CodeNotFound)
		_, err = f.RunState(t.Context(), owner, id)
		wantCode(t, "RunState "+id, err, automation.CodeNotFound)
		_, err = f.RunStatus(t.Context(), owner, id)
		wantCode(t, "RunStatus "+id, err, automation.CodeNotFound)
		_, err = f.RequestCancel(t.Context(), owner, id, "", true)
		wantCode(t, "RequestCancel "+id, err, automation.CodeNotFound)
	}
	runs, _, err := f.ListRuns(t.Context(), owner, automation.RunFilter{AutomationID: run.AutomationID})
	if err != nil || len(runs) != 0 {
		t.Errorf("another owner lists %v, %v", runs, err)
	}
	if _, err := f.Run(t.Context(), f.owner, run.ID); err != nil {
		t.Errorf("the owner's own run: %v", err)
	}
}

func testListRuns(t *testing.T, f *fixture) {
	server := f.enroll(t, f.owner, "server")
	a := f.create(t, f.definition("a", "one", "two"))
	d := f.definition("b", "one")
	d.MachineID = server.ID
	d.Webhooks = []automation.WebhookDefinition{{Name: "forge", Scheme: webhook.GitHub, Enabled: true, Secrets: newSecret("s")}}
	f.bind(t)
	b := f.create(t, d)
	start := f.clock.Now()
	pending := f.admit(t, a)
	f.clock.Advance(time.Minute)
	running := f.admit(t, a)
	f.complete(t, running, "one", `"not listed"`)
	f.clock.Advance(time.Minute)
	completed := f.admitWith(t, delivery(b, b.Webhooks[0].ID, "1", "id 1"))
	f.complete(t, completed, "one", `1`)

	minute1, minute2 := start.Add(time.Minute), start.Add(2*time.Minute)
	for name, tc := range map[string]struct {
		filter automation.RunFilter
		want   []automation.Run
	}{
		"all, newest first": {automation.RunFilter{}, []automation.Run{completed, running, pending}},
		"automation":        {automation.RunFilter{AutomationID: a.ID}, []automation.Run{running, pending}},
		"machine":           {automation.RunFilter{MachineID: server.ID}, []automation.Run{completed}},
		"status":            {automation.RunFilter{Status: automation.RunRunning}, []automation.Run{running}},
		"trigger":           {automation.RunFilter{Trigger: automation.TriggerWebhook}, []automation.Run{completed}},
		"since":             {automation.RunFilter{Since: &minute1}, []automation.Run{completed, running}},
		"until":             {automation.RunFilter{Until: &minute2}, []automation.Run{running, pending}},
		"everything": {automation.RunFilter{
			AutomationID: a.ID, MachineID: f.machine.ID, Status: automation.RunPending, Trigger: automation.TriggerManual,
			Since: &start, Until: &minute1,
		}, []automation.Run{pending}},
		"unknown automation": {automation.RunFilter{AutomationID: NewID()}, nil},
		"not an automation":  {automation.RunFilter{AutomationID: "x"}, nil},
		"not a machine":      {automation.RunFilter{MachineID: "\x00"}, nil},
	} {
		found, next, err := f.ListRuns(t.Context(), f.owner, tc.filter)
		if err != nil || next != "" {
			t.Errorf("%s: cursor %q, error %v", name, next, err)
		}
		var want []automation.Run
		for _, run := range tc.want {
			state, err := f.RunState(t.Context(), f.owner, run.ID)
			if err != nil {
				t.Fatalf("RunState: %v", err)
			}
			status, err := f.RunStatus(t.Context(), f.owner, run.ID)
			if err != nil || status != state.Status {
				t.Errorf("RunStatus = %q, %v, want %q", status, err, state.Status)
			}
			want = append(want, state)
		}
		wantEqual(t, name, found, want)
	}
	for path, filter := range map[string]automation.RunFilter{
		"status": {Status: "done"}, "trigger": {Trigger: "cron"}, "cursor": {Cursor: "x"},
	} {
		_, _, err := f.ListRuns(t.Context(), f.owner, filter)
		wantCode(t, "an unknown "+path, err, automation.CodeValidationFailed)
		wantEqual(t, "the place of an unknown "+path, paths(err), []string{path})
	}
}

// testRunPages walks through pages while runs are admitted: none that was there is missed or comes twice.
func testRunPages(t *testing.T, f *fixture) {
	a := f.create(t, f.definition("job", "one", "two"))
	var want []string
	for i := range 23 {
		want = append(want, f.admit(t, a).ID)
		if i%7 == 6 {
			f.clock.Advance(time.Second)
		}
	}
	slices.Reverse(want)
	for name, filter := range map[string]automation.RunFilter{
		"owner": {}, "automation": {AutomationID: a.ID}, "machine": {MachineID: f.machine.ID}, "status": {Status: automation.RunPending},
	} {
		f.clock.Advance(time.Second)
		until := f.clock.Now()
		filter.Until = &until
		filter.Limit = 5
		var got []string
		for {
			found, next, err := f.ListRuns(t.Context(), f.owner, filter)
			if err != nil {
				t.Fatalf("%s: ListRuns: %v", name, err)
			}
			for _, run := range found {
				got = append(got, run.ID)
			}
			f.admit(t, a)
			if filter.Cursor = next; next == "" {
				break
			}
		}
		if missing := missingFrom(got, want); len(missing) > 0 {
			t.Errorf("%s: the pages miss %v", name, missing)
		}
		if again := duplicates(got); len(again) > 0 {
			t.Errorf("%s: the pages repeat %v", name, again)
		}
	}
}

func missingFrom(got, want []string) []string {
	return slices.DeleteFunc(slices.Clone(want), func(id string) bool { return slices.Contains(got, id) })
}

func duplicates(ids []string) []string {
	sorted := slices.Sorted(slices.Values(ids))
	var again []string
	for i := 1; i < len(sorted); i++ {
		if sorted[i] == sorted[i-1] {
			again = append(again, sorted[i])
		}
	}
	return again
}

func testPageSizes(t *testing.T, f *fixture) {
	a := f.create(t, f.definition("job", "one"))
	for range 3 {
		f.admit(t, a)
	}
	for limit, more := range map[int]bool{2: true, 3: false, 4: false} {
		found, next, err := f.ListRuns(t.Context(), f.owner, automation.RunFilter{Limit: limit})
		if err != nil || len(found) != min(limit, 3) || (next != "") != more {
			t.Errorf("a page of limit %d has %d of 3 runs, cursor %q, error %v", limit, len(found), next, err)
		}
	}
	for range automation.MaxPageSize - 2 {
		f.admit(t, a)
	}
	for limit, want := range map[int]int{
		0: automation.DefaultPageSize, -1: automation.DefaultPageSize, 1: 1,
		automation.MaxPageSize: automation.MaxPageSize, 1 << 40: automation.MaxPageSize,
	} {
		found, next, err := f.ListRuns(t.Context(), f.owner, automation.RunFilter{Limit: limit})
		if err != nil || len(found) != want || next == "" {
			t.Errorf("a page of limit %d has %d runs, cursor %q, error %v, want %d", limit, len(found), next, err, want)
		}
	}
}
