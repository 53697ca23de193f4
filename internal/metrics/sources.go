package metrics

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/errandhq/errand/automation"
)

const (
	// A census is good for a while, and longer where it takes long: scrapes, of which there may be many, cost the
	// database at most a twentieth of its time.
	censusFor, censusShare = 10 * time.Second, 20
	// askWithin bounds how long a scrape waits for an answer of the database.
	askWithin = 5 * time.Second
)

// Sources are asked at each scrape.
type Sources struct {
	// Ping reports that the database does not answer.
	Ping func(ctx context.Context) error
	// Census is asked at most every ten seconds, and while the database answers.
	Census func(ctx context.Context, engineUp bool) (automation.Census, error)
	// EngineUp says whether Temporal answers.
	EngineUp func() bool
	// OpenPolls is how many polls of machines are open.
	OpenPolls func() int
	// RunRepairs and ScheduleRepairs are what was repaired since the start, by what was done.
	RunRepairs, ScheduleRepairs func() map[string]int64
	// UnknownWorkflows is how many open workflows belong to no run of the ledger.
	UnknownWorkflows func() int
}

// Watch adds what the sources tell. It is called once.
func (m *Metrics) Watch(s Sources) { m.registry.MustRegister(&scrape{m: m, Sources: s}) }

// scrape collects what the sources tell.
type scrape struct {
	Sources
	m *Metrics

	mu     sync.Mutex
	census automation.Census
	err    error
	until  time.Time // it is good
	at     time.Time
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	unfinishedDesc = desc("errand_runs_unfinished",
		"Unfinished runs of the installation, by what they wait for, or none. The same on each server.", "status", "waiting_for")
	enrolledDesc        = desc("errand_machines_enrolled", "Machines that are enrolled and not revoked. The same on each server.")
	onlineDesc          = desc("errand_machines_online", "Machines that were seen within 30 seconds. The same on each server.")
	pollsDesc           = desc("errand_gateway_polls_open", "Polls that machines have open at this server.")
	engineDesc          = desc("errand_engine_up", "1 while Temporal answers, else 0.")
	databaseDesc        = desc("errand_database_up", "1 while the database answers, else 0; then the numbers of unfinished runs and machines are missing.")
	runRepairsDesc      = desc("errand_run_repairs_total", "Differences between runs and workflows that this server repaired.", "repair")
	scheduleRepairsDesc = desc("errand_schedule_repairs_total", "Differences between schedules here and in Temporal that this server repaired.", "repair")
	unknownDesc         = desc("errand_unknown_workflows", "Open workflows of runs that the ledger does not have, when this server compared last.")
)

// Describe implements [prometheus.Collector].
func (s *scrape) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		unfinishedDesc, enrolledDesc, onlineDesc, pollsDesc, engineDesc, databaseDesc, runRepairsDesc, scheduleRepairsDesc, unknownDesc,
	} {
		to <- d
	}
}

// Collect implements [prometheus.Collector].
func (s *scrape) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	engineUp := s.EngineUp()
	gauge(engineDesc, number(engineUp))
	gauge(pollsDesc, float64(s.OpenPolls()))
	gauge(unknownDesc, float64(s.UnknownWorkflows()))
	repairs(to, runRepairsDesc, s.RunRepairs())
	repairs(to, scheduleRepairsDesc, s.ScheduleRepairs())

	ctx, cancel := context.WithTimeout(context.Background(), askWithin)
	defer cancel()
	err := s.Ping(ctx)
	gauge(databaseDesc, number(err == nil))
	if err != nil {
		return
	}
	census, err := s.recent(engineUp)
	if err != nil {
		return
	}
	gauge(enrolledDesc, float64(census.Enrolled))
	gauge(onlineDesc, float64(census.Online))
	for _, status := range []automation.RunStatus{automation.RunPending, automation.RunRunning} {
		for _, reason := range waits {
			shown := string(reason)
			if reason == "" {
				shown = "none"
			}
			gauge(unfinishedDesc, float64(census.Unfinished[automation.RunStanding{Status: status, Waits: reason}]), string(status), shown)
		}
	}
}

// waits is everything that a run may wait for, and nothing.
var waits = []automation.WaitReason{
	"", automation.WaitNotStarted, automation.WaitMachineOffline, automation.WaitMachineBusy, automation.WaitPreviousRun,
	automation.WaitEngineUnavailable, automation.WaitRetry, automation.WaitCancelConfirmation, automation.WaitDispatchStalled,
}

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

func repairs(to chan<- prometheus.Metric, d *prometheus.Desc, counts map[string]int64) {
	for _, repair := range slices.Sorted(maps.Keys(counts)) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(counts[repair]), repair)
	}
}

// recent returns the census, a new one when the last is old. Scrapes at the same time share it.
func (s *scrape) recent(engineUp bool) (automation.Census, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.m.o.Now()
	if now.Before(s.until) && !now.Before(s.at) {
		return s.census, s.err
	}
	ctx, cancel := context.WithTimeout(context.Background(), askWithin)
	defer cancel()
	s.census, s.err = s.Census(ctx, engineUp)
	s.at = s.m.o.Now()
	s.until = s.at.Add(max(censusFor, censusShare*s.at.Sub(now)))
	if s.err != nil {
		s.m.o.Logger.WarnContext(ctx, "runs and machines could not be counted for /metrics", "error", s.err)
	}
	return s.census, s.err
}
