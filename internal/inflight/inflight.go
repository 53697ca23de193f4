// Package inflight bounds what each of many callers may hold of something at the same time: bytes of requests that are
// in memory, or calls that are being served. A rate says how fast somebody may ask; it does not say how much may pile up
// while what was asked for is slow, above all when it is slow on purpose. Who a caller is, and what happens to a
// request for which there is no room, is left to the one who asks.
package inflight

import (
	"errors"
	"io"
	"sync"
)

// ErrFull says that a caller holds as much as it may.
var ErrFull = errors.New("the caller has too much under way at the same time")

// Budget is what each caller may hold. It is safe for concurrent use, and remembers only callers that hold something.
type Budget struct {
	most int64

	mu   sync.Mutex
	held map[string]int64
}

// New returns a budget of so much for each caller.
func New(most int64) *Budget { return &Budget{most: most, held: map[string]int64{}} }

// Take adds to what a caller holds and returns true, or changes nothing when that would be too much.
func (b *Budget) Take(caller string, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held[caller]+n > b.most {
		return false
	}
	b.held[caller] += n
	return true
}

// Add adds what cannot be refused any more, however much it is: it stands in the way of what the caller takes next.
func (b *Budget) Add(caller string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held[caller] += n
}

// Give takes back what was taken or added.
func (b *Budget) Give(caller string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held[caller] -= n; b.held[caller] <= 0 {
		delete(b.held, caller)
	}
}

// Body is the body of a request of a caller, of which every byte that was read counts until it is released.
type Body struct {
	io.ReadCloser

	budget *Budget
	caller string
	taken  int64
}

// Body returns a body that counts. It is not safe for concurrent use.
func (b *Budget) Body(caller string, body io.ReadCloser) *Body {
	return &Body{ReadCloser: body, budget: b, caller: caller}
}

// Read reads; its error is [ErrFull] when the caller may hold no more.
func (b *Body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		if !b.budget.Take(b.caller, int64(n)) {
			return 0, ErrFull
		}
		b.taken += int64(n)
	}
	return n, err //nolint:wrapcheck // io.EOF must stay what it is
}

// Release takes back what was counted. Call it when what was read is no longer in use.
func (b *Body) Release() {
	b.budget.Give(b.caller, b.taken)
	b.taken = 0
}
