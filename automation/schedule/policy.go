package schedule

import (
	"fmt"
	"slices"
	"time"

	"github.com/errandhq/errand/internal/strictjson"
)

// Overlap is what a firing does while earlier runs of its schedule are unfinished.
type Overlap string

// The overlap policies.
const (
	// OverlapQueue admits every firing; the runs execute one after another, in order. The default.
	OverlapQueue Overlap = "queue"
	// OverlapParallel admits every firing; the runs execute beside each other.
	OverlapParallel Overlap = "parallel"
	// OverlapSkip drops a firing while a run is unfinished.
	OverlapSkip Overlap = "skip"
	// OverlapQueueOne drops a firing while a run waits to begin: at most one waits.
	OverlapQueueOne Overlap = "queue_one"
	// OverlapCancelRunning admits every firing and cancels the earlier runs; the new one starts when they have ended.
	OverlapCancelRunning Overlap = "cancel_running"
)

// Overlaps are all overlap policies.
var Overlaps = []Overlap{OverlapQueue, OverlapParallel, OverlapSkip, OverlapQueueOne, OverlapCancelRunning}

// UnmarshalStrict implements [strictjson.Unmarshaler].
func (o *Overlap) UnmarshalStrict(v strictjson.Value) { oneOf(v, o, Overlaps) }

// CatchUp is what becomes of instants that were missed.
type CatchUp string

// The catch-up policies.
const (
	// CatchUpLatest admits the most recent missed instant, unless a later instant is due. The default.
	CatchUpLatest CatchUp = "latest"
	// CatchUpAll admits every missed instant, in order.
	CatchUpAll CatchUp = "all"
	// CatchUpNone admits none.
	CatchUpNone CatchUp = "none"
)

// CatchUps are all catch-up policies.
var CatchUps = []CatchUp{CatchUpLatest, CatchUpAll, CatchUpNone}

// UnmarshalStrict implements [strictjson.Unmarshaler].
func (c *CatchUp) UnmarshalStrict(v strictjson.Value) { oneOf(v, c, CatchUps) }

func oneOf[T ~string](v strictjson.Value, target *T, known []T) {
	var text string
	if !v.Decode(&text) {
		return
	}
	*target = T(text)
	if !slices.Contains(known, *target) {
		v.Report("%q is not known; write one of %q", text, known)
	}
}

// Limits and defaults of a [Policy].
const (
	DefaultCatchUpWindow = 24 * time.Hour
	MaxCatchUpWindow     = 366 * 24 * time.Hour
	MaxJitter            = 24 * time.Hour
	// MostOccurrences is the greatest maxOccurrences.
	MostOccurrences = 1_000_000_000
)

// Policy is what a schedule does with its instants.
type Policy struct {
	Overlap Overlap
	CatchUp CatchUp
	// CatchUpWindow is how late a missed instant may be and still be caught up; milliseconds, up to MaxCatchUpWindow.
	CatchUpWindow time.Duration
	// Jitter is below what an instant is delayed; milliseconds, up to MaxJitter.
	Jitter time.Duration
	// MaxOccurrences is how many runs are admitted in all; 0 is no limit.
	MaxOccurrences int64
}

// DefaultPolicy returns the policy of a schedule whose author said nothing.
func DefaultPolicy() Policy {
	return Policy{Overlap: OverlapQueue, CatchUp: CatchUpLatest, CatchUpWindow: DefaultCatchUpWindow}
}

// PolicyInput is the members of a [Policy] as they are sent, made to be embedded in the input of a command. null is
// the same as absent.
type PolicyInput struct {
	MaxOccurrences *Occurrences  `json:"maxOccurrences" doc:"how many runs are admitted in all, at least 1; default: no limit"`
	Overlap        *Overlap      `json:"overlap" enum:"queue,parallel,skip,queue_one,cancel_running" doc:"what a firing does while earlier runs are unfinished: queue, parallel, skip, queue_one or cancel_running; default queue"`
	CatchUp        *CatchUp      `json:"catchUp" enum:"latest,all,none" doc:"which missed instants are caught up: latest, all or none; default latest"`
	CatchUpWindow  *WindowMillis `json:"catchUpWindowMs" doc:"how late a missed instant may be and still be caught up; default 24 hours"`
	Jitter         *JitterMillis `json:"jitterMs" doc:"delays each admission by a stable amount below this, at most 24 hours; default 0"`
}

// Policy returns what was sent over the defaults.
func (in PolicyInput) Policy() Policy {
	p := DefaultPolicy()
	if in.MaxOccurrences != nil {
		p.MaxOccurrences = int64(*in.MaxOccurrences)
	}
	if in.Overlap != nil {
		p.Overlap = *in.Overlap
	}
	if in.CatchUp != nil {
		p.CatchUp = *in.CatchUp
	}
	if in.CatchUpWindow != nil {
		p.CatchUpWindow = time.Duration(*in.CatchUpWindow) * time.Millisecond
	}
	if in.Jitter != nil {
		p.Jitter = time.Duration(*in.Jitter) * time.Millisecond
	}
	return p
}

// Occurrences is a number of runs, at least 1.
type Occurrences int64

// UnmarshalStrict implements [strictjson.Unmarshaler].
func (o *Occurrences) UnmarshalStrict(v strictjson.Value) {
	inRange(v, (*int64)(o), 1, MostOccurrences, "")
}

// WindowMillis is a catch-up window in milliseconds.
type WindowMillis int64

// UnmarshalStrict implements [strictjson.Unmarshaler].
func (w *WindowMillis) UnmarshalStrict(v strictjson.Value) {
	inRange(v, (*int64)(w), 0, MaxCatchUpWindow.Milliseconds(), " (366 days)")
}

// JitterMillis is a jitter in milliseconds.
type JitterMillis int64

// UnmarshalStrict implements [strictjson.Unmarshaler].
func (j *JitterMillis) UnmarshalStrict(v strictjson.Value) {
	inRange(v, (*int64)(j), 0, MaxJitter.Milliseconds(), " (24 hours)")
}

func inRange(v strictjson.Value, n *int64, least, most int64, gloss string) {
	if v.Decode(n) && (*n < least || *n > most) {
		v.Report("is %d; write a number from %d to %s", *n, least, fmt.Sprint(most)+gloss)
	}
}
