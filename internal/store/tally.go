package store

import (
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/automation/schedule"
)

// tally is what a transaction has done, to be told to the observer after the commit.
type tally []func(automation.Observer)

// count tells the observer what a commit has done.
func (s *Store) count(did tally) {
	if s.options.Observer == nil {
		return
	}
	for _, tell := range did {
		tell(s.options.Observer)
	}
}

func (t *tally) add(tell func(automation.Observer)) { *t = append(*t, tell) }

// admitted notes a new run.
func (t *tally) admitted(run *automation.Run) {
	trigger := run.Trigger.Kind
	t.add(func(o automation.Observer) { o.RunAdmitted(trigger) })
}

// fired notes that an instant of a schedule was admitted.
func (t *tally) fired(i schedule.Instant, now time.Time) {
	behind := max(now.Sub(i.JitteredAt), 0)
	t.add(func(o automation.Observer) { o.InstantAdmitted(behind) })
}

// dropped notes that instants of a schedule were not.
func (t *tally) dropped(d schedule.Drop) {
	t.add(func(o automation.Observer) { o.InstantsDropped(d.Reason, d.Count) })
}

// moved notes what has become of a run and its steps, by what its rows were before and are now.
func (t *tally) moved(run *automation.Run, before, after runRows) {
	for i, step := range after.steps {
		was, kind := before.steps[i], run.Steps[i].Kind
		if step.attempt > was.attempt {
			t.add(func(o automation.Observer) { o.StepBegun(kind) })
		}
		if step.retryAt.valid && step.retryAt != was.retryAt {
			t.add(func(o automation.Observer) { o.StepInterrupted(kind) })
		}
		if step.finishedAt.valid && !was.finishedAt.valid {
			t.add(func(o automation.Observer) { o.StepEnded(kind, automation.StepStatus(step.status)) })
		}
	}
	if after.run.finishedAt.valid && !before.run.finishedAt.valid {
		t.add(func(o automation.Observer) { o.RunEnded(automation.RunStatus(after.run.status)) })
	}
}
