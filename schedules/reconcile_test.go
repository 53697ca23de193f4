package schedules_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	enumspb "go.temporal.io/api/enums/v1"
	schedulepb "go.temporal.io/api/schedule/v1"
	"google.golang.org/protobuf/proto"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/automation/schedule"
	"github.com/errandhq/errand/schedules"
)

// interval is more than the time from one comparison of few schedules to the next, and less than two of them.
const interval = 11 * time.Second

// reconciled lets a test change what either side has after both are alike, and looks after the next comparison.
func reconciled(t *testing.T, prepare func(*world), change, check func(w *world, r *schedules.Reconciler)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		if prepare != nil {
			prepare(w)
		}
		w.ledger.add(t, "s", nightly, schedule.Policy{})
		syncer := schedules.NewSyncer(w.options)
		reconciler := schedules.NewReconciler(w.options, syncer)
		run(t, syncer, func() {
			run(t, reconciler, func() {
				if repairs := reconciler.Repairs(); repairs != (schedules.Repairs{}) || w.log.String() != "" {
					t.Fatalf("nothing was wrong yet: %+v, %s", repairs, w.log)
				}
				w.temporal.written()
				change(w, reconciler)
				pass(interval)
				pass(schedules.SyncEvery) // what was adopted is shown in Temporal
				check(w, reconciler)
			})
		})
	})
}

func TestReconcile(t *testing.T) {
	t.Parallel()
	pristine := "Errand: every day at 02:30 in Europe/Berlin"
	tests := map[string]struct {
		prepare func(*world)
		change  func(*world)
		repairs schedules.Repairs
		written []string
		told    []string
		note    string // of the schedule s in the end
	}{
		"nothing": {change: func(*world) {}, note: pristine},
		"deleted by hand": {
			change: func(w *world) {
				w.temporal.set(func() { delete(w.temporal.alarms, "install/schedule/s") })
			},
			repairs: schedules.Repairs{Created: 1}, written: []string{"create s"}, note: pristine,
		},
		"other times": {
			change: func(w *world) {
				w.temporal.byHand("s", func(s *schedulepb.Schedule) { s.GetSpec().GetStructuredCalendar()[0].GetHour()[0].End = 5 })
			},
			repairs: schedules.Repairs{Updated: 1}, written: []string{"update s"}, note: pristine,
		},
		"another action, which no list shows": {
			change: func(w *world) {
				w.temporal.byHand("s", func(s *schedulepb.Schedule) { s.GetAction().GetStartWorkflow().TaskQueue.Name = "mine" })
			},
			repairs: schedules.Repairs{Updated: 1}, written: []string{"update s"}, note: pristine,
		},
		"another overlap policy": {
			change: func(w *world) {
				w.temporal.byHand("s", func(s *schedulepb.Schedule) {
					s.GetPolicies().OverlapPolicy = enumspb.SCHEDULE_OVERLAP_POLICY_SKIP
				})
			},
			repairs: schedules.Repairs{Updated: 1}, written: []string{"update s"}, note: pristine,
		},
		"limited actions": {
			change: func(w *world) {
				w.temporal.byHand("s", func(s *schedulepb.Schedule) { s.GetState().LimitedActions = true })
			},
			repairs: schedules.Repairs{Updated: 1}, written: []string{"update s"}, note: pristine,
		},
		"only another note": {
			change:  func(w *world) { w.temporal.pauseByHand("s", false, "mine") },
			repairs: schedules.Repairs{Updated: 1}, written: []string{"update s"}, note: pristine,
		},
		"paused by hand": {
			change:  func(w *world) { w.temporal.pauseByHand("s", true, " maintenance ") },
			repairs: schedules.Repairs{Adopted: 1}, written: []string{"update s"},
			told: []string{"s true paused in Temporal: maintenance"},
			note: "Errand: paused in Temporal: maintenance · every day at 02:30 in Europe/Berlin",
		},
		"paused by hand without a note": {
			change:  func(w *world) { w.temporal.pauseByHand("s", true, "") },
			repairs: schedules.Repairs{Adopted: 1}, written: []string{"update s"}, told: []string{"s true paused in Temporal"},
			note: "Errand: paused in Temporal · every day at 02:30 in Europe/Berlin",
		},
		"paused by hand with a long note": {
			change:  func(w *world) { w.temporal.pauseByHand("s", true, strings.Repeat("x", 9000)) },
			repairs: schedules.Repairs{Adopted: 1}, written: []string{"update s"},
			told: []string{"s true paused in Temporal: " + strings.Repeat("x", 377) + "…"},
			note: "Errand: paused in Temporal: " + strings.Repeat("x", 377) + "… · every day at 02:30 in Europe/Berlin",
		},
		"resumed by hand after a pause by hand": {
			change: func(w *world) {
				w.temporal.pauseByHand("s", true, "maintenance")
				pass(interval)
				w.temporal.written()
				w.temporal.pauseByHand("s", false, "done")
			},
			repairs: schedules.Repairs{Adopted: 2}, written: []string{"update s"},
			told: []string{"s true paused in Temporal: maintenance", "s false resumed in Temporal: done"}, note: pristine,
		},
		"resumed by hand although disabled": {
			change: func(w *world) {
				w.ledger.edit("s", func(s *automation.ScheduleSync) { s.Paused, s.Note = true, "disabled" })
				pass(schedules.SyncEvery)
				w.temporal.written()
				w.temporal.pauseByHand("s", false, "go")
			},
			repairs: schedules.Repairs{Updated: 1}, written: []string{"update s"},
			told: []string{"s false resumed in Temporal: go", "s false resumed in Temporal: go"},
			note: "Errand: disabled · every day at 02:30 in Europe/Berlin",
		},
		"one that the ledger does not know": {
			change: func(w *world) {
				w.temporal.set(func() {
					w.temporal.alarms["install/schedule/unknown"] = w.temporal.alarms["install/schedule/s"]
				})
			},
			repairs: schedules.Repairs{Removed: 1}, written: []string{"delete unknown"}, note: pristine,
		},
		"those of others": {
			change: func(w *world) {
				w.temporal.set(func() {
					for _, id := range []string{"install2/schedule/s", "other/schedule/s", "nightly", "install/schedule"} {
						w.temporal.alarms[id] = w.temporal.alarms["install/schedule/s"]
					}
				})
			},
			note: pristine,
		},
		"those of others, on a server that cannot select": {
			prepare: func(w *world) { w.temporal.noSelect = true },
			change: func(w *world) {
				w.temporal.set(func() {
					for _, id := range []string{"install2/schedule/s", "nightly"} {
						w.temporal.alarms[id] = w.temporal.alarms["install/schedule/s"]
					}
				})
			},
			note: pristine,
		},
		"a list that is behind": {
			change: func(w *world) {
				w.temporal.set(func() { w.temporal.listed = map[string]*alarm{} })
				w.ledger.edit("s", func(s *automation.ScheduleSync) { s.AutomationName = "Another" })
				pass(schedules.SyncEvery)
				w.temporal.written()
			},
			note: pristine,
		},
		"a removed one that came back": {
			change: func(w *world) {
				back := w.temporal.alarms["install/schedule/s"]
				w.ledger.edit("s", func(s *automation.ScheduleSync) { s.Removed = true })
				pass(schedules.SyncEvery)
				w.temporal.written()
				w.temporal.set(func() { w.temporal.alarms["install/schedule/s"] = back })
			},
			repairs: schedules.Repairs{Removed: 1}, written: []string{"delete s"},
		},
		"Temporal is away": {
			change: func(w *world) {
				w.temporal.set(func() { w.temporal.down = true })
				w.temporal.pauseByHand("s", true, "x")
			},
			note: "x",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reconciled(t, test.prepare, func(w *world, _ *schedules.Reconciler) { test.change(w) }, func(w *world, r *schedules.Reconciler) {
				if diff := cmp.Diff(test.repairs, r.Repairs()); diff != "" {
					t.Errorf("repairs (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(test.written, w.temporal.written()); diff != "" {
					t.Errorf("written (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(test.told, w.ledger.notices()); diff != "" {
					t.Errorf("told the ledger (-want +got):\n%s", diff)
				}
				if note := w.temporal.schedule("s").GetState().GetNotes(); note != test.note {
					t.Errorf("note %q, want %q", note, test.note)
				}
				if logged := strings.Contains(w.log.String(), "schedules in Temporal differed"); logged != (test.repairs != schedules.Repairs{}) {
					t.Errorf("log: %s", w.log)
				}
			})
		})
	}
}

// TestManySchedulesAreInspectedInTurn changes, in many schedules, what no list shows: each is found after a while, and
// no comparison looks at more than a few.
func TestManySchedulesAreInspectedInTurn(t *testing.T) {
	t.Parallel()
	const many = 603
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		for i := range many {
			w.ledger.add(t, fmt.Sprintf("s%04d", i), schedule.Spec{Every: "1h"}, schedule.Policy{})
		}
		syncer := schedules.NewSyncer(w.options)
		reconciler := schedules.NewReconciler(w.options, syncer)
		run(t, syncer, func() {})
		for i := range many {
			w.temporal.byHand(fmt.Sprintf("s%04d", i), func(s *schedulepb.Schedule) { s.GetPolicies().PauseOnFailure = true })
		}
		run(t, reconciler, func() {
			if repairs := reconciler.Repairs(); repairs.Updated != 25 {
				t.Errorf("the first comparison has repaired %d", repairs.Updated)
			}
			pass(24 * interval)
			if repairs := reconciler.Repairs(); repairs != (schedules.Repairs{Updated: many}) {
				t.Errorf("%+v", repairs)
			}
			w.temporal.looked()
			pass(interval)
			if looks := w.temporal.looked(); looks > 25 {
				t.Errorf("with nothing to repair %d schedules were read", looks)
			}
		})
	})
}

// TestManyCalendars compares a schedule of more calendars than a list shows.
func TestManyCalendars(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		spec := schedule.Spec{Cron: "0 0 L * MON#1,TUE#2,WED#3,THU#4,FRI#5,SUNL,SATL,2", Timezone: "UTC"}
		w.ledger.add(t, "s", spec, schedule.Policy{})
		for i := range 30 { // so that s, the last, is not one that is inspected each time
			w.ledger.add(t, fmt.Sprintf("a%02d", i), nightly, schedule.Policy{})
		}
		syncer := schedules.NewSyncer(w.options)
		run(t, syncer, func() {
			if calendars := len(w.temporal.schedule("s").GetSpec().GetStructuredCalendar()); calendars <= 10 {
				t.Fatalf("only %d calendars", calendars)
			}
			run(t, schedules.NewReconciler(w.options, syncer), func() {
				if looks := w.temporal.looked(); looks != 25 {
					t.Errorf("%d schedules were suspected", looks-25)
				}
			})
		})
	})
}

func TestOneServerReconcilesAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.ledger.add(t, "s", nightly, schedule.Policy{})
		syncer := schedules.NewSyncer(w.options)
		run(t, syncer, func() {
			w.ledger.leases["reconcile-schedules"] = leaseRow{"another", time.Now().Add(90 * time.Second)}
			w.temporal.set(func() {
				w.temporal.alarms["install/schedule/x"] = &alarm{request: proto.CloneOf(w.temporal.alarms["install/schedule/s"].request)}
			})
			reconciler := schedules.NewReconciler(w.options, syncer)
			run(t, reconciler, func() {
				pass(80 * time.Second)
				if repairs := reconciler.Repairs(); repairs != (schedules.Repairs{}) {
					t.Errorf("with the lease of another: %+v", repairs)
				}
				pass(10*time.Second + interval)
				if repairs := reconciler.Repairs(); repairs.Removed != 1 {
					t.Errorf("after the lease has run out: %+v", repairs)
				}
			})
		})
	})
}
