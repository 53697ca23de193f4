package schedule_test

import (
	"testing"
	"time"

	"github.com/errandhq/errand/automation/schedule"
)

func BenchmarkNext(b *testing.B) {
	base := time.Date(2027, 3, 14, 5, 45, 0, 0, time.UTC)
	for _, c := range []struct {
		name string
		spec schedule.Spec
	}{
		{"every minute", schedule.Spec{Cron: "* * * * *", Timezone: "America/New_York"}},
		{"weekdays at nine", schedule.Spec{Cron: "0 9 * * 1-5", Timezone: "Europe/Berlin"}},
		{"into a gap", schedule.Spec{Cron: "30 2 * * *", Timezone: "America/New_York"}},
		{"leap day", schedule.Spec{Cron: "0 9 29 2 *", Timezone: "UTC"}},
		{"leap day on a Sunday", schedule.Spec{Cron: "0 9 29 2 */7", Timezone: "America/New_York"}},
		{"every 90 minutes", schedule.Spec{Every: "90m"}},
	} {
		timing := parse(b, c.spec, base)
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, ok := timing.Next(base); !ok {
					b.Fatal("never")
				}
			}
		})
	}
}

func BenchmarkParse(b *testing.B) {
	base := time.Date(2027, 3, 14, 5, 45, 0, 0, time.UTC)
	for _, c := range []struct{ name, cron string }{
		{"weekdays at nine", "0 9 * * 1-5"}, {"never", "0 9 30 2 *"}, {"always in a gap", "*/30 2 * 3 SUN#2"},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _, err := schedule.Parse(schedule.Spec{Cron: c.cron, Timezone: "America/New_York"}, base, base)
				if (err == nil) != (c.name == "weekdays at nine") {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkDecide(b *testing.B) {
	now := time.Date(2027, 3, 31, 5, 45, 30, 0, time.UTC)
	for _, c := range []struct {
		name    string
		spec    schedule.Spec
		backlog time.Duration
	}{
		{"nothing due", schedule.Spec{Cron: "0 9 * * *", Timezone: "Europe/Berlin"}, time.Minute},
		{"one due", schedule.Spec{Cron: "* * * * *", Timezone: "Europe/Berlin"}, time.Minute},
		{"minutely, 30 days down", schedule.Spec{Cron: "* * * * *", Timezone: "Europe/Berlin"}, 30 * 24 * time.Hour},
		{"every second, a year down", schedule.Spec{Every: "1s"}, 365 * 24 * time.Hour},
	} {
		created := now.Add(-c.backlog)
		policy := schedule.DefaultPolicy()
		policy.Jitter = time.Minute
		state := schedule.New("s", parse(b, c.spec, created), policy, created)
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				schedule.Decide(state, now)
			}
		})
	}
}
