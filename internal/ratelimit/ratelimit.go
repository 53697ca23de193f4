// Package ratelimit bounds how often each of many callers may do something: a bucket of tokens for each name, in a
// bounded memory, however many names are invented. What a name stands for, and what happens to whoever asks too often,
// is left to the one who asks; what may pile up at the same time is the business of package inflight.
package ratelimit

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// maxNames bounds how many names have a bucket of their own.
	maxNames = 10_000
	// sweepEvery is how often buckets that are full again are looked for when there is no room for a new one.
	sweepEvery = time.Second
)

// Buckets is a bucket for each name. A bucket that is full again is forgotten when the room is needed; the names that
// find none share one, so that neither memory nor limits can be overrun by inventing names. It is safe for concurrent
// use.
type Buckets struct {
	perSecond rate.Limit
	burst     int

	mu     sync.Mutex
	byName map[string]*rate.Limiter
	rest   *rate.Limiter
	swept  time.Time
}

// New returns buckets that hold burst tokens at first, and get so many per second.
func New(perSecond rate.Limit, burst int) *Buckets {
	return &Buckets{
		perSecond: perSecond, burst: burst,
		byName: map[string]*rate.Limiter{}, rest: rate.NewLimiter(perSecond, burst),
	}
}

// Wait returns how long the name has to wait for a token, zero when there is one. It takes none.
func (b *Buckets) Wait(name string, now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	bucket, found := b.byName[name]
	if !found {
		if len(b.byName) < maxNames {
			return 0
		}
		bucket = b.rest
	}
	return b.untilToken(bucket, now)
}

// Take takes a token and returns zero, or takes none and returns how long the name has to wait for one.
func (b *Buckets) Take(name string, now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	bucket := b.bucket(name, now)
	if bucket.AllowN(now, 1) {
		return 0
	}
	return max(b.untilToken(bucket, now), time.Millisecond)
}

func (b *Buckets) untilToken(bucket *rate.Limiter, now time.Time) time.Duration {
	missing := 1 - bucket.TokensAt(now)
	if missing <= 0 {
		return 0
	}
	return time.Duration(missing / float64(b.perSecond) * float64(time.Second))
}

// bucket returns the bucket of a name, which it makes when there is room; the caller holds mu.
func (b *Buckets) bucket(name string, now time.Time) *rate.Limiter {
	if bucket, found := b.byName[name]; found {
		return bucket
	}
	if len(b.byName) >= maxNames && now.Sub(b.swept) >= sweepEvery {
		b.swept = now
		for other, bucket := range b.byName {
			if bucket.TokensAt(now) >= float64(b.burst) {
				delete(b.byName, other)
			}
		}
	}
	if len(b.byName) >= maxNames {
		return b.rest
	}
	bucket := rate.NewLimiter(b.perSecond, b.burst)
	b.byName[name] = bucket
	return bucket
}
