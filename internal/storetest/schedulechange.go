package storetest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/automation/schedule"
)

var scheduleChangeTests = []test{
	{"Update", testUpdateSchedules},
	{"UpdateSettlesFirst", testUpdateSettlesFirst},
	{"UpdateSettlesApart", testUpdateSettlesApart},
	{"UpdateUnchanged", testUpdateUnchangedSchedule},
	{"UpdateRefusals", testUpdateScheduleRefusals},
	{"Enabled", testScheduleEnabled},
	{"AutomationEnabled", testAutomationEnabled},
	{"Limit", testScheduleLimit},
	{"Snapshot", testScheduleSnapshot},
	{"Remove", testRemoveSchedule},
	{"Delete", testDeleteSchedules},
	{"Pause", testPauseSchedule},
	{"Sync", testScheduleSync},
	{"SyncForeignEngine", testScheduleForeignEngine},
	{"Tombstones", testTombstones},
	{"OtherMachine", testScheduleOtherMachine},
}

// changeSchedules changes the schedules of an automation.
func (f *fixture) changeSchedules(
	t *testing.T, a automation.Automation, change func([]automation.ScheduleDefinition) []automation.ScheduleDefinition,
) automation.Automation {
	t.Helper()
	return f.changeAutomation(t, a, func(d *automation.Definition) { d.Schedules = change(d.Schedules) })
}

func (f *fixture) changeAutomation(t *testing.T, a automation.Automation, change func(*automation.Definition)) automation.Automation {
	t.Helper()
	changed, err := f.UpdateAutomation(t.Context(), a.OwnerID, a.ID, 0, func(d *automation.Definition) error {
		change(d)
		return nil
	})
	if err != nil {
		t.Fatalf("UpdateAutomation: %v", err)
	}
	return changed
}

// changeOnly changes the one schedule of an automation.
func (f *fixture) changeOnly(t *testing.T, a automation.Automation, change func(*automation.ScheduleDefinition)) automation.Schedule {
	t.Helper()
	f.changeSchedules(t, a, func(all []automation.ScheduleDefinition) []automation.ScheduleDefinition {
		change(&all[0])
		return all
	})
	return f.only(t, a)
}

func enabled(yes bool) func(*automation.ScheduleDefinition) {
	return func(d *automation.ScheduleDefinition) { d.Enabled = yes }
}

// shows lists the schedules of an automation: when they fire, their status and their next instant.
func shows(a automation.Automation) string {
	var words []string
	for _, s := range a.Schedules {
		next := "never"
		if s.NextRunAt != nil {
			next = s.NextRunAt.Format(time.TimeOnly)
		}
		words = append(words, fmt.Sprintf("%s %s %s", s.Spec.Every+s.Spec.Cron+s.Spec.At, s.Status, next))
	}
	return strings.Join(words, ", ")
}

func testUpdateSchedules(t *testing.T, f *fixture) {
	a := f.scheduled(t, every("1m"), every("5m"), every("1h"))
	f.clock.Advance(30 * time.Second)
	changed := f.changeSchedules(t, a, func(all []automation.ScheduleDefinition) []automation.ScheduleDefinition {
		all[2].Spec = schedule.Spec{Cron: "0 12 * * *", Timezone: "UTC"}
		return append(slices.Delete(all, 1, 2), every("7m"), every("", spec(schedule.Spec{At: "2026-01-05T10:00:00Z"})))
	})
	wantEqual(t, "the schedules", shows(changed),
		"1m active 09:01:00, 0 12 * * * active 12:00:00, 7m active 09:07:30, 2026-01-05T10:00:00Z active 10:00:00")
	if changed.Version != 2 || changed.Schedules[0].ID != a.Schedules[0].ID || changed.Schedules[1].ID != a.Schedules[2].ID {
		t.Errorf("the automation is at version %d with %+v", changed.Version, changed.Schedules)
	}
	read := f.automation(t, a)
	wantEqual(t, "the schedules read back", read, changed)
	again := f.changeSchedules(t, a, func(all []automation.ScheduleDefinition) []automation.ScheduleDefinition {
		for i := range all {
			all[i].Input = nil // null, as it was
		}
		return all
	})
	wantEqual(t, "the automation saved unchanged", again, changed)
}

// testUpdateSettlesFirst changes and removes schedules with firings that are due: they happen, by the old timing.
func testUpdateSettlesFirst(t *testing.T, f *fixture) {
	a := f.scheduled(t, every("1m"), every("1m", overlap(schedule.OverlapParallel)), every("1m"), every("1h"))
	f.clock.Advance(61 * time.Second)
	f.ready.take()
	changed := f.changeSchedules(t, a, func(all []automation.ScheduleDefinition) []automation.ScheduleDefinition {
		all[0].Spec.Every = "10m"
		all[1].Enabled = false
		return slices.Delete(all, 2, 3)
	})
	runs := f.runsOf(t, a)
	wantEqual(t, "the instants", instants(runs), "09:01:00 09:01:00 09:01:00")
	for _, run := range runs {
		if run.AutomationVersion != 1 {
			t.Errorf("a run of before the change has version %d", run.AutomationVersion)
		}
	}
	if ready := f.ready.take(); len(ready) != 3 {
		t.Errorf("%d runs were said to be ready, want 3", len(ready))
	}
	wantEqual(t, "the schedules", shows(changed), "10m active 09:10:00, 1m active never, 1h active 10:00:00")
	f.clock.Advance(2 * time.Minute)
	if due := f.due(t); len(due) != 0 {
		t.Errorf("an old timing fired again: %v", due)
	}
}

// testUpdateUnchangedSchedule saves a schedule between the nominal time of a firing and its jittered start.
// testUpdateSettlesApart changes an automation of which much was missed: that is admitted before the transaction of
// the change, which would keep everybody else waiting.
func testUpdateSettlesApart(t *testing.T, f *fixture) {
	other := f.another(t)
	a := f.scheduled(t, every("1s", catchUp(schedule.CatchUpAll)), every("1m", catchUp(schedule.CatchUpAll)))
	f.clock.Advance(10 * time.Minute)
	admitted := func() int {
		_, n, err := other.UnfinishedRuns(t.Context(), f.owner, a.ID, 1)
		if err != nil {
			t.Error(err)
		}
		return n
	}
	var before []int
	f.changeAutomation(t, a, func(d *automation.Definition) {
		before = append(before, admitted())
		d.Enabled = false
	})
	if want := []int{0, 600}; !slices.Equal(before, want) {
		t.Errorf("as many runs were admitted when the change began: %v, want %v", before, want)
	}
	f.clock.Advance(time.Minute)
	f.due(t)
	if n := admitted(); n != 600+10 {
		t.Errorf("%d runs were admitted, want 610", n)
	}
}

func testUpdateUnchangedSchedule(t *testing.T, f *fixture) {
	a := f.scheduled(t, every("1h", jitter(50*time.Minute)))
	id := a.Schedules[0].ID
	wake := f.decide(t, id).NextWake
	nominal := *a.Schedules[0].NextRunAt
	f.clock.Advance(nominal.Add(wake.Sub(nominal) / 2).Sub(f.clock.Now()))
	f.changeAutomation(t, a, func(d *automation.Definition) { d.Description = "saved" })
	f.changeOnly(t, a, func(d *automation.ScheduleDefinition) { d.Input = json.RawMessage(`1`) })
	f.changeOnly(t, a, spec(schedule.Spec{Every: "60m"})) // another text for the same times
	if next := f.decide(t, id); len(next.Admitted) != 0 || !next.NextWake.Equal(wake) {
		t.Fatalf("after the change: %+v, want a wake-up at %v", next, wake)
	}
	f.clock.Advance(wake.Sub(f.clock.Now()))
	if n := len(f.decide(t, id).Admitted) + len(f.decide(t, id).Admitted); n != 1 {
		t.Errorf("the firing happened %d times, want once", n)
	}
	wantEqual(t, "the instants", instants(f.runsOf(t, a)), nominal.Format(time.TimeOnly))
	if input := string(f.read(t, f.runsOf(t, a)[0]).Input); input != `1` {
		t.Errorf("the input is %s", input)
	}
}

func testUpdateScheduleRefusals(t *testing.T, f *fixture) {
	a := f.scheduled(t, every("1m"), every("", spec(schedule.Spec{At: "2026-01-05T09:01:00Z"})))
	theirs := f.scheduled(t, every("1m"))
	f.clock.Advance(2 * time.Minute)
	f.due(t)
	before := f.automation(t, a)
	for name, tc := range map[string]struct {
		change func(all []automation.ScheduleDefinition) []automation.ScheduleDefinition
		want   []string
	}{
		"another automation's": {func(all []automation.ScheduleDefinition) []automation.ScheduleDefinition {
			d := every("1m")
			d.ID = theirs.Schedules[0].ID
			return append(all, d)
		}, []string{"schedules[2].id"}},
		"one twice": {func(all []automation.ScheduleDefinition) []automation.ScheduleDefinition {
			return append(all, all[0])
		}, []string{"schedules[2].id"}},
		"a past instant": {func(all []automation.ScheduleDefinition) []automation.ScheduleDefinition {
			all[0].Spec = schedule.Spec{At: "2026-01-05T09:02:00Z"}
			return all
		}, []string{"schedules[0].at"}},
		"an input that is none": {func(all []automation.ScheduleDefinition) []automation.ScheduleDefinition {
			all[1].Input = json.RawMessage(`{`)
			return all
		}, []string{"schedules[1].input"}},
	} {
		_, err := f.UpdateAutomation(t.Context(), f.owner, a.ID, 0, func(d *automation.Definition) error {
			d.Name, d.Schedules = "changed", tc.change(d.Schedules)
			return nil
		})
		wantCode(t, name, err, automation.CodeValidationFailed)
		wantEqual(t, name+": the places", paths(err), tc.want)
		wantEqual(t, "the automation after "+name, f.automation(t, a), before)
	}
	// The instant that is past is no obstacle to other changes.
	f.changeSchedules(t, a, func(all []automation.ScheduleDefinition) []automation.ScheduleDefinition {
		all[1].Input = json.RawMessage(`2`)
		return all
	})
}

func testScheduleEnabled(t *testing.T, f *fixture) {
	a := f.scheduled(t, every("1m"))
	if s := f.changeOnly(t, a, enabled(false)); s.NextRunAt != nil || s.Status != schedule.StatusActive {
		t.Errorf("a disabled schedule stands at %+v", s)
	}
	f.clock.Advance(24*time.Hour + 30*time.Second)
	f.due(t)
	if s := f.changeOnly(t, a, enabled(true)); !s.NextRunAt.Equal(time.Date(2026, 1, 6, 9, 1, 0, 0, time.UTC)) {
		t.Errorf("an enabled schedule goes on at %v", s.NextRunAt)
	}
	f.clock.Advance(time.Minute)
	f.due(t)
	wantEqual(t, "the instants after a day off", instants(f.runsOf(t, a)), "09:01:00")
	wantEqual(t, "the drops", f.drops(t, a), "")
}

func testAutomationEnabled(t *testing.T, f *fixture) {
	a := f.scheduled(t, every("1m"), every("1m", enabled(false)))
	f.clock.Advance(time.Minute)
	off := f.changeAutomation(t, a, func(d *automation.Definition) { d.Enabled = false })
	wantEqual(t, "what was due at the change", instants(f.runsOf(t, a)), "09:01:00")
	wantEqual(t, "the schedules", shows(off), "1m active never, 1m active never")
	f.clock.Advance(10 * time.Minute)
	f.due(t)
	f.decide(t, a.Schedules[0].ID)
	on := f.changeAutomation(t, a, func(d *automation.Definition) { d.Enabled = true })
	wantEqual(t, "the schedules", shows(on), "1m active 09:12:00, 1m active never")
	wantEqual(t, "the instants", instants(f.runsOf(t, a)), "09:01:00")
	wantEqual(t, "the drops", f.drops(t, a), "")
}

func testScheduleLimit(t *testing.T, f *fixture) {
	a := f.scheduled(t, every("1m", atMost(2)))
	for range 3 {
		f.clock.Advance(time.Minute)
		f.due(t)
	}
	if s := f.only(t, a); s.Status != schedule.StatusFinished || s.Occurrences != 2 {
		t.Fatalf("the schedule stands at %+v", s)
	}
	if s := f.changeOnly(t, a, atMost(3)); s.Status != schedule.StatusActive || s.Occurrences != 2 ||
		!s.NextRunAt.Equal(time.Date(2026, 1, 5, 9, 4, 0, 0, time.UTC)) {
		t.Errorf("with one more the schedule stands at %+v", s)
	}
	f.clock.Advance(10 * time.Minute)
	f.due(t)
	if s := f.only(t, a); s.Status != schedule.StatusFinished || s.Occurrences != 3 || len(f.runsOf(t, a)) != 3 {
		t.Errorf("the schedule stands at %+v", s)
	}
	if s := f.changeOnly(t, a, atMost(0)); s.Status != schedule.StatusActive {
		t.Errorf("without a limit the schedule stands at %+v", s)
	}
	if s := f.changeOnly(t, a, atMost(1)); s.Status != schedule.StatusFinished || s.Occurrences != 3 {
		t.Errorf("below what was admitted the schedule stands at %+v", s)
	}
}

// testScheduleSnapshot edits the automation between a firing's admission and its execution.
func testScheduleSnapshot(t *testing.T, f *fixture) {
	a := f.scheduled(t, every("1m"))
	f.clock.Advance(time.Minute)
	f.due(t)
	before := f.read(t, f.runsOf(t, a)[0])
	f.changeAutomation(t, a, func(d *automation.Definition) {
		d.Name, d.Workflow.Compiled = "other", f.definition("x", "two").Workflow.Compiled
		d.Schedules[0].Input = json.RawMessage(`"later"`)
	})
	wantEqual(t, "a run after the edit", f.read(t, before), before)
	f.clock.Advance(time.Minute)
	f.due(t)
	if after := f.read(t, f.runsOf(t, a)[1]); after.AutomationName != "other" || string(after.Input) != `"later"` ||
		after.Plan.Steps[0].ID != "two" || after.AutomationVersion != 2 {
		t.Errorf("the next run is %+v", after)
	}
}

func testRemoveSchedule(t *testing.T, f *fixture) {
	a := f.scheduled(t, every("1m"))
	id := a.Schedules[0].ID
	f.clock.Advance(time.Minute)
	f.due(t)
	run := f.runsOf(t, a)[0]
	f.changeSchedules(t, a, func([]automation.ScheduleDefinition) []automation.ScheduleDefinition { return nil })
	f.clock.Advance(time.Hour)
	if d := f.decide(t, id); len(d.Admitted) != 0 || !d.NextWake.IsZero() || len(f.due(t)) != 0 {
		t.Errorf("a removed schedule did %+v", d)
	}
	if got := f.automation(t, a); len(got.Schedules) != 0 || got.Version != 2 {
		t.Errorf("the automation is %+v", got)
	}
	wantStatuses(t, f.read(t, run), "pending: pending")
	f.complete(t, run, "one", `1`)
}

// testDeleteSchedules deletes an automation with a firing that is due, and creates another one of the same name.
func testDeleteSchedules(t *testing.T, f *fixture) {
	a := f.scheduled(t, every("1m"), every("1h"))
	f.clock.Advance(time.Minute)
	if err := f.DeleteAutomation(t.Context(), f.owner, a.ID, 0); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "the instants", instants(f.runsOf(t, a)), "09:01:00")
	if ready := f.ready.take(); len(ready) != 1 {
		t.Errorf("%d runs were said to be ready, want 1", len(ready))
	}
	other := f.scheduled(t, every("10m"))
	f.clock.Advance(5 * time.Hour)
	f.due(t)
	for _, s := range a.Schedules {
		if d := f.decide(t, s.ID); len(d.Admitted) != 0 {
			t.Errorf("a schedule of a deleted automation fired: %+v", d)
		}
		sync, found, err := f.ScheduleSync(t.Context(), s.ID)
		if err != nil || !found || !sync.Removed {
			t.Errorf("the tombstone is %+v, %v, %v", sync, found, err)
		}
	}
	wantEqual(t, "the instants of the deleted one", instants(f.runsOf(t, a)), "09:01:00")
	if n := len(f.runsOf(t, other)); n != 1 {
		t.Errorf("the other one has %d runs, want 1", n)
	}
}

func testPauseSchedule(t *testing.T, f *fixture) {
	a := f.scheduled(t, every("1m"))
	id := a.Schedules[0].ID
	pause := func(generation int64, paused bool, reason string) {
		t.Helper()
		if err := f.PauseSchedule(t.Context(), id, generation, paused, reason); err != nil {
			t.Fatalf("PauseSchedule: %v", err)
		}
	}
	generation := func() int64 {
		t.Helper()
		sync, _, err := f.ScheduleSync(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return sync.Generation
	}
	f.clock.Advance(time.Minute)
	pause(7, true, "of another generation")
	if s := f.only(t, a); s.Status != schedule.StatusActive {
		t.Fatalf("a pause of another generation left %+v", s)
	}
	pause(1, true, "on holiday\x00")
	wantEqual(t, "what was due at the pause", instants(f.runsOf(t, a)), "09:01:00")
	if s := f.only(t, a); s.Status != schedule.StatusPaused || s.StatusReason != "on holiday\u2400" || s.NextRunAt != nil {
		t.Errorf("the paused schedule stands at %+v", s)
	}
	if sync, _, err := f.ScheduleSync(t.Context(), id); err != nil || !sync.Paused || sync.Note != "on holiday\u2400" || sync.Generation != 2 {
		t.Errorf("the engine is told %+v, %v", sync, err)
	}
	f.clock.Advance(24 * time.Hour)
	f.due(t)
	pause(2, false, "")
	f.clock.Advance(time.Minute)
	f.due(t)
	wantEqual(t, "the instants after a day", instants(f.runsOf(t, a)), "09:01:00 09:02:00")
	wantEqual(t, "the drops", f.drops(t, a), "")

	pause(generation(), true, "")
	if s := f.only(t, a); s.StatusReason == "" {
		t.Error("a pause without a reason has none")
	}
	version := f.automation(t, a).Version
	resumed := f.changeOnly(t, a, func(d *automation.ScheduleDefinition) { d.Resume = true })
	if resumed.Status != schedule.StatusActive || resumed.StatusReason != "" || resumed.NextRunAt == nil || resumed.Resume {
		t.Errorf("the resumed schedule stands at %+v", resumed)
	}
	if got := f.automation(t, a).Version; got != version {
		t.Errorf("resuming raised the version from %d to %d", version, got)
	}
	f.changeOnly(t, a, enabled(false))
	before := generation()
	pause(before, false, "") // it stays disabled, and the engine must be told so
	if s := f.only(t, a); s.NextRunAt != nil || generation() != before+1 {
		t.Errorf("an operator let a disabled schedule fire: %+v", s)
	}
}

// unsynced lists what the engine must learn.
func (f *fixture) unsynced(t *testing.T, engineID string) map[string]automation.ScheduleSync {
	t.Helper()
	list, err := f.UnsyncedSchedules(t.Context(), engineID, 100)
	if err != nil {
		t.Fatalf("UnsyncedSchedules: %v", err)
	}
	byID := map[string]automation.ScheduleSync{}
	for _, sync := range list {
		byID[sync.ID] = sync
	}
	if len(byID) != len(list) {
		t.Errorf("a schedule is listed twice: %v", list)
	}
	return byID
}

func (f *fixture) synced(t *testing.T, id string, generation int64, engineID string) {
	t.Helper()
	if err := f.MarkScheduleSynced(t.Context(), id, generation, engineID); err != nil {
		t.Fatalf("MarkScheduleSynced: %v", err)
	}
}

func testScheduleSync(t *testing.T, f *fixture) {
	a := f.scheduled(t, every("1m", atMost(1)), every("1h", enabled(false)))
	id, off := a.Schedules[0].ID, a.Schedules[1].ID
	first := f.unsynced(t, "engine")
	wantEqual(t, "the first schedule", first[id], automation.ScheduleSync{
		ID: id, AutomationID: a.ID, AutomationName: "job", MachineID: f.machine.ID, CreatedAt: f.clock.Now(),
		Spec: schedule.Spec{Every: "1m"}, Generation: 1,
	})
	if s := first[off]; !s.Paused || s.Note != "the schedule is disabled" {
		t.Errorf("the disabled schedule is %+v", s)
	}
	f.synced(t, id, 1, "engine")
	f.synced(t, off, 1, "engine")
	if left := f.unsynced(t, "engine"); len(left) != 0 {
		t.Errorf("after the sync %v is left", left)
	}
	for i, step := range []func(){
		func() { f.changeAutomation(t, a, func(d *automation.Definition) { d.Name = "renamed" }) },
		func() { f.changeOnlyOf(t, a, id, spec(schedule.Spec{Every: "2m"})) },
		func() { f.changeAutomation(t, a, func(d *automation.Definition) { d.Enabled = false }) },
		func() { f.changeAutomation(t, a, func(d *automation.Definition) { d.Enabled = true }) },
		func() { f.clock.Advance(2 * time.Minute); f.due(t) }, // it is finished
		func() { f.changeOnlyOf(t, a, id, atMost(9)) },
	} {
		step()
		sync, found := f.unsynced(t, "engine")[id]
		if want := int64(i + 2); !found || sync.Generation != want {
			t.Fatalf("change %d: generation %d, %v, want %d", i, sync.Generation, found, want)
		}
		f.synced(t, id, sync.Generation, "engine")
		f.synced(t, id, 1, "engine") // late news
		if _, left := f.unsynced(t, "engine")[id]; left {
			t.Errorf("change %d is told again", i)
		}
	}
	f.changeOnlyOf(t, a, id, func(d *automation.ScheduleDefinition) { d.Input = json.RawMessage(`1`) })
	f.clock.Advance(2 * time.Minute)
	f.due(t)
	if sync, left := f.unsynced(t, "engine")[id]; left {
		t.Errorf("an input or a firing is told to the engine: %+v", sync)
	}
	f.synced(t, id, 0, "engine")
	if sync, lost := f.unsynced(t, "engine")[id]; !lost || sync.SyncedGeneration != 0 || sync.EngineID != "" {
		t.Errorf("a schedule that the engine has lost is %+v, %v", sync, lost)
	}
	f.synced(t, id, 99, "engine")
	if _, lost := f.unsynced(t, "engine")[id]; !lost {
		t.Error("a generation that does not exist counts as learned")
	}
}

// changeOnlyOf changes one schedule of several.
func (f *fixture) changeOnlyOf(t *testing.T, a automation.Automation, id string, change func(*automation.ScheduleDefinition)) {
	t.Helper()
	f.changeSchedules(t, a, func(all []automation.ScheduleDefinition) []automation.ScheduleDefinition {
		for i := range all {
			if all[i].ID == id {
				change(&all[i])
			}
		}
		return all
	})
}

func testScheduleForeignEngine(t *testing.T, f *fixture) {
	a := f.scheduled(t, every("1m"), every("1h"), every("1h"))
	for i, engine := range []string{"a", "engine", "z"} {
		f.synced(t, a.Schedules[i].ID, 1, engine)
	}
	left := f.unsynced(t, "engine")
	if _, ours := left[a.Schedules[1].ID]; ours || len(left) != 2 {
		t.Errorf("what another engine holds: %v", left)
	}
	f.synced(t, a.Schedules[0].ID, 1, "engine")
	if left := f.unsynced(t, "engine"); len(left) != 1 {
		t.Errorf("after one of two: %v", left)
	}
	var pages []string
	for after := ""; ; {
		page, err := f.ScheduleSyncs(t.Context(), after, 2)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		for _, sync := range page {
			pages = append(pages, sync.ID)
		}
		after = page[len(page)-1].ID
	}
	if len(pages) != 3 || !slices.IsSorted(pages) {
		t.Errorf("the pages hold %v", pages)
	}
	_, err := f.ScheduleSyncs(t.Context(), "x", 2)
	wantCode(t, "a page after nothing", err, automation.CodeValidationFailed)
	_, err = f.UnsyncedSchedules(t.Context(), "", 2)
	wantCode(t, "no engine", err, automation.CodeValidationFailed)
}

// testTombstones keeps a removed schedule until the engine has forgotten it and its runs have ended.
func testTombstones(t *testing.T, f *fixture) {
	a := f.scheduled(t, every("1m"), every("1m"))
	f.clock.Advance(time.Minute)
	f.decide(t, a.Schedules[0].ID)
	run := f.runsOf(t, a)[0]
	if err := f.DeleteAutomation(t.Context(), f.owner, a.ID, 0); err != nil {
		t.Fatal(err)
	}
	second := f.runsOf(t, a)[1] // was due at the delete
	f.complete(t, second, "one", `1`)
	left := f.unsynced(t, "engine")
	if len(left) != 2 {
		t.Fatalf("the engine must learn %v", left)
	}
	exists := func(i int) bool {
		t.Helper()
		_, found, err := f.ScheduleSync(t.Context(), a.Schedules[i].ID)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	for i, s := range a.Schedules {
		sync := left[s.ID]
		if !sync.Removed || !sync.Paused {
			t.Errorf("the tombstone is %+v", sync)
		}
		f.synced(t, s.ID, sync.Generation-1, "engine")
		if !exists(i) {
			t.Error("a tombstone is forgotten before its removal is confirmed")
		}
		f.synced(t, s.ID, sync.Generation, "engine")
	}
	if !exists(0) || exists(1) {
		t.Errorf("the tombstones are there: %v with an unfinished run, %v without", exists(0), exists(1))
	}
	if left := f.unsynced(t, "engine"); len(left) != 0 {
		t.Errorf("a confirmed removal is told again: %v", left)
	}
	f.complete(t, run, "one", `1`)
	if exists(0) {
		t.Error("the tombstone is still there after its last run")
	}
	wantStatuses(t, f.read(t, run), "completed: completed")
}

// testScheduleOtherMachine moves an automation to another machine: its next runs go there.
func testScheduleOtherMachine(t *testing.T, f *fixture) {
	a := f.scheduled(t, every("1m"))
	second := f.enroll(t, f.owner, "second")
	f.clock.Advance(time.Minute)
	f.changeAutomation(t, a, func(d *automation.Definition) { d.MachineID = second.ID })
	f.due(t)
	f.clock.Advance(time.Minute)
	f.due(t)
	runs := f.runsOf(t, a)
	if len(runs) != 2 || runs[0].MachineID != second.ID || runs[1].MachineID != second.ID {
		t.Errorf("the runs are %+v", runs)
	}
	if sync, _, err := f.ScheduleSync(t.Context(), a.Schedules[0].ID); err != nil || sync.MachineID != second.ID || sync.Generation != 2 {
		t.Errorf("the engine is told %+v, %v", sync, err)
	}
}
