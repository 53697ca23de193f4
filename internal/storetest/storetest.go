// Package storetest is the behaviour that every ledger must show, as one suite of tests: an implementation of
// [automation.Ledger] runs it against each database that it supports. The suite speaks to the ledger only through
// its interface, opens several ledgers on one database where several servers matter, and leaves to the
// implementation how a database is made and what the interface has no call for.
package storetest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/errandhq/errand/automation"
)

// Options are what a ledger takes from outside.
type Options struct {
	Now         func() time.Time
	NewID       func() string
	OnRunChange func(runID, machineID string)
	OnRunReady  func(runID string)
	Observer    automation.Observer
	Vault       automation.SecretVault
}

// Database is one database of the implementation under test, empty at first.
type Database struct {
	// Open opens a ledger on the database. Each one stands for another server. It is closed when the test ends,
	// and may be closed before when it is an [io.Closer].
	Open func(t *testing.T, o Options) automation.Ledger
	// AddOwner adds an owner beside the local one.
	AddOwner func(t *testing.T, id string)
	// Revoke marks a machine as revoked.
	Revoke func(t *testing.T, machineID string)
}

// Run runs the whole suite, each test on a fresh database.
func Run(t *testing.T, fresh func(t *testing.T) Database) {
	t.Helper()
	for _, group := range []struct {
		name  string
		tests []test
	}{
		{"Ledger", ledgerTests},
		{"Automations", automationTests},
		{"Change", changeTests},
		{"Admission", admissionTests},
		{"Webhooks", webhookTests},
		{"Runs", runTests},
		{"Steps", stepTests},
		{"Retry", retryTests},
		{"Cancel", cancelTests},
		{"CancelMany", manyCancelTests},
		{"Keys", keyTests},
		{"Engine", engineTests},
		{"Schedules", scheduleTests},
		{"ScheduleChanges", scheduleChangeTests},
		{"ScheduleRaces", scheduleRaceTests},
		{"Reconcile", reconcileTests},
		{"Observe", observeTests},
		{"Machines", machineTests},
		{"Enrolment", enrolmentTests},
		{"Hello", helloTests},
		{"Access", accessTests},
		{"Hostile", hostileTests},
		{"Races", raceTests},
		{"RetryRaces", retryRaceTests},
	} {
		t.Run(group.name, func(t *testing.T) {
			t.Parallel()
			for _, test := range group.tests {
				t.Run(test.name, func(t *testing.T) {
					t.Parallel()
					test.run(t, newFixture(t, fresh(t)))
				})
			}
		})
	}
}

type test struct {
	name string
	run  func(t *testing.T, f *fixture)
}

// Clock is a clock that a test moves.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// NewClock returns a clock that stands at a time with microseconds.
func NewClock() *Clock {
	return &Clock{now: time.Date(2026, time.January, 5, 9, 0, 0, 123_456_000, time.UTC)}
}

// Now returns the time of the clock.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance moves the clock forward.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// NewID returns a UUID of version 7.
func NewID() string { return uuid.Must(uuid.NewV7()).String() }

// fixture is a ledger with one owner and one machine.
type fixture struct {
	automation.Ledger
	db       Database
	clock    *Clock
	owner    string
	machine  automation.Machine
	changes  changeLog
	ready    readyLog
	observed sightings
}

// changeLog counts the notifications about each run.
type changeLog struct {
	mu   sync.Mutex
	seen map[string]int
}

func (l *changeLog) record(runID, machineID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen == nil {
		l.seen = map[string]int{}
	}
	l.seen[runID+" on "+machineID]++
}

func (l *changeLog) count(r automation.Run) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen[r.ID+" on "+r.MachineID]
}

// readyLog keeps the runs that a ledger said may start.
type readyLog struct {
	mu   sync.Mutex
	runs []string
}

func (l *readyLog) record(runID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs = append(l.runs, runID)
}

// take returns what was recorded since the last call.
func (l *readyLog) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := l.runs
	l.runs = nil
	return taken
}

func newFixture(t *testing.T, db Database) *fixture {
	t.Helper()
	f := &fixture{db: db, clock: NewClock()}
	f.Ledger = db.Open(t, Options{
		Now: f.clock.Now, NewID: NewID, OnRunChange: f.changes.record, OnRunReady: f.ready.record,
		Observer: &f.observed, Vault: vault(masterKey),
	})
	installation, err := f.Installation(t.Context())
	if err != nil {
		t.Fatalf("Installation: %v", err)
	}
	f.owner = installation.LocalOwnerID
	f.machine = f.enroll(t, f.owner, "laptop")
	return f
}

// another opens a second ledger on the same database.
func (f *fixture) another(t *testing.T) automation.Ledger {
	t.Helper()
	return f.db.Open(t, Options{Now: f.clock.Now, NewID: NewID, Vault: vault(masterKey)})
}

func (f *fixture) enroll(t *testing.T, owner, name string) automation.Machine {
	t.Helper()
	m, err := f.EnrollMachine(t.Context(), automation.NewMachine{
		OwnerID: owner, Name: name, Platform: "linux/amd64", Version: "v1",
		Labels: map[string]string{"room": "attic"}, PublicKey: `{"kty":"OKP","x":"` + NewID() + `"}`,
	})
	if err != nil {
		t.Fatalf("EnrollMachine(%q): %v", name, err)
	}
	return m
}

// addOwner adds a second owner with a machine.
func (f *fixture) addOwner(t *testing.T) (owner string, machine automation.Machine) {
	t.Helper()
	owner = NewID()
	f.db.AddOwner(t, owner)
	return owner, f.enroll(t, owner, "theirs")
}

// definition is an executable automation of the fixture's machine, with one command step for each id.
func (f *fixture) definition(name string, stepIDs ...string) automation.Definition {
	plan := &automation.Plan{Version: 2}
	for _, id := range stepIDs {
		plan.Steps = append(plan.Steps, automation.Step{
			ID: id, Kind: automation.KindCommand, Command: "tar", Args: []string{"-c", id},
		})
	}
	return automation.Definition{
		Name: name, Enabled: true, MachineID: f.machine.ID,
		Workflow: automation.Workflow{Script: "Do " + name, Compiled: plan},
	}
}

func (f *fixture) create(t *testing.T, d automation.Definition) automation.Automation {
	t.Helper()
	a, err := f.CreateAutomation(t.Context(), f.owner, d, automation.Idempotency{})
	if err != nil {
		t.Fatalf("CreateAutomation(%q): %v", d.Name, err)
	}
	return a
}

// admit admits a manual run of an automation.
func (f *fixture) admit(t *testing.T, a automation.Automation) automation.Run {
	t.Helper()
	return f.admitWith(t, automation.Admission{
		OwnerID: a.OwnerID, AutomationID: a.ID, Trigger: automation.Trigger{Kind: automation.TriggerManual},
	})
}

func (f *fixture) admitWith(t *testing.T, a automation.Admission) automation.Run {
	t.Helper()
	run, err := f.Admit(t.Context(), a)
	if err != nil {
		t.Fatalf("Admit: %v", err)
	}
	return run
}

// newRun admits a run of a new automation with the given steps.
func (f *fixture) newRun(t *testing.T, stepIDs ...string) automation.Run {
	t.Helper()
	return f.admit(t, f.create(t, f.definition("job", stepIDs...)))
}

func ref(r automation.Run, stepID string) automation.StepRef {
	return automation.StepRef{RunID: r.ID, StepID: stepID}
}

// begin begins a step anew.
func (f *fixture) begin(t *testing.T, r automation.Run, stepID string) automation.BeginAnswer {
	t.Helper()
	answer, err := f.Begin(t.Context(), r.MachineID, automation.BeginRequest{
		StepRef: ref(r, stepID), Generation: r.Generation, RequestID: NewID(),
	})
	if err != nil {
		t.Fatalf("Begin(%q): %v", stepID, err)
	}
	return answer
}

// mustBegin begins a step that is to run.
func (f *fixture) mustBegin(t *testing.T, r automation.Run, stepID string) int64 {
	t.Helper()
	answer := f.begin(t, r, stepID)
	if answer.Decision != automation.BeginRun {
		t.Fatalf("Begin(%q) = %q, want %q", stepID, answer.Decision, automation.BeginRun)
	}
	return answer.Execution
}

func (f *fixture) finish(t *testing.T, r automation.Run, q automation.FinishRequest) automation.FinishAnswer {
	t.Helper()
	answer, err := f.Finish(t.Context(), r.MachineID, q)
	if err != nil {
		t.Fatalf("Finish(%q): %v", q.StepID, err)
	}
	return answer
}

// complete begins and completes a step.
func (f *fixture) complete(t *testing.T, r automation.Run, stepID, result string) {
	t.Helper()
	answer := f.finish(t, r, automation.FinishRequest{
		StepRef: ref(r, stepID), Execution: f.mustBegin(t, r, stepID),
		Outcome: automation.OutcomeCompleted, Result: json.RawMessage(result),
	})
	if !answer.Accepted {
		t.Fatalf("Finish(%q) was not accepted", stepID)
	}
}

// read returns the whole run.
func (f *fixture) read(t *testing.T, r automation.Run) automation.Run {
	t.Helper()
	run, err := f.Run(t.Context(), r.OwnerID, r.ID)
	if err != nil {
		t.Fatalf("Run: %v", err)
	}
	return run
}

// statuses returns the status of a run and of its steps in one line.
func statuses(r automation.Run) string {
	words := []string{string(r.Status) + ":"}
	for _, step := range r.Steps {
		words = append(words, string(step.Status))
	}
	return strings.Join(words, " ")
}

func wantStatuses(t *testing.T, r automation.Run, want string) {
	t.Helper()
	if got := statuses(r); got != want {
		t.Errorf("the run stands at %q, want %q", got, want)
	}
}

func wantCode(t *testing.T, what string, err error, want automation.Code) {
	t.Helper()
	if got := automation.CodeOf(err); got != want {
		t.Errorf("%s: code %q (%v), want %q", what, got, err, want)
	}
}

func wantEqual(t *testing.T, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s differs (-want +got):\n%s", what, diff)
	}
}

// paths returns the paths that a validation error names.
func paths(err error) []string {
	var all []string
	if refusal, ok := err.(*automation.Error); ok { //nolint:errorlint // the suite wants the error itself
		for _, v := range refusal.Details {
			all = append(all, v.Path)
		}
	}
	return all
}

// together calls fn n times at once and returns what each call returned.
func together[T any](n int, fn func(i int) (T, error)) ([]T, []error) {
	results, errs := make([]T, n), make([]error, n)
	start := make(chan struct{})
	var calls sync.WaitGroup
	for i := range n {
		calls.Go(func() {
			<-start
			results[i], errs[i] = fn(i)
		})
	}
	close(start)
	calls.Wait()
	return results, errs
}

func closeLedger(t *testing.T, l automation.Ledger) {
	t.Helper()
	closer, ok := l.(io.Closer)
	if !ok {
		t.Fatalf("%T cannot be closed", l)
	}
	if err := closer.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
}

var ledgerTests = []test{
	{"Installation", func(t *testing.T, f *fixture) {
		first, err := f.Installation(t.Context())
		if err != nil {
			t.Fatalf("Installation: %v", err)
		}
		f.clock.Advance(time.Hour)
		second, err := f.another(t).Installation(t.Context())
		if err != nil {
			t.Fatalf("Installation of another server: %v", err)
		}
		wantEqual(t, "the installation of another server", second, first)
		for name, id := range map[string]string{"id": first.ID, "local owner": first.LocalOwnerID} {
			if _, err := uuid.Parse(id); err != nil {
				t.Errorf("the %s of the installation is %q, not a UUID", name, id)
			}
		}
	}},
	{"Reopening", func(t *testing.T, f *fixture) {
		run := f.newRun(t, "one", "two")
		f.complete(t, run, "one", `{"kept": true}`)
		before := f.read(t, run)
		closeLedger(t, f.Ledger)
		wantCode(t, "Ping of a closed ledger", f.Ping(t.Context()), automation.CodeStoreUnavailable)
		_, err := f.RequestCancel(t.Context(), f.owner, run.ID, "", false)
		wantCode(t, "RequestCancel on a closed ledger", err, automation.CodeStoreUnavailable)

		f.Ledger = f.another(t)
		wantEqual(t, "the run after reopening", f.read(t, run), before)
		f.complete(t, run, "two", `2`)
		wantStatuses(t, f.read(t, run), "completed: completed completed")
	}},
	{"Ping", func(t *testing.T, f *fixture) {
		if err := f.Ping(t.Context()); err != nil {
			t.Errorf("Ping: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		wantCode(t, "Ping with a cancelled context", f.Ping(ctx), automation.CodeStoreUnavailable)
	}},
	{"Lease", func(t *testing.T, f *fixture) {
		other := f.another(t)
		const ttl = 15 * time.Second
		for i, step := range []struct {
			ledger  automation.Ledger
			holder  string
			advance time.Duration
			want    bool
		}{
			{f, "a", 0, true},
			{other, "b", ttl - time.Second, false},
			{f, "a", 0, true}, // renewed, for another ttl
			{other, "b", ttl - time.Second, false},
			{other, "b", time.Second, true}, // expired
			{f, "a", 0, false},
			{f, "a", -time.Minute, false}, // the clocks differ by as much as they may
			{f, "a", -time.Second, true},  // the clock was set back: the lease would last too long
			{other, "b", 0, false},
		} {
			f.clock.Advance(step.advance)
			got, err := step.ledger.Lease(t.Context(), "starter", step.holder, ttl)
			if err != nil || got != step.want {
				t.Errorf("step %d: Lease for %q = %v, %v, want %v", i, step.holder, got, err, step.want)
			}
		}
		if got, err := f.Lease(t.Context(), "reconciler", "a", ttl); err != nil || !got {
			t.Errorf("Lease of another name = %v, %v, want true", got, err)
		}
	}},
}

func numbered(prefix string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("%s%d", prefix, i)
	}
	return all
}
