//go:build unix

package acceptance_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/apptest"
	"github.com/errandhq/errand/internal/pgtest"
)

// markingStep marks its begin and its end, and says when a program of an earlier execution is alive.
const markingStep = `
state() {
	if [ -d /proc/self ]; then sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -c1; else ps -o state= -p "$1"; fi
}
for pid in $(cat pids 2>/dev/null); do
	case $(state "$pid") in '' | Z*) ;; *) echo "$ERRAND_STEP_ID: $pid is alive" >>overlap ;; esac
done
echo $$ >>pids
echo "begin $ERRAND_STEP_ID" >>marks
sleep 0.$1
echo "end $ERRAND_STEP_ID" >>marks
`

// TestRandomKills kills errandd, or the worker, or both, at random moments of a run of 20 steps, and counts the marks
// that the steps leave: what was completed is never executed again, and a program is started a second time only where
// the worker was killed.
func TestRandomKills(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		// errandd and worker are how many times each is killed.
		errandd, worker int
		slow            bool
	}{
		{name: "errandd", errandd: 6},
		{name: "errandd and worker", errandd: 3, worker: 2, slow: true},
	}
	rounds := 1
	if long() {
		rounds = longKillRounds
	}
	for round := range rounds {
		for _, tt := range tests {
			t.Run(fmt.Sprintf("%s/%d", tt.name, round), func(t *testing.T) {
				t.Parallel()
				if tt.slow && testing.Short() {
					t.Skip("Temporal notices that a worker is gone after 30 s")
				}
				killAtRandom(t, tt.errandd, tt.worker)
			})
		}
	}
}

// longKillRounds is how many runs of each kind are disturbed in the long form: 100 together.
const longKillRounds = 50

// killAtRandom executes a run of 20 steps and kills so many times meanwhile.
func killAtRandom(t *testing.T, errandd, worker int) {
	t.Helper()
	w := newMarkedRun(t, apptest.Options{}, 20)
	t.Logf("seed %d %d", w.seed[0], w.seed[1])
	kills := slices.Concat(slices.Repeat([]string{"errandd"}, errandd), slices.Repeat([]string{"worker"}, worker))
	w.random.Shuffle(len(kills), func(i, j int) { kills[i], kills[j] = kills[j], kills[i] })
	for i, target := range kills {
		w.awaitMarks(i, len(kills))
		w.kill(target)
	}
	run := w.server.WaitRun(w.id, automation.RunCompleted)
	w.check(run, worker)
	w.server.Close() // so that at most as many run as tests do
}

// markedRun is a run whose steps leave marks.
type markedRun struct {
	t      *testing.T
	server *apptest.Server
	dir    string
	id     string
	steps  int
	seed   [2]uint64
	random *rand.Rand
	// done are the steps that the ledger has called completed at some time, with the marks they had then.
	done map[string]int
}

func newMarkedRun(t *testing.T, options apptest.Options, steps int) *markedRun {
	t.Helper()
	w := &markedRun{t: t, dir: t.TempDir(), steps: steps, seed: [2]uint64{rand.Uint64(), rand.Uint64()}, done: map[string]int{}}
	w.random = rand.New(rand.NewPCG(w.seed[0], w.seed[1]))
	w.server = apptest.Start(t, options)
	script := filepath.Join(w.dir, "step.sh")
	if err := os.WriteFile(script, []byte(markingStep), 0o600); err != nil {
		t.Fatal(err)
	}
	plan := make([]any, steps)
	for i := range plan {
		plan[i] = map[string]any{
			"id": stepID(i), "kind": "command", "command": "sh", "args": []string{script, fmt.Sprint(w.random.IntN(5))}, "cwd": w.dir,
		}
	}
	w.id = w.server.RunNow(w.server.Create(map[string]any{
		"name": "Marks", "workflow": map[string]any{"compiled": map[string]any{"version": 2, "steps": plan}},
	}), nil).ID
	return w
}

func stepID(i int) string { return fmt.Sprintf("s%02d", i) }

// marks returns the marks, in the order in which they were left.
func (w *markedRun) marks() []string {
	content, err := os.ReadFile(filepath.Join(w.dir, "marks"))
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(content)), "\n")
}

// awaitMarks waits for a random moment of the i-th of n parts of the run, at which some step has just begun or ended.
func (w *markedRun) awaitMarks(i, n int) {
	w.t.Helper()
	part := 2 * w.steps / (n + 1) // there are two marks a step
	want := i*part + 1 + w.random.IntN(part)
	w.server.Await(patience, fmt.Sprintf("there are %d marks", want), func() (string, bool) {
		marks := w.marks()
		return fmt.Sprint(marks), len(marks) >= want
	})
}

// kill kills errandd and starts it again, or kills the worker, which errandd starts again.
func (w *markedRun) kill(target string) {
	w.t.Helper()
	w.t.Logf("killing %s after %d marks", target, len(w.marks()))
	switch target {
	case "worker":
		w.server.KillWorker()
		w.server.AwaitWorker()
	default:
		w.server.Kill()
		w.server.Restart()
	}
	for _, step := range w.server.Run(w.id).Steps {
		if step.Status == automation.StepCompleted {
			if _, known := w.done[step.ID]; !known {
				w.done[step.ID] = w.count("begin " + step.ID)
			}
		}
	}
}

func (w *markedRun) count(mark string) int {
	n := 0
	for _, m := range w.marks() {
		if m == mark {
			n++
		}
	}
	return n
}

// check compares the marks with the journal.
func (w *markedRun) check(run automation.Run, workerKills int) {
	w.t.Helper()
	again := 0
	for _, step := range run.Steps {
		begun, ended := w.count("begin "+step.ID), w.count("end "+step.ID)
		if step.Status != automation.StepCompleted || begun < 1 || ended < 1 || int64(begun) > step.Attempt {
			w.t.Errorf("step %s is %s after %d attempts; it began %d times and ended %d times", step.ID, step.Status, step.Attempt, begun, ended)
		}
		again += begun - 1
		if before, known := w.done[step.ID]; known && before != begun {
			w.t.Errorf("step %s had completed with %d marks, and was begun %d times in the end", step.ID, before, begun)
		}
	}
	if again > workerKills {
		w.t.Errorf("programs were started %d times again, although the worker was killed only %d times", again, workerKills)
	}
	begins := slices.DeleteFunc(w.marks(), func(mark string) bool { return !strings.HasPrefix(mark, "begin") })
	if !slices.IsSorted(begins) {
		w.t.Errorf("steps did not begin one after another: %v", begins)
	}
	if overlap, err := os.ReadFile(filepath.Join(w.dir, "overlap")); err == nil {
		w.t.Errorf("a step began while a program of before was alive: %s", overlap)
	}
	if pids := w.server.StepProcesses(""); len(pids) > 0 {
		w.t.Errorf("programs of steps are alive after the end of the run: %v", pids)
	}
	if w.t.Failed() {
		w.t.Logf("marks: %v", w.marks())
	}
	w.t.Logf("%d programs were started again; %s", again, run.FinishedAt.Sub(run.CreatedAt).Round(time.Millisecond))
}

// TestKillsAfterAcknowledgement kills errandd right after it has acknowledged an admission, time after time. Each run
// that was acknowledged is there, is the answer to a repeat of its request, and executes its step once.
func TestKillsAfterAcknowledgement(t *testing.T) {
	t.Parallel()
	kills := 10
	if long() {
		kills = 200
	}
	for _, database := range []struct {
		name string
		url  func(t *testing.T) string
	}{
		{"SQLite", func(*testing.T) string { return "" }},
		{"PostgreSQL", func(t *testing.T) string { t.Helper(); return pgtest.Database(t) }},
	} {
		t.Run(database.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			marks, gate := filepath.Join(dir, "marks"), filepath.Join(dir, "gate")
			open(t, gate)
			s := apptest.Start(t, apptest.Options{DatabaseURL: database.url(t)})
			id := s.Create(marker(marks, gate))
			s.Interrupt() // the machine is enrolled; it is away until all kills are done
			s.Options.NoLocalWorker = true
			s.Launch()
			var acknowledged []string
			for i := range kills {
				request := map[string]any{"idempotency_key": fmt.Sprint("kill ", i)}
				run := s.RunNow(id, request)
				s.Kill()
				s.Launch()
				if again := s.RunNow(id, request); again.ID != run.ID {
					t.Fatalf("after kill %d the same request has admitted %s, was %s", i, again.ID, run.ID)
				}
				acknowledged = append(acknowledged, run.ID)
			}
			s.Interrupt()
			s.Options.NoLocalWorker = false
			s.Restart()
			for _, run := range acknowledged {
				s.WaitRun(run, automation.RunCompleted)
			}
			checkMarks(t, marks, s.Home(), acknowledged...)
		})
	}
}
