package process

import "sync"

// ownChildren holds the numbers of the processes that this package started and has not reaped yet.
var ownChildren childSet

// childSet is a set of process numbers. The zero value is empty.
type childSet struct {
	mu   sync.Mutex
	pids map[int]struct{}
	// changed gets a token when a number was removed, if anyone listens.
	changed chan struct{}
}

func (s *childSet) add(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pids == nil {
		s.pids = map[int]struct{}{}
	}
	s.pids[pid] = struct{}{}
}

func (s *childSet) remove(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pids, pid)
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *childSet) has(pid int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.pids[pid]
	return ok
}

// listen returns the channel that tells of removed numbers.
func (s *childSet) listen() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{}, 1)
	}
	return s.changed
}
