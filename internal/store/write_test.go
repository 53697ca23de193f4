package store_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/errandhq/errand/internal/store"
	"github.com/errandhq/errand/internal/storetest"
)

// TestDurability asks inside transactions what a commit will wait for.
func TestDurability(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		kind    kind
		ask     string
		durable string
		relaxed string
	}{
		{kinds[0], `PRAGMA synchronous`, "2", "1"},
		{kinds[1], `SHOW synchronous_commit`, "on", "off"},
	} {
		t.Run(tc.kind.name, func(t *testing.T) {
			t.Parallel()
			url := tc.kind.fresh(t)
			if tc.kind.driver == "pgx" { // the clusters of tests are not durable by default
				exec(t, raw(t, tc.kind, url), `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = on', current_database()); END $$`)
			}
			s := open(t, url, storetest.Options{Now: time.Now, NewID: storetest.NewID})
			for _, mustSurvive := range []bool{true, false, true, true, false, false} {
				want := tc.relaxed
				if mustSurvive {
					want = tc.durable
				}
				var got string
				err := s.Write(t.Context(), mustSurvive, func(ctx context.Context, tx store.Querier) error {
					return tx.QueryRowContext(ctx, tc.ask).Scan(&got)
				})
				if err != nil || got != want {
					t.Errorf("a transaction with must survive = %v has %q, %v, want %q", mustSurvive, got, err, want)
				}
			}
		})
	}
}

// addOwner is a change that can be told from others.
func addOwner(ctx context.Context, tx store.Querier, name string) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO owners (id, name, created_at) VALUES ($1, $2, 0)`, storetest.NewID(), name)
	return err
}

func ownersNamed(t *testing.T, k kind, url, like string) int {
	t.Helper()
	var n int
	if err := raw(t, k, url).QueryRowContext(t.Context(), `SELECT count(*) FROM owners WHERE name LIKE $1`, like).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestBatch holds up one change while others queue behind it. Those share the next commit, of which a failing
// change is undone alone, and none is executed that was given up before its turn.
func TestBatch(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, k kind) {
		url := k.fresh(t)
		s := open(t, url, storetest.Options{Now: time.Now, NewID: storetest.NewID})
		entered, release := make(chan struct{}), make(chan struct{})
		results := make(chan error)
		go func() {
			results <- s.Write(t.Context(), true, func(ctx context.Context, tx store.Querier) error {
				close(entered)
				<-release
				return addOwner(ctx, tx, "first")
			})
		}()
		<-entered
		refused := errors.New("refused")
		const changes = 100 // more than one batch
		for i := range changes {
			go func() {
				results <- s.Write(t.Context(), i%2 == 0, func(ctx context.Context, tx store.Querier) error {
					if err := addOwner(ctx, tx, fmt.Sprintf("change %d", i)); err != nil {
						return err
					}
					switch i % 4 {
					case 1:
						return refused
					case 2: // a statement that fails
						_, err := tx.ExecContext(ctx, `INSERT INTO owners (id, name, created_at) SELECT id, name, 0 FROM owners`)
						return err
					}
					return nil
				})
			}()
		}
		given, give := context.WithCancel(t.Context())
		up := make(chan error)
		go func() {
			up <- s.Write(given, true, func(ctx context.Context, tx store.Querier) error { return addOwner(ctx, tx, "given up") })
		}()
		if k.driver == "sqlite" {
			give()
			if err := <-up; !errors.Is(err, context.Canceled) {
				t.Errorf("a change given up in the queue: %v", err)
			}
		}
		close(release)
		failed, asRefused := 0, 0
		for range changes + 1 {
			err := <-results
			if err != nil {
				failed++
			}
			if errors.Is(err, refused) {
				asRefused++
			}
		}
		if failed != changes/2 || asRefused != changes/4 {
			t.Errorf("%d changes failed, %d of them by their own error, want %d and %d", failed, asRefused, changes/2, changes/4)
		}
		if n := ownersNamed(t, k, url, "change%"); n != changes/2 {
			t.Errorf("%d changes were stored, want %d", n, changes/2)
		}
		if n := ownersNamed(t, k, url, "first"); n != 1 {
			t.Errorf("the first change was stored %d times", n)
		}
		if k.driver == "sqlite" {
			if n := ownersNamed(t, k, url, "given up"); n != 0 {
				t.Error("a change was executed that had been given up")
			}
		} else if err := <-up; err != nil {
			t.Errorf("Write: %v", err)
		}
		give()
	})
}

// TestBatchPanic lets a change panic: the caller gets the panic, and the store goes on.
func TestBatchPanic(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, k kind) {
		url := k.fresh(t)
		s := open(t, url, storetest.Options{Now: time.Now, NewID: storetest.NewID})
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic was swallowed")
				}
			}()
			_ = s.Write(t.Context(), true, func(ctx context.Context, tx store.Querier) error {
				if err := addOwner(ctx, tx, "panicked"); err != nil {
					return err
				}
				panic("a mistake")
			})
		}()
		err := s.Write(t.Context(), true, func(ctx context.Context, tx store.Querier) error { return addOwner(ctx, tx, "after") })
		if err != nil || ownersNamed(t, k, url, "after") != 1 || ownersNamed(t, k, url, "panicked") != 0 {
			t.Errorf("after a panic: %v, %d stored, %d left behind", err, ownersNamed(t, k, url, "after"), ownersNamed(t, k, url, "panicked"))
		}
	})
}
