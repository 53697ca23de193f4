// Package migrations holds the schema of the ledger as numbered goose migrations, once for PostgreSQL and once
// for SQLite. Both folders have files of equal names, and each pair leads to the same tables and columns, so that
// one set of statements works on both; a test compares them. A migration that has been released is never edited:
// the next change is the next number.
//
// Instants are microseconds since 1970 UTC. Documents (plans, inputs, outputs, labels) are JSON texts that only
// the program reads; whatever a query filters by has a column of its own.
package migrations

import "embed"

// Files holds postgres/*.sql and sqlite/*.sql.
//
//go:embed postgres/*.sql sqlite/*.sql
var Files embed.FS
