//go:build unix

package acceptance_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/apptest"
)

// metricsOf reads the numbers of a server, by name and labels.
func metricsOf(t *testing.T, s *apptest.Server) map[string]float64 {
	t.Helper()
	code, body := s.Get("/metrics")
	if code != http.StatusOK {
		t.Fatalf("/metrics: %d %s", code, body)
	}
	numbers := map[string]float64{}
	for line := range strings.Lines(string(body)) {
		if line = strings.TrimSuffix(line, "\n"); strings.HasPrefix(line, "#") {
			continue
		}
		split := strings.LastIndex(line, " ")
		value, err := strconv.ParseFloat(line[split+1:], 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		numbers[line[:split]] = value
	}
	return numbers
}

// TestMetrics runs things and reads that they were counted.
func TestMetrics(t *testing.T) {
	t.Parallel()
	s := apptest.Start(t, apptest.Options{})
	good := s.Create(scheduled("good", map[string]any{"every": "1s", "maxOccurrences": 2, "overlap": "parallel"}))
	bad := s.Create(map[string]any{"name": "bad", "workflow": map[string]any{"compiled": map[string]any{"version": 2, "steps": []any{
		map[string]any{"id": "no", "kind": "command", "command": "false"},
		map[string]any{"id": "never", "kind": "script", "runtime": "shell", "source": "true"},
	}}}})
	s.WaitRun(s.RunNow(good, nil).ID, automation.RunCompleted)
	s.WaitRun(s.RunNow(bad, nil).ID, automation.RunFailed)
	stranger := s.Request(http.MethodGet, "/metrics", nil)
	stranger.Header.Set("Authorization", "Bearer nonsense")
	if code, body := s.Do(stranger); code != http.StatusUnauthorized {
		t.Errorf("/metrics for a stranger: %d %s", code, body)
	}
	if code, body := s.Post("/hooks/0193a5f0-0000-7000-8000-000000000000", []byte("{}")); code != http.StatusUnauthorized {
		t.Errorf("a delivery to no webhook: %d %s", code, body)
	}
	want := map[string]float64{
		`errand_runs_admitted_total{trigger="manual"}`:                                   2,
		`errand_runs_admitted_total{trigger="schedule"}`:                                 2,
		`errand_runs_ended_total{status="completed"}`:                                    3,
		`errand_runs_ended_total{status="failed"}`:                                       1,
		`errand_steps_begun_total{kind="command"}`:                                       4,
		`errand_steps_ended_total{kind="command",status="completed"}`:                    3,
		`errand_steps_ended_total{kind="command",status="failed"}`:                       1,
		`errand_steps_ended_total{kind="script",status="skipped"}`:                       1,
		`errand_schedule_lag_seconds_count`:                                              2,
		`errand_webhook_deliveries_total{outcome="unauthorized"}`:                        1,
		`errand_credentials_refused_total{credential="token"}`:                           1,
		`errand_http_requests_total{method="POST",route="/v1/automations",status="2xx"}`: 2,
		`errand_http_requests_total{method="GET",route="/metrics",status="4xx"}`:         1,
		`errand_machines_enrolled`:                                                       1,
		`errand_machines_online`:                                                         1,
		`errand_runs_unfinished{status="pending",waiting_for="none"}`:                    0,
		`errand_runs_unfinished{status="running",waiting_for="none"}`:                    0,
		`errand_engine_up`:                             1,
		`errand_database_up`:                           1,
		`errand_unknown_workflows`:                     0,
		`errand_run_repairs_total{repair="restarted"}`: 0,
	}
	s.Await(patience, "everything is counted", func() (string, bool) {
		numbers := metricsOf(t, s)
		var differ []string
		for name, value := range want {
			if got, there := numbers[name]; !there || got != value {
				differ = append(differ, fmt.Sprintf("%s is %v (there: %v), want %v", name, got, there, value))
			}
		}
		for _, name := range []string{"errand_gateway_polls_open", "go_goroutines", "process_start_time_seconds"} {
			if numbers[name] < 1 {
				differ = append(differ, fmt.Sprintf("%s is %v", name, numbers[name]))
			}
		}
		return strings.Join(differ, "\n"), len(differ) == 0
	})
}
