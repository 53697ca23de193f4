// Package notify wakes goroutines of this process when something they wait for may have changed. A
// notification carries nothing: whoever is woken reads the ledger, which is the truth. Changes made by another
// server are not seen here, so a waiter also looks by itself once in a while.
package notify

import "sync"

// Hub hands notifications from whoever changes a thing to whoever waits for it, by key. The zero value is not
// usable; see [New].
type Hub struct {
	mu      sync.Mutex
	waiters map[string]map[chan struct{}]struct{}
}

// New returns an empty hub.
func New() *Hub { return &Hub{waiters: map[string]map[chan struct{}]struct{}{}} }

// Subscribe returns a channel that receives after each notification of the key, several of which may be
// merged into one, and a function that ends the subscription and is to be called when the waiter leaves.
func (h *Hub) Subscribe(key string) (<-chan struct{}, func()) {
	wake := make(chan struct{}, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiters[key] == nil {
		h.waiters[key] = map[chan struct{}]struct{}{}
	}
	h.waiters[key][wake] = struct{}{}
	return wake, func() { h.unsubscribe(key, wake) }
}

func (h *Hub) unsubscribe(key string, wake chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.waiters[key], wake)
	if len(h.waiters[key]) == 0 {
		delete(h.waiters, key)
	}
}

// Notify wakes every subscriber of the key. It never blocks.
func (h *Hub) Notify(key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for wake := range h.waiters[key] {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}
