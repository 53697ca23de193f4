//go:build unix

package bench_test

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver of the commits beside PostgreSQL

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/apptest"
	"github.com/errandhq/errand/internal/pgtest"
)

const (
	// admitters ask at once for admitEach runs in each of admitRounds rounds.
	admitters, admitEach, admitRounds = 16, 20, 7
	// look is how often the queue of the machine is looked at while it drains, and drainAtMost how long it may take.
	look, drainAtMost = 200 * time.Millisecond, time.Hour
)

// backlog is how many runs wait for a machine that is away.
var backlog = flag.Int("backlog", 10_000, "how many runs wait in BenchmarkDrain")

// ledgerKind is a database that admissions are measured on, beside bare commits in another one of its kind.
type ledgerKind struct {
	name string
	url  func(b *testing.B) string
	bare func(b *testing.B) *sql.DB
}

var ledgerKinds = []ledgerKind{
	{
		name: "SQLite", url: func(*testing.B) string { return "" },
		bare: func(b *testing.B) *sql.DB {
			b.Helper()
			db, err := openLedger(b.Context(), filepath.Join(b.TempDir(), "bare.db"))
			if err != nil {
				b.Fatal(err)
			}
			return db
		},
	},
	{
		name: "PostgreSQL", url: func(b *testing.B) string { b.Helper(); return pgtest.Database(b) },
		bare: func(b *testing.B) *sql.DB {
			b.Helper()
			db, err := sql.Open("pgx", pgtest.Database(b))
			if err == nil {
				db.SetMaxOpenConns(admitters)
				_, err = db.ExecContext(b.Context(), `CREATE TABLE commits (id BIGSERIAL PRIMARY KEY, text TEXT NOT NULL)`)
			}
			if err != nil {
				b.Fatal(err)
			}
			return db
		},
	},
}

// BenchmarkAdmission measures run-now through the API, while the machine is away, beside as many bare inserts, each with
// a commit of its own, by as many callers.
func BenchmarkAdmission(b *testing.B) {
	for _, kind := range ledgerKinds {
		b.Run(kind.name, func(b *testing.B) {
			bare := kind.bare(b)
			b.Cleanup(func() { _ = bare.Close() })
			o := startAway(b, apptest.Options{DatabaseURL: kind.url(b)})
			automationID := o.create(1)
			samples := make([]sample, 2)
			for round := range admitRounds {
				for turn := range samples {
					i := (round + turn) % len(samples)
					did := func() error { return insert(b.Context(), bare) }
					if i == 1 {
						did = func() error { return o.admit(b.Context(), automationID) }
					}
					began := time.Now()
					together(b, admitters, func(int) error { return repeat(admitEach, did) })
					samples[i] = append(samples[i], admitters*admitEach/time.Since(began).Seconds())
				}
			}
			record(b, &measurement{What: "admissions by run-now on " + kind.name + ", 16 callers", Unit: "per second"},
				[]string{"bare insert and commit", "errand"}, samples, target{})
		})
	}
}

func repeat(count int, do func() error) error {
	for range count {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

func insert(ctx context.Context, db *sql.DB) error {
	_, err := db.ExecContext(ctx, `INSERT INTO commits (text) VALUES ('a run was admitted')`)
	return err
}

// startAway starts an installation whose machine is enrolled and away.
func startAway(b *testing.B, options apptest.Options) *ours {
	b.Helper()
	s := apptest.Start(b, options)
	s.AwaitWorker()
	s.Interrupt()
	s.Options.NoLocalWorker = true
	s.Restart()
	transport := &http.Transport{MaxIdleConnsPerHost: crowd}
	b.Cleanup(transport.CloseIdleConnections)
	return &ours{server: s, token: s.Token(), http: &http.Client{Transport: transport}}
}

// admit admits a run and does not wait for it.
func (o *ours) admit(ctx context.Context, automationID string) error {
	var run automation.Run
	status, err := o.call(ctx, http.MethodPost, "/v1/automations/"+automationID+"/runs", `{}`, &run)
	if err != nil || status != http.StatusCreated {
		return fmt.Errorf("a run was not admitted: %d: %w", status, err)
	}
	return nil
}

// BenchmarkDrain measures how a machine works through the runs that have waited for it: the first tenth of them, and the
// last. While they wait it also measures deliveries of webhooks, whose runs join the queue.
func BenchmarkDrain(b *testing.B) {
	o := startAway(b, apptest.Options{})
	automationID := o.create(1)
	together(b, admitters, func(int) error {
		return repeat(*backlog/admitters, func() error { return o.admit(b.Context(), automationID) })
	})
	o.awaitWorkflows(b)
	o.measureDeliveries(b, o.createHooks(b), fmt.Sprintf("the same while %d runs wait", *backlog))
	o.awaitWorkflows(b)
	total := o.waiting(b)
	o.server.StartWorker()
	rates := o.drain(b, total)
	record(b, &measurement{What: fmt.Sprintf("%d waiting runs of one step, drained", total), Unit: "runs a second"},
		[]string{"first tenth", "last tenth"}, []sample{{rates[0]}, {rates[1]}}, target{Limit: 0.8, AtLeast: true})
}

// awaitWorkflows waits until every run has its workflow.
func (o *ours) awaitWorkflows(b *testing.B) {
	b.Helper()
	ledger, err := sql.Open("sqlite", "file:"+filepath.Join(o.server.DataDir(), "errand.db")+"?_pragma=busy_timeout(10000)")
	if err != nil {
		b.Fatal(err)
	}
	defer ledger.Close()
	o.server.Await(drainAtMost, "every run has its workflow", func() (string, bool) {
		var without int
		err := ledger.QueryRowContext(b.Context(), `SELECT count(*) FROM runs WHERE engine_id = ''`).Scan(&without)
		return fmt.Sprint(without, err), err == nil && without == 0
	})
}

// drain returns how many runs a second begin in the first tenth of all, and in the last.
func (o *ours) drain(b *testing.B, total int) [2]float64 {
	b.Helper()
	tenth := total / 10
	var first, last float64
	var began time.Time // of the tenth that is measured
	left := 0
	o.server.Await(drainAtMost, "the queue is empty", func() (string, bool) {
		time.Sleep(look)
		waiting := o.waiting(b)
		switch done := total - waiting; {
		case done == 0:
			began = time.Now() // the worker is on its way
		case first == 0 && done >= tenth:
			first = float64(done) / time.Since(began).Seconds()
		case left == 0 && waiting <= tenth:
			began, left = time.Now(), waiting
		case waiting == 0:
			last = float64(left) / time.Since(began).Seconds()
		}
		return fmt.Sprint(waiting), waiting == 0
	})
	return [2]float64{first, last}
}

// waiting returns how many runs wait for the one machine.
func (o *ours) waiting(b *testing.B) int {
	b.Helper()
	var answer struct {
		Machines []struct {
			PendingRuns int `json:"pendingRuns"`
		} `json:"machines"`
	}
	status, err := o.call(b.Context(), http.MethodGet, "/v1/machines", "", &answer)
	if err != nil || status != http.StatusOK || len(answer.Machines) != 1 {
		b.Fatalf("the machine is not shown: %d, %v", status, err)
	}
	return answer.Machines[0].PendingRuns
}
