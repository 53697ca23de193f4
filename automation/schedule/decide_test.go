package schedule_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/automation/schedule"
)

// minutely is a schedule that fires every minute and was created at a time, with changes to the default policy.
func minutely(t testing.TB, created time.Time, change func(*schedule.Policy)) schedule.State {
	t.Helper()
	return newState(t, schedule.Spec{Cron: "* * * * *", Timezone: "UTC"}, created, change)
}

func newState(t testing.TB, spec schedule.Spec, created time.Time, change func(*schedule.Policy)) schedule.State {
	t.Helper()
	policy := schedule.DefaultPolicy()
	if change != nil {
		change(&policy)
	}
	return schedule.New("0193-a", parse(t, spec, created), policy, created)
}

// instants returns when the firings of a decision are admitted, in short.
func instants(d schedule.Decision) string {
	text := ""
	for _, i := range d.Admit {
		if text != "" {
			text += " "
		}
		text += i.At.Format("15:04:05")
		if i.Late {
			text += "(late)"
		}
	}
	return text
}

// drops returns the drops of a decision, in short.
func drops(d schedule.Decision) string {
	text := ""
	for _, drop := range d.Drops {
		if text != "" {
			text += ", "
		}
		text += fmt.Sprintf("%s %s..%s: %d", drop.Reason, drop.From.Format("02 15:04:05"), drop.To.Format("02 15:04:05"), drop.Count)
	}
	return text
}

// The rows of "Schedules" in the cases from the field.

func TestDownForEightHours(t *testing.T) {
	t.Parallel()
	down := at(t, "2026-12-01T01:00:00Z")
	back := at(t, "2026-12-01T09:00:10Z")
	d := schedule.Decide(minutely(t, down, nil), back)
	if got, want := instants(d), "09:00:00"; got != want {
		t.Errorf("admitted %s, want %s: the one that is due on return", got, want)
	}
	if got, want := drops(d), "missed 01 01:01:00..01 08:59:00: 479"; got != want {
		t.Errorf("dropped %q, want %q", got, want)
	}
	if !d.Cursor.Equal(at(t, "2026-12-01T09:00:00Z")) || !d.NextWake.Equal(at(t, "2026-12-01T09:01:00Z")) {
		t.Errorf("the cursor is %v, the next wake-up %v", d.Cursor, d.NextWake)
	}
}

func TestDailyIsCaughtUpLate(t *testing.T) {
	t.Parallel()
	created := at(t, "2026-12-01T12:00:00Z")
	state := newState(t, schedule.Spec{Cron: "0 3 * * *", Timezone: "UTC"}, created, nil)
	d := schedule.Decide(state, at(t, "2026-12-02T09:00:00Z"))
	if got, want := instants(d), "03:00:00(late)"; got != want || d.Drops != nil {
		t.Errorf("admitted %s and dropped %s, want %s", got, drops(d), want)
	}
}

func TestClockStepsBackAcrossAFiring(t *testing.T) {
	t.Parallel()
	state := minutely(t, at(t, "2026-12-01T11:59:30Z"), nil)
	admitted := ""
	for _, now := range []string{"11:59:59", "12:00:01", "11:59:56", "11:59:59", "12:00:00", "12:00:01", "12:00:59"} {
		d := schedule.Decide(state, at(t, "2026-12-01T"+now+"Z"))
		state = state.Apply(d)
		admitted += instants(d)
	}
	if admitted != "12:00:00" {
		t.Errorf("admitted %q, want one run", admitted)
	}
}

func TestPausedForADay(t *testing.T) {
	t.Parallel()
	paused := at(t, "2026-12-01T12:00:30Z")
	state := minutely(t, paused, func(p *schedule.Policy) { p.CatchUp = schedule.CatchUpAll }).Pause("a person")
	for _, change := range []struct {
		name  string
		state func(resumed time.Time) schedule.State
	}{
		{"paused and resumed", state.Resume},
		{"disabled and enabled", state.Resume(paused).Disable().Enable},
	} {
		resumed := paused.Add(24 * time.Hour)
		if d := schedule.Decide(state, resumed); d.Admit != nil || d.Drops != nil || d.Next != nil || !d.NextWake.IsZero() {
			t.Errorf("%s: while it was, it decided %+v", change.name, d)
		}
		d := schedule.Decide(change.state(resumed), resumed.Add(40*time.Second))
		if got, want := instants(d), "12:01:00"; got != want || d.Drops != nil {
			t.Errorf("%s: admitted %q and dropped %q, want %s and no catch-up", change.name, got, drops(d), want)
		}
	}
}

func TestSavedUnchangedBeforeItsJitteredStart(t *testing.T) {
	t.Parallel()
	created := at(t, "2026-12-01T08:00:00Z")
	spec := schedule.Spec{Cron: "0 9 * * *", Timezone: "UTC"}
	state := newState(t, spec, created, func(p *schedule.Policy) { p.Jitter = 10 * time.Minute })
	nominal := at(t, "2026-12-01T09:00:00Z")
	due := state.JitteredAt(nominal)
	between := nominal.Add(due.Sub(nominal) / 2)
	if !due.After(nominal.Add(time.Second)) {
		t.Fatalf("due at %v; another id is needed for this test", due)
	}
	if d := schedule.Decide(state, between); d.Admit != nil || !d.NextWake.Equal(due) || !d.Next.At.Equal(nominal) {
		t.Fatalf("before its jittered time: %+v", d)
	}
	// The same save again: the same text, another spelling of it, and the same policy.
	spec.Cron = "00 9 * * 0-7"
	state = state.Retime(parse(t, spec, between), between).SetPolicy(state.Policy, between)
	if d := schedule.Decide(state, due.Add(-time.Millisecond)); d.Admit != nil {
		t.Fatalf("admitted %s early", instants(d))
	}
	d := schedule.Decide(state, due)
	if got, want := instants(d), "09:00:00"; got != want || !d.Admit[0].JitteredAt.Equal(due) {
		t.Errorf("admitted %q, want %s", got, want)
	}
	if again := schedule.Decide(state.Apply(d), due); again.Admit != nil {
		t.Errorf("admitted %s twice", instants(again))
	}
	// Another timing gives the firing up.
	state = state.Retime(cron(t, "0 9 * * 1-6", "UTC", between), between)
	if d := schedule.Decide(state, due); d.Admit != nil {
		t.Errorf("another timing admitted %s", instants(d))
	}
}

func TestRemovedAndCreatedAgain(t *testing.T) {
	t.Parallel()
	created := at(t, "2026-12-01T08:00:30Z")
	old := minutely(t, created, nil).Remove()
	again := created.Add(time.Hour)
	for _, state := range []schedule.State{
		old, old.Resume(again), old.Enable(again), old.Pause("x").Resume(again), old.SetPolicy(schedule.DefaultPolicy(), again),
		old.Retime(cron(t, "*/2 * * * *", "UTC", again), again),
	} {
		if d := schedule.Decide(state, again.Add(time.Hour)); d.Admit != nil || d.Drops != nil || d.Status != schedule.StatusRemoved {
			t.Errorf("a removed schedule decided %+v", d)
		}
	}
	d := schedule.Decide(minutely(t, again, nil), again.Add(40*time.Second))
	if got, want := instants(d), "09:01:00"; got != want || d.Drops != nil {
		t.Errorf("the new one admitted %q and dropped %q, want %s", got, drops(d), want)
	}
}

func TestCatchUp(t *testing.T) {
	t.Parallel()
	created := at(t, "2026-12-01T00:00:00Z")
	set := func(catchUp schedule.CatchUp, window time.Duration) func(*schedule.Policy) {
		return func(p *schedule.Policy) { p.CatchUp, p.CatchUpWindow = catchUp, window }
	}
	hourly := schedule.Spec{Cron: "0 * * * *", Timezone: "UTC"}
	tests := []struct {
		why            string
		change         func(*schedule.Policy)
		now            string
		admit, dropped string
	}{
		{"on time to the last nanosecond", nil, "01T01:01:00Z", "01:00:00", ""},
		{"late by a nanosecond more", nil, "01T01:01:00.000000001Z", "01:00:00(late)", ""},
		{"latest, a later one not due", nil, "01T03:30:00Z", "03:00:00(late)", "missed 01 01:00:00..01 02:00:00: 2"},
		{"latest, a later one due", nil, "01T03:00:30Z", "03:00:00", "missed 01 01:00:00..01 02:00:00: 2"},
		{"latest, beyond the window", nil, "03T00:30:00Z", "00:00:00(late)", "outside_window 01 01:00:00..02 00:00:00: 24, missed 02 01:00:00..02 23:00:00: 23"},
		{"latest, itself beyond the window", set(schedule.CatchUpLatest, 10*time.Minute), "01T03:30:00Z", "", "outside_window 01 01:00:00..01 03:00:00: 3"},
		{"latest, just inside the window", set(schedule.CatchUpLatest, 30*time.Minute), "01T03:30:00Z", "03:00:00(late)", "outside_window 01 01:00:00..01 02:00:00: 2"},
		{"all", set(schedule.CatchUpAll, 24*time.Hour), "01T03:00:30Z", "01:00:00(late) 02:00:00(late) 03:00:00", ""},
		{"all, some beyond the window", set(schedule.CatchUpAll, 100*time.Minute), "01T03:30:00Z", "02:00:00(late) 03:00:00(late)", "outside_window 01 01:00:00..01 01:00:00: 1"},
		{"none", set(schedule.CatchUpNone, 24*time.Hour), "01T03:00:30Z", "03:00:00", "missed 01 01:00:00..01 02:00:00: 2"},
		{"none, nothing on time", set(schedule.CatchUpNone, 24*time.Hour), "01T03:30:00Z", "", "missed 01 01:00:00..01 03:00:00: 3"},
		{"a window of nothing", set(schedule.CatchUpAll, 0), "01T03:00:30Z", "03:00:00", "outside_window 01 01:00:00..01 02:00:00: 2"},
		{"a window within what is on time", set(schedule.CatchUpLatest, time.Second), "01T01:00:30Z", "01:00:00", ""},
	}
	for _, c := range tests {
		d := schedule.Decide(newState(t, hourly, created, c.change), at(t, "2026-12-"+c.now))
		if got := instants(d); got != c.admit {
			t.Errorf("%s: admitted %q, want %q", c.why, got, c.admit)
		}
		if got := drops(d); got != c.dropped {
			t.Errorf("%s: dropped %q, want %q", c.why, got, c.dropped)
		}
	}
}

func TestOverlap(t *testing.T) {
	t.Parallel()
	created := at(t, "2026-12-01T00:00:30Z")
	waits, begun := schedule.Run{ID: "w"}, schedule.Run{ID: "b", Begun: true}
	tests := []struct {
		overlap        schedule.Overlap
		unfinished     []schedule.Run
		admit, dropped string
		cancels        bool
		cancelled      []string
	}{
		{overlap: schedule.OverlapQueue, unfinished: []schedule.Run{begun, waits, waits}, admit: "00:01:00(late) 00:02:00 00:03:00"},
		{overlap: schedule.OverlapParallel, unfinished: []schedule.Run{begun, waits}, admit: "00:01:00(late) 00:02:00 00:03:00"},
		{overlap: schedule.OverlapSkip, admit: "00:01:00(late)", dropped: "overlap 01 00:02:00..01 00:03:00: 2"},
		{overlap: schedule.OverlapSkip, unfinished: []schedule.Run{begun}, dropped: "overlap 01 00:01:00..01 00:03:00: 3"},
		{overlap: schedule.OverlapSkip, unfinished: []schedule.Run{waits}, dropped: "overlap 01 00:01:00..01 00:03:00: 3"},
		{overlap: schedule.OverlapQueueOne, admit: "00:01:00(late)", dropped: "overlap 01 00:02:00..01 00:03:00: 2"},
		{overlap: schedule.OverlapQueueOne, unfinished: []schedule.Run{begun}, admit: "00:01:00(late)", dropped: "overlap 01 00:02:00..01 00:03:00: 2"},
		{overlap: schedule.OverlapQueueOne, unfinished: []schedule.Run{begun, waits}, dropped: "overlap 01 00:01:00..01 00:03:00: 3"},
		{overlap: schedule.OverlapQueueOne, unfinished: []schedule.Run{waits}, dropped: "overlap 01 00:01:00..01 00:03:00: 3"},
		{overlap: schedule.OverlapCancelRunning, admit: "00:01:00(late) 00:02:00 00:03:00", cancels: true},
		{overlap: schedule.OverlapCancelRunning, unfinished: []schedule.Run{begun, waits}, admit: "00:01:00(late) 00:02:00 00:03:00", cancels: true, cancelled: []string{"b", "w"}},
	}
	for _, c := range tests {
		state := minutely(t, created, func(p *schedule.Policy) { p.Overlap, p.CatchUp = c.overlap, schedule.CatchUpAll })
		state.Unfinished = c.unfinished
		d := schedule.Decide(state, at(t, "2026-12-01T00:03:00Z"))
		if got := instants(d); got != c.admit {
			t.Errorf("%s with %v: admitted %q, want %q", c.overlap, c.unfinished, got, c.admit)
		}
		if got := drops(d); got != c.dropped {
			t.Errorf("%s with %v: dropped %q, want %q", c.overlap, c.unfinished, got, c.dropped)
		}
		if diff := cmp.Diff(c.cancelled, d.CancelRuns); diff != "" {
			t.Errorf("%s with %v: cancelled (-want +got):\n%s", c.overlap, c.unfinished, diff)
		}
		for _, i := range d.Admit {
			if i.CancelsEarlier != c.cancels {
				t.Errorf("%s: the firing %v cancels earlier ones: %v", c.overlap, i.At, i.CancelsEarlier)
			}
		}
	}
	// Nothing due cancels nothing.
	state := minutely(t, created, func(p *schedule.Policy) { p.Overlap = schedule.OverlapCancelRunning })
	state.Unfinished = []schedule.Run{begun}
	if d := schedule.Decide(state, created); d.CancelRuns != nil {
		t.Errorf("cancelled %v for nothing", d.CancelRuns)
	}
}

func TestMaxOccurrences(t *testing.T) {
	t.Parallel()
	created := at(t, "2026-12-01T00:00:30Z")
	state := minutely(t, created, func(p *schedule.Policy) { p.MaxOccurrences, p.CatchUp = 3, schedule.CatchUpAll })
	d := schedule.Decide(state, at(t, "2026-12-01T00:02:10Z"))
	state = state.Apply(d)
	if state.Occurrences != 2 || state.Status != schedule.StatusActive || d.Next == nil {
		t.Fatalf("after two: %+v", d)
	}
	d = schedule.Decide(state, at(t, "2026-12-01T00:05:00Z"))
	state = state.Apply(d)
	if got, want := instants(d), "00:03:00(late)"; got != want {
		t.Errorf("admitted %q, want %q", got, want)
	}
	if got, want := drops(d), "max_occurrences 01 00:04:00..01 00:05:00: 2"; got != want {
		t.Errorf("dropped %q, want %q", got, want)
	}
	if state.Status != schedule.StatusFinished || state.StatusReason != "all 3 occurrences have been admitted" || d.Next != nil {
		t.Errorf("after three: %+v", d)
	}
	later := at(t, "2026-12-01T00:30:00Z")
	if d := schedule.Decide(state, later); d.Admit != nil || d.Drops != nil {
		t.Errorf("a finished schedule decided %+v", d)
	}
	// Raising it makes it active, from then on; the count goes on.
	policy := state.Policy
	policy.MaxOccurrences = 4
	state = state.SetPolicy(policy, later)
	d = schedule.Decide(state, later.Add(2*time.Minute))
	if got, want := instants(d), "00:31:00"; got != want || d.Occurrences != 4 || d.Status != schedule.StatusFinished {
		t.Errorf("admitted %q, want %q: %+v", got, want, d)
	}
	// Lowering it below what was admitted finishes at once.
	policy.MaxOccurrences = 1
	fresh := minutely(t, created, nil)
	fresh.Occurrences = 5
	if fresh = fresh.SetPolicy(policy, later); fresh.Status != schedule.StatusFinished ||
		fresh.StatusReason != "its one occurrence has been admitted" {
		t.Errorf("lowered: %+v", fresh)
	}
}

func TestOnce(t *testing.T) {
	t.Parallel()
	created := at(t, "2026-12-01T00:00:00Z")
	spec := schedule.Spec{At: "2026-12-02T07:00", Timezone: "Europe/Berlin"}
	state := newState(t, spec, created, nil)
	if d := schedule.Decide(state, at(t, "2026-12-02T05:59:59Z")); d.Admit != nil || d.Status != schedule.StatusActive {
		t.Errorf("early: %+v", d)
	}
	now := at(t, "2026-12-02T06:00:00Z")
	d := schedule.Decide(state, now)
	if got, want := instants(d), "06:00:00"; got != want || d.Status != schedule.StatusFinished || d.StatusReason == "" {
		t.Errorf("admitted %q: %+v", got, d)
	}
	state = state.Apply(d)
	// Another instant makes it active; one that is past, or another policy, does not.
	past := parse(t, schedule.Spec{At: "2026-12-02T05:00:00Z"}, created)
	future := parse(t, schedule.Spec{At: "2026-12-02T08:00:00Z"}, created)
	if s := state.Retime(past, now); s.Status != schedule.StatusFinished {
		t.Errorf("a past instant: %+v", s)
	}
	if s := state.SetPolicy(schedule.DefaultPolicy(), now); s.Status != schedule.StatusFinished {
		t.Errorf("another policy: %+v", s)
	}
	state = state.Retime(future, now)
	if d := schedule.Decide(state, at(t, "2026-12-02T08:00:05Z")); instants(d) != "08:00:00" || d.Occurrences != 2 {
		t.Errorf("another instant: %+v", d)
	}
	// Missed and not caught up: dropped, and finished.
	state = newState(t, spec, created, func(p *schedule.Policy) { p.CatchUp = schedule.CatchUpNone })
	d = schedule.Decide(state, at(t, "2026-12-02T07:00:00Z"))
	if got, want := drops(d), "missed 02 06:00:00..02 06:00:00: 1"; got != want || d.Admit != nil || d.Status != schedule.StatusFinished {
		t.Errorf("missed: %+v", d)
	}
}

func TestBlocked(t *testing.T) {
	t.Parallel()
	for _, reason := range []schedule.Reason{schedule.ReasonMachineRevoked, schedule.ReasonNotExecutable} {
		state := minutely(t, at(t, "2026-12-01T00:00:30Z"), func(p *schedule.Policy) { p.MaxOccurrences = 2 })
		state.Blocked = reason
		d := schedule.Decide(state, at(t, "2026-12-01T00:05:00Z"))
		want := "missed 01 00:01:00..01 00:03:00: 3, " + string(reason) + " 01 00:04:00..01 00:05:00: 2"
		if got := drops(d); got != want || d.Admit != nil || d.Occurrences != 0 || d.Status != schedule.StatusActive {
			t.Errorf("dropped %q, want %q: %+v", got, want, d)
		}
	}
}

func TestCursorAhead(t *testing.T) {
	t.Parallel()
	now := at(t, "2026-12-01T12:00:30Z")
	state := minutely(t, now.Add(5*time.Minute), nil)
	if d := schedule.Decide(state, now); d.CursorReset || !d.Cursor.Equal(state.Cursor) || d.Admit != nil {
		t.Errorf("five minutes ahead: %+v", d)
	}
	state.Cursor = now.Add(5*time.Minute + 1)
	d := schedule.Decide(state, now)
	if !d.CursorReset || !d.Cursor.Equal(now) || d.Admit != nil || !d.NextWake.Equal(at(t, "2026-12-01T12:01:00Z")) {
		t.Errorf("more than five minutes ahead: %+v", d)
	}
	// What has a run already is passed over, and is neither admitted nor dropped nor counted.
	state = state.Apply(d)
	state.Taken = []time.Time{at(t, "2026-12-01T12:01:00Z"), at(t, "2026-12-01T12:05:00Z"), at(t, "2026-12-01T12:06:00Z")}
	d = schedule.Decide(state, at(t, "2026-12-01T12:07:00Z"))
	if got, want := instants(d), "12:07:00"; got != want || d.Occurrences != 1 {
		t.Errorf("admitted %q, want %q", got, want)
	}
	if got, want := drops(d), "missed 01 12:01:00..01 12:05:00: 3"; got != want {
		t.Errorf("dropped %q, want %q", got, want)
	}
}

// TestTakenByAnotherTiming has a run from before the timing changed, after the cursor: it is no instant of this one.
func TestTakenByAnotherTiming(t *testing.T) {
	t.Parallel()
	state := minutely(t, at(t, "2026-12-01T12:00:00Z"), func(p *schedule.Policy) { p.CatchUp = schedule.CatchUpNone })
	state.Taken = []time.Time{at(t, "2026-12-01T12:00:59Z"), at(t, "2026-12-01T12:01:01Z")}
	d := schedule.Decide(state, at(t, "2026-12-01T12:03:30Z"))
	if got, want := drops(d), "missed 01 12:01:00..01 12:02:00: 2"; got != want || instants(d) != "12:03:00" {
		t.Errorf("dropped %q and admitted %q, want %q", got, instants(d), want)
	}
}

// TestBatches settles a backlog of everything in parts.
func TestBatches(t *testing.T) {
	t.Parallel()
	created := at(t, "2026-12-01T00:00:30Z")
	now := at(t, "2026-12-01T04:30:45Z")
	state := minutely(t, created, func(p *schedule.Policy) { p.CatchUp = schedule.CatchUpAll })
	var sizes []int
	last := created
	for {
		d := schedule.Decide(state, now)
		state = state.Apply(d)
		sizes = append(sizes, len(d.Admit))
		for _, i := range d.Admit {
			if next, _ := state.Timing.Next(last); !next.Equal(i.At) {
				t.Fatalf("%v comes after %v", i.At, last)
			}
			last = i.At
		}
		if !d.More {
			break
		}
		if !d.NextWake.Equal(now) {
			t.Errorf("there is more, and the next wake-up is %v", d.NextWake)
		}
	}
	if diff := cmp.Diff([]int{schedule.MaxAdmissions, schedule.MaxAdmissions, 70}, sizes); diff != "" {
		t.Errorf("admitted (-want +got):\n%s", diff)
	}
	if !state.Cursor.Equal(at(t, "2026-12-01T04:30:00Z")) || state.Occurrences != 270 {
		t.Errorf("ended with %+v", state)
	}
}

// TestHugeBacklogs counts what it does not list: the work does not grow with the number of instants.
//
//nolint:paralleltest // AllocsPerRun refuses to run beside other tests.
func TestHugeBacklogs(t *testing.T) {
	now := at(t, "2027-12-01T00:00:30Z")
	tests := []struct {
		why     string
		spec    schedule.Spec
		created time.Time
		change  func(*schedule.Policy)
		want    string
	}{
		{
			"minutely, 30 days",
			schedule.Spec{Cron: "* * * * *", Timezone: "Europe/Berlin"},
			now.AddDate(0, 0, -30), nil,
			"outside_window 01 00:01:00..30 00:00:00: 41760, missed 30 00:01:00..30 23:59:00: 1439",
		},
		{
			"every second, a year",
			schedule.Spec{Every: "1s"},
			now.AddDate(-1, 0, 0), func(p *schedule.Policy) { p.Overlap = schedule.OverlapSkip },
			"outside_window 01 00:00:31..30 00:00:29: 31449599, missed 30 00:00:30..30 23:59:29: 86340, overlap 30 23:59:31..01 00:00:30: 60",
		},
		{
			"every second, a year, all of it",
			schedule.Spec{Every: "1s"},
			now.AddDate(-1, 0, 0),
			func(p *schedule.Policy) {
				p.Overlap, p.CatchUp, p.CatchUpWindow, p.MaxOccurrences = schedule.OverlapParallel, schedule.CatchUpAll, schedule.MaxCatchUpWindow, 7
			},
			"max_occurrences 01 00:00:38..01 00:00:30: 31535993",
		},
		{
			"every minute since the year 1900",
			schedule.Spec{Cron: "* * * * *", Timezone: "America/New_York"},
			at(t, "1900-01-01T00:00:30Z"),
			func(p *schedule.Policy) { p.CatchUp = schedule.CatchUpNone },
			"missed 01 00:01:00..30 23:59:00: 67276799",
		},
	}
	for _, c := range tests {
		state := newState(t, c.spec, c.created, c.change)
		if got := drops(schedule.Decide(state, now)); got != c.want {
			t.Errorf("%s: dropped %q, want %q", c.why, got, c.want)
		}
		if n := testing.AllocsPerRun(3, func() { schedule.Decide(state, now) }); n > 100 {
			t.Errorf("%s: %v allocations", c.why, n)
		}
	}
}

func TestJitter(t *testing.T) {
	t.Parallel()
	created := at(t, "2027-03-14T00:00:00Z")
	for _, c := range []struct {
		spec   schedule.Spec
		jitter time.Duration
		bound  time.Duration
	}{
		{schedule.Spec{Cron: "*/5 * * * *", Timezone: "UTC"}, 2 * time.Minute, 2 * time.Minute},
		{schedule.Spec{Cron: "*/5 * * * *", Timezone: "UTC"}, time.Hour, 5 * time.Minute},
		{schedule.Spec{Every: "1s"}, time.Hour, time.Second},
		{schedule.Spec{Every: "1s"}, 0, 1},
		{schedule.Spec{Every: "1s"}, time.Millisecond, 1},
	} {
		state := newState(t, c.spec, created, func(p *schedule.Policy) { p.Jitter = c.jitter })
		other := state
		other.ID = "0193-b"
		var longest, differ time.Duration
		for _, i := range state.Timing.Between(created, created.AddDate(0, 0, 1), 200) {
			delay := state.JitteredAt(i).Sub(i)
			if delay < 0 || delay >= c.bound || delay%time.Millisecond != 0 {
				t.Errorf("%+v within %v: a delay of %v", c.spec, c.jitter, delay)
			}
			if state.JitteredAt(i).Sub(i) != delay {
				t.Errorf("the delay of %v is not stable", i)
			}
			longest = max(longest, delay)
			differ = max(differ, (other.JitteredAt(i).Sub(i) - delay).Abs())
		}
		if c.bound > time.Millisecond && (longest < c.bound*8/10 || differ < c.bound/2) {
			t.Errorf("%+v within %v: delays up to %v, which differ by %v", c.spec, c.jitter, longest, differ)
		}
	}
	// A new release must not move firings that are about to come.
	state := schedule.State{ID: "0193-a", Timing: parse(t, schedule.Spec{Every: "1h"}, created)}
	state.Policy.Jitter = time.Hour
	if got, want := state.JitteredAt(created), at(t, "2027-03-14T00:51:42.29Z"); !got.Equal(want) {
		t.Errorf("due at %v, not at %v", got, want)
	}
}

func TestChanges(t *testing.T) {
	t.Parallel()
	created := at(t, "2026-12-01T00:00:30Z")
	now := created.Add(time.Hour)
	state := minutely(t, created, nil)
	if s := state.Resume(now); !s.Cursor.Equal(created) {
		t.Error("resuming an active schedule moved its cursor")
	}
	if s := state.Enable(now); !s.Cursor.Equal(created) {
		t.Error("enabling an enabled schedule moved its cursor")
	}
	if s := state.Pause("a").Pause("b"); s.Status != schedule.StatusPaused || s.StatusReason != "b" {
		t.Errorf("paused twice: %+v", s)
	}
	if s := state.Pause("a").Resume(now); s.Status != schedule.StatusActive || s.StatusReason != "" || !s.Cursor.Equal(now) {
		t.Errorf("resumed: %+v", s)
	}
	if s := state.Pause("a").Disable().Enable(now); s.Status != schedule.StatusPaused || s.Fires() {
		t.Errorf("enabled while paused: %+v", s)
	}
	if s := state.Pause("a").Retime(cron(t, "@daily", "UTC", now), now); s.Status != schedule.StatusPaused || !s.Cursor.Equal(now) {
		t.Errorf("another timing while paused: %+v", s)
	}
	finished := state.Apply(schedule.Decision{Status: schedule.StatusFinished, StatusReason: "x", Cursor: created})
	if s := finished.Pause("a"); s.Status != schedule.StatusFinished || s.StatusReason != "x" {
		t.Errorf("paused after its end: %+v", s)
	}
}
