// Package apptest starts the built programs in a test: errandd on a data directory and a loopback port of its
// own, this machine's worker beside it or by hand, and errand as a command line. What a test starts sees nothing
// of the environment around it (no home, no configuration, no ERRAND_ variable), and nothing of it is left when
// the test is over: not errandd, not the worker, which outlives errandd by design, and not the programs of
// steps, which outlive the worker. That holds for a test process that was killed as well.
//
// Nothing here waits for a fixed time: every wait is for a condition, with a limit that is an error.
package apptest
