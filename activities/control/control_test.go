package control_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.temporal.io/sdk/temporal"

	"github.com/errandhq/errand/activities/control"
	"github.com/errandhq/errand/automation"
)

// ledger answers every call with one error.
type ledger struct{ err error }

func (l ledger) FinalizeRun(_ context.Context, in automation.FinalizeInput) (automation.FinalizeVerdict, error) {
	if in.RunID != "r" {
		return automation.FinalizeVerdict{}, errors.New("another run")
	}
	return automation.FinalizeVerdict{Status: automation.RunCompleted}, l.err
}

func (l ledger) CancelRun(_ context.Context, in automation.CancelInput) (automation.CancelVerdict, error) {
	if in.RunID != "r" || in.Reason != "why" {
		return automation.CancelVerdict{}, errors.New("another run")
	}
	return automation.CancelVerdict{Begun: "a"}, l.err
}

// TestErrors tells what Temporal tries again (a ledger that is away) from what it does not (a run that is gone).
func TestErrors(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		err                     error
		finalizeFinal, cancelOK bool
	}{
		"the ledger is away": {automation.Errorf(automation.CodeStoreUnavailable, "x"), false, false},
		"an unknown error":   {errors.New("x"), false, false},
		"the run is gone":    {automation.Errorf(automation.CodeNotFound, "x"), true, false},
		"the run has ended":  {automation.Errorf(automation.CodeAlreadyFinished, "x"), false, true},
	}
	for name, test := range tests {
		a := control.Activities{Ledger: ledger{test.err}}
		_, err := a.FinalizeRun(t.Context(), automation.FinalizeInput{RunID: "r"})
		var app *temporal.ApplicationError
		if final := errors.As(err, &app) && app.NonRetryable(); err == nil || final != test.finalizeFinal {
			t.Errorf("%s: %v is final: %v, want %v", name, err, final, test.finalizeFinal)
		}
		if _, err := a.RequestCancel(t.Context(), automation.CancelInput{RunID: "r", Reason: "why"}); (err == nil) != test.cancelOK {
			t.Errorf("%s: cancel: %v, want none: %v", name, err, test.cancelOK)
		}
	}
	a := control.Activities{Ledger: ledger{}}
	if verdict, err := a.FinalizeRun(t.Context(), automation.FinalizeInput{RunID: "r"}); err != nil || verdict.Status != automation.RunCompleted {
		t.Errorf("%+v, %v", verdict, err)
	}
	if verdict, err := a.RequestCancel(t.Context(), automation.CancelInput{RunID: "r", Reason: "why"}); err != nil || verdict.Begun != "a" {
		t.Errorf("%+v, %v", verdict, err)
	}
}

// Decide implements [control.Schedules].
func (l ledger) Decide(_ context.Context, id string) (automation.ScheduleDecision, error) {
	if id != "s" {
		return automation.ScheduleDecision{}, errors.New("another schedule")
	}
	return automation.ScheduleDecision{
		Admitted: []string{"r2"}, Cancelled: []automation.Cancellation{{Run: automation.Run{ID: "r1"}, Begun: "a"}},
	}, l.err
}

func TestDecideSchedule(t *testing.T) {
	t.Parallel()
	want := automation.TriggerVerdict{Admitted: []string{"r2"}, Cancelled: []string{"r1"}}
	got, err := control.Activities{Schedules: ledger{}}.DecideSchedule(t.Context(), automation.TriggerInput{ScheduleID: "s"})
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	away := ledger{automation.Errorf(automation.CodeStoreUnavailable, "x")}
	_, err = control.Activities{Schedules: away}.DecideSchedule(t.Context(), automation.TriggerInput{ScheduleID: "s"})
	var app *temporal.ApplicationError
	if !errors.As(err, &app) || app.NonRetryable() || app.Type() != string(automation.CodeStoreUnavailable) {
		t.Errorf("a ledger that is away: %v", err)
	}
}
