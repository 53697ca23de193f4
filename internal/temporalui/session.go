package temporalui

import (
	"sync"
	"time"
)

// cookieName is the cookie that holds the id of a session.
const cookieName = "errand_temporal"

// maxSessions bounds what a program can make the guard remember that signs in again and again. The oldest go first.
const maxSessions = 100

// session is what stands behind a cookie. It keeps the token, so that it ends when the token does.
type session struct {
	token string
	ends  time.Time
}

// sessions are those of this process.
type sessions struct {
	newSecret func() string
	now       func() time.Time

	mutex sync.Mutex
	byID  map[string]session
}

func newSessions(newSecret func() string, now func() time.Time) *sessions {
	return &sessions{newSecret: newSecret, now: now, byID: make(map[string]session)}
}

// begin starts a session and returns its id.
func (s *sessions) begin(token string) string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	now := s.now()
	oldest := ""
	for id, other := range s.byID {
		if !now.Before(other.ends) {
			delete(s.byID, id)
		} else if oldest == "" || other.ends.Before(s.byID[oldest].ends) {
			oldest = id
		}
	}
	if len(s.byID) >= maxSessions {
		delete(s.byID, oldest)
	}
	id := s.newSecret()
	s.byID[id] = session{token: token, ends: now.Add(SessionLife)}
	return id
}

// token returns the token of a session that has not ended.
func (s *sessions) token(id string) (string, bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	found, ok := s.byID[id]
	return found.token, ok && s.now().Before(found.ends)
}
