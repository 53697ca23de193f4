package schedule_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// zoneCases are the firings around both changes of the clocks in 2027, worked out with another implementation of
// time zones: a fixed-time schedule in the middle of the skipped or repeated times, and one that fires every hour.
var zoneCases = []struct{ zone, why, cron, from, next string }{
	{"America/New_York", "gap: 14 Mar 02:00 to 03:00", "30 2 * * *", "2027-03-13T06:30Z", "2027-03-13T07:30Z 2027-03-14T07:00Z 2027-03-15T06:30Z"},
	{"America/New_York", "gap, every hour", "30 * * * *", "2027-03-14T05:45Z", "2027-03-14T06:30Z 2027-03-14T07:30Z 2027-03-14T08:30Z 2027-03-14T09:30Z"},
	{"America/New_York", "overlap: 07 Nov 02:00 to 01:00", "30 1 * * *", "2027-11-06T04:30Z", "2027-11-06T05:30Z 2027-11-07T05:30Z 2027-11-08T06:30Z"},
	{"America/New_York", "overlap, every hour", "30 * * * *", "2027-11-07T04:45Z", "2027-11-07T05:30Z 2027-11-07T06:30Z 2027-11-07T07:30Z 2027-11-07T08:30Z"},
	{"America/St_Johns", "gap: 14 Mar 02:00 to 03:00", "30 2 * * *", "2027-03-13T05:00Z", "2027-03-13T06:00Z 2027-03-14T05:30Z 2027-03-15T05:00Z"},
	{"America/St_Johns", "gap, every hour", "30 * * * *", "2027-03-14T04:15Z", "2027-03-14T05:00Z 2027-03-14T06:00Z 2027-03-14T07:00Z 2027-03-14T08:00Z"},
	{"America/St_Johns", "overlap: 07 Nov 02:00 to 01:00", "30 1 * * *", "2027-11-06T03:00Z", "2027-11-06T04:00Z 2027-11-07T04:00Z 2027-11-08T05:00Z"},
	{"America/St_Johns", "overlap, every hour", "30 * * * *", "2027-11-07T03:15Z", "2027-11-07T04:00Z 2027-11-07T05:00Z 2027-11-07T06:00Z 2027-11-07T07:00Z"},
	{"America/Havana", "gap: 14 Mar 00:00 to 01:00", "30 0 * * *", "2027-03-13T04:30Z", "2027-03-13T05:30Z 2027-03-14T05:00Z 2027-03-15T04:30Z"},
	{"America/Havana", "gap, every hour", "30 * * * *", "2027-03-14T03:45Z", "2027-03-14T04:30Z 2027-03-14T05:30Z 2027-03-14T06:30Z 2027-03-14T07:30Z"},
	{"America/Havana", "overlap: 07 Nov 01:00 to 00:00", "30 0 * * *", "2027-11-06T03:30Z", "2027-11-06T04:30Z 2027-11-07T04:30Z 2027-11-08T05:30Z"},
	{"America/Havana", "overlap, every hour", "30 * * * *", "2027-11-07T03:45Z", "2027-11-07T04:30Z 2027-11-07T05:30Z 2027-11-07T06:30Z 2027-11-07T07:30Z"},
	{"America/Nuuk", "gap: 27 Mar 23:00 to 00:00", "30 23 * * *", "2027-03-27T00:30Z", "2027-03-27T01:30Z 2027-03-28T01:00Z 2027-03-29T00:30Z"},
	{"America/Nuuk", "gap, every hour", "30 * * * *", "2027-03-27T23:45Z", "2027-03-28T00:30Z 2027-03-28T01:30Z 2027-03-28T02:30Z 2027-03-28T03:30Z"},
	{"America/Nuuk", "overlap: 31 Oct 00:00 to 23:00", "30 23 * * *", "2027-10-29T23:30Z", "2027-10-30T00:30Z 2027-10-31T00:30Z 2027-11-01T01:30Z"},
	{"America/Nuuk", "overlap, every hour", "30 * * * *", "2027-10-30T23:45Z", "2027-10-31T00:30Z 2027-10-31T01:30Z 2027-10-31T02:30Z 2027-10-31T03:30Z"},
	{"America/Santiago", "overlap: 04 Apr 00:00 to 23:00", "30 23 * * *", "2027-04-03T01:30Z", "2027-04-03T02:30Z 2027-04-04T02:30Z 2027-04-05T03:30Z"},
	{"America/Santiago", "overlap, every hour", "30 * * * *", "2027-04-04T01:45Z", "2027-04-04T02:30Z 2027-04-04T03:30Z 2027-04-04T04:30Z 2027-04-04T05:30Z"},
	{"America/Santiago", "gap: 05 Sep 00:00 to 01:00", "30 0 * * *", "2027-09-04T03:30Z", "2027-09-04T04:30Z 2027-09-05T04:00Z 2027-09-06T03:30Z"},
	{"America/Santiago", "gap, every hour", "30 * * * *", "2027-09-05T02:45Z", "2027-09-05T03:30Z 2027-09-05T04:30Z 2027-09-05T05:30Z 2027-09-05T06:30Z"},
	{"Atlantic/Azores", "gap: 28 Mar 00:00 to 01:00", "30 0 * * *", "2027-03-27T00:30Z", "2027-03-27T01:30Z 2027-03-28T01:00Z 2027-03-29T00:30Z"},
	{"Atlantic/Azores", "gap, every hour", "30 * * * *", "2027-03-27T23:45Z", "2027-03-28T00:30Z 2027-03-28T01:30Z 2027-03-28T02:30Z 2027-03-28T03:30Z"},
	{"Atlantic/Azores", "overlap: 31 Oct 01:00 to 00:00", "30 0 * * *", "2027-10-29T23:30Z", "2027-10-30T00:30Z 2027-10-31T00:30Z 2027-11-01T01:30Z"},
	{"Atlantic/Azores", "overlap, every hour", "30 * * * *", "2027-10-30T23:45Z", "2027-10-31T00:30Z 2027-10-31T01:30Z 2027-10-31T02:30Z 2027-10-31T03:30Z"},
	{"Europe/London", "gap: 28 Mar 01:00 to 02:00", "30 1 * * *", "2027-03-27T00:30Z", "2027-03-27T01:30Z 2027-03-28T01:00Z 2027-03-29T00:30Z"},
	{"Europe/London", "gap, every hour", "30 * * * *", "2027-03-27T23:45Z", "2027-03-28T00:30Z 2027-03-28T01:30Z 2027-03-28T02:30Z 2027-03-28T03:30Z"},
	{"Europe/London", "overlap: 31 Oct 02:00 to 01:00", "30 1 * * *", "2027-10-29T23:30Z", "2027-10-30T00:30Z 2027-10-31T00:30Z 2027-11-01T01:30Z"},
	{"Europe/London", "overlap, every hour", "30 * * * *", "2027-10-30T23:45Z", "2027-10-31T00:30Z 2027-10-31T01:30Z 2027-10-31T02:30Z 2027-10-31T03:30Z"},
	{"Europe/Berlin", "gap: 28 Mar 02:00 to 03:00", "30 2 * * *", "2027-03-27T00:30Z", "2027-03-27T01:30Z 2027-03-28T01:00Z 2027-03-29T00:30Z"},
	{"Europe/Berlin", "gap, every hour", "30 * * * *", "2027-03-27T23:45Z", "2027-03-28T00:30Z 2027-03-28T01:30Z 2027-03-28T02:30Z 2027-03-28T03:30Z"},
	{"Europe/Berlin", "overlap: 31 Oct 03:00 to 02:00", "30 2 * * *", "2027-10-29T23:30Z", "2027-10-30T00:30Z 2027-10-31T00:30Z 2027-11-01T01:30Z"},
	{"Europe/Berlin", "overlap, every hour", "30 * * * *", "2027-10-30T23:45Z", "2027-10-31T00:30Z 2027-10-31T01:30Z 2027-10-31T02:30Z 2027-10-31T03:30Z"},
	{"Europe/Chisinau", "gap: 28 Mar 02:00 to 03:00", "30 2 * * *", "2027-03-26T23:30Z", "2027-03-27T00:30Z 2027-03-28T00:00Z 2027-03-28T23:30Z"},
	{"Europe/Chisinau", "gap, every hour", "30 * * * *", "2027-03-27T22:45Z", "2027-03-27T23:30Z 2027-03-28T00:30Z 2027-03-28T01:30Z 2027-03-28T02:30Z"},
	{"Europe/Chisinau", "overlap: 31 Oct 03:00 to 02:00", "30 2 * * *", "2027-10-29T22:30Z", "2027-10-29T23:30Z 2027-10-30T23:30Z 2027-11-01T00:30Z"},
	{"Europe/Chisinau", "overlap, every hour", "30 * * * *", "2027-10-30T22:45Z", "2027-10-30T23:30Z 2027-10-31T00:30Z 2027-10-31T01:30Z 2027-10-31T02:30Z"},
	{"Africa/Cairo", "gap: 30 Apr 00:00 to 01:00", "30 0 * * *", "2027-04-28T21:30Z", "2027-04-28T22:30Z 2027-04-29T22:00Z 2027-04-30T21:30Z"},
	{"Africa/Cairo", "gap, every hour", "30 * * * *", "2027-04-29T20:45Z", "2027-04-29T21:30Z 2027-04-29T22:30Z 2027-04-29T23:30Z 2027-04-30T00:30Z"},
	{"Africa/Cairo", "overlap: 29 Oct 00:00 to 23:00", "30 23 * * *", "2027-10-27T19:30Z", "2027-10-27T20:30Z 2027-10-28T20:30Z 2027-10-29T21:30Z"},
	{"Africa/Cairo", "overlap, every hour", "30 * * * *", "2027-10-28T19:45Z", "2027-10-28T20:30Z 2027-10-28T21:30Z 2027-10-28T22:30Z 2027-10-28T23:30Z"},
	{"Africa/Casablanca", "overlap: 07 Feb 03:00 to 02:00", "30 2 * * *", "2027-02-06T00:30Z", "2027-02-06T01:30Z 2027-02-07T01:30Z 2027-02-08T02:30Z"},
	{"Africa/Casablanca", "overlap, every hour", "30 * * * *", "2027-02-07T00:45Z", "2027-02-07T01:30Z 2027-02-07T02:30Z 2027-02-07T03:30Z 2027-02-07T04:30Z"},
	{"Africa/Casablanca", "gap: 14 Mar 02:00 to 03:00", "30 2 * * *", "2027-03-13T01:30Z", "2027-03-13T02:30Z 2027-03-14T02:00Z 2027-03-15T01:30Z"},
	{"Africa/Casablanca", "gap, every hour", "30 * * * *", "2027-03-14T00:45Z", "2027-03-14T01:30Z 2027-03-14T02:30Z 2027-03-14T03:30Z 2027-03-14T04:30Z"},
	{"Asia/Beirut", "gap: 28 Mar 00:00 to 01:00", "30 0 * * *", "2027-03-26T21:30Z", "2027-03-26T22:30Z 2027-03-27T22:00Z 2027-03-28T21:30Z"},
	{"Asia/Beirut", "gap, every hour", "30 * * * *", "2027-03-27T20:45Z", "2027-03-27T21:30Z 2027-03-27T22:30Z 2027-03-27T23:30Z 2027-03-28T00:30Z"},
	{"Asia/Beirut", "overlap: 31 Oct 00:00 to 23:00", "30 23 * * *", "2027-10-29T19:30Z", "2027-10-29T20:30Z 2027-10-30T20:30Z 2027-10-31T21:30Z"},
	{"Asia/Beirut", "overlap, every hour", "30 * * * *", "2027-10-30T19:45Z", "2027-10-30T20:30Z 2027-10-30T21:30Z 2027-10-30T22:30Z 2027-10-30T23:30Z"},
	{"Asia/Jerusalem", "gap: 26 Mar 02:00 to 03:00", "30 2 * * *", "2027-03-24T23:30Z", "2027-03-25T00:30Z 2027-03-26T00:00Z 2027-03-26T23:30Z"},
	{"Asia/Jerusalem", "gap, every hour", "30 * * * *", "2027-03-25T22:45Z", "2027-03-25T23:30Z 2027-03-26T00:30Z 2027-03-26T01:30Z 2027-03-26T02:30Z"},
	{"Asia/Jerusalem", "overlap: 31 Oct 02:00 to 01:00", "30 1 * * *", "2027-10-29T21:30Z", "2027-10-29T22:30Z 2027-10-30T22:30Z 2027-10-31T23:30Z"},
	{"Asia/Jerusalem", "overlap, every hour", "30 * * * *", "2027-10-30T21:45Z", "2027-10-30T22:30Z 2027-10-30T23:30Z 2027-10-31T00:30Z 2027-10-31T01:30Z"},
	{"Antarctica/Troll", "gap: 28 Mar 01:00 to 03:00", "0 2 * * *", "2027-03-27T01:00Z", "2027-03-27T02:00Z 2027-03-28T01:00Z 2027-03-29T00:00Z"},
	{"Antarctica/Troll", "gap, every hour", "0 * * * *", "2027-03-27T23:45Z", "2027-03-28T00:00Z 2027-03-28T01:00Z 2027-03-28T02:00Z 2027-03-28T03:00Z"},
	{"Antarctica/Troll", "overlap: 31 Oct 03:00 to 01:00", "0 2 * * *", "2027-10-29T23:00Z", "2027-10-30T00:00Z 2027-10-31T00:00Z 2027-11-01T02:00Z"},
	{"Antarctica/Troll", "overlap, every hour", "0 * * * *", "2027-10-30T23:45Z", "2027-10-31T00:00Z 2027-10-31T01:00Z 2027-10-31T02:00Z 2027-10-31T03:00Z"},
	{"Australia/Adelaide", "overlap: 04 Apr 03:00 to 02:00", "30 2 * * *", "2027-04-02T15:00Z", "2027-04-02T16:00Z 2027-04-03T16:00Z 2027-04-04T17:00Z"},
	{"Australia/Adelaide", "overlap, every hour", "30 * * * *", "2027-04-03T15:15Z", "2027-04-03T16:00Z 2027-04-03T17:00Z 2027-04-03T18:00Z 2027-04-03T19:00Z"},
	{"Australia/Adelaide", "gap: 03 Oct 02:00 to 03:00", "30 2 * * *", "2027-10-01T16:00Z", "2027-10-01T17:00Z 2027-10-02T16:30Z 2027-10-03T16:00Z"},
	{"Australia/Adelaide", "gap, every hour", "30 * * * *", "2027-10-02T15:15Z", "2027-10-02T16:00Z 2027-10-02T17:00Z 2027-10-02T18:00Z 2027-10-02T19:00Z"},
	{"Australia/Lord_Howe", "overlap: 04 Apr 02:00 to 01:30", "45 1 * * *", "2027-04-02T13:45Z", "2027-04-02T14:45Z 2027-04-03T14:45Z 2027-04-04T15:15Z"},
	{"Australia/Lord_Howe", "overlap, every hour", "45 * * * *", "2027-04-03T13:45Z", "2027-04-03T14:45Z 2027-04-03T15:15Z 2027-04-03T16:15Z 2027-04-03T17:15Z"},
	{"Australia/Lord_Howe", "gap: 03 Oct 02:00 to 02:30", "15 2 * * *", "2027-10-01T14:45Z", "2027-10-01T15:45Z 2027-10-02T15:30Z 2027-10-03T15:15Z"},
	{"Australia/Lord_Howe", "gap, every hour", "15 * * * *", "2027-10-02T14:15Z", "2027-10-02T14:45Z 2027-10-02T16:15Z 2027-10-02T17:15Z 2027-10-02T18:15Z"},
	{"Pacific/Auckland", "overlap: 04 Apr 03:00 to 02:00", "30 2 * * *", "2027-04-02T12:30Z", "2027-04-02T13:30Z 2027-04-03T13:30Z 2027-04-04T14:30Z"},
	{"Pacific/Auckland", "overlap, every hour", "30 * * * *", "2027-04-03T12:45Z", "2027-04-03T13:30Z 2027-04-03T14:30Z 2027-04-03T15:30Z 2027-04-03T16:30Z"},
	{"Pacific/Auckland", "gap: 26 Sep 02:00 to 03:00", "30 2 * * *", "2027-09-24T13:30Z", "2027-09-24T14:30Z 2027-09-25T14:00Z 2027-09-26T13:30Z"},
	{"Pacific/Auckland", "gap, every hour", "30 * * * *", "2027-09-25T12:45Z", "2027-09-25T13:30Z 2027-09-25T14:30Z 2027-09-25T15:30Z 2027-09-25T16:30Z"},
	{"Pacific/Chatham", "overlap: 04 Apr 03:45 to 02:45", "15 3 * * *", "2027-04-02T12:30Z", "2027-04-02T13:30Z 2027-04-03T13:30Z 2027-04-04T14:30Z"},
	{"Pacific/Chatham", "overlap, every hour", "15 * * * *", "2027-04-03T12:45Z", "2027-04-03T13:30Z 2027-04-03T14:30Z 2027-04-03T15:30Z 2027-04-03T16:30Z"},
	{"Pacific/Chatham", "gap: 26 Sep 02:45 to 03:45", "15 3 * * *", "2027-09-24T13:30Z", "2027-09-24T14:30Z 2027-09-25T14:00Z 2027-09-26T13:30Z"},
	{"Pacific/Chatham", "gap, every hour", "15 * * * *", "2027-09-25T12:45Z", "2027-09-25T13:30Z 2027-09-25T14:30Z 2027-09-25T15:30Z 2027-09-25T16:30Z"},
	{"Pacific/Easter", "overlap: 03 Apr 22:00 to 21:00", "30 21 * * *", "2027-04-03T01:30Z", "2027-04-03T02:30Z 2027-04-04T02:30Z 2027-04-05T03:30Z"},
	{"Pacific/Easter", "overlap, every hour", "30 * * * *", "2027-04-04T01:45Z", "2027-04-04T02:30Z 2027-04-04T03:30Z 2027-04-04T04:30Z 2027-04-04T05:30Z"},
	{"Pacific/Easter", "gap: 04 Sep 22:00 to 23:00", "30 22 * * *", "2027-09-04T03:30Z", "2027-09-04T04:30Z 2027-09-05T04:00Z 2027-09-06T03:30Z"},
	{"Pacific/Easter", "gap, every hour", "30 * * * *", "2027-09-05T02:45Z", "2027-09-05T03:30Z 2027-09-05T04:30Z 2027-09-05T05:30Z 2027-09-05T06:30Z"},
}

func TestZones(t *testing.T) {
	t.Parallel()
	zones := map[string]bool{}
	for _, c := range zoneCases {
		zones[c.zone] = true
		t.Run(c.zone+" "+c.why, func(t *testing.T) {
			t.Parallel()
			from := minute(t, c.from)
			var want []time.Time
			for text := range strings.FieldsSeq(c.next) {
				want = append(want, minute(t, text))
			}
			timing := cron(t, c.cron, c.zone, from)
			got := timing.Between(from, from.AddDate(1, 0, 0), len(want))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.cron, diff)
			}
		})
	}
	if len(zones) < 12 {
		t.Errorf("only %d zones", len(zones))
	}
}

// TestZonesOfThePast has changes of the clocks that no zone has any more.
func TestZonesOfThePast(t *testing.T) {
	t.Parallel()
	tests := []struct{ zone, why, cron, from, next string }{
		// Samoa went from -10 to +14 at the end of 29 December 2011: there was no 30 December.
		{"Pacific/Apia", "a skipped day, once", "0 9,17 30 12 *", "2011-12-01T00:00Z", "2011-12-30T10:00Z 2012-12-29T19:00Z"},
		{"Pacific/Apia", "a skipped day, among others", "0 9 * * *", "2011-12-29T00:00Z", "2011-12-29T19:00Z 2011-12-30T10:00Z 2011-12-30T19:00Z"},
		{"Pacific/Apia", "a skipped day, not fixed-time", "0 */12 * * *", "2011-12-29T12:00Z", "2011-12-29T22:00Z 2011-12-30T10:00Z 2011-12-30T22:00Z"},
		// Kwajalein went from -12 to +12 at the start of 21 August 1993.
		{"Pacific/Kwajalein", "a skipped day", "30 6 21 8 *", "1993-08-01T00:00Z", "1993-08-21T12:00Z 1994-08-20T18:30Z"},
		// Alaska repeated a day from the afternoon of 18 October 1867 on, in local mean time, whose offset has seconds.
		{"America/Juneau", "a repeated day", "0 18 18 10 *", "1867-10-01T00:00Z", "1867-10-18T02:57:41Z 1868-10-19T02:57:41Z"},
		{"America/Juneau", "a repeated day, not fixed-time", "0 */9 18 10 *", "1867-10-17T12:00Z", "1867-10-17T17:57:41Z 1867-10-18T02:57:41Z 1867-10-19T02:57:41Z 1868-10-18T08:57:41Z"},
		// Two hours at once, in the war.
		{"Europe/London", "a double summer time", "30 2 * * *", "1941-05-03T12:00Z", "1941-05-04T01:00Z 1941-05-05T00:30Z"},
	}
	for _, c := range tests {
		t.Run(c.zone+" "+c.why, func(t *testing.T) {
			t.Parallel()
			from := minute(t, c.from)
			var want []time.Time
			for text := range strings.FieldsSeq(c.next) {
				want = append(want, minute(t, text))
			}
			got := cron(t, c.cron, c.zone, from).Between(from, from.AddDate(5, 0, 0), len(want))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.cron, diff)
			}
		})
	}
}

// minute returns an instant that may be written without seconds.
func minute(t *testing.T, text string) time.Time {
	t.Helper()
	if len(text) == len("2006-01-02T15:04Z") {
		text = strings.TrimSuffix(text, "Z") + ":00Z"
	}
	return at(t, text)
}

// TestYearEnds crosses the last days of leap years far ahead, where the zone's offsets come from its rule.
func TestYearEnds(t *testing.T) {
	t.Parallel()
	for _, zone := range []string{"America/New_York", "Europe/Berlin", "Australia/Sydney"} {
		timing := cron(t, "0 12 31 12 *", zone, at(t, "2027-01-01T00:00:00Z"))
		after := at(t, "2027-01-01T00:00:00Z")
		loc, err := time.LoadLocation(zone)
		if err != nil {
			t.Fatal(err)
		}
		for year := 2027; year < 2127; year++ {
			got, ok := timing.Next(after)
			if want := time.Date(year, time.December, 31, 12, 0, 0, 0, loc); !ok || !got.Equal(want) {
				t.Fatalf("%s: got %v, want %v", zone, got, want)
			}
			after = got
		}
	}
}
