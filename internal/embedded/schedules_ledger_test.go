package embedded_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"go.temporal.io/sdk/client"

	"github.com/errandhq/errand/activities/control"
	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/automation/schedule"
	"github.com/errandhq/errand/internal/embedded"
	"github.com/errandhq/errand/internal/engine"
	"github.com/errandhq/errand/internal/store"
	"github.com/errandhq/errand/schedules"
	"github.com/errandhq/errand/worker"
)

// installation is a ledger with one automation, and a Temporal.
type installation struct {
	t        *testing.T
	ledger   *store.Store
	engine   *engine.Engine
	id       string
	owner    string
	machine  automation.Machine
	options  schedules.Options
	syncer   *schedules.Syncer
	mu       sync.Mutex
	admitted []string
}

func install(t *testing.T) *installation {
	t.Helper()
	server := start(t, embedded.Options{Dir: t.TempDir(), SearchAttributes: engine.SearchAttributes()})
	quiet := slog.New(slog.DiscardHandler)
	newID := func() string { return uuid.Must(uuid.NewV7()).String() }
	ledger, err := store.Open(testContext(t), store.Options{
		URL: filepath.Join(t.TempDir(), "errand.db"), Now: time.Now, NewID: newID, Logger: quiet,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ledger.Close() })
	identity, err := ledger.Installation(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	machine, err := ledger.EnrollMachine(testContext(t), automation.NewMachine{
		OwnerID: identity.LocalOwnerID, Name: "m", Platform: "linux/amd64", Version: "1", PublicKey: "key",
	})
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(engine.Options{Client: clientOptions(server), InstallationID: identity.ID, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	if err := e.Connect(testContext(t)); err != nil {
		t.Fatal(err)
	}
	i := &installation{t: t, ledger: ledger, engine: e, id: identity.ID, owner: identity.LocalOwnerID, machine: machine}
	i.options = schedules.Options{
		Store: ledger, Engine: e, InstallationID: identity.ID, Holder: "me", Now: time.Now, NewID: newID, Logger: quiet,
	}
	i.syncer = schedules.NewSyncer(i.options)
	i.background(i.syncer)
	return i
}

// background runs a part until the end of the test.
func (i *installation) background(part interface{ Run(ctx context.Context) }) (stop func()) {
	ctx, cancel := context.WithCancel(i.t.Context())
	done := make(chan struct{})
	go func() {
		part.Run(ctx)
		close(done)
	}()
	stop = func() {
		cancel()
		<-done
	}
	i.t.Cleanup(stop)
	return stop
}

// create creates an automation with one schedule, and waits until Temporal has it.
func (i *installation) create(name string, spec schedule.Spec, policy schedule.Policy) automation.Automation {
	i.t.Helper()
	created, err := i.ledger.CreateAutomation(testContext(i.t), i.owner, automation.Definition{
		Name: name, Enabled: true, MachineID: i.machine.ID,
		Workflow: automation.Workflow{Compiled: &automation.Plan{Version: 2, Steps: []automation.Step{{
			ID: "a", Kind: automation.KindCommand, Command: "true",
		}}}},
		Schedules: []automation.ScheduleDefinition{{Spec: spec, Policy: policy, Enabled: true}},
	}, automation.Idempotency{})
	if err != nil {
		i.t.Fatal(err)
	}
	i.syncer.Changed()
	i.settled()
	return created
}

// settled waits until Temporal has learned everything.
func (i *installation) settled() {
	i.t.Helper()
	eventually(i.t, "Temporal has learned everything", func() bool {
		rows, err := i.ledger.UnsyncedSchedules(testContext(i.t), i.engine.ID(), 1)
		return err == nil && len(rows) == 0
	})
}

// schedule returns the one schedule of an automation.
func (i *installation) schedule(a automation.Automation) automation.Schedule {
	i.t.Helper()
	now, err := i.ledger.Automation(testContext(i.t), i.owner, a.ID)
	if err != nil {
		i.t.Fatal(err)
	}
	return now.Schedules[0]
}

// handle returns a schedule as an operator works with it.
func (i *installation) handle(id string) client.ScheduleHandle {
	return i.engine.Client().ScheduleClient().GetHandle(i.t.Context(), automation.EngineScheduleID(i.id, id))
}

// ticker returns a ticker, not running, that notes what was admitted.
func (i *installation) ticker() *schedules.Ticker {
	return schedules.NewTicker(schedules.TickerOptions{
		Options: i.options, Cancelled: func(automation.Run, string) {}, Settled: i.syncer.Changed,
		Admitted: func(run string) {
			i.mu.Lock()
			defer i.mu.Unlock()
			i.admitted = append(i.admitted, run)
		},
	})
}

// instants returns the instants of an automation's runs, in order.
func (i *installation) instants(a automation.Automation) []string {
	i.t.Helper()
	runs, _, err := i.ledger.ListRuns(testContext(i.t), i.owner, automation.RunFilter{AutomationID: a.ID, Limit: automation.MaxPageSize})
	if err != nil {
		i.t.Fatal(err)
	}
	var list []string
	for _, run := range runs {
		list = append(list, run.Trigger.ScheduledAt.UTC().Format(time.RFC3339))
	}
	slices.Sort(list)
	return list
}

// checkGapless checks that there is one run for each of so many seconds in a row.
func checkGapless(t *testing.T, instants []string, count int) {
	t.Helper()
	if len(instants) != count {
		t.Fatalf("%d runs, want %d: %v", len(instants), count, instants)
	}
	first, err := time.Parse(time.RFC3339, instants[0])
	if err != nil {
		t.Fatal(err)
	}
	for n, instant := range instants {
		if want := first.Add(time.Duration(n) * time.Second).Format(time.RFC3339); instant != want {
			t.Errorf("run %d is for %s, not %s", n, instant, want)
		}
	}
}

// TestFiringThroughTemporal fires a schedule without the ticker, with it beside, and lets Temporal show how.
func TestFiringThroughTemporal(t *testing.T) {
	t.Parallel()
	i := install(t)
	ticker := i.ticker() // not running: it only decides what is woken up
	runs := worker.NewControl(i.engine.Client(), i.id, control.Activities{Ledger: i.ledger, Schedules: ticker}, func(err error) { t.Error(err) })
	if err := runs.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(runs.Stop)
	a := i.create("Every second", schedule.Spec{Every: "1s"}, schedule.Policy{
		MaxOccurrences: 5, Overlap: schedule.OverlapParallel, CatchUp: schedule.CatchUpLatest, CatchUpWindow: time.Hour,
	})
	eventually(t, "five runs are admitted by Temporal alone", func() bool { return i.schedule(a).Status == schedule.StatusFinished })
	checkGapless(t, i.instants(a), 5)
	i.settled()
	description, err := i.handle(i.schedule(a).ID).Describe(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if note := description.Schedule.State.Note; !description.Schedule.State.Paused || note != "Errand: finished: all 5 occurrences have been admitted · every second" {
		t.Errorf("in the end Temporal says %t, %q", description.Schedule.State.Paused, note)
	}

	// Both wake up for the same instants: each is admitted once.
	b := i.create("Both", schedule.Spec{Every: "1s"}, schedule.Policy{
		MaxOccurrences: 5, Overlap: schedule.OverlapParallel, CatchUp: schedule.CatchUpLatest, CatchUpWindow: time.Hour,
	})
	i.background(ticker)
	eventually(t, "five runs are admitted", func() bool { return i.schedule(b).Status == schedule.StatusFinished })
	checkGapless(t, i.instants(b), 5)
	i.mu.Lock()
	defer i.mu.Unlock()
	if slices.Sort(i.admitted); len(slices.Compact(slices.Clone(i.admitted))) != 10 || len(i.admitted) != 10 {
		t.Errorf("asked to start: %v", i.admitted)
	}
}

// TestReconcileWithTemporal does by hand in Temporal what operators do, and compares.
func TestReconcileWithTemporal(t *testing.T) {
	t.Parallel()
	i := install(t)
	nightly := schedule.Spec{Cron: "30 2 * * *", Timezone: "Europe/Berlin"}
	policy := schedule.Policy{Overlap: schedule.OverlapQueue, CatchUp: schedule.CatchUpLatest, CatchUpWindow: time.Hour}
	names := []string{"deleted", "paused", "resumed", "changed", "untouched", "removed"}
	automations := map[string]automation.Automation{}
	for _, name := range names {
		automations[name] = i.create(name, nightly, policy)
	}
	id := func(name string) string { return automations[name].Schedules[0].ID }
	pristine, err := i.handle(id("untouched")).Describe(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	schedulesOf := i.engine.Client().ScheduleClient()
	foreign := func(id string) {
		t.Helper()
		if _, err := schedulesOf.Create(testContext(t), client.ScheduleOptions{
			ID: id, Spec: client.ScheduleSpec{Intervals: []client.ScheduleIntervalSpec{{Every: time.Hour}}},
			Action: &client.ScheduleWorkflowAction{ID: "x", Workflow: "Nothing", TaskQueue: "nobody"},
		}); err != nil {
			t.Fatal(err)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	unknown := uuid.NewString()
	reconcile := func(want schedules.Repairs) {
		t.Helper()
		reconciler := schedules.NewReconciler(i.options, i.syncer)
		stop := i.background(reconciler)
		eventually(t, fmt.Sprintf("repairs %+v", want), func() bool { return reconciler.Repairs() == want })
		stop()
		i.syncer.Changed()
		i.settled()
	}
	describe := func(name string) *client.ScheduleDescription {
		t.Helper()
		description, err := i.handle(id(name)).Describe(testContext(t))
		must(err)
		return description
	}

	must(i.handle(id("deleted")).Delete(testContext(t)))
	must(i.handle(id("paused")).Pause(testContext(t), client.SchedulePauseOptions{Note: "maintenance"}))
	must(i.handle(id("resumed")).Pause(testContext(t), client.SchedulePauseOptions{Note: "for a while"}))
	must(i.handle(id("changed")).Update(testContext(t), client.ScheduleUpdateOptions{
		DoUpdate: func(in client.ScheduleUpdateInput) (*client.ScheduleUpdate, error) {
			in.Description.Schedule.Policy.CatchupWindow = time.Hour
			in.Description.Schedule.Spec.Calendars[0].Hour[0].End = 5
			return &client.ScheduleUpdate{Schedule: &in.Description.Schedule}, nil
		},
	}))
	foreign("someone/schedule/" + unknown)
	foreign(automation.EngineScheduleID(i.id, unknown))
	foreign(automation.EngineScheduleID(i.id, "no-id"))
	eventually(t, "lists show it", func() bool {
		listed := map[string]bool{}
		iterator, err := schedulesOf.List(testContext(t), client.ScheduleListOptions{})
		must(err)
		for iterator.HasNext() {
			entry, err := iterator.Next()
			must(err)
			listed[strings.TrimPrefix(entry.ID, automation.EngineSchedulePrefix(i.id))] = true
			if entry.ID == automation.EngineScheduleID(i.id, id("paused")) && !entry.Paused {
				return false
			}
		}
		return !listed[id("deleted")] && listed["no-id"] && listed[unknown]
	})
	reconcile(schedules.Repairs{Created: 1, Adopted: 2, Updated: 1, Removed: 2})

	// What was deleted or changed is as it was; the pauses are in the ledger, and Temporal says why.
	for _, name := range []string{"deleted", "changed", "untouched"} {
		got := describe(name)
		if diff := cmp.Diff(pristine.Schedule.Spec, got.Schedule.Spec); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(pristine.Schedule.Policy, got.Schedule.Policy); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(pristine.Schedule.State, got.Schedule.State); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	for name, reason := range map[string]string{"paused": "paused in Temporal: maintenance", "resumed": "paused in Temporal: for a while"} {
		if s := i.schedule(automations[name]); s.Status != schedule.StatusPaused || s.StatusReason != reason {
			t.Errorf("%s: %s because %q", name, s.Status, s.StatusReason)
		}
		if state := describe(name).Schedule.State; !state.Paused || state.Note != "Errand: "+reason+" · every day at 02:30 in Europe/Berlin" {
			t.Errorf("%s: %+v", name, state)
		}
	}

	// A pause by hand ends by hand, and a removed schedule stays removed.
	must(i.handle(id("resumed")).Unpause(testContext(t), client.ScheduleUnpauseOptions{Note: "go on"}))
	must(i.ledger.DeleteAutomation(testContext(t), i.owner, automations["removed"].ID, 0))
	i.syncer.Changed()
	i.settled()
	foreign(automation.EngineScheduleID(i.id, id("removed")))
	eventually(t, "it is listed again", func() bool {
		iterator, err := schedulesOf.List(testContext(t), client.ScheduleListOptions{})
		must(err)
		for iterator.HasNext() {
			entry, err := iterator.Next()
			must(err)
			if entry.ID == automation.EngineScheduleID(i.id, id("removed")) {
				return true
			}
		}
		return false
	})
	reconcile(schedules.Repairs{Adopted: 1, Removed: 1})
	if s := i.schedule(automations["resumed"]); s.Status != schedule.StatusActive {
		t.Errorf("resumed: %s because %q", s.Status, s.StatusReason)
	}
	if state := describe("resumed").Schedule.State; state.Paused || state.Note != pristine.Schedule.State.Note {
		t.Errorf("resumed: %+v", state)
	}
	if _, err := schedulesOf.GetHandle(t.Context(), "someone/schedule/"+unknown).Describe(testContext(t)); err != nil {
		t.Errorf("the schedule of another installation: %v", err)
	}
	for _, gone := range []string{unknown, "no-id", id("removed")} {
		if _, err := i.handle(gone).Describe(testContext(t)); err == nil {
			t.Errorf("%s is still there", gone)
		}
	}
}
