//go:build unix

package acceptance_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.temporal.io/sdk/client"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/apptest"
	"github.com/errandhq/errand/internal/pgtest"
)

// scheduled is an automation of one quick step and one schedule.
func scheduled(name string, schedule map[string]any) map[string]any {
	return map[string]any{
		"name": name, "schedules": []any{schedule},
		"workflow": map[string]any{"compiled": map[string]any{"version": 2, "steps": []any{
			map[string]any{"id": "nothing", "kind": "command", "command": "true"},
		}}},
	}
}

// shownSchedule is what is read here of a schedule that REST shows.
type shownSchedule struct {
	ID, Status, StatusReason string
	Occurrences              int
}

// scheduleOf returns the one schedule of an automation.
func scheduleOf(t *testing.T, s *apptest.Server, id string) shownSchedule {
	t.Helper()
	code, body := s.Get("/v1/automations/" + id)
	var shown struct{ Schedules []shownSchedule }
	if err := json.Unmarshal(body, &shown); err != nil || code != http.StatusOK || len(shown.Schedules) != 1 {
		t.Fatalf("automation %s: %d %s", id, code, body)
	}
	return shown.Schedules[0]
}

// instantsOf returns the instants of the runs of an automation, in order.
func instantsOf(t *testing.T, s *apptest.Server, id string) []time.Time {
	t.Helper()
	code, body := s.Get("/v1/runs?trigger=schedule&limit=200&automation_id=" + id)
	var list struct{ Runs []automation.Run }
	if err := json.Unmarshal(body, &list); err != nil || code != http.StatusOK {
		t.Fatalf("runs of %s: %d %s", id, code, body)
	}
	var instants []time.Time
	for _, run := range list.Runs {
		instants = append(instants, *run.Trigger.ScheduledAt)
	}
	slices.SortFunc(instants, time.Time.Compare)
	return instants
}

// checkEverySecond checks that there is exactly one run for each of so many seconds in a row.
func checkEverySecond(t *testing.T, instants []time.Time, count int) {
	t.Helper()
	if len(instants) != count {
		t.Fatalf("%d runs, want %d: %v", len(instants), count, instants)
	}
	for i, at := range instants {
		if want := instants[0].Add(time.Duration(i) * time.Second); !at.Equal(want) {
			t.Errorf("run %d is for %s, not for %s", i, at, want)
		}
	}
}

// TestInstantsOnTwoServers fires schedules every second on two servers that are killed and started again in turn, also
// within the second of a firing, while Temporal wakes up the same schedules: each instant has one run.
func TestInstantsOnTwoServers(t *testing.T) {
	t.Parallel()
	temporal := apptest.NewTemporal(t)
	temporal.Start()
	env := temporal.Env()
	env["ERRAND_MASTER_KEY_FILE"] = filepath.Join(t.TempDir(), "master.key")
	options := apptest.Options{DatabaseURL: pgtest.Database(t), Env: env}
	a := apptest.Start(t, options)
	options.NoLocalWorker = true
	b := apptest.Start(t, options)

	const count = 40
	var ids []string
	for n, overlap := range []string{"parallel", "queue", "parallel"} {
		ids = append(ids, a.Create(scheduled(fmt.Sprint("Every second ", n), map[string]any{
			"every": "1s", "maxOccurrences": count, "overlap": overlap, "catchUp": "all",
		})))
	}
	// The pauses between kills wander through the second.
	servers := []*apptest.Server{b, a}
	for kill := 0; scheduleOf(t, a, ids[0]).Occurrences < count-10; kill++ {
		s := servers[kill%2]
		s.Kill()
		s.Restart()
		pause := time.NewTimer(time.Duration(kill*170%1000) * time.Millisecond)
		<-pause.C
	}
	for _, id := range ids {
		b.Await(patience, "the schedule is finished", func() (string, bool) {
			shown := scheduleOf(t, b, id)
			return fmt.Sprintf("%+v", shown), shown.Status == "finished"
		})
		if shown := scheduleOf(t, a, id); shown.Occurrences != count {
			t.Errorf("%+v", shown)
		}
		checkEverySecond(t, instantsOf(t, b, id), count)
	}
}

// TestSchedulesWithoutTemporal fires while Temporal is away: the runs are admitted in time, and execute when it is back.
func TestSchedulesWithoutTemporal(t *testing.T) {
	t.Parallel()
	temporal := apptest.NewTemporal(t)
	temporal.Start() // makes the certificates
	temporal.Kill()
	s := apptest.New(t, apptest.Options{Env: temporal.Env()})
	s.Launch()
	id := s.Create(scheduled("Every second", map[string]any{"every": "1s", "maxOccurrences": 5, "overlap": "queue"}))
	s.Await(patience, "the schedule is finished", func() (string, bool) {
		shown := scheduleOf(t, s, id)
		return fmt.Sprintf("%+v", shown), shown.Status == "finished"
	})
	checkEverySecond(t, instantsOf(t, s, id), 5)
	temporal.Start()
	s.Await(patience, "the runs are completed", func() (string, bool) {
		code, body := s.Get("/v1/runs?status=completed&automation_id=" + id)
		var list struct{ Runs []automation.Run }
		err := json.Unmarshal(body, &list)
		return fmt.Sprint(code, len(list.Runs), err), len(list.Runs) == 5
	})
}

// TestOperatorsPauseAndDelete works in Temporal as operators do; within a minute the ledger knows, or Temporal is put
// right.
func TestOperatorsPauseAndDelete(t *testing.T) {
	t.Parallel()
	temporal := apptest.NewTemporal(t)
	temporal.Start()
	c := operator(t, temporal)
	s := apptest.Start(t, apptest.Options{Env: temporal.Env()})
	installation := installationOf(t, s.RunNow(s.Create(scheduled("Installation", map[string]any{"every": "24h"})), nil))
	create := func(name string) (string, client.ScheduleHandle) {
		t.Helper()
		id := s.Create(scheduled(name, map[string]any{"cron": "0 9 * * 1-5", "timezone": "Europe/Berlin"}))
		handle := c.ScheduleClient().GetHandle(t.Context(), automation.EngineScheduleID(installation, scheduleOf(t, s, id).ID))
		awaitNote(t, s, handle, "Errand: every weekday at 09:00 in Europe/Berlin", false)
		return id, handle
	}
	paused, pausedThere := create("Paused")
	_, deletedThere := create("Deleted")
	gone, goneThere := create("Gone")
	if err := pausedThere.Pause(t.Context(), client.SchedulePauseOptions{Note: "maintenance"}); err != nil {
		t.Fatal(err)
	}
	if err := deletedThere.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	if code, body := s.Do(s.Request(http.MethodDelete, "/v1/automations/"+gone, nil)); code != http.StatusOK {
		t.Fatalf("%d %s", code, body)
	}
	s.Await(time.Minute, "the pause is in the ledger", func() (string, bool) {
		shown := scheduleOf(t, s, paused)
		return fmt.Sprintf("%+v", shown), shown.Status == "paused" && shown.StatusReason == "paused in Temporal: maintenance"
	})
	awaitNote(t, s, pausedThere, "Errand: paused in Temporal: maintenance · every weekday at 09:00 in Europe/Berlin", true)
	awaitNote(t, s, deletedThere, "Errand: every weekday at 09:00 in Europe/Berlin", false)
	s.Await(time.Minute, "the removed schedule is gone", func() (string, bool) {
		_, err := goneThere.Describe(t.Context())
		return fmt.Sprint(err), err != nil
	})

	// What was paused there is resumed there.
	if err := pausedThere.Unpause(t.Context(), client.ScheduleUnpauseOptions{Note: "done"}); err != nil {
		t.Fatal(err)
	}
	s.Await(time.Minute, "the schedule fires again", func() (string, bool) {
		shown := scheduleOf(t, s, paused)
		return fmt.Sprintf("%+v", shown), shown.Status == "active" && shown.StatusReason == ""
	})
	awaitNote(t, s, pausedThere, "Errand: every weekday at 09:00 in Europe/Berlin", false)
}

// awaitNote waits, as long as a comparison may take, until Temporal shows a schedule with a note.
func awaitNote(t *testing.T, s *apptest.Server, handle client.ScheduleHandle, note string, paused bool) {
	t.Helper()
	s.Await(time.Minute, "Temporal shows "+note, func() (string, bool) {
		description, err := handle.Describe(t.Context())
		if err != nil {
			return err.Error(), false
		}
		state := description.Schedule.State
		return fmt.Sprintf("%+v", *state), state.Note == note && state.Paused == paused
	})
}
