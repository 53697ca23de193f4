package embedded_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/automation/schedule"
	"github.com/errandhq/errand/internal/embedded"
	"github.com/errandhq/errand/internal/engine"
	"github.com/errandhq/errand/schedules"
)

// timetable is a ledger of schedules that only Temporal is to learn.
type timetable struct {
	automation.ScheduleStore

	mu   sync.Mutex
	rows []automation.ScheduleSync
}

func (s *timetable) Lease(context.Context, string, string, time.Duration) (bool, error) {
	return true, nil
}

func (s *timetable) UnsyncedSchedules(_ context.Context, _ string, limit int) (unsynced []automation.ScheduleSync, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, row := range s.rows {
		if row.SyncedGeneration == 0 && len(unsynced) < limit {
			unsynced = append(unsynced, row)
		}
	}
	return unsynced, nil
}

func (s *timetable) MarkScheduleSynced(_ context.Context, id string, generation int64, engineID string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.rows {
		if s.rows[i].ID == id {
			s.rows[i].SyncedGeneration, s.rows[i].EngineID = generation, engineID
		}
	}
	return nil
}

func (s *timetable) unsynced() int {
	rows, _ := s.UnsyncedSchedules(context.Background(), "", len(s.rows))
	return len(rows)
}

// otherTimes are where Temporal fires otherwise than the core: where clocks change. What it misses, the ticker of
// errandd fires; what it adds is a wake-up that finds nothing due.
var otherTimes = map[string]struct{ Missed, Added []string }{
	// Times that do not exist: Temporal leaves them out, the core fires right after the gap.
	"gap: once, right after":           {Missed: []string{"2027-03-14T07:00:00Z"}},
	"two matches inside a gap: once":   {Missed: []string{"2027-03-14T07:00:00Z"}},
	"gap in Europe":                    {Missed: []string{"2027-03-28T01:00:00Z"}},
	"midnight does not exist that day": {Missed: []string{"2027-09-05T04:00:00Z"}},
	// Times that happen twice: west of UTC Temporal fires at both, the core at the first.
	"overlap: the first only":          {Added: []string{"2027-11-07T06:30:00Z"}},
	"base between the two occurrences": {Added: []string{"2027-11-07T06:30:00Z"}},
	// East of UTC it knows only the second of two, and loses the first of the times up to the change.
	"half-hour shift":                  {Missed: []string{"2027-04-03T14:30:00Z"}, Added: []string{"2027-04-03T15:00:00Z"}},
	"twice in Berlin: a fixed time":    {Missed: []string{"2027-10-31T00:30:00Z"}, Added: []string{"2027-10-31T01:30:00Z"}},
	"twice in Berlin: every hour":      {Missed: []string{"2027-10-31T01:00:00Z"}},
	"twice in Berlin: every half hour": {Missed: []string{"2027-10-31T00:30:00Z", "2027-10-31T01:00:00Z"}},
	// A gap that is not an hour: the time is shifted by it, not moved to its end.
	"a gap of half an hour": {Missed: []string{"2027-10-02T15:30:00Z"}, Added: []string{"2027-10-02T15:45:00Z"}},
}

// TestTemporalFiresWhenTheCoreSays asks Temporal when it will fire each of the cases.
func TestTemporalFiresWhenTheCoreSays(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../automation/schedule/testdata/cron.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases struct {
		Valid []struct {
			Why, Cron, Timezone string
			From                time.Time
			Next                []time.Time
		}
	}
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	// What the cases do not have: an hour that comes twice east of UTC, and a gap of half an hour.
	for _, more := range []struct{ why, cron, zone, from string }{
		{"twice in Berlin: a fixed time", "30 2 * * *", "Europe/Berlin", "2027-10-30T22:15:00Z"},
		{"twice in Berlin: every hour", "0 * * * *", "Europe/Berlin", "2027-10-30T22:15:00Z"},
		{"twice in Berlin: every half hour", "*/30 * * * *", "Europe/Berlin", "2027-10-30T22:15:00Z"},
		{"a gap of half an hour", "15 2 * * *", "Australia/Lord_Howe", "2027-10-02T00:00:00Z"},
	} {
		from, err := time.Parse(time.RFC3339, more.from)
		if err != nil {
			t.Fatal(err)
		}
		timing, err := schedule.Restore(schedule.Spec{Cron: more.cron, Timezone: more.zone}, from)
		if err != nil {
			t.Fatal(err)
		}
		c := cases.Valid[0]
		c.Why, c.Cron, c.Timezone, c.From, c.Next = more.why, more.cron, more.zone, from, timing.Between(from, from.Add(48*time.Hour), 12)
		cases.Valid = append(cases.Valid, c)
	}
	server := start(t, embedded.Options{Dir: t.TempDir(), SearchAttributes: engine.SearchAttributes()})
	e, err := engine.New(engine.Options{Client: clientOptions(server), InstallationID: "i", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	if err := e.Connect(testContext(t)); err != nil {
		t.Fatal(err)
	}
	store := &timetable{}
	for i, c := range cases.Valid {
		store.rows = append(store.rows, automation.ScheduleSync{
			ID: fmt.Sprint(i), AutomationID: "a", AutomationName: c.Why, MachineID: "m", CreatedAt: c.From, Generation: 1,
			Spec: schedule.Spec{Cron: c.Cron, Timezone: c.Timezone},
		})
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go schedules.NewSyncer(schedules.Options{
		Store: store, Engine: e, InstallationID: "i", Holder: "me", Now: time.Now, Logger: slog.New(slog.DiscardHandler),
		NewID: uuid.NewString,
	}).Run(ctx)
	eventually(t, "Temporal has every schedule", func() bool { return store.unsynced() == 0 })

	for i, c := range cases.Valid {
		t.Run(c.Why, func(t *testing.T) {
			last := c.Next[len(c.Next)-1]
			answer, err := e.Client().WorkflowService().ListScheduleMatchingTimes(testContext(t), &workflowservice.ListScheduleMatchingTimesRequest{
				Namespace: server.Namespace(), ScheduleId: automation.EngineScheduleID("i", fmt.Sprint(i)),
				StartTime: timestamppb.New(c.From.Add(time.Second)), EndTime: timestamppb.New(last),
			})
			if err != nil {
				t.Fatal(err)
			}
			var want, got []string
			for _, at := range c.Next {
				want = append(want, at.UTC().Format(time.RFC3339))
			}
			for _, at := range answer.GetStartTime() {
				got = append(got, at.AsTime().Format(time.RFC3339))
			}
			missed := slices.DeleteFunc(slices.Clone(want), func(at string) bool { return slices.Contains(got, at) })
			added := slices.DeleteFunc(slices.Clone(got), func(at string) bool { return slices.Contains(want, at) })
			other := otherTimes[c.Why]
			if diff := cmp.Diff(strings.Join(other.Missed, " "), strings.Join(missed, " ")); diff != "" {
				t.Errorf("missed by Temporal (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(strings.Join(other.Added, " "), strings.Join(added, " ")); diff != "" {
				t.Errorf("added by Temporal (-want +got):\n%s", diff)
			}
		})
	}
}
