package schedule

import (
	"fmt"
	"math"
	"regexp"
	"strings"
	"sync"
	"time"
)

const (
	minuteSeconds = 60
	dayMinutes    = 24 * 60
	daySeconds    = 24 * 60 * 60

	// maxShift is more than any two offsets of one zone differ by, in seconds. The widest shifts were days that a
	// country skipped or repeated when it crossed the date line.
	maxShift = 3 * daySeconds

	// firstInstant and lastInstant are the Unix times between which instants exist: those that RFC 3339 can write.
	firstInstant = -62135596800
	lastInstant  = 253402300799

	farPast   = math.MinInt64 / 4
	farFuture = math.MaxInt64 / 4
)

// span is a stretch of time in which a zone has one offset, from start to before end, in Unix seconds. Two
// neighbouring spans may have the same offset.
type span struct {
	start, end int64
	offset     int64
}

// spanAt returns the span that holds the instant t.
func spanAt(zone *time.Location, t int64) span {
	at := time.Unix(t, 0).In(zone)
	_, offset := at.Zone()
	s := span{start: farPast, end: farFuture, offset: int64(offset)}
	from, to := at.ZoneBounds()
	if !from.IsZero() {
		s.start = from.Unix()
	}
	if !to.IsZero() {
		s.end = to.Unix()
	}
	// Beyond the zone's table of transitions the package time computes them year by year from a rule, and takes
	// each year for 365 days: on the last day of a leap year the span would have ended already.
	if s.end <= t {
		s.end = time.Date(time.Unix(t, 0).UTC().Year()+1, time.January, 1, 0, 0, 0, 0, time.UTC).Unix()
	}
	return s
}

// shownBefore returns the local time, in seconds, up to which the clocks of the zone had run when s began. Where
// clocks went forward it is less than the local time at the start of s: the times between were skipped. Where they
// went back it is more: the times up to it are repeated. One look back suffices: no zone has ever changed its clocks
// twice within maxShift. The first span of a zone has nothing before it.
func shownBefore(zone *time.Location, s span) int64 {
	return s.start + spanAt(zone, s.start-1).offset
}

// firstShown returns the first instant at which the clocks of the zone show the local time, in seconds, or a later
// one.
func firstShown(zone *time.Location, local int64) int64 {
	for s := spanAt(zone, local-maxShift); ; s = spanAt(zone, s.end) {
		if t := local - s.offset; t < s.end {
			return max(t, s.start)
		}
	}
}

// wall returns what the clock shows at the local time, in seconds, as a time in UTC.
func wall(local int64) time.Time { return time.Unix(local, 0).UTC() }

// zones remembers the zones that have been loaded, by name: a load reads files, and a server asks for the zone of
// every schedule again and again.
var zones sync.Map // string → *time.Location

// loadZone returns the zone of an IANA name. The error says what to write instead.
func loadZone(name string) (*time.Location, error) {
	if zone, ok := zones.Load(name); ok {
		return zone.(*time.Location), nil
	}
	if err := checkZoneName(name); err != nil {
		return nil, err
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, unknownZone(name)
	}
	cached, _ := zones.LoadOrStore(name, zone)
	return cached.(*time.Location), nil
}

// checkZoneName refuses names that some hosts know, and that mean something else on each or count leap seconds.
func checkZoneName(name string) error {
	first, _, _ := strings.Cut(name, "/")
	switch strings.ToLower(first) {
	case "local", "localtime", "posixrules":
		return fmt.Errorf("%q is the zone of whichever machine reads it; write the name of one, such as Europe/Berlin", name)
	case "posix", "right", "factory":
		return fmt.Errorf("%q is not a zone of the IANA database; write a name such as Europe/Berlin", name)
	}
	// Hosts take an odd path, such as Europe//Berlin, for the file that it leads to.
	if len(name) > maxZoneName || !zoneName.MatchString(name) {
		return unknownZone(name)
	}
	return nil
}

const maxZoneName = 100

var zoneName = regexp.MustCompile(`^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$`)

func unknownZone(name string) error {
	if len(name) > maxZoneName {
		return fmt.Errorf("is %d bytes; write an IANA name, such as Europe/Berlin, or UTC", len(name))
	}
	if strings.ContainsAny(name, "+:") || strings.HasPrefix(name, "-") {
		return fmt.Errorf("%q is an offset, not a zone; write the IANA name of a place, such as Europe/Berlin, or UTC", name)
	}
	for _, near := range nearZoneNames(name) {
		if !zoneName.MatchString(near) || near == name {
			continue
		}
		if _, err := time.LoadLocation(near); err == nil {
			return fmt.Errorf("%q is not a known zone; did you mean %q?", name, near)
		}
	}
	return fmt.Errorf("%q is not a known zone; write an IANA name, such as Europe/Berlin, or UTC", name)
}

// nearZoneNames returns the name as zones are usually spelled: America/New_York, UTC.
func nearZoneNames(name string) []string {
	spaced := strings.ReplaceAll(strings.TrimSpace(name), " ", "_")
	title := []byte(strings.ToLower(spaced))
	for i, c := range title {
		if (i == 0 || title[i-1] == '/' || title[i-1] == '_') && 'a' <= c && c <= 'z' {
			title[i] = c - 'a' + 'A'
		}
	}
	return []string{spaced, string(title), strings.ToUpper(spaced)}
}
