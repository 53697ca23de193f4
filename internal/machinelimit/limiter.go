// Package machinelimit bounds what one machine may ask of the control plane: calls, and bytes that it sends. The
// bounds are far above what a busy worker needs; they keep a machine that has lost its mind, or is in the wrong
// hands, from taking the service away from the others.
//
// Calls are refused beforehand. Bytes are counted when they have come, and more of them than allowed delays the
// calls that follow, so that a large result is never cut off. Each server counts for itself. How many polls and
// streams a machine may have open is the business of those who hold them.
package machinelimit

import (
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/errandhq/errand/automation"
)

// Defaults of [Options]. A step costs about five calls.
const (
	DefaultCalls      = 1_000
	DefaultCallBurst  = 3_000
	DefaultBytes      = 32 << 20
	DefaultBytesBurst = 128 << 20
)

// Options are the bounds of one machine; zero means the default.
type Options struct {
	Calls      float64 // a second
	CallBurst  int
	Bytes      float64 // a second
	BytesBurst int
	Now        func() time.Time // default: time.Now
	// Refused is told of each call that is refused; it must not block. Nil means that nobody counts.
	Refused func()
}

// Limiter counts for all machines. It is safe for concurrent use. Its memory grows with the machines that have
// authenticated, of which an installation has as many as it has enrolled.
type Limiter struct {
	o        Options
	mu       sync.Mutex
	machines map[string]*budget
}

type budget struct{ calls, bytes *rate.Limiter }

// New returns a limiter.
func New(o Options) *Limiter {
	if o.Calls <= 0 {
		o.Calls, o.CallBurst = DefaultCalls, DefaultCallBurst
	}
	if o.Bytes <= 0 {
		o.Bytes, o.BytesBurst = DefaultBytes, DefaultBytesBurst
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Refused == nil {
		o.Refused = func() {}
	}
	return &Limiter{o: o, machines: map[string]*budget{}}
}

// Call counts one call of a machine, or refuses it as rate_limited with the time to wait.
func (l *Limiter) Call(machineID string) error {
	b, now := l.of(machineID), l.o.Now()
	if owed := -b.bytes.TokensAt(now); owed > 0 {
		l.o.Refused()
		return tooMuch("the machine sends more than %d bytes a second; slow down", int(l.o.Bytes), owed/l.o.Bytes)
	}
	if !b.calls.AllowN(now, 1) {
		l.o.Refused()
		return tooMuch("the machine makes more than %d calls a second; slow down", int(l.o.Calls), (1-b.calls.TokensAt(now))/l.o.Calls)
	}
	return nil
}

// Received counts bytes that a machine has sent.
func (l *Limiter) Received(machineID string, bytes int) {
	b, now := l.of(machineID), l.o.Now()
	for bytes > 0 { // one reservation may not be larger than the burst
		part := min(bytes, l.o.BytesBurst)
		b.bytes.ReserveN(now, part)
		bytes -= part
	}
}

func (l *Limiter) of(machineID string) *budget {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.machines[machineID]
	if b == nil {
		b = &budget{
			calls: rate.NewLimiter(rate.Limit(l.o.Calls), l.o.CallBurst),
			bytes: rate.NewLimiter(rate.Limit(l.o.Bytes), l.o.BytesBurst),
		}
		l.machines[machineID] = b
	}
	return b
}

func tooMuch(format string, limit int, waitSeconds float64) error {
	wait := time.Duration(waitSeconds * float64(time.Second))
	return automation.RateLimited(max(wait, time.Second), format, limit)
}
