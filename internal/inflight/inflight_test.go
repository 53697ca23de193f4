package inflight_test

import (
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/errandhq/errand/internal/inflight"
)

func body(text string) io.ReadCloser { return io.NopCloser(strings.NewReader(text)) }

// TestEachCallerHoldsSoMuch fills the budget of one caller, of which another one notices nothing.
func TestEachCallerHoldsSoMuch(t *testing.T) {
	t.Parallel()
	budget := inflight.New(10)
	first := budget.Body("ann", body("12345678"))
	if read, err := io.ReadAll(first); string(read) != "12345678" || err != nil {
		t.Fatalf("%q, %v", read, err)
	}
	if budget.Take("ann", 3) || !budget.Take("ann", 2) || budget.Take("ann", 1) {
		t.Error("not all of the budget, or more, could be taken")
	}
	if _, err := io.ReadAll(budget.Body("ann", body("x"))); !errors.Is(err, inflight.ErrFull) {
		t.Errorf("a byte too many: %v", err)
	}
	budget.Add("ann", 7)
	if budget.Take("ann", 1) || budget.Take("ann", 0) {
		t.Error("more was taken although what was added is too much")
	}
	budget.Give("ann", 7)
	if !budget.Take("ben", 10) {
		t.Error("another caller has nothing of it")
	}
	first.Release()
	first.Release() // counts once
	if budget.Take("ann", 9) || !budget.Take("ann", 8) {
		t.Error("what was released is not what was held")
	}
}

// TestConcurrentCallers ends with nothing held.
func TestConcurrentCallers(t *testing.T) {
	t.Parallel()
	budget := inflight.New(100)
	var group sync.WaitGroup
	for range 50 {
		group.Go(func() {
			held := budget.Body("ann", body(strings.Repeat("x", 10)))
			_, _ = io.ReadAll(held) // it may be full
			held.Release()
		})
	}
	group.Wait()
	if !budget.Take("ann", 100) || budget.Take("ann", 1) {
		t.Error("something is still held, or more can be")
	}
}
