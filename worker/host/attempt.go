package host

import (
	"context"
	"errors"
	"time"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"
)

// Attempt is one try of Temporal to have a step executed here.
type Attempt struct {
	// Heartbeat tells Temporal that the attempt is alive. It is called with a context of its own: the SDK's
	// heartbeat within an activity cancels the activity when its call is late, and then never beats again.
	Heartbeat func(ctx context.Context) error
}

// The causes that end what an attempt is waiting for.
var (
	// errCancelled: Temporal has cancelled the activity. The program ends too.
	errCancelled = errors.New("the activity was cancelled")
	// errDetached: the attempt is lost, or nobody waits for it. The program goes on.
	errDetached = errors.New("the attempt is no longer connected to its activity")
	// errDraining: the worker is about to stop and begins nothing new.
	errDraining = errors.New("the worker is stopping")
	// errOver: the attempt has its answer.
	errOver = errors.New("the attempt is over")
)

// attempt is an [Attempt] under way.
type attempt struct {
	// ctx lives until the attempt is over or detached.
	ctx    context.Context
	detach context.CancelCauseFunc
	// asking ends with ctx, and also by a cancel and by the drain. It covers what comes before a program.
	asking context.Context
	abort  context.CancelCauseFunc
	// cancelled is closed by a real cancellation.
	cancelled context.Context
	cancel    context.CancelFunc
}

// startAttempt begins to beat for an attempt that came with the SDK's context ctx, in a session with Temporal
// that may end. The caller calls over when the attempt has its answer.
func (h *Host) startAttempt(ctx, session context.Context, temporalAttempt Attempt) (a *attempt, over func()) {
	a = &attempt{}
	free := context.WithoutCancel(ctx)
	a.ctx, a.detach = context.WithCancelCause(free)
	a.asking, a.abort = context.WithCancelCause(a.ctx)
	a.cancelled, a.cancel = context.WithCancel(free)
	stopSession := context.AfterFunc(session, func() { a.detach(errDetached) })
	stopDraining := context.AfterFunc(h.draining, func() { a.abort(errDraining) })
	stopSDK := context.AfterFunc(ctx, func() { a.heard(context.Cause(ctx)) })
	go h.beat(a, temporalAttempt)
	return a, func() {
		stopSession()
		stopDraining()
		stopSDK()
		a.detach(errOver)
		a.cancel()
	}
}

// beat sends heartbeats until the attempt is over or lost. It goes on after a cancel: while the program cleans
// up, the activity must stay alive. Trouble on the way is borne for as long as Temporal bears silence.
func (h *Host) beat(a *attempt, temporalAttempt Attempt) {
	ticker := time.NewTicker(h.o.Timing.HeartbeatEvery)
	defer ticker.Stop()
	alive := h.o.Now()
	for {
		select {
		case <-a.ctx.Done():
			return
		case <-ticker.C:
		}
		ctx, cancel := context.WithTimeout(a.ctx, h.o.Timing.HeartbeatTimeout/3)
		sent := h.o.Now()
		err := temporalAttempt.Heartbeat(ctx)
		cancel()
		switch {
		case err == nil || isCancel(err):
			alive = sent
			if err != nil {
				a.heard(err)
			}
		case isLost(err):
			a.heard(err)
		case h.o.Now().Sub(alive) >= h.o.Timing.HeartbeatTimeout:
			h.log.Warn("Temporal has not heard of an attempt for too long; its program goes on.", "error", err)
			a.detach(errDetached)
		}
	}
}

// heard acts on what a heartbeat or the SDK's context said about the attempt.
func (a *attempt) heard(err error) {
	if !isCancel(err) {
		a.detach(errDetached)
		return
	}
	a.cancel()
	a.abort(errCancelled)
}

// isCancel reports whether err is a cancellation that somebody asked for.
func isCancel(err error) bool {
	_, ok := errors.AsType[*temporal.CanceledError](err)
	return ok
}

// isLost reports whether Temporal said that the attempt does not count any more: timed out, paused, reset, or
// its workflow is gone.
func isLost(err error) bool {
	if errors.Is(err, activity.ErrActivityPaused) || errors.Is(err, activity.ErrActivityReset) {
		return true
	}
	_, ok := errors.AsType[*serviceerror.NotFound](err)
	return ok
}
