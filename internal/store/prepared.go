package store

import (
	"context"
	"database/sql"
	"errors"
	"sync"
)

// maxPrepared bounds the statements that one handle keeps. The store has fewer texts than that in practice; the
// filters of listings could make more.
const maxPrepared = 200

// prepared keeps the statements of a SQLite handle compiled, which costs more than executing most of them. pgx
// does the same for PostgreSQL by itself.
type prepared struct {
	handle interface {
		querier
		PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
	}

	mu         sync.Mutex
	statements map[string]*sql.Stmt
}

// statement returns the compiled statement, or nil when it is to be executed from its text: there are too many,
// or it cannot be compiled, and executing it will tell why.
func (p *prepared) statement(ctx context.Context, query string) *sql.Stmt {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known, ok := p.statements[query]; ok {
		return known
	}
	if len(p.statements) >= maxPrepared {
		return nil
	}
	compiled, err := p.handle.PrepareContext(ctx, query)
	if err != nil {
		return nil
	}
	if p.statements == nil {
		p.statements = map[string]*sql.Stmt{}
	}
	p.statements[query] = compiled
	return compiled
}

func (p *prepared) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if compiled := p.statement(ctx, query); compiled != nil {
		return compiled.ExecContext(ctx, args...)
	}
	return p.handle.ExecContext(ctx, query, args...)
}

func (p *prepared) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if compiled := p.statement(ctx, query); compiled != nil {
		return compiled.QueryContext(ctx, args...)
	}
	return p.handle.QueryContext(ctx, query, args...)
}

func (p *prepared) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	if compiled := p.statement(ctx, query); compiled != nil {
		return compiled.QueryRowContext(ctx, args...)
	}
	return p.handle.QueryRowContext(ctx, query, args...)
}

func (p *prepared) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, compiled := range p.statements {
		errs = append(errs, compiled.Close())
	}
	p.statements = nil
	return errors.Join(errs...)
}
