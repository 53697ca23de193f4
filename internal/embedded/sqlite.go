package embedded

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"go.temporal.io/server/common/persistence/sql/sqlplugin"
	sqliteschema "go.temporal.io/server/schema/sqlite"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/errandhq/errand/internal/lockfile"
)

const lockName = "lock"

// ErrInUse is returned by Start when another server, in this process or another, has the directory.
var ErrInUse = errors.New("another Temporal server has this directory")

// makePrivate creates an empty file unless there is one. SQLite would create it for all to read, and gives the mode of a
// file to those that it puts beside it.
func makePrivate(path string) error {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return file.Close()
}

// openDatabase opens an existing file beside the server. Pragmas are in SQLite's call form, as busy_timeout(10000).
func openDatabase(path string, pragmas ...string) (*sql.DB, error) {
	query := url.Values{"mode": {"rw"}, "_pragma": pragmas}
	dsn := url.URL{Scheme: "file", OmitHost: true, Path: filepath.ToSlash(path), RawQuery: query.Encode()}
	db, err := sql.Open("sqlite", dsn.String())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	return db, nil
}

func busy() string { return fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds()) }

// dirLock keeps a second server out of a directory, between goroutines as between processes. What the lock's file
// holds does not matter, so it cannot be damaged.
type dirLock struct{ file *os.File }

func lockDir(dir string) (*dirLock, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("creating the directory of embedded Temporal: %w", err)
	}
	file, err := lockfile.Take(filepath.Join(dir, lockName))
	if _, held := errors.AsType[*lockfile.HeldError](err); held {
		return nil, fmt.Errorf("%w: %s", ErrInUse, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("locking %s: %w", dir, err)
	}
	return &dirLock{file: file}, nil
}

// release gives the directory back. It cannot fail in a way that matters: the lock ends with its file.
func (l *dirLock) release() { _ = l.file.Close() }

// createDatabase makes the file with Temporal's tables, all or none of them.
func createDatabase(ctx context.Context, path string) error {
	if err := makePrivate(path); err != nil {
		return err
	}
	db, err := openDatabase(path, busy(), "journal_mode(wal)")
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := sqliteschema.SetupSchemaOnDB(schemaWriter{ctx: ctx, tx: tx}); err != nil {
		return err
	}
	return tx.Commit()
}

// schemaWriter lets the server's schema helper, which knows its own connections only, write into a transaction.
type schemaWriter struct {
	sqlplugin.AdminDB
	ctx context.Context
	tx  *sql.Tx
}

// Exec implements the one method of sqlplugin.AdminDB that the helper calls.
func (w schemaWriter) Exec(statement string, args ...any) error {
	_, err := w.tx.ExecContext(w.ctx, statement, args...)
	return err
}

// inspectDatabase says what makes the file unusable for this server, or "". With full it reads every page. An error means
// that nothing can be said about the file, for example because it may not be read.
func inspectDatabase(ctx context.Context, path string, full bool) (problem string, err error) {
	db, err := openDatabase(path, busy())
	if err != nil {
		return "", err
	}
	defer func() { _ = db.Close() }()
	have, err := readSchema(ctx, db)
	if err != nil {
		return asProblem(err)
	}
	want, err := serverSchema(ctx)
	if err != nil {
		return "", fmt.Errorf("listing the server's tables: %w", err)
	}
	for name, definition := range want {
		if have[name] != definition {
			return fmt.Sprintf("%s is not as this version of the server needs it", name), nil
		}
	}
	if !full {
		return "", nil
	}
	var verdict string
	if err := db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&verdict); err != nil {
		return asProblem(err)
	}
	if verdict != "ok" {
		return "damaged: " + verdict, nil
	}
	return "", nil
}

// asProblem tells errors that are in the file from those of its surroundings, such as a lock, a missing right or a
// failing disk, which setting the file aside would not cure.
func asProblem(err error) (string, error) {
	switch code, ok := sqliteCode(err); {
	case !ok:
		return "", err
	case code == sqlite3.SQLITE_CORRUPT, code == sqlite3.SQLITE_NOTADB, code == sqlite3.SQLITE_FORMAT, code == sqlite3.SQLITE_ERROR:
		return "unreadable: " + err.Error(), nil
	default:
		return "", err
	}
}

// sqliteCode is the primary result code of an error of SQLite.
func sqliteCode(err error) (int, bool) {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return 0, false
	}
	return e.Code() & 0xff, true
}

// serverSchema lists what this version of the server creates in a fresh file.
func serverSchema(ctx context.Context) (map[string]string, error) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return nil, err
	}
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(1)
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	if err := sqliteschema.SetupSchemaOnDB(schemaWriter{ctx: ctx, tx: tx}); err != nil {
		return nil, errors.Join(err, tx.Rollback())
	}
	if err := tx.Commit(); err != nil {
		return nil, err
	}
	return readSchema(ctx, db)
}

var sqlComment = regexp.MustCompile(`--[^\n]*`)

// readSchema lists a database's tables, indexes and triggers: definition by kind and name, without comments and layout.
func readSchema(ctx context.Context, db *sql.DB) (map[string]string, error) {
	rows, err := db.QueryContext(ctx, `SELECT type || ' ' || name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite\_%' ESCAPE '\'`)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	schema := make(map[string]string)
	for rows.Next() {
		var name, definition string
		if err := rows.Scan(&name, &definition); err != nil {
			return nil, err
		}
		schema[name] = strings.Join(strings.Fields(sqlComment.ReplaceAllString(definition, "")), " ")
	}
	return schema, rows.Err()
}
