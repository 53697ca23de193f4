// Package control holds the activities of the control plane: ledger work that workflows ask for. They
// are local activities on the control queue, idempotent like the ledger's functions beneath them.
package control

import (
	"context"
	"errors"

	"go.temporal.io/sdk/temporal"

	"github.com/errandhq/errand/automation"
)

// Ledger is what the activities need of the ledger.
type Ledger interface {
	FinalizeRun(ctx context.Context, in automation.FinalizeInput) (automation.FinalizeVerdict, error)
	CancelRun(ctx context.Context, in automation.CancelInput) (automation.CancelVerdict, error)
}

// Schedules lets the ledger decide a schedule, and starts what was admitted.
type Schedules interface {
	Decide(ctx context.Context, id string) (automation.ScheduleDecision, error)
}

// Activities are the activities of the control plane over one ledger.
type Activities struct {
	Ledger    Ledger
	Schedules Schedules
}

// FinalizeRun ends a run that its steps settle, or which the workflow gave up on.
func (a Activities) FinalizeRun(ctx context.Context, in automation.FinalizeInput) (automation.FinalizeVerdict, error) {
	verdict, err := a.Ledger.FinalizeRun(ctx, in)
	return verdict, translate(err)
}

// RequestCancel records a cancel that was made in Temporal. A run that has ended already is no error.
func (a Activities) RequestCancel(ctx context.Context, in automation.CancelInput) (automation.CancelVerdict, error) {
	verdict, err := a.Ledger.CancelRun(ctx, in)
	if automation.CodeOf(err) == automation.CodeAlreadyFinished {
		return automation.CancelVerdict{}, nil
	}
	return verdict, translate(err)
}

// DecideSchedule decides a schedule that was woken up.
func (a Activities) DecideSchedule(ctx context.Context, in automation.TriggerInput) (automation.TriggerVerdict, error) {
	decision, err := a.Schedules.Decide(ctx, in.ScheduleID)
	if err != nil {
		return automation.TriggerVerdict{}, translate(err)
	}
	verdict := automation.TriggerVerdict{Admitted: decision.Admitted}
	for _, c := range decision.Cancelled {
		verdict.Cancelled = append(verdict.Cancelled, c.Run.ID)
	}
	return verdict, nil
}

// translate makes a refusal that will not change final; everything else is tried again. The cause stays in
// the log of the control plane.
func translate(err error) error {
	var refusal *automation.Error
	if !errors.As(err, &refusal) {
		return err
	}
	if refusal.Code == automation.CodeNotFound {
		return temporal.NewNonRetryableApplicationError(refusal.Message, string(refusal.Code), nil)
	}
	return temporal.NewApplicationError(refusal.Message, string(refusal.Code))
}
