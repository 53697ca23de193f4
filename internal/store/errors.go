package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/errandhq/errand/automation"
)

// errLostRace says that a compare-and-set found another's change: the transaction starts again from the new state.
var errLostRace = errors.New("another change came first")

// How often an operation is tried. Each lost race means that another change went through, so a run with many
// writers makes progress; a database that says busy has waited already.
const (
	attemptsAfterRace = 64
	attemptsAfterBusy = 2
)

// retry repeats op while it fails for a reason that another try may not meet, and translates what remains.
func retry(ctx context.Context, op func() error) error {
	for attempt := 1; ; attempt++ {
		err := op()
		again := attempt < retryLimit(err) && ctx.Err() == nil
		if !again {
			return translate(err)
		}
	}
}

// retryLimit returns how many attempts an error is worth.
func retryLimit(err error) int {
	var pg *pgconn.PgError
	var lite *sqlite.Error
	switch {
	case errors.Is(err, errLostRace):
		return attemptsAfterRace
	case errors.As(err, &pg) && (pg.Code == "40001" || pg.Code == "40P01"): // serialization failure, deadlock
		return attemptsAfterRace
	case errors.As(err, &lite) && primary(lite) == sqlite3.SQLITE_BUSY:
		return attemptsAfterBusy
	}
	return 1
}

// translate turns whatever a database or its driver says into an error of the product: the one place where
// foreign errors are looked at. An error of the product passes unchanged.
func translate(err error) error {
	if err == nil {
		return nil
	}
	if _, known := errors.AsType[*automation.Error](err); known {
		return err
	}
	if message := unavailable(err); message != "" {
		return &automation.Error{
			Code: automation.CodeStoreUnavailable, Message: message, RetryAfter: time.Second, Cause: err,
		}
	}
	return &automation.Error{
		Code: automation.CodeInternal, Message: "the database refused a statement of the control plane", Cause: err,
	}
}

// unavailable returns the sentence for an error that says the database cannot be used now, else "".
func unavailable(err error) string {
	const unreachable = "the database does not answer; try again shortly"
	var pg *pgconn.PgError
	var lite *sqlite.Error
	var network net.Error
	var connect *pgconn.ConnectError
	switch {
	case errors.Is(err, errLostRace):
		return "too many changes at once; try again shortly"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "the database did not answer in time"
	case errors.As(err, &pg):
		return unavailablePostgres(pg.Code)
	case errors.As(err, &lite):
		return unavailableSQLite(primary(lite))
	case errors.As(err, &network),
		errors.Is(err, driver.ErrBadConn), errors.Is(err, sql.ErrConnDone), errors.Is(err, errClosed),
		errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed),
		pgconn.SafeToRetry(err), pgconn.Timeout(err), errors.As(err, &connect):
		return unreachable
	case strings.HasSuffix(err.Error(), "sql: database is closed"): // database/sql keeps this error to itself
		return unreachable
	}
	return ""
}

// unavailablePostgres looks at the class of a SQLSTATE, or at the whole of it.
func unavailablePostgres(code string) string {
	const class = 2
	switch code {
	case "25006":
		return "the database only allows reading; is it a standby?"
	case "40001", "40P01", "55P03":
		return "too many changes at once; try again shortly"
	}
	switch code[:min(class, len(code))] {
	case "08", "57": // connection exception; operator intervention
		return "the database is not available; it may be restarting"
	case "53": // insufficient resources
		return "the database has run out of connections, memory or disk space"
	case "3D": // invalid catalog name
		return "the database does not exist"
	case "28": // invalid authorization
		return "the database refuses the credentials of the control plane"
	}
	return ""
}

func unavailableSQLite(code int) string {
	switch code {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return "the database is busy; try again shortly"
	case sqlite3.SQLITE_FULL:
		return "the disk of the data directory is full"
	case sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM:
		return "the database file cannot be read or written"
	}
	return ""
}

// primary returns the result code without its extension.
func primary(err *sqlite.Error) int {
	const mask = 0xff
	return err.Code() & mask
}

// notFound is the answer for an id that names nothing of this kind that the caller may see.
func notFound(kind, id string) error {
	return automation.Errorf(automation.CodeNotFound, "there is no %s %s", kind, quoted(id))
}

// quoted shows an id of a caller within reason.
func quoted(id string) string {
	const shown = 64
	return `"` + clean(id, shown) + `"`
}
