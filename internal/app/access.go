package app

import (
	"context"
	"time"

	"github.com/errandhq/errand/automation"
)

const (
	// accessEvery is how often each server looks for machines whose access has changed at another one.
	accessEvery = 2 * time.Second
	// accessOverlap is how far back it looks, for clocks of servers that differ.
	accessOverlap = 5 * time.Minute
	// loseEvery is how often it looks for runs of revoked machines, which whoever revoked them has ended unless
	// that server died meanwhile.
	loseEvery = 30 * time.Second
	// tellEvery is the pause before a workflow that could not be told of its machine's loss is told again.
	tellEvery = 5 * time.Second
)

// accessChanged ends what a machine has open here. What comes after is authenticated anew.
func (a *App) accessChanged(machineID string, revoked bool) {
	a.verifier.Forget(machineID)
	a.gateway.Disconnect(machineID)
	a.api.MachineAccessChanged(machineID, revoked)
}

// watchAccess notices what other servers did to machines.
func (a *App) watchAccess(background context.Context) {
	known := map[automation.AccessChange]bool{}
	var lostAt time.Time
	for background.Err() == nil {
		changes, err := a.ledger.AccessChanges(background, a.now().Add(-accessOverlap))
		if err == nil {
			known = a.applyAccess(changes, known)
			if now := a.now(); now.Sub(lostAt) >= loseEvery {
				lostAt = now
				err = a.service.LoseRuns(background)
			}
		}
		if err != nil && background.Err() == nil {
			a.logger.Warn("revoked machines could not be looked for; it is tried again", "error", err)
		}
		wait(background, accessEvery)
	}
}

// applyAccess acts on the changes that are not known yet, and returns those that are known now.
func (a *App) applyAccess(changes []automation.AccessChange, known map[automation.AccessChange]bool) map[automation.AccessChange]bool {
	now := make(map[automation.AccessChange]bool, len(changes))
	for _, change := range changes {
		now[change] = true
		if !known[change] {
			a.accessChanged(change.MachineID, change.State == automation.MachineRevoked)
		}
	}
	return now
}

// enrolments is what commands see of enrolment and access.
type enrolments struct {
	app *App
	// tell runs something in the background of the control plane.
	tell func(func(background context.Context))
}

func (e enrolments) NewCode(ctx context.Context, ownerID, machineID string) (string, time.Time, error) {
	return e.app.enroller.NewCode(ctx, ownerID, machineID)
}

func (e enrolments) Revoked(machineID string) { e.app.accessChanged(machineID, true) }

// Lost cancels the open activities of the runs' workflows, which nobody will answer, so that they end as their runs
// did.
func (e enrolments) Lost(runs []automation.Run) {
	e.tell(func(background context.Context) {
		for _, run := range runs {
			for background.Err() == nil {
				err := e.app.engine.NotifyCancel(background, run.ID, run.Generation, automation.CancelNotice{})
				if err == nil {
					break
				}
				e.app.logger.Debug("a workflow could not be told that its machine is lost; it is tried again", "run", run.ID, "error", err)
				wait(background, tellEvery)
			}
		}
	})
}
