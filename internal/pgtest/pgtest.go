// Package pgtest gives a test a real PostgreSQL database of its own. The first
// call in a test process starts a private cluster (the installed PostgreSQL, 15
// or later, on a unix socket in a temporary directory, without TCP); later
// calls create further databases in it. No TestMain is needed: a supervisor
// process ends the cluster and removes its directory as soon as the test
// process is gone, however it ended. Where PostgreSQL is missing the test fails
// and says how to get it; it never skips.
//
// Nothing in such a cluster is durable (fsync is off), and it sorts text by the
// rules of a language, as most production clusters do, so that a statement
// which relies on byte order shows.
package pgtest

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the "pgx" driver of database/sql
)

// statementLimit bounds one CREATE or DROP DATABASE; both take milliseconds,
// but many tests may ask at once on a busy computer.
const statementLimit = time.Minute

// Database returns the URL of a new, empty database, for pgx or for
// ERRAND_DATABASE_URL. The database is dropped when the test ends, with the
// connections that are still open to it.
func Database(tb testing.TB) string {
	tb.Helper()

	c, err := shared()
	if err != nil {
		tb.Fatalf("starting a PostgreSQL for the tests: %v", err)
	}
	name, err := c.create(tb.Context())
	if err != nil {
		tb.Fatalf("%v\n%s", err, c.server.log())
	}
	tb.Cleanup(func() {
		// The context of the test has ended by now.
		if err := c.drop(context.WithoutCancel(tb.Context()), name); err != nil {
			tb.Errorf("%v\n%s", err, c.server.log())
		}
	})

	return c.url(name)
}

// shared starts the cluster of this process once; a failure is as final as a
// success, because a second try would fail for the same reason.
var shared = sync.OnceValues(start)

// cluster is the running PostgreSQL of this process.
type cluster struct {
	dir      string  // holds the socket, the data and the log
	admin    *sql.DB // connected to the database "postgres"
	server   *server
	sequence atomic.Int64
}

// superuser owns the cluster; connections through the socket are trusted.
const superuser = "errand"

func (c *cluster) url(database string) string {
	return databaseURL(c.dir, database)
}

func databaseURL(dir, database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.User(superuser),
		Host:     "",
		Path:     "/" + database,
		RawQuery: url.Values{"host": {dir}, "sslmode": {"disable"}}.Encode(),
	}

	return u.String()
}

func (c *cluster) create(ctx context.Context) (string, error) {
	name := fmt.Sprintf("test_%d", c.sequence.Add(1))
	if err := c.exec(ctx, "CREATE DATABASE "+name+" TEMPLATE template0"); err != nil {
		return "", fmt.Errorf("creating the test database %s: %w", name, err)
	}

	return name, nil
}

func (c *cluster) drop(ctx context.Context, name string) error {
	if err := c.exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
		return fmt.Errorf("dropping the test database %s: %w", name, err)
	}

	return nil
}

func (c *cluster) exec(ctx context.Context, statement string) error {
	ctx, cancel := context.WithTimeout(ctx, statementLimit)
	defer cancel()
	_, err := c.admin.ExecContext(ctx, statement)

	return err
}
