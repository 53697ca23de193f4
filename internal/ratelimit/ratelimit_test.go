package ratelimit_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/errandhq/errand/internal/ratelimit"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestEachNameHasItsOwnTokens(t *testing.T) {
	t.Parallel()
	b := ratelimit.New(2, 3)
	for i := range 3 {
		if wait := b.Take("a", start); wait != 0 {
			t.Errorf("token %d: wait %v", i, wait)
		}
	}
	if wait := b.Take("a", start); wait != 500*time.Millisecond {
		t.Errorf("after the burst: wait %v, want half a second", wait)
	}
	if wait := b.Wait("a", start); wait != 500*time.Millisecond {
		t.Errorf("a look: wait %v, want half a second", wait)
	}
	if wait := b.Take("b", start); wait != 0 {
		t.Errorf("another name: wait %v", wait)
	}
	later := start.Add(500 * time.Millisecond)
	for range 2 { // a look takes nothing
		if wait := b.Wait("a", later); wait != 0 {
			t.Errorf("half a second later: wait %v", wait)
		}
	}
	if wait := b.Take("a", later); wait != 0 {
		t.Errorf("the token of half a second: wait %v", wait)
	}
	if b.Take("a", later) == 0 {
		t.Error("half a second gave two tokens")
	}
}

// TestInventedNamesShareWhatIsLeft: more names than there is room for get no more than one name does.
func TestInventedNamesShareWhatIsLeft(t *testing.T) {
	t.Parallel()
	const names, burst = 10_000, 3
	b := ratelimit.New(1, burst)
	taken := 0
	for i := range names + 500 {
		if b.Take("name "+strconv.Itoa(i), start) == 0 {
			taken++
		}
	}
	if taken != names+burst {
		t.Errorf("%d tokens were taken by names with one each, want %d", taken, names+burst)
	}
	if b.Wait("unheard of", start) == 0 {
		t.Error("a new name need not wait although what is left is used up")
	}
	if b.Wait("name 1", start) != 0 {
		t.Error("a name with a bucket of its own must wait for the others")
	}
	later := start.Add(time.Minute) // every bucket is full again, and makes room
	for range burst {
		if wait := b.Take("newcomer", later); wait != 0 {
			t.Errorf("a minute later: wait %v", wait)
		}
	}
	if b.Take("another", later) != 0 {
		t.Error("the newcomer shared what is left although there was room")
	}
}
