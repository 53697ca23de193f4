package hooks

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// sweepEvery is how often buckets that are full again are looked for when there is no room for a new one.
const sweepEvery = time.Second

// limiters is a token bucket for each of at most so many names. A bucket that is full again is forgotten when the
// room is needed; the names that find none share one, so that neither memory nor limits can be overrun by inventing
// names.
type limiters struct {
	limit rate.Limit
	burst int
	most  int

	mu     sync.Mutex
	byName map[string]*rate.Limiter
	rest   *rate.Limiter
	swept  time.Time
}

func newLimiters(perSecond rate.Limit, burst, most int) *limiters {
	return &limiters{
		limit: perSecond, burst: burst, most: most,
		byName: map[string]*rate.Limiter{}, rest: rate.NewLimiter(perSecond, burst),
	}
}

// wait returns how long the name has to wait for a token, zero when there is one. It takes none.
func (l *limiters) wait(name string, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	bucket, found := l.byName[name]
	if !found {
		if len(l.byName) < l.most {
			return 0
		}
		bucket = l.rest
	}
	missing := 1 - bucket.TokensAt(now)
	if missing <= 0 {
		return 0
	}
	return time.Duration(missing / float64(l.limit) * float64(time.Second))
}

// take takes a token, or returns how long the name has to wait for one.
func (l *limiters) take(name string, now time.Time) time.Duration {
	l.mu.Lock()
	bucket := l.bucket(name, now)
	l.mu.Unlock()
	if bucket.AllowN(now, 1) {
		return 0
	}
	return max(l.wait(name, now), time.Millisecond)
}

// bucket returns the bucket of a name, which it makes when there is room.
func (l *limiters) bucket(name string, now time.Time) *rate.Limiter {
	if bucket, found := l.byName[name]; found {
		return bucket
	}
	if len(l.byName) >= l.most && now.Sub(l.swept) >= sweepEvery {
		l.swept = now
		for other, bucket := range l.byName {
			if bucket.TokensAt(now) >= float64(l.burst) {
				delete(l.byName, other)
			}
		}
	}
	if len(l.byName) >= l.most {
		return l.rest
	}
	bucket := rate.NewLimiter(l.limit, l.burst)
	l.byName[name] = bucket
	return bucket
}
