package machinelimit_test

import (
	"errors"
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/machinelimit"
)

func retryAfter(t *testing.T, err error) time.Duration {
	t.Helper()
	refusal, ok := errors.AsType[*automation.Error](err)
	if !ok || refusal.Code != automation.CodeRateLimited {
		t.Fatalf("error %v, want rate_limited", err)
	}
	return refusal.RetryAfter
}

func TestCalls(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000, 0)
	refused := 0
	l := machinelimit.New(machinelimit.Options{
		Calls: 2, CallBurst: 4, Now: func() time.Time { return now }, Refused: func() { refused++ },
	})
	for range 4 {
		if err := l.Call("a"); err != nil {
			t.Fatal(err)
		}
	}
	wait := retryAfter(t, l.Call("a"))
	if err := l.Call("b"); err != nil {
		t.Errorf("one machine's calls shut out another: %v", err)
	}
	now = now.Add(wait)
	if err := l.Call("a"); err != nil {
		t.Errorf("after the wait: %v", err)
	}
	if refused != 1 {
		t.Errorf("%d refusals were told, want 1", refused)
	}
}

func TestBytes(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000, 0)
	refused := 0
	l := machinelimit.New(machinelimit.Options{
		Bytes: 10, BytesBurst: 100, Now: func() time.Time { return now }, Refused: func() { refused++ },
	})
	l.Received("a", 100)
	if err := l.Call("a"); err != nil {
		t.Fatalf("within the burst: %v", err)
	}
	l.Received("a", 250)
	if err := l.Call("b"); err != nil {
		t.Errorf("one machine's bytes shut out another: %v", err)
	}
	wait := retryAfter(t, l.Call("a"))
	if wait != 25*time.Second {
		t.Errorf("250 bytes too many at 10 a second: wait %v", wait)
	}
	now = now.Add(wait - time.Second)
	retryAfter(t, l.Call("a"))
	now = now.Add(time.Second)
	if err := l.Call("a"); err != nil {
		t.Errorf("after the wait: %v", err)
	}
	if refused != 2 {
		t.Errorf("%d refusals were told, want 2", refused)
	}
}
