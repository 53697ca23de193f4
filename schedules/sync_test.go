package schedules_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	enumspb "go.temporal.io/api/enums/v1"
	schedulepb "go.temporal.io/api/schedule/v1"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/automation/schedule"
	"github.com/errandhq/errand/schedules"
)

func TestASyncedSchedule(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.ledger.add(t, "s", nightly, schedule.Policy{Jitter: time.Hour, MaxOccurrences: 3})
		run(t, schedules.NewSyncer(w.options), func() {
			a := w.temporal.alarms["install/schedule/s"]
			if a == nil {
				t.Fatalf("nothing was created: %s", w.log)
			}
			s := a.request.GetSchedule()
			if s.GetPolicies().GetOverlapPolicy() != enumspb.SCHEDULE_OVERLAP_POLICY_ALLOW_ALL ||
				s.GetPolicies().GetCatchupWindow().AsDuration() != time.Minute || s.GetPolicies().GetPauseOnFailure() {
				t.Errorf("policies: %v", s.GetPolicies())
			}
			if s.GetSpec().GetJitter() != nil || s.GetState().GetLimitedActions() || len(s.GetSpec().GetCronString()) > 0 {
				t.Errorf("what is the ledger's is in Temporal: %v", s)
			}
			if note := s.GetState().GetNotes(); note != "Errand: every day at 02:30 in Europe/Berlin" || s.GetState().GetPaused() {
				t.Errorf("state: %v", s.GetState())
			}
			action := s.GetAction().GetStartWorkflow()
			got := []string{
				action.GetWorkflowId(), action.GetWorkflowType().GetName(), action.GetTaskQueue().GetName(),
				string(action.GetInput().GetPayloads()[0].GetData()), string(action.GetUserMetadata().GetSummary().GetData()),
				string(a.request.GetMemo().GetFields()["timing"].GetData()),
			}
			for _, name := range []string{"ErrandAutomationId", "ErrandMachineId", "ErrandTrigger"} {
				for _, fields := range []map[string]string{
					{"schedule": string(a.request.GetSearchAttributes().GetIndexedFields()[name].GetData())},
					{"action": string(action.GetSearchAttributes().GetIndexedFields()[name].GetData())},
				} {
					got = append(got, fmt.Sprint(fields))
				}
			}
			want := []string{
				"install/trigger/s", "ScheduleTrigger", "install/control", `{"scheduleId":"s"}`, `"Automation s · schedule"`,
				`"every day at 02:30 in Europe/Berlin"`,
				`map[schedule:"a-s"]`, `map[action:"a-s"]`, `map[schedule:"m"]`, `map[action:"m"]`,
				`map[schedule:"schedule"]`, `map[action:"schedule"]`,
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if row := w.ledger.row("s"); row.SyncedGeneration != 1 || row.EngineID != "engine" {
				t.Errorf("the ledger has not recorded it: %+v", row)
			}
		})
	})
}

// TestAShortInterval says in Temporal that it fires more often than Temporal wakes it up.
func TestAShortInterval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.ledger.add(t, "s", schedule.Spec{Every: "20s"}, schedule.Policy{})
		syncer := schedules.NewSyncer(w.options)
		run(t, syncer, func() {
			for _, step := range []struct {
				change func(*automation.ScheduleSync)
				want   string
			}{
				{func(*automation.ScheduleSync) {}, "Errand: every 20 seconds · errandd fires it, Temporal wakes it up about once a minute"},
				{func(s *automation.ScheduleSync) { s.Paused, s.Note = true, "enough" }, "Errand: enough · every 20 seconds"},
				{func(s *automation.ScheduleSync) { s.Paused, s.Spec.Every = false, "60s" }, "Errand: every minute"},
			} {
				w.ledger.edit("s", step.change)
				syncer.Changed()
				synctest.Wait()
				if note := w.temporal.schedule("s").GetState().GetNotes(); note != step.want {
					t.Errorf("note %q, want %q", note, step.want)
				}
			}
		})
	})
}

// TestTemporalFollows changes a schedule in every way that a user can.
func TestTemporalFollows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.ledger.add(t, "s", nightly, schedule.Policy{})
		syncer := schedules.NewSyncer(w.options)
		steps := []struct {
			name   string
			change func(*automation.ScheduleSync)
			want   []string
			note   string
		}{
			{"nothing that Temporal sees", func(*automation.ScheduleSync) {}, nil, "Errand: every day at 02:30 in Europe/Berlin"},
			{"the name", func(s *automation.ScheduleSync) { s.AutomationName = "Another" }, []string{"update s"}, "Errand: every day at 02:30 in Europe/Berlin"},
			{"paused", func(s *automation.ScheduleSync) { s.Paused, s.Note = true, "the automation is disabled" }, []string{"update s"}, "Errand: the automation is disabled · every day at 02:30 in Europe/Berlin"},
			{"resumed", func(s *automation.ScheduleSync) { s.Paused, s.Note = false, "" }, []string{"update s"}, "Errand: every day at 02:30 in Europe/Berlin"},
			// The memo says the timing, and Temporal does not change the memo of a schedule that exists.
			{"the timing", func(s *automation.ScheduleSync) { s.Spec = schedule.Spec{Every: "90m"} }, []string{"delete s", "create s"}, "Errand: every 90 minutes"},
			{"removed", func(s *automation.ScheduleSync) { s.Removed = true }, []string{"delete s"}, ""},
		}
		run(t, syncer, func() {
			w.temporal.written()
			for _, step := range steps {
				w.ledger.edit("s", step.change)
				syncer.Changed()
				synctest.Wait()
				if diff := cmp.Diff(step.want, w.temporal.written()); diff != "" {
					t.Errorf("%s: written (-want +got):\n%s", step.name, diff)
				}
				if note := w.temporal.schedule("s").GetState().GetNotes(); !strings.HasPrefix(note, step.note) || step.note == "" && note != "" {
					t.Errorf("%s: note %q, want %q", step.name, note, step.note)
				}
				if row := w.ledger.row("s"); row.Generation != row.SyncedGeneration {
					t.Errorf("%s: the ledger has not recorded it: %+v", step.name, row)
				}
			}
			if len(w.ledger.rows) != 0 {
				t.Error("the tombstone is still there")
			}
			if w.log.String() != "" {
				t.Errorf("logged: %s", w.log)
			}
		})
	})
}

func TestAChangeElsewhereIsNoticedWithinSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		run(t, schedules.NewSyncer(w.options), func() {
			w.ledger.add(t, "s", nightly, schedule.Policy{})
			pass(schedules.SyncEvery)
			if diff := cmp.Diff([]string{"create s"}, w.temporal.written()); diff != "" {
				t.Error(diff)
			}
		})
	})
}

func TestTemporalIsDownForAWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		for i := range 250 {
			w.ledger.add(t, fmt.Sprintf("s%03d", i), nightly, schedule.Policy{})
		}
		w.temporal.down = true
		run(t, schedules.NewSyncer(w.options), func() {
			pass(time.Hour)
			if written := w.temporal.written(); len(written) > 0 || w.log.String() != "" {
				t.Errorf("while Temporal was down: %d writes, log %q", len(written), w.log)
			}
			w.temporal.set(func() { w.temporal.down = false })
			pass(schedules.SyncEvery)
			written := w.temporal.written()
			slices.Sort(written)
			if len(slices.Compact(written)) != 250 {
				t.Errorf("%d schedules were created", len(written))
			}
		})
	})
}

func TestAnotherEngineGetsAllSchedules(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.ledger.add(t, "s", nightly, schedule.Policy{})
		w.temporal.id = ""
		run(t, schedules.NewSyncer(w.options), func() {
			if written := w.temporal.written(); len(written) > 0 {
				t.Errorf("before Temporal was reached: %v", written)
			}
			for _, id := range []string{"first", "second"} {
				w.temporal.set(func() { w.temporal.id, w.temporal.alarms = id, map[string]*alarm{} })
				pass(schedules.SyncEvery)
				if diff := cmp.Diff([]string{"create s"}, w.temporal.written()); diff != "" || w.ledger.row("s").EngineID != id {
					t.Errorf("%s: %+v, written (-want +got):\n%s", id, w.ledger.row("s"), diff)
				}
			}
		})
	})
}

func TestARefusedScheduleStopsNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		for i := range 150 {
			id := fmt.Sprintf("a%03d", i)
			w.ledger.add(t, id, nightly, schedule.Policy{})
			w.temporal.refused["install/schedule/"+id] = errors.New("unknown zone")
		}
		w.ledger.add(t, "z", nightly, schedule.Policy{})
		run(t, schedules.NewSyncer(w.options), func() {
			pass(time.Minute)
			if diff := cmp.Diff([]string{"create z"}, w.temporal.written()); diff != "" {
				t.Error(diff)
			}
			if lines := strings.Count(w.log.String(), "unknown zone"); lines != 150 {
				t.Errorf("logged %d times for 150 schedules", lines)
			}
		})
	})
}

// TestAPauseByHandMeetsAnEdit pauses a schedule in Temporal while a user edits it: neither is lost.
func TestAPauseByHandMeetsAnEdit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.ledger.add(t, "s", nightly, schedule.Policy{})
		syncer := schedules.NewSyncer(w.options)
		run(t, syncer, func() {
			w.temporal.pauseByHand("s", true, "maintenance")
			// Another edit comes between what was read and what the ledger is told.
			w.ledger.before = func() { w.ledger.edit("s", func(s *automation.ScheduleSync) { s.AutomationName = "Another" }) }
			w.ledger.edit("s", func(s *automation.ScheduleSync) { s.Spec = schedule.Spec{Every: "1h"} })
			syncer.Changed()
			synctest.Wait()
			s := w.temporal.schedule("s")
			if !s.GetState().GetPaused() || s.GetState().GetNotes() != "Errand: paused in Temporal: maintenance · every hour" || len(s.GetSpec().GetInterval()) != 1 {
				t.Errorf("%v", s)
			}
		})
	})
}

// TestALateUpdateIsDropped lets a person pause a schedule between what a server read and what it writes.
func TestALateUpdateIsDropped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.ledger.add(t, "s", nightly, schedule.Policy{})
		syncer := schedules.NewSyncer(w.options)
		run(t, syncer, func() {
			w.temporal.before = func() { w.temporal.pauseByHand("s", true, "wait") }
			w.ledger.edit("s", func(s *automation.ScheduleSync) { s.AutomationName = "Another" })
			syncer.Changed()
			synctest.Wait()
			if row := w.ledger.row("s"); !row.Paused || row.Note != "paused in Temporal: wait" || row.Generation != row.SyncedGeneration {
				t.Errorf("%+v", row)
			}
			if state := w.temporal.schedule("s").GetState(); !state.GetPaused() {
				t.Errorf("%v", state)
			}
		})
	})
}

func TestOneServerSynchronizesAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.ledger.leases["sync-schedules"] = leaseRow{"another", time.Now().Add(12 * time.Second)}
		w.ledger.add(t, "s", nightly, schedule.Policy{})
		run(t, schedules.NewSyncer(w.options), func() {
			pass(11 * time.Second)
			if written := w.temporal.written(); len(written) > 0 {
				t.Errorf("with the lease of another: %v", written)
			}
			pass(schedules.SyncEvery)
			if written := w.temporal.written(); len(written) != 1 {
				t.Errorf("after the lease has run out: %v", written)
			}
			// Once it is done any other server may go on at once.
			if mine, err := w.ledger.Lease(t.Context(), "sync-schedules", "another", time.Second); !mine || err != nil {
				t.Errorf("the lease is held: %v", err)
			}
		})
	})
}

// TestSpecs shows every kind of timing as Temporal gets it.
func TestSpecs(t *testing.T) {
	t.Parallel()
	r := func(parts ...int32) *schedulepb.Range {
		return &schedulepb.Range{Start: parts[0], End: parts[1], Step: parts[2]}
	}
	one := func(n int32) []*schedulepb.Range { return []*schedulepb.Range{r(n, n, 1)} }
	list := func(ranges ...*schedulepb.Range) []*schedulepb.Range { return ranges }
	days, months, weekdays := list(r(1, 31, 1)), list(r(1, 12, 1)), list(r(0, 6, 1))
	tests := map[string]struct {
		spec schedule.Spec
		want *schedulepb.ScheduleSpec
	}{
		"weekdays at nine": {schedule.Spec{Cron: "0 9 * * 1-5", Timezone: "Europe/Berlin"}, &schedulepb.ScheduleSpec{
			TimezoneName: "Europe/Berlin",
			StructuredCalendar: []*schedulepb.StructuredCalendarSpec{
				{Second: one(0), Minute: one(0), Hour: one(9), DayOfMonth: days, Month: months, DayOfWeek: list(r(1, 5, 1))},
			},
		}},
		"steps, stretches and either day": {schedule.Spec{Cron: "*/15 8-10,14 1,15 1-3 FRI", Timezone: "UTC"}, &schedulepb.ScheduleSpec{
			TimezoneName: "UTC",
			StructuredCalendar: []*schedulepb.StructuredCalendarSpec{
				{Second: one(0), Minute: list(r(0, 45, 15)), Hour: list(r(8, 10, 1), r(14, 14, 1)), DayOfMonth: list(r(1, 1, 1), r(15, 15, 1)), Month: list(r(1, 3, 1)), DayOfWeek: weekdays},
				{Second: one(0), Minute: list(r(0, 45, 15)), Hour: list(r(8, 10, 1), r(14, 14, 1)), DayOfMonth: days, Month: list(r(1, 3, 1)), DayOfWeek: one(5)},
			},
		}},
		"an interval from an anchor": {schedule.Spec{Every: "90m", Anchor: "2026-12-01T00:20:07Z"}, &schedulepb.ScheduleSpec{
			Interval: []*schedulepb.IntervalSpec{{Interval: durationpb.New(90 * time.Minute), Phase: durationpb.New(20*time.Minute + 7*time.Second)}},
		}},
		"an interval from an anchor before 1970": {schedule.Spec{Every: "1h", Anchor: "1969-12-31T23:59:50Z"}, &schedulepb.ScheduleSpec{
			Interval: []*schedulepb.IntervalSpec{{Interval: durationpb.New(time.Hour), Phase: durationpb.New(59*time.Minute + 50*time.Second)}},
		}},
		"an interval of a minute": {schedule.Spec{Every: "1m", Anchor: "2026-12-01T00:00:07Z"}, &schedulepb.ScheduleSpec{
			Interval: []*schedulepb.IntervalSpec{{Interval: durationpb.New(time.Minute), Phase: durationpb.New(7 * time.Second)}},
		}},
		"a second is a minute": {schedule.Spec{Every: "1s", Anchor: "2026-12-01T00:00:07Z"}, &schedulepb.ScheduleSpec{
			Interval: []*schedulepb.IntervalSpec{{Interval: durationpb.New(time.Minute), Phase: durationpb.New(7 * time.Second)}},
		}},
		"seven seconds are the next multiple over a minute": {schedule.Spec{Every: "7s", Anchor: "1970-01-01T00:01:05Z"}, &schedulepb.ScheduleSpec{
			Interval: []*schedulepb.IntervalSpec{{Interval: durationpb.New(63 * time.Second), Phase: durationpb.New(2 * time.Second)}},
		}},
		"one instant": {schedule.Spec{At: "2027-02-03T07:08:09+01:00"}, &schedulepb.ScheduleSpec{
			TimezoneName: "UTC",
			StructuredCalendar: []*schedulepb.StructuredCalendarSpec{{
				Year: one(2027), Month: one(2), DayOfMonth: one(3), DayOfWeek: weekdays, Hour: one(6), Minute: one(8), Second: one(9),
			}},
		}},
		"an instant that Temporal does not know": {schedule.Spec{At: "2150-01-01T00:00:00Z"}, &schedulepb.ScheduleSpec{}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.ledger.add(t, "s", test.spec, schedule.Policy{})
				run(t, schedules.NewSyncer(w.options), func() {
					got := w.temporal.schedule("s")
					if got == nil {
						t.Fatalf("not created: %s", w.log)
					}
					if diff := cmp.Diff(test.want, got.GetSpec(), protocmp.Transform()); diff != "" {
						t.Errorf("(-want +got):\n%s", diff)
					}
					// One that has no time would be deleted by Temporal.
					if empty := len(test.want.GetInterval())+len(test.want.GetStructuredCalendar()) == 0; got.GetState().GetPaused() != empty {
						t.Errorf("state %v", got.GetState())
					}
				})
			})
		})
	}
}
