//go:build unix

package apptest

import (
	"testing"
	"time"
)

const (
	// pollEvery is how often a condition is looked at.
	pollEvery = 10 * time.Millisecond
	// patience bounds what takes a second or two on an idle computer: a start, a stop, a short run.
	patience = 90 * time.Second
)

// Eventually returns when the condition holds, and fails the test when it does not within the limit. The
// condition returns what it saw, for the message.
func Eventually(tb testing.TB, within time.Duration, what string, condition func() (seen string, ok bool)) {
	tb.Helper()
	if seen, ok := poll(within, condition); !ok {
		tb.Fatalf("waited %s in vain until %s; last seen: %s", within, what, seen)
	}
}

func poll(within time.Duration, condition func() (seen string, ok bool)) (seen string, ok bool) {
	limit := time.NewTimer(within)
	defer limit.Stop()
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		if seen, ok = condition(); ok {
			return seen, true
		}
		select {
		case <-limit.C:
			return seen, false
		case <-ticker.C:
		}
	}
}
