package metrics_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/automation/schedule"
	"github.com/errandhq/errand/internal/metrics"
)

// world is metrics with sources that a test sets.
type world struct {
	*metrics.Metrics
	mu       sync.Mutex
	now      time.Time
	takes    time.Duration // a census
	ping     error
	log      strings.Builder
	census   automation.Census
	err      error
	asked    int
	engineUp bool
}

func newWorld() *world {
	w := &world{now: time.Unix(1_800_000_000, 0), engineUp: true}
	w.Metrics = metrics.New(metrics.Options{
		Version: "v1", Now: func() time.Time { return w.now }, Logger: slog.New(slog.NewTextHandler(&w.log, nil)),
	})
	w.Watch(metrics.Sources{
		Ping: func(context.Context) error { return w.ping },
		Census: func(_ context.Context, engineUp bool) (automation.Census, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.asked++
			w.now = w.now.Add(w.takes)
			if engineUp != w.engineUp {
				return automation.Census{}, errors.New("it is told the wrong thing of the engine")
			}
			return w.census, w.err
		},
		EngineUp:         func() bool { return w.engineUp },
		OpenPolls:        func() int { return 3 },
		RunRepairs:       func() map[string]int64 { return map[string]int64{"restarted": 2, "cancelled": 0} },
		ScheduleRepairs:  func() map[string]int64 { return map[string]int64{"created": 4} },
		UnknownWorkflows: func() int { return 5 },
	})
	return w
}

// scrape returns the text that is exposed.
func (w *world) scrape(t *testing.T) string {
	t.Helper()
	answer := httptest.NewRecorder()
	w.Handler().ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	if answer.Code != http.StatusOK {
		t.Fatalf("%d %s", answer.Code, answer.Body)
	}
	return answer.Body.String()
}

func wantLines(t *testing.T, text string, lines ...string) {
	t.Helper()
	there := strings.Split(text, "\n")
	for _, line := range lines {
		if !slices.Contains(there, line) {
			t.Errorf("%q is missing", line)
		}
	}
}

func TestEverythingIsCounted(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.RunAdmitted(automation.TriggerSchedule)
	w.RunEnded(automation.RunFailed)
	w.StepBegun(automation.KindScript)
	w.StepInterrupted(automation.KindAction)
	w.StepEnded(automation.KindCommand, automation.StepSkipped)
	w.InstantAdmitted(3 * time.Second)
	w.InstantsDropped(schedule.ReasonMissed, 7)
	w.DeliveryAnswered("")
	w.DeliveryAnswered(automation.CodePayloadTooLarge)
	w.CallAnswered("GET", "/v1/runs/{run_id}", 404, 20*time.Millisecond)
	w.CredentialRefused(automation.CredentialToken)
	w.CallLimited(automation.LimitMachine)
	w.census = automation.Census{Enrolled: 9, Online: 8, Unfinished: map[automation.RunStanding]int{
		{Status: automation.RunRunning}:                                       6,
		{Status: automation.RunPending, Waits: automation.WaitMachineOffline}: 10_000,
	}}
	wantLines(t, w.scrape(t),
		`errand_runs_admitted_total{trigger="schedule"} 1`, `errand_runs_admitted_total{trigger="manual"} 0`,
		`errand_runs_ended_total{status="failed"} 1`,
		`errand_steps_begun_total{kind="script"} 1`, `errand_steps_interrupted_total{kind="action"} 1`,
		`errand_steps_ended_total{kind="command",status="skipped"} 1`, `errand_steps_ended_total{kind="action",status="failed"} 0`,
		`errand_schedule_lag_seconds_bucket{le="2"} 0`, `errand_schedule_lag_seconds_bucket{le="5"} 1`,
		`errand_schedule_drops_total{reason="missed"} 7`, `errand_schedule_drops_total{reason="overlap"} 0`,
		`errand_webhook_deliveries_total{outcome="ok"} 1`, `errand_webhook_deliveries_total{outcome="payload_too_large"} 1`,
		`errand_http_requests_total{method="GET",route="/v1/runs/{run_id}",status="4xx"} 1`,
		`errand_http_request_duration_seconds_bucket{method="GET",route="/v1/runs/{run_id}",le="0.025"} 1`,
		`errand_credentials_refused_total{credential="token"} 1`, `errand_rate_limited_total{limit="machine"} 1`,
		`errand_runs_unfinished{status="running",waiting_for="none"} 6`,
		`errand_runs_unfinished{status="pending",waiting_for="machine_offline"} 10000`,
		`errand_runs_unfinished{status="pending",waiting_for="dispatch_stalled"} 0`,
		`errand_machines_enrolled 9`, `errand_machines_online 8`, `errand_gateway_polls_open 3`,
		`errand_run_repairs_total{repair="restarted"} 2`, `errand_run_repairs_total{repair="cancelled"} 0`,
		`errand_schedule_repairs_total{repair="created"} 4`, `errand_unknown_workflows 5`,
		`errand_engine_up 1`, `errand_database_up 1`,
	)
}

func TestTheDatabaseIsAskedSeldom(t *testing.T) {
	t.Parallel()
	w := newWorld()
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() { w.scrape(t) })
	}
	group.Wait()
	w.now = w.now.Add(10*time.Second - 1)
	w.scrape(t)
	if w.asked != 1 {
		t.Errorf("asked %d times within ten seconds", w.asked)
	}
	w.now = w.now.Add(1)
	w.scrape(t)
	if w.asked != 2 {
		t.Errorf("asked %d times in ten seconds, want 2", w.asked)
	}
	w.now = w.now.Add(-time.Hour) // a clock that was put back
	w.scrape(t)
	if w.asked != 3 {
		t.Errorf("asked %d times after the clock was put back, want 3", w.asked)
	}
	w.now, w.takes = w.now.Add(time.Minute), 3*time.Second // very many runs
	w.scrape(t)
	w.now = w.now.Add(time.Minute - 1)
	w.scrape(t)
	if w.asked != 4 {
		t.Errorf("asked %d times when one takes three seconds, want 4", w.asked)
	}
	w.now = w.now.Add(1)
	w.scrape(t)
	if w.asked != 5 {
		t.Errorf("asked %d times a minute after one that took three seconds, want 5", w.asked)
	}
}

func TestWithoutDatabaseAndEngine(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.engineUp, w.ping = false, errors.New("it is away")
	text := w.scrape(t)
	wantLines(t, text, "errand_database_up 0", "errand_engine_up 0", `errand_run_repairs_total{repair="restarted"} 2`)
	for _, name := range []string{"errand_runs_unfinished", "errand_machines_online"} {
		if strings.Contains(text, name) {
			t.Errorf("%s is said although nobody knows it", name)
		}
	}
	w.ping, w.err = nil, errors.New("the disk is gone")
	if text := w.scrape(t); strings.Contains(text, "errand_runs_unfinished") {
		t.Error("runs are said to be counted, although they could not be")
	} else {
		wantLines(t, text, "errand_database_up 1")
	}
	if !strings.Contains(w.log.String(), "the disk is gone") {
		t.Errorf("the log does not say why: %s", w.log.String())
	}
	w.err = nil
	w.now = w.now.Add(time.Minute)
	wantLines(t, w.scrape(t), "errand_database_up 1", "errand_machines_online 0")
}

// shown is what is said of one metric.
type shown struct{ Kind, Labels, Meaning string }

var (
	helpLine   = regexp.MustCompile(`^# HELP (errand_\S+) (.*)$`)
	typeLine   = regexp.MustCompile(`^# TYPE (errand_\S+) (\S+)$`)
	sampleLine = regexp.MustCompile(`^(errand_[a-z_]+?)(?:_bucket|_sum|_count)?(?:\{(.*)\})? \S+$`)
	labelName  = regexp.MustCompile(`([a-z_]+)="`)
	tableLine  = regexp.MustCompile("^\\| `(errand_[a-z_]+)` \\| (\\w+) \\| (.*?) \\| (.*) \\|$")
)

// exposed reads what a scrape says of each metric of ours.
func exposed(text string) map[string]shown {
	all := map[string]shown{}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if m := helpLine.FindStringSubmatch(line); m != nil {
			all[m[1]] = shown{Meaning: m[2]}
		} else if m := typeLine.FindStringSubmatch(line); m != nil {
			entry := all[m[1]]
			entry.Kind = m[2]
			all[m[1]] = entry
		} else if m := sampleLine.FindStringSubmatch(line); m != nil {
			var labels []string
			for _, label := range labelName.FindAllStringSubmatch(m[2], -1) {
				if label[1] != "le" {
					labels = append(labels, label[1])
				}
			}
			entry := all[m[1]]
			entry.Labels = strings.Join(labels, " ")
			all[m[1]] = entry
		}
	}
	return all
}

// TestTheTableIsWhatIsExposed compares the table for operators with a scrape: names, kinds, labels, meanings.
func TestTheTableIsWhatIsExposed(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	table := map[string]shown{}
	for line := range strings.Lines(string(page)) {
		if m := tableLine.FindStringSubmatch(strings.TrimSuffix(line, "\n")); m != nil {
			labels := strings.FieldsFunc(m[3], func(r rune) bool { return r == '`' || r == ' ' || r == ',' || r == '–' })
			slices.Sort(labels)
			table[m[1]] = shown{m[2], strings.Join(labels, " "), strings.ReplaceAll(m[4], "`", "")}
		}
	}
	w := newWorld()
	w.CallAnswered("GET", "/v1/runs", 200, time.Millisecond)
	if diff := cmp.Diff(table, exposed(w.scrape(t))); diff != "" {
		t.Errorf("docs/operations.md and /metrics differ (-page +scrape):\n%s", diff)
	}
	if len(table) == 0 {
		t.Errorf("the page has no table of metrics: %v", slices.Sorted(maps.Keys(table)))
	}
}
