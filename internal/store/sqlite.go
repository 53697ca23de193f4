package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/pressly/goose/v3"

	"github.com/errandhq/errand/automation"
)

const (
	// busyTimeout is how long SQLite waits for the write lock of another process.
	busyTimeout = 10 * time.Second
	// walLimit is the size to which the write-ahead log is cut back after a checkpoint.
	walLimit = 64 << 20
	// maxBatch bounds how many changes share one commit, so that the first of them does not wait for long.
	maxBatch = 64
	// migrationTries is how often a migration is tried that another process may be making too.
	migrationTries = 3
)

// connectSQLite opens the file with a pool of readers and one writer.
func connectSQLite(ctx context.Context, o Options) (database, error) {
	path, err := filepath.Abs(o.URL)
	if err != nil {
		return database{}, fmt.Errorf("finding the database file: %w", err)
	}
	if err := createPrivate(path); err != nil {
		return database{}, err
	}
	writing, err := sql.Open("sqlite", sqliteName(path, "synchronous(FULL)"))
	if err != nil {
		return database{}, fmt.Errorf("opening the database file: %w", err)
	}
	writing.SetMaxOpenConns(1)
	reading, err := sql.Open("sqlite", sqliteName(path, "query_only(1)"))
	if err != nil {
		return database{}, errors.Join(fmt.Errorf("opening the database file: %w", err), writing.Close())
	}
	const fewestReaders = 2
	reading.SetMaxOpenConns(max(fewestReaders, runtime.NumCPU()))
	reading.SetMaxIdleConns(max(fewestReaders, runtime.NumCPU()))
	if err := migrateSQLite(ctx, writing, o); err != nil {
		return database{}, errors.Join(err, reading.Close(), writing.Close())
	}
	conn, err := writing.Conn(ctx)
	if err != nil {
		return database{}, errors.Join(fmt.Errorf("opening the writer of the database: %w", err), reading.Close(), writing.Close())
	}
	w := &sqliteWriter{conn: &prepared{handle: conn}, turn: make(chan struct{}, 1)}
	readers := &prepared{handle: reading}
	return database{
		dialect:    sqliteDialect,
		read:       readers,
		write:      w.write,
		checkpoint: w.checkpoint,
		close: sync.OnceValue(func() error {
			w.close()
			// The last connection to close moves the write-ahead log into the file and removes it.
			return errors.Join(readers.close(), reading.Close(), w.conn.close(), conn.Close(), writing.Close())
		}),
	}, nil
}

// createPrivate makes the file readable by its owner only; SQLite gives its companion files the same mode.
func createPrivate(path string) error {
	const private = 0o600
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, private)
	if err == nil {
		err = file.Close()
	}
	if err != nil {
		return &automation.Error{
			Code: automation.CodeStoreUnavailable, Message: "the database file cannot be opened for writing", Cause: err,
		}
	}
	return nil
}

// sqliteName is the data source name of a file: whatever its path contains, and the settings of every connection.
func sqliteName(path string, pragmas ...string) string {
	settings := url.Values{"_txlock": {"immediate"}}
	settings["_pragma"] = append([]string{
		fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds()),
		"journal_mode(WAL)",
		"foreign_keys(1)",
		"trusted_schema(0)",
		fmt.Sprintf("journal_size_limit(%d)", walLimit),
	}, pragmas...)
	slashed := filepath.ToSlash(path)
	if !strings.HasPrefix(slashed, "/") {
		slashed = "/" + slashed // C:/… is /C:/… in a URI
	}
	name := url.URL{Scheme: "file", Path: slashed, RawQuery: settings.Encode()}
	return name.String()
}

// migrateSQLite migrates. SQLite has no lock that spans several transactions, so two processes that open a new
// file may both start on a migration: one of them fails on what the other has made, and sees it on its next try.
func migrateSQLite(ctx context.Context, db *sql.DB, o Options) error {
	var err error
	for range migrationTries {
		var provider *goose.Provider
		if provider, err = migrator(sqliteDialect, db); err != nil {
			return err
		}
		if err = migrate(ctx, sqliteDialect, provider, o.Logger); err == nil {
			return nil
		}
	}
	return err
}

// sqliteWriter runs write transactions on one connection. Those that arrive while a commit is being written
// share the next one, because waiting for the disk is what a commit costs.
type sqliteWriter struct {
	conn *prepared
	// turn is held by the goroutine that commits, for itself and for whoever is queued then.
	turn chan struct{}
	// relaxed is whether the connection's commits wait for the disk; it belongs to the holder of turn.
	relaxed bool

	mu     sync.Mutex
	queue  []*change
	closed bool
}

// change is one queued transaction.
type change struct {
	durability durability
	fn         func(ctx context.Context, tx querier) error
	err        error
	done       chan struct{} // closed when err is set
}

func (c *change) end(err error) {
	c.err = err
	close(c.done)
}

func (w *sqliteWriter) write(ctx context.Context, d durability, fn func(ctx context.Context, tx querier) error) error {
	c := &change{durability: d, fn: fn, done: make(chan struct{})}
	if err := w.enqueue(c); err != nil {
		return err
	}
	select {
	case w.turn <- struct{}{}:
		w.serve(ctx, c)
	case <-c.done:
	case <-ctx.Done():
		if w.withdraw(c) {
			return ctx.Err()
		}
	}
	<-c.done
	return c.err
}

// serve commits what is queued until c is done, which whoever had the turn before may have seen to, and gives
// the turn back.
func (w *sqliteWriter) serve(ctx context.Context, c *change) {
	defer func() { <-w.turn }()
	for {
		select {
		case <-c.done:
			return
		default:
			w.commit(ctx, w.take())
		}
	}
}

func (w *sqliteWriter) enqueue(c *change) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return errClosed
	}
	w.queue = append(w.queue, c)
	return nil
}

func (w *sqliteWriter) take() []*change {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := min(len(w.queue), maxBatch)
	batch := w.queue[:n:n]
	w.queue = w.queue[n:]
	return batch
}

// withdraw removes a change that nobody has taken yet.
func (w *sqliteWriter) withdraw(c *change) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, queued := range w.queue {
		if queued == c {
			w.queue = append(w.queue[:i:i], w.queue[i+1:]...)
			return true
		}
	}
	return false
}

// commit runs a batch in one transaction. A change that fails is undone alone. The caller's context does not
// reach the statements: interrupting one would undo the changes of others.
func (w *sqliteWriter) commit(ctx context.Context, batch []*change) {
	ctx = context.WithoutCancel(ctx)
	errs := make([]error, len(batch))
	err := errPanicked // stands when a change panics, so that the others are told and the writer goes on
	defer func() {
		if err != nil {
			// Fails where SQLite has undone the transaction by itself.
			_, _ = w.conn.ExecContext(ctx, `ROLLBACK`)
		}
		for i, c := range batch {
			if errs[i] == nil && err != nil {
				errs[i] = fmt.Errorf("committing a transaction: %w", err)
			}
			c.end(errs[i])
		}
	}()
	err = w.transact(ctx, batch, errs)
}

var errPanicked = errors.New("a change of the same transaction panicked")

func (w *sqliteWriter) transact(ctx context.Context, batch []*change, errs []error) error {
	if err := w.begin(ctx, batch); err != nil {
		return err
	}
	if err := w.run(ctx, batch, errs); err != nil {
		return err
	}
	_, err := w.conn.ExecContext(ctx, `COMMIT`)
	return err
}

// begin starts the transaction, with the durability that the most demanding change of the batch asks for.
func (w *sqliteWriter) begin(ctx context.Context, batch []*change) error {
	relax := true
	for _, c := range batch {
		relax = relax && c.durability == relaxed
	}
	if relax != w.relaxed {
		level := "FULL"
		if relax {
			level = "NORMAL"
		}
		if _, err := w.conn.ExecContext(ctx, `PRAGMA synchronous = `+level); err != nil {
			return err
		}
		w.relaxed = relax
	}
	_, err := w.conn.ExecContext(ctx, `BEGIN IMMEDIATE`)
	return err
}

// run runs each change of a batch and notes its error. One that shares the transaction runs inside a savepoint,
// so that it can be undone alone. An error of run itself means that the whole transaction is lost: SQLite undoes
// all of it on some errors, and then there is no savepoint left.
func (w *sqliteWriter) run(ctx context.Context, batch []*change, errs []error) error {
	if len(batch) == 1 {
		errs[0] = batch[0].fn(ctx, w.conn)
		return errs[0]
	}
	for i, c := range batch {
		if _, err := w.conn.ExecContext(ctx, `SAVEPOINT change`); err != nil {
			return err
		}
		if errs[i] = c.fn(ctx, w.conn); errs[i] != nil {
			if _, err := w.conn.ExecContext(ctx, `ROLLBACK TO change`); err != nil {
				return err
			}
		}
		if _, err := w.conn.ExecContext(ctx, `RELEASE change`); err != nil {
			return err
		}
	}
	return nil
}

// checkpoint copies the write-ahead log into the file.
func (w *sqliteWriter) checkpoint(ctx context.Context) error {
	select {
	case w.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-w.turn }()
	var busy, pages, moved int
	err := w.conn.QueryRowContext(ctx, `PRAGMA wal_checkpoint(TRUNCATE)`).Scan(&busy, &pages, &moved)
	if err == nil && busy != 0 {
		return errors.New("a reader keeps the write-ahead log in use")
	}
	return err
}

// close lets the queued changes finish and refuses new ones.
func (w *sqliteWriter) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.turn <- struct{}{}
	defer func() { <-w.turn }()
	for batch := w.take(); len(batch) > 0; batch = w.take() {
		w.commit(context.Background(), batch)
	}
}
