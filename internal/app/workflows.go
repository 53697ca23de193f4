package app

import (
	"context"
	"fmt"

	sdkworker "go.temporal.io/sdk/worker"

	"github.com/errandhq/errand/activities/control"
	"github.com/errandhq/errand/internal/engine"
	"github.com/errandhq/errand/worker"
)

// controlWorker is a worker of the control queue, and how it says that it has given up.
type controlWorker struct {
	sdkworker.Worker
	gaveUp chan error
}

// startControlWorker starts a worker of the control queue.
func (a *App) startControlWorker() (controlWorker, error) {
	w := controlWorker{gaveUp: make(chan error, 1)}
	activities := control.Activities{Ledger: a.ledger, Schedules: a.firing.ticker}
	w.Worker = worker.NewControl(a.engine.Client(), a.install.ID, activities, func(err error) {
		select {
		case w.gaveUp <- err:
		default:
		}
	})
	if err := w.Start(); err != nil {
		return controlWorker{}, fmt.Errorf("starting the worker of the control queue: %w", err)
	}
	return w, nil
}

// runWorkflows starts the worker of the control queue, the starter and the reconciler.
func (a *App) runWorkflows(background context.Context) error {
	workflows, err := a.startControlWorker()
	if err != nil {
		return err
	}
	a.goBackground(func() { a.keepWorkflows(background, workflows) })
	a.goBackground(func() { a.starter.Run(background) })
	a.goBackground(func() { a.reconciler.Run(background) })
	return nil
}

// keepWorkflows replaces a worker of the control queue that has given up, as it does when Temporal has not known the
// namespace for minutes, and stops the last one at the end.
func (a *App) keepWorkflows(background context.Context, workflows controlWorker) {
	for {
		select {
		case <-background.Done():
			workflows.Stop()
			return
		case err := <-workflows.gaveUp:
			a.logger.Warn("the worker of the control queue has given up; it is started again", "error", err)
		}
		workflows.Stop()
		for {
			wait(background, engine.StartEvery)
			if background.Err() != nil {
				return
			}
			next, err := a.startControlWorker()
			if err == nil {
				workflows = next
				break
			}
			a.logger.Debug("the worker of the control queue could not be started yet", "error", err)
		}
	}
}
