package host

import (
	"context"
	"time"
)

// backoff yields growing pauses between tries. Half of each is random, so that many machines that lost the
// same control plane do not come back in step.
type backoff struct {
	first, longest time.Duration
	random         func() float64
	current        time.Duration
}

// reconnectMax is the longest pause before the control plane is tried again after it was lost: people wait for
// a machine to come back, and a refused connection costs nothing.
const reconnectMax = 5 * time.Second

// newReconnectBackoff is the backoff of the connection to the control plane.
func (h *Host) newReconnectBackoff() *backoff {
	b := h.newBackoff()
	b.longest = min(b.longest, reconnectMax)
	return b
}

func (h *Host) newBackoff() *backoff {
	return &backoff{first: h.o.Timing.RetryFirst, longest: h.o.Timing.RetryMax, random: h.o.Random}
}

// next returns how long to pause now.
func (b *backoff) next() time.Duration {
	if b.current == 0 {
		b.current = b.first
	} else {
		b.current = min(2*b.current, b.longest)
	}
	half := b.current / 2
	return half + time.Duration(b.random()*float64(b.current-half))
}

// reset makes the next pause the first again.
func (b *backoff) reset() { b.current = 0 }

// pause waits for d or for a token in kick, which may be nil. It returns false when ctx ends first.
func (h *Host) pause(ctx context.Context, d time.Duration, kick <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-kick:
		return true
	case <-ctx.Done():
		return false
	}
}
