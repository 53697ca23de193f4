package store_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/storetest"
)

// TestWhatIsAskedAgainAndAgain checks how SQLite looks for what the servers ask every few seconds: by indexes of what
// is unfinished, which are short however many runs there have been, and in the order of those indexes.
func TestWhatIsAskedAgainAndAgain(t *testing.T) {
	t.Parallel()
	url := filepath.Join(t.TempDir(), "errand.db")
	s := open(t, url, storetest.Options{Now: time.Now, NewID: storetest.NewID})
	db := raw(t, kinds[0], url)
	asking, asked := "", 0
	s.WatchReads(func(query string, args []any) {
		asked++
		for _, step := range planOf(t, db, query, args) {
			if strings.HasPrefix(step, "SCAN r") || strings.HasPrefix(step, "SCAN s ") && !strings.Contains(step, " USING ") ||
				strings.Contains(step, "TEMP B-TREE") {
				t.Errorf("%s: %s\nin %s", asking, step, query)
			}
		}
	})
	for name, ask := range map[string]func(ctx context.Context) error{
		"due schedules":      func(ctx context.Context) error { _, err := s.DueSchedules(ctx, 100); return err },
		"next schedule":      func(ctx context.Context) error { _, err := s.NextScheduleWake(ctx); return err },
		"unsynced schedules": func(ctx context.Context) error { _, err := s.UnsyncedSchedules(ctx, "engine", 100); return err },
		"startable runs":     func(ctx context.Context) error { _, err := s.StartableRuns(ctx, "engine", 100); return err },
		"open runs": func(ctx context.Context) error {
			_, err := s.OpenRuns(ctx, "engine", time.Now(), automation.OpenRun{}, 1000)
			return err
		},
		"further open runs": func(ctx context.Context) error {
			_, err := s.OpenRuns(ctx, "engine", time.Now(), automation.OpenRun{ID: storetest.NewID(), CreatedAt: time.Now()}, 1000)
			return err
		},
		"open ends":           func(ctx context.Context) error { _, err := s.OpenEnds(ctx, []string{storetest.NewID()}); return err },
		"runs of the revoked": func(ctx context.Context) error { _, err := s.LoseRuns(ctx, 100); return err },
	} {
		asking, asked = name, 0
		if err := ask(t.Context()); err != nil || asked == 0 {
			t.Errorf("%s: %v after %d statements", name, err, asked)
		}
	}
}

// planOf returns the steps of SQLite's plan of a statement.
func planOf(t *testing.T, db *sql.DB, query string, args []any) []string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+query, args...)
	if err != nil {
		t.Fatalf("explaining %s: %v", query, err)
	}
	defer rows.Close()
	var steps []string
	for rows.Next() {
		var id, parent, unused int
		var step string
		if err := rows.Scan(&id, &parent, &unused, &step); err != nil {
			t.Fatal(err)
		}
		steps = append(steps, step)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return steps
}
