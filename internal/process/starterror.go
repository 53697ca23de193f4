package process

import "fmt"

// StartErrorKind says why a program never started. The set is closed.
type StartErrorKind string

// The kinds of [StartError].
const (
	// CommandNotFound: there is no such program, at that path or on the PATH that was searched.
	CommandNotFound StartErrorKind = "command_not_found"
	// CommandNotExecutable: the file is there, but it may not be executed or is not a program.
	CommandNotExecutable StartErrorKind = "command_not_executable"
	// InterpreterNotFound: the program's `#!` line, or its loader, names a file that cannot be used.
	InterpreterNotFound StartErrorKind = "interpreter_not_found"
	// CwdMissing: the working directory is not there, is not a directory, or may not be entered.
	CwdMissing StartErrorKind = "cwd_missing"
	// ArgumentTooLong: one argument or variable, or all of them together, exceed what the system can pass.
	ArgumentTooLong StartErrorKind = "argument_too_long"
	// SpawnFailed: the system refused for another reason, which the message gives.
	SpawnFailed StartErrorKind = "spawn_failed"
)

// StartError says why a program never started, with a sentence for a person that names what is at fault.
type StartError struct {
	Kind    StartErrorKind
	Message string
	// Cause is the system's own error; nil when there was none.
	Cause error
}

// Error returns the kind and the sentence.
func (e *StartError) Error() string { return string(e.Kind) + ": " + e.Message }

// Unwrap returns the cause.
func (e *StartError) Unwrap() error { return e.Cause }

func startErrorf(kind StartErrorKind, cause error, format string, args ...any) *StartError {
	return &StartError{Kind: kind, Message: fmt.Sprintf(format, args...), Cause: cause}
}
