package store

import (
	"context"
	"database/sql"
	"iter"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// querier runs statements: on a connection of a pool, or inside a transaction.
type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// scanner is a row to read from.
type scanner interface{ Scan(dest ...any) error }

// statement is SQL that grows with its numbered arguments.
type statement struct {
	text strings.Builder
	args []any
}

// add appends SQL in which each ? stands for the next of args.
func (s *statement) add(text string, args ...any) {
	for i, part := range strings.Split(text, "?") {
		if i > 0 {
			s.args = append(s.args, args[i-1])
			s.text.WriteString("$" + strconv.Itoa(len(s.args)))
		}
		s.text.WriteString(part)
	}
}

// addIDs appends a parenthesised list of ids, of which there is at least one. It repeats the last one up to a power
// of two, so that there are few different texts to compile.
func (s *statement) addIDs(ids []string) {
	s.text.WriteByte('(')
	for i := range 1 << bits.Len(uint(len(ids)-1)) {
		if i > 0 {
			s.text.WriteString(", ")
		}
		s.add("?", ids[min(i, len(ids)-1)])
	}
	s.text.WriteByte(')')
}

func (s *statement) query(ctx context.Context, q querier) (*sql.Rows, error) {
	return q.QueryContext(ctx, s.text.String(), s.args...)
}

func (s *statement) exec(ctx context.Context, q querier) (sql.Result, error) {
	return q.ExecContext(ctx, s.text.String(), s.args...)
}

// addID appends an id of a caller as an argument; false when it is not an id, so that the statement, which must
// not be executed then, would select nothing.
func (s *statement) addID(id string) bool {
	known, ok := canonicalID(id)
	s.add("?", known)
	return ok
}

// each calls fn for all rows and closes them.
func each(rows *sql.Rows, err error, fn func(scanner) error) error {
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := fn(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// collect reads all rows with scan and closes them.
func collect[T any](rows *sql.Rows, err error, scan func(scanner) (T, error)) ([]T, error) {
	var all []T
	err = each(rows, err, func(row scanner) error {
		v, err := scan(row)
		all = append(all, v)
		return err
	})
	return all, err
}

// idsAtOnce bounds how many ids one statement names.
const idsAtOnce = 100

// chunks divides ids over several statements.
func chunks(ids []string) iter.Seq[[]string] { return slices.Chunk(ids, idsAtOnce) }

// affected reports whether an execution changed a row.
func affected(result sql.Result, err error) (bool, error) {
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n > 0, err
}
