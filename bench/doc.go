// Package bench measures the built programs as a user sees them, beside what they are built on. Its benchmarks start
// errandd and its worker, and in the same process as themselves a bare Temporal workflow on the same kind of embedded
// server; the rounds of the contenders alternate, so that a computer that is busy with something else, too, slows all of
// them. `make bench` runs it, prints a table and writes the same as JSON; docs/performance.md tells how to read them.
//
// The package has no code of its own beside its tests, which are benchmarks, and the program in minimal.
package bench
