// Package metrics counts what one errandd does and shows it in the format of Prometheus. It is told of what happens
// through the observers that package automation declares, and asks for what is the case at the time of a scrape; see
// [Sources]. No label has a value that a user or a caller chooses, so the number of series has a bound.
//
// Who may read the numbers is the API's business. docs/operations.md has a table of them, which a test compares with
// what is exposed.
package metrics

import (
	"log/slog"
	"net/http"
	"runtime"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/automation/schedule"
)

// Options are what metrics take from outside.
type Options struct {
	// Version is the build that runs.
	Version string
	Now     func() time.Time
	Logger  *slog.Logger
}

// Metrics is what one process counts. It is safe for concurrent use, and implements [automation.Observer] and
// [automation.CallObserver].
type Metrics struct {
	o        Options
	registry *prometheus.Registry

	runsAdmitted, runsEnded                  *prometheus.CounterVec
	stepsBegun, stepsEnded, stepsInterrupted *prometheus.CounterVec
	scheduleLag                              prometheus.Histogram
	scheduleDrops, deliveries                *prometheus.CounterVec
	calls                                    *prometheus.CounterVec
	callDuration                             *prometheus.HistogramVec
	credentialsRefused, callsLimited         *prometheus.CounterVec
}

var (
	_ automation.Observer     = (*Metrics)(nil)
	_ automation.CallObserver = (*Metrics)(nil)
)

// accepted is the outcome of a delivery that has a run.
const accepted = "ok"

// The buckets, in seconds: a call usually takes milliseconds, and up to a minute where it waits for a run; an instant
// is on time within a second, late after a minute, and may be caught up a day later.
var (
	callBuckets = []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 60}
	lagBuckets  = []float64{.05, .1, .25, .5, 1, 2, 5, 10, 60, 600, 3600, 86400}
)

// New returns metrics that are all 0.
func New(o Options) *Metrics {
	m := &Metrics{o: o, registry: prometheus.NewRegistry()}
	m.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	build := m.gauges("errand_build_info", "1, with the version of this build and of Go.", "version", "goversion")
	build.WithLabelValues(o.Version, runtime.Version()).Set(1)
	m.countRuns()
	m.countCalls()
	return m
}

// countRuns makes the metrics of what the ledger decides.
func (m *Metrics) countRuns() {
	m.runsAdmitted = m.counter("errand_runs_admitted_total", "Runs admitted. A repeated one is manual.", "trigger")
	each(m.runsAdmitted, automation.TriggerManual, automation.TriggerSchedule, automation.TriggerWebhook)
	m.runsEnded = m.counter("errand_runs_ended_total", "Runs ended.", "status")
	each(m.runsEnded, automation.RunCompleted, automation.RunFailed, automation.RunCancelled)
	m.stepsBegun = m.counter("errand_steps_begun_total", "Executions of steps begun.", "kind")
	m.stepsInterrupted = m.counter("errand_steps_interrupted_total",
		"Executions of steps that ended without a result and are followed by another one.", "kind")
	m.stepsEnded = m.counter("errand_steps_ended_total", "Steps ended; skipped ones had not begun.", "kind", "status")
	for _, kind := range []automation.StepKind{automation.KindAction, automation.KindCommand, automation.KindScript} {
		each(m.stepsBegun, kind)
		each(m.stepsInterrupted, kind)
		for _, status := range []automation.StepStatus{
			automation.StepCompleted, automation.StepFailed, automation.StepCancelled, automation.StepSkipped,
		} {
			m.stepsEnded.WithLabelValues(string(kind), string(status))
		}
	}
	m.scheduleLag = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "errand_schedule_lag_seconds", Buckets: lagBuckets,
		Help: "How long after it was due, jitter included, an instant of a schedule was admitted. One that is caught up is late by more than 60.",
	})
	m.registry.MustRegister(m.scheduleLag)
	m.scheduleDrops = m.counter("errand_schedule_drops_total", "Instants of schedules dropped.", "reason")
	each(m.scheduleDrops, schedule.ReasonOverlap, schedule.ReasonMissed, schedule.ReasonOutsideWindow,
		schedule.ReasonMaxOccurrences, schedule.ReasonMachineRevoked, schedule.ReasonNotExecutable)
}

// countCalls makes the metrics of what others ask.
func (m *Metrics) countCalls() {
	m.deliveries = m.counter("errand_webhook_deliveries_total",
		"Deliveries to webhooks: ok when there is a run for them, that of an earlier one for a repeat, else the code of the refusal.", "outcome")
	each(m.deliveries, accepted, string(automation.CodeUnauthorized), string(automation.CodeRateLimited))
	m.calls = m.counter("errand_http_requests_total",
		"HTTP requests answered, by the class of their status. Paths that are no route are other.", "method", "route", "status")
	m.callDuration = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "errand_http_request_duration_seconds", Buckets: callBuckets,
		Help: "How long requests took, with the time that they waited for a run or streamed events.",
	}, []string{"method", "route"})
	m.registry.MustRegister(m.callDuration)
	m.credentialsRefused = m.counter("errand_credentials_refused_total",
		"Calls refused because of what they presented: no single credential, a bearer token, the proof of a machine, an enrolment code.", "credential")
	each(m.credentialsRefused, automation.CredentialNone, automation.CredentialToken, automation.CredentialMachine, automation.CredentialCode)
	m.callsLimited = m.counter("errand_rate_limited_total",
		"Calls refused because there were too many of one caller or one machine, too many wrong credentials or enrolments from one address, or too much of one caller was under way at the same time.",
		"limit")
	each(m.callsLimited, automation.LimitCaller, automation.LimitMachine, automation.LimitWrongCredentials, automation.LimitEnrolments,
		automation.LimitUnderWay)
}

func (m *Metrics) counter(name, help string, labels ...string) *prometheus.CounterVec {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	m.registry.MustRegister(vec)
	return vec
}

func (m *Metrics) gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	vec := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	m.registry.MustRegister(vec)
	return vec
}

// each makes the series of known values, so that the first event of each is seen as a change from 0.
func each[T ~string](vec *prometheus.CounterVec, values ...T) {
	for _, value := range values {
		vec.WithLabelValues(string(value))
	}
}

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(m.o.Logger.Handler(), slog.LevelWarn),
	})
}

// RunAdmitted implements [automation.Observer].
func (m *Metrics) RunAdmitted(trigger automation.TriggerKind) {
	m.runsAdmitted.WithLabelValues(string(trigger)).Inc()
}

// RunEnded implements [automation.Observer].
func (m *Metrics) RunEnded(status automation.RunStatus) {
	m.runsEnded.WithLabelValues(string(status)).Inc()
}

// StepBegun implements [automation.Observer].
func (m *Metrics) StepBegun(kind automation.StepKind) {
	m.stepsBegun.WithLabelValues(string(kind)).Inc()
}

// StepEnded implements [automation.Observer].
func (m *Metrics) StepEnded(kind automation.StepKind, status automation.StepStatus) {
	m.stepsEnded.WithLabelValues(string(kind), string(status)).Inc()
}

// StepInterrupted implements [automation.Observer].
func (m *Metrics) StepInterrupted(kind automation.StepKind) {
	m.stepsInterrupted.WithLabelValues(string(kind)).Inc()
}

// InstantAdmitted implements [automation.Observer].
func (m *Metrics) InstantAdmitted(behind time.Duration) {
	m.scheduleLag.Observe(behind.Seconds())
}

// InstantsDropped implements [automation.Observer].
func (m *Metrics) InstantsDropped(reason schedule.Reason, count int64) {
	m.scheduleDrops.WithLabelValues(string(reason)).Add(float64(count))
}

// DeliveryAnswered counts a delivery of a webhook; refusal is "" when there is a run for it.
func (m *Metrics) DeliveryAnswered(refusal automation.Code) {
	outcome := string(refusal)
	if refusal == "" {
		outcome = accepted
	}
	m.deliveries.WithLabelValues(outcome).Inc()
}

// CallAnswered implements [automation.CallObserver].
func (m *Metrics) CallAnswered(method, route string, status int, took time.Duration) {
	const classOf = 100
	m.calls.WithLabelValues(method, route, strconv.Itoa(status/classOf)+"xx").Inc()
	m.callDuration.WithLabelValues(method, route).Observe(took.Seconds())
}

// CredentialRefused implements [automation.CallObserver].
func (m *Metrics) CredentialRefused(kind automation.CredentialKind) {
	m.credentialsRefused.WithLabelValues(string(kind)).Inc()
}

// CallLimited implements [automation.CallObserver].
func (m *Metrics) CallLimited(limit automation.CallLimit) {
	m.callsLimited.WithLabelValues(string(limit)).Inc()
}
