package schedule_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/automation/schedule"
)

// settled is what became of one instant.
type settled struct {
	At     time.Time
	Reason schedule.Reason // "" is admitted
	Late   bool
}

// model decides a schedule one instant after another, from the words of the contract.
func model(s schedule.State, now time.Time) (list []settled, cursor time.Time) {
	cursor = s.Cursor
	if s.Status != schedule.StatusActive || s.Disabled {
		return nil, cursor
	}
	if cursor.Sub(now) > 5*time.Minute {
		cursor = now
	}
	var due []time.Time
	for _, at := range s.Timing.Between(cursor, now, 1e6) {
		if !s.JitteredAt(at).After(now) {
			due = append(due, at)
		}
	}
	occurrences, admitted := s.Occurrences, 0
	unfinished, waiting := len(s.Unfinished), 0
	for _, run := range s.Unfinished {
		if !run.Begun {
			waiting++
		}
	}
	for i, at := range due {
		late := now.Sub(s.JitteredAt(at))
		missed := late > time.Minute
		reason := schedule.Reason("")
		switch {
		case missed && s.Policy.CatchUp == schedule.CatchUpNone:
			reason = schedule.ReasonMissed
		case missed && late > s.Policy.CatchUpWindow:
			reason = schedule.ReasonOutsideWindow
		case missed && s.Policy.CatchUp == schedule.CatchUpLatest && i < len(due)-1:
			reason = schedule.ReasonMissed
		case slices.ContainsFunc(s.Taken, at.Equal):
			cursor = at
			continue
		case s.Policy.MaxOccurrences > 0 && occurrences >= s.Policy.MaxOccurrences:
			reason = schedule.ReasonMaxOccurrences
		case s.Blocked != "":
			reason = s.Blocked
		case s.Policy.Overlap == schedule.OverlapSkip && unfinished > 0:
			reason = schedule.ReasonOverlap
		case s.Policy.Overlap == schedule.OverlapQueueOne && waiting > 0:
			reason = schedule.ReasonOverlap
		}
		if reason == "" {
			if admitted == schedule.MaxAdmissions {
				break
			}
			admitted++
			occurrences++
			unfinished++
			waiting++
		}
		if !slices.ContainsFunc(s.Taken, at.Equal) {
			list = append(list, settled{At: at, Reason: reason, Late: reason == "" && missed})
		}
		cursor = at
	}
	return list, cursor
}

// listed returns what a decision does, one instant after another.
func listed(t *testing.T, s schedule.State, d schedule.Decision) []settled {
	t.Helper()
	var list []settled
	for _, drop := range d.Drops {
		n := int64(0)
		for _, at := range s.Timing.Between(drop.From.Add(-time.Second), drop.To, 1e6) {
			if !slices.ContainsFunc(s.Taken, at.Equal) {
				list = append(list, settled{At: at, Reason: drop.Reason})
				n++
			}
		}
		if n != drop.Count || n == 0 {
			t.Errorf("the drop %+v has %d instants", drop, n)
		}
	}
	for _, i := range d.Admit {
		list = append(list, settled{At: i.At, Late: i.Late})
		if !i.JitteredAt.Equal(s.JitteredAt(i.At)) || i.CancelsEarlier != (s.Policy.Overlap == schedule.OverlapCancelRunning) {
			t.Errorf("admitted %+v under %+v", i, s.Policy)
		}
	}
	slices.SortStableFunc(list, func(a, b settled) int { return a.At.Compare(b.At) })
	return list
}

// world is one schedule with its runs, its clock, and all that has become of its instants. It does what a ledger
// does: it holds the state, and the uniqueness of instants.
type world struct {
	t        *testing.T
	rng      *rand.Rand
	created  time.Time
	now      time.Time
	state    schedule.State
	admitted map[time.Time]bool
	history  []string
	runs     int
}

func newWorld(t *testing.T, rng *rand.Rand) *world {
	t.Helper()
	w := &world{t: t, rng: rng, admitted: map[time.Time]bool{}}
	w.created = time.Date(2027, 11, 7, 4, 0, 0, 0, time.UTC).Add(time.Duration(rng.Int64N(int64(2 * time.Hour))))
	w.now = w.created
	w.state = schedule.New(fmt.Sprint("s", rng.IntN(1000)), w.timing(), w.policy(), w.created)
	return w
}

func (w *world) timing() schedule.Timing {
	specs := []schedule.Spec{
		{Cron: "* * * * *", Timezone: "America/New_York"},
		{Cron: "*/7 * * * *", Timezone: "America/New_York"},
		{Cron: "0,1,2,30 1,2,3 * * *", Timezone: "America/New_York"},
		{Every: "20s"},
		{Every: "1s"},
		{Every: "5m", Anchor: "2027-01-01T00:00:13Z"},
		{At: w.now.Add(time.Duration(w.rng.IntN(3600)+1) * time.Second).Format(time.RFC3339)},
	}
	spec := specs[w.rng.IntN(len(specs))]
	timing, err := schedule.Restore(spec, w.created)
	if err != nil {
		w.t.Fatal(err)
	}
	return timing
}

func (w *world) policy() schedule.Policy {
	pick := func(list ...time.Duration) time.Duration { return list[w.rng.IntN(len(list))] }
	p := schedule.Policy{
		Overlap:       schedule.Overlaps[w.rng.IntN(len(schedule.Overlaps))],
		CatchUp:       schedule.CatchUps[w.rng.IntN(len(schedule.CatchUps))],
		CatchUpWindow: pick(0, 30*time.Second, 5*time.Minute, time.Hour, 24*time.Hour),
		Jitter:        pick(0, 0, 500*time.Millisecond, 30*time.Second, 10*time.Minute),
	}
	if w.rng.IntN(3) == 0 {
		p.MaxOccurrences = w.state.Occurrences + w.rng.Int64N(20)
	}
	return p
}

// wake lets a server decide, whose clock says now, and compares with the model.
func (w *world) wake(now time.Time) schedule.Decision {
	w.t.Helper()
	w.state.Taken = nil
	for at := range w.admitted {
		if at.After(w.state.Cursor) || w.state.Cursor.Sub(now) > schedule.MaxCursorAhead {
			w.state.Taken = append(w.state.Taken, at)
		}
	}
	want, cursor := model(w.state, now)
	d := schedule.Decide(w.state, now)
	w.note("wake at %s: %d admitted, drops %+v", now.Format("15:04:05.000"), len(d.Admit), d.Drops)
	if got := listed(w.t, w.state, d); !slices.Equal(got, want) {
		w.fail("decided (-model +got):\n%s", cmp.Diff(want, got))
	}
	if !d.Cursor.Equal(cursor) {
		w.fail("the cursor is %v, want %v", d.Cursor, cursor)
	}
	w.check(d, now)
	for _, i := range d.Admit {
		if w.admitted[i.At] {
			w.fail("%v is admitted twice", i.At)
		}
		w.admitted[i.At] = true
		w.runs++
		w.state.Unfinished = append(w.state.Unfinished, schedule.Run{ID: fmt.Sprint("r", w.runs)})
	}
	w.state = w.state.Apply(d)
	return d
}

// check holds a decision to what is true of every one.
func (w *world) check(d schedule.Decision, now time.Time) {
	w.t.Helper()
	s := w.state
	if d.Occurrences != s.Occurrences+int64(len(d.Admit)) {
		w.fail("counted %d occurrences", d.Occurrences)
	}
	if most := s.Policy.MaxOccurrences; most > 0 && len(d.Admit) > 0 && d.Occurrences > most {
		w.fail("admitted %d of %d occurrences", d.Occurrences, most)
	}
	if most := s.Policy.MaxOccurrences; s.Fires() && most > 0 && (d.Status == schedule.StatusFinished) != (d.Occurrences >= most) {
		if _, ok := s.Timing.Next(d.Cursor); ok {
			w.fail("is %s after %d of %d occurrences", d.Status, d.Occurrences, most)
		}
	}
	if (d.Next != nil) != (s.Fires() && d.Status == schedule.StatusActive) || (d.Next != nil) == d.NextWake.IsZero() {
		w.fail("is %s, and next is %v at %v", d.Status, d.Next, d.NextWake)
	}
	if d.Next != nil && !d.More && !d.NextWake.After(now) {
		w.fail("at %v the next wake-up is %v", now, d.NextWake)
	}
	if d.More != (len(d.Admit) == schedule.MaxAdmissions && d.NextWake.Equal(now)) && len(d.Admit) < schedule.MaxAdmissions {
		w.fail("more is %v after %d", d.More, len(d.Admit))
	}
	if cancels := len(d.Admit) > 0 && s.Policy.Overlap == schedule.OverlapCancelRunning; cancels != (len(d.CancelRuns) > 0) && len(s.Unfinished) > 0 {
		w.fail("cancelled %v of %v", d.CancelRuns, s.Unfinished)
	}
}

// settle decides until nothing more is due, as every change of a schedule does first.
func (w *world) settle() {
	w.t.Helper()
	for w.wake(w.now).More {
	}
}

func (w *world) note(format string, args ...any) {
	w.history = append(w.history, fmt.Sprintf(format, args...))
}

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	for _, line := range w.history[max(0, len(w.history)-15):] {
		w.t.Log(line)
	}
	w.t.Fatalf("%+v %+v: %s", w.state.Timing.Spec(), w.state.Policy, fmt.Sprintf(format, args...))
}

// event lets something happen: time, wake-ups of two servers, runs, edits, pauses, steps of the clock.
func (w *world) event() {
	w.t.Helper()
	switch n := w.rng.IntN(40); {
	case n < 14: // time passes, and somebody wakes up when it is time, or a bit off
		w.now = w.now.Add(time.Duration(w.rng.Int64N(int64(2 * time.Minute))))
		w.wake(w.now)
	case n < 18: // the other server, whose clock is off by up to three seconds; then the first again, late
		w.wake(w.now.Add(time.Duration(w.rng.Int64N(int64(6*time.Second))) - 3*time.Second))
		w.wake(w.now)
	case n < 20: // doubled
		w.settle()
		if d := w.wake(w.now); len(d.Admit) > 0 || len(d.Drops) > 0 {
			w.fail("settled more at the same time: %+v", d)
		}
	case n < 22: // down, or asleep
		w.now = w.now.Add(time.Duration(w.rng.Int64N(int64(2 * time.Hour))))
	case n < 23: // the clock is set back
		w.now = w.now.Add(-time.Duration(w.rng.Int64N(int64(20 * time.Minute))))
	case n < 29:
		w.finishRuns()
	default:
		w.change(n)
	}
}

func (w *world) finishRuns() {
	var left []schedule.Run
	for _, run := range w.state.Unfinished {
		if w.rng.IntN(2) == 0 {
			run.Begun = true
			if w.rng.IntN(2) == 0 {
				continue
			}
		}
		left = append(left, run)
	}
	w.state.Unfinished = left
}

func (w *world) change(n int) {
	w.t.Helper()
	w.settle()
	switch n {
	case 29:
		w.state = w.state.Pause("a person")
	case 30, 31:
		w.state = w.state.Resume(w.now)
	case 32:
		w.state = w.state.Disable()
	case 33, 34:
		w.state = w.state.Enable(w.now)
	case 35:
		w.state = w.state.Retime(w.timing(), w.now)
	case 36:
		w.state = w.state.Retime(w.state.Timing, w.now)
	case 37:
		w.state = w.state.SetPolicy(w.policy(), w.now)
	case 38:
		w.state.Blocked = schedule.ReasonMachineRevoked
	case 39:
		w.state.Blocked = ""
	}
	w.note("change %d at %s: %s %v", n, w.now.Format("15:04:05.000"), w.state.Status, w.state.Disabled)
}

// TestSimulation drives decisions with whatever may happen, and compares each with the model.
func TestSimulation(t *testing.T) {
	t.Parallel()
	admitted, finished := 0, 0
	for seed := range uint64(80) {
		w := newWorld(t, rand.New(rand.NewPCG(5, seed)))
		for range 80 {
			w.event()
		}
		admitted += len(w.admitted)
		if w.state.Status == schedule.StatusFinished {
			finished++
		}
	}
	if admitted < 1500 || finished < 5 {
		t.Errorf("only %d admitted, %d finished", admitted, finished)
	}
}

// TestEveryInstantIsSettledOnce wakes a schedule at random, early, late, doubled and out of order, and then accounts
// for every instant since its creation.
func TestEveryInstantIsSettledOnce(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		w := newWorld(t, rand.New(rand.NewPCG(6, seed)))
		w.state.Policy.MaxOccurrences = 0
		seen := map[time.Time]int{}
		for range 60 {
			step := time.Duration(w.rng.Int64N(int64(90 * time.Second)))
			switch w.rng.IntN(8) {
			case 0:
				step = time.Duration(w.rng.Int64N(int64(time.Hour)))
			case 1, 2: // out of order: less than what sets the cursor back
				step = -time.Duration(w.rng.Int64N(int64(4 * time.Minute)))
			}
			server := w.now.Add(step)
			if step > 0 {
				w.now = server
			}
			before := w.state
			d := w.wake(server)
			for _, s := range listed(t, before, d) {
				seen[s.At]++
			}
			if w.rng.IntN(3) == 0 {
				w.finishRuns()
			}
		}
		for _, at := range w.state.Timing.Between(w.created, w.state.Cursor, 1e6) {
			if seen[at] != 1 {
				w.fail("%v was settled %d times", at, seen[at])
			}
			delete(seen, at)
		}
		if len(seen) > 0 {
			w.fail("settled what is not due: %v", seen)
		}
	}
}
