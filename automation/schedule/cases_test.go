package schedule_test

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/automation/schedule"
)

// fieldCases is cases/cron.json: situations that broke other schedulers.
type fieldCases struct {
	Valid []struct {
		Why, Cron, Timezone string
		From                time.Time
		Next                []time.Time
	}
	Invalid []struct{ Why, Cron string }
}

func loadCases(t testing.TB) fieldCases {
	t.Helper()
	data, err := os.ReadFile("testdata/cron.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases fieldCases
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases.Valid) < 30 || len(cases.Invalid) < 20 {
		t.Fatalf("read only %d valid and %d invalid cases", len(cases.Valid), len(cases.Invalid))
	}
	return cases
}

func TestFieldCases(t *testing.T) {
	t.Parallel()
	for _, c := range loadCases(t).Valid {
		t.Run(c.Why, func(t *testing.T) {
			t.Parallel()
			timing := cron(t, c.Cron, c.Timezone, c.From)
			got := timing.Between(c.From, c.From.AddDate(1000, 0, 0), len(c.Next))
			if diff := cmp.Diff(c.Next, got); diff != "" {
				t.Errorf("%s in %s (-want +got):\n%s", c.Cron, c.Timezone, diff)
			}
		})
	}
}

func TestFieldCasesRefused(t *testing.T) {
	t.Parallel()
	// What each message must name: the case's own why, in our words.
	names := map[string]string{
		"never fires": "never fires", "six fields": "has 6 fields", "fifth at most": "from 1 to 5",
		"malformed": "", "out of range": "out of range", "unknown name": "did you mean SUN",
		"range start after end": "starts after its end", "zero step": "step 0", "use every": `"every": "5m"`,
		"not a time": "not a time", "use *": "write *", "unsupported": "not supported", "empty": "empty",
		"four fields": "has 4 of five fields", "not numbers": "not a number", "empty list item": "empty item",
		"zone belongs in timezone": `"timezone": "UTC" and "cron": "0 9 * * *"`,
	}
	now := at(t, "2026-12-01T00:00:00Z")
	for _, c := range loadCases(t).Invalid {
		name, ok := names[c.Why]
		if !ok {
			t.Errorf("no words for the case %q", c.Why)
		}
		_, _, err := schedule.Parse(schedule.Spec{Cron: c.Cron, Timezone: "UTC"}, now, now)
		var invalid *schedule.InvalidError
		if !errors.As(err, &invalid) {
			t.Errorf("%q (%s) was not refused: %v", c.Cron, c.Why, err)
			continue
		}
		if v := invalid.Violations[0]; v.Path != "cron" || !strings.Contains(v.Message, name) {
			t.Errorf("%q: %s %s; want it to say %q", c.Cron, v.Path, v.Message, name)
		}
	}
}

// cron returns the timing of an expression that must be accepted.
func cron(t testing.TB, expression, zone string, now time.Time) schedule.Timing {
	t.Helper()
	return parse(t, schedule.Spec{Cron: expression, Timezone: zone}, now)
}

// parse returns the timing of a spec that must be accepted at the time now.
func parse(t testing.TB, spec schedule.Spec, now time.Time) schedule.Timing {
	t.Helper()
	timing, _, err := schedule.Parse(spec, now, now)
	if err != nil {
		t.Fatalf("%+v: %v", spec, err)
	}
	return timing
}

func at(t testing.TB, text string) time.Time {
	t.Helper()
	instant, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatal(err)
	}
	return instant
}
