// Package archtest checks the structure of the repository in its tests: the
// import table of docs/architecture.md against the code and against the
// linter's rules, the documentation of every package, and what the program
// errand must not link. It has no code of its own.
package archtest
