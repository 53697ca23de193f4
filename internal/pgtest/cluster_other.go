//go:build !unix

package pgtest

import "errors"

func start() (*cluster, error) {
	return nil, errors.New("tests with PostgreSQL need a unix system: run them on Linux or macOS")
}

// server is never made here.
type server struct{}

func (*server) log() string { return "" }
