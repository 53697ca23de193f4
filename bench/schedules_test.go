//go:build unix

package bench_test

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite" // the ledger's driver

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/apptest"
)

const (
	// metronomes are schedules that fire every second, beats times each.
	metronomes, beats = 6, 50
	// crowded is how many schedules are due in the same minute, idle how many are due another day, missing how many are
	// due every minute while errandd is away.
	crowded, idle, missing = 2000, 10_000, 200
	// perAutomation is how many schedules one automation has here: the most it may.
	perAutomation = automation.MaxSchedules
	// patience bounds every wait of these benchmarks.
	patience = 20 * time.Minute
)

// BenchmarkSchedules measures how late schedules fire and what many of them cost.
func BenchmarkSchedules(b *testing.B) {
	b.Run("lag", benchmarkLag)
	b.Run("crowd", benchmarkCrowd)
	b.Run("catchup", benchmarkCatchUp)
	b.Run("idle", benchmarkIdle)
}

// schedule makes an automation of one step with so many equal schedules.
func (o *ours) schedule(count int, schedule map[string]any) string {
	return o.server.Create(map[string]any{
		"name": fmt.Sprintf("%d schedules", count), "schedules": repeated(count, schedule),
		"workflow": map[string]any{"compiled": map[string]any{"version": 2, "steps": []any{
			map[string]any{"id": "s", "kind": "command", "command": "true"},
		}}},
	})
}

func repeated(count int, schedule map[string]any) []any {
	list := make([]any, count)
	for i := range list {
		list[i] = schedule
	}
	return list
}

// firings returns the runs of automations by schedules, and fails when a schedule has two for one instant.
func (o *ours) firings(b *testing.B, automations []string) []automation.Run {
	b.Helper()
	var runs []automation.Run
	seen := map[string]bool{}
	for _, id := range automations {
		for cursor := ""; ; {
			code, body := o.server.Get("/v1/runs?trigger=schedule&limit=200&automation_id=" + id + "&cursor=" + cursor)
			var page struct {
				Runs       []automation.Run
				NextCursor string `json:"next_cursor"`
			}
			if err := json.Unmarshal(body, &page); err != nil || code != http.StatusOK {
				b.Fatalf("reading runs: %d %s", code, body)
			}
			for _, run := range page.Runs {
				key := fmt.Sprint(run.Trigger.ID, run.Trigger.ScheduledAt)
				if seen[key] {
					b.Fatalf("schedule %s has two runs for %s", run.Trigger.ID, run.Trigger.ScheduledAt)
				}
				seen[key] = true
			}
			runs = append(runs, page.Runs...)
			if cursor = page.NextCursor; cursor == "" {
				break
			}
		}
	}
	return runs
}

// awaitFirings waits until schedules have admitted so many runs, and returns them.
func (o *ours) awaitFirings(b *testing.B, automations []string, count int) (runs []automation.Run) {
	b.Helper()
	apptest.Eventually(b, patience, fmt.Sprint(count, " runs are admitted"), func() (string, bool) {
		runs = o.firings(b, automations)
		return fmt.Sprint(len(runs)), len(runs) >= count
	})
	if len(runs) != count {
		b.Fatalf("%d runs were admitted, not %d", len(runs), count)
	}
	return runs
}

// lags returns how long after their instants runs were admitted, in a unit.
func lags(runs []automation.Run, unit time.Duration) (list sample) {
	for _, run := range runs {
		list = append(list, float64(run.CreatedAt.Sub(*run.Trigger.ScheduledAt))/float64(unit))
	}
	return list
}

func benchmarkLag(b *testing.B) {
	o := startOurs(b)
	id := o.schedule(metronomes, map[string]any{"every": "1s", "maxOccurrences": beats, "overlap": "parallel"})
	runs := o.awaitFirings(b, []string{id}, metronomes*beats)
	record(b, &measurement{What: "admission after the instant, 6 schedules every second", Unit: "ms"},
		[]string{"errand"}, []sample{lags(runs, time.Millisecond)})
}

func benchmarkCrowd(b *testing.B) {
	o := startOurs(b)
	// Far enough ahead for Temporal to learn of all of them.
	at := time.Now().UTC().Add(90 * time.Second).Truncate(time.Minute).Add(time.Minute)
	var ids []string
	for range crowded / perAutomation {
		ids = append(ids, o.schedule(perAutomation, map[string]any{
			"cron": fmt.Sprintf("%d %d * * *", at.Minute(), at.Hour()), "timezone": "UTC", "overlap": "parallel",
		}))
	}
	if !time.Now().Before(at) {
		b.Fatal("the computer is too slow to create the schedules before they are due")
	}
	runs := o.awaitFirings(b, ids, crowded)
	record(b, &measurement{What: "admission after the instant, 2,000 schedules in one minute", Unit: "s"},
		[]string{"errand"}, []sample{lags(runs, time.Second)})
}

// benchmarkCatchUp stops errandd, puts the ledger 8 hours back, so that as many are missed, and starts it again.
func benchmarkCatchUp(b *testing.B) {
	o := startOurs(b)
	var ids []string
	for range missing / perAutomation {
		ids = append(ids, o.schedule(perAutomation, map[string]any{"cron": "* * * * *", "timezone": "UTC"}))
	}
	before := len(o.firings(b, ids))
	o.server.Interrupt()
	ledger, err := sql.Open("sqlite", filepath.Join(o.server.DataDir(), "errand.db"))
	if err != nil {
		b.Fatal(err)
	}
	away := (8 * time.Hour).Microseconds()
	if _, err := ledger.ExecContext(b.Context(), `UPDATE schedules SET settled_until = settled_until - $1, next_wake = next_wake - $1`, away); err != nil {
		b.Fatal(err)
	}
	if err := ledger.Close(); err != nil {
		b.Fatal(err)
	}
	// A new minute would be another instant of each.
	<-time.After(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute + 2*time.Second)))
	began := time.Now()
	o.server.Restart()
	runs := o.awaitFirings(b, ids, before+missing)
	last := began
	for _, run := range runs {
		if run.CreatedAt.After(last) {
			last = run.CreatedAt
		}
	}
	record(b, &measurement{What: "200 schedules every minute after 8 h without errandd, from its start to the last admission", Unit: "s"},
		[]string{"errand"}, []sample{{last.Sub(began).Seconds()}})
}

// benchmarkIdle measures what schedules cost that are not due: after they were created, and after a restart.
func benchmarkIdle(b *testing.B) {
	o := startOurs(b)
	weigh := func(when string) {
		<-time.After(calm)
		before, from := processorSeconds(b, o.server.PID()), time.Now()
		<-time.After(calm)
		share := (processorSeconds(b, o.server.PID()) - before) / time.Since(from).Seconds()
		record(b, &measurement{What: "errandd " + when + ", share of one processor", Unit: "%"}, []string{"errandd"}, []sample{{100 * share}})
		record(b, &measurement{What: "errandd " + when + ", memory", Unit: "MiB"}, []string{"errandd"},
			[]sample{{float64(apptest.ResidentBytes(o.server.PID())) / (1 << 20)}})
	}
	weigh("without schedules")
	at := time.Now().UTC().Add(12 * time.Hour)
	began := time.Now()
	for range idle / perAutomation {
		o.schedule(perAutomation, map[string]any{"cron": fmt.Sprintf("%d %d * * *", at.Minute(), at.Hour()), "timezone": "UTC"})
	}
	ledger, err := sql.Open("sqlite", filepath.Join(o.server.DataDir(), "errand.db")+"?mode=ro")
	if err != nil {
		b.Fatal(err)
	}
	defer ledger.Close()
	apptest.Eventually(b, patience, "Temporal has all schedules", func() (string, bool) {
		var left int
		err := ledger.QueryRowContext(b.Context(), `SELECT count(*) FROM schedules WHERE synced_generation < generation`).Scan(&left)
		return fmt.Sprint(left, " left ", err), err == nil && left == 0
	})
	record(b, &measurement{What: "10,000 schedules, from the first call until Temporal has the last", Unit: "s"},
		[]string{"errand"}, []sample{{time.Since(began).Seconds()}})
	weigh("with 10,000 schedules that are not due")
	o.server.Interrupt()
	o.server.Restart()
	weigh("with 10,000 schedules that are not due, after a restart")
}

// processorSeconds returns the processor time that a process has used.
func processorSeconds(b *testing.B, pid int) float64 {
	b.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Skip("only Linux tells: ", err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	total := 0.0
	for _, field := range fields[11:13] { // user and system time, in hundredths
		value, err := strconv.ParseFloat(field, 64)
		if err != nil {
			b.Fatal(err)
		}
		total += value / 100
	}
	return total
}
