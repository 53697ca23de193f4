package automation

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/errandhq/errand/internal/strictjson"
)

// Code names one kind of refusal. The set is closed: what is not in it is [CodeInternal], and its text stays in the log.
type Code string

// The codes that a service may answer with.
const (
	CodeValidationFailed       Code = "validation_failed"
	CodeUnauthorized           Code = "unauthorized"
	CodeForbidden              Code = "forbidden"
	CodeNotFound               Code = "not_found"
	CodeVersionConflict        Code = "version_conflict"
	CodeIdempotencyConflict    Code = "idempotency_conflict"
	CodeAutomationDisabled     Code = "automation_disabled"
	CodeNotExecutable          Code = "not_executable"
	CodeUnsupportedPlanVersion Code = "unsupported_plan_version"
	CodeMachineRevoked         Code = "machine_revoked"
	CodeAlreadyFinished        Code = "already_finished"
	CodeNotFinished            Code = "not_finished"
	CodePayloadTooLarge        Code = "payload_too_large"
	CodeRateLimited            Code = "rate_limited"
	CodeEngineUnavailable      Code = "engine_unavailable"
	CodeStoreUnavailable       Code = "store_unavailable"
	CodeRuntimeUnavailable     Code = "runtime_unavailable"
	CodeInternal               Code = "internal"
)

// Codes is the closed set, in the order of their status.
var Codes = []Code{
	CodeValidationFailed, CodeUnauthorized, CodeForbidden, CodeNotFound, CodeVersionConflict, CodeIdempotencyConflict,
	CodeAutomationDisabled, CodeNotExecutable, CodeUnsupportedPlanVersion, CodeMachineRevoked, CodeAlreadyFinished,
	CodeNotFinished, CodePayloadTooLarge, CodeRateLimited, CodeInternal, CodeEngineUnavailable, CodeStoreUnavailable,
	CodeRuntimeUnavailable,
}

// statusByCode is the one table from codes to HTTP status. runtime_unavailable is said by the CLI alone and has none.
var statusByCode = map[Code]int{
	CodeValidationFailed:       400,
	CodeUnauthorized:           401,
	CodeForbidden:              403,
	CodeNotFound:               404,
	CodeVersionConflict:        409,
	CodeIdempotencyConflict:    409,
	CodeAutomationDisabled:     409,
	CodeNotExecutable:          409,
	CodeUnsupportedPlanVersion: 409,
	CodeMachineRevoked:         409,
	CodeAlreadyFinished:        409,
	CodeNotFinished:            409,
	CodePayloadTooLarge:        413,
	CodeRateLimited:            429,
	CodeEngineUnavailable:      503,
	CodeStoreUnavailable:       503,
	CodeInternal:               500,
}

// Status returns the HTTP status of a code; 500 for one that has none.
func (c Code) Status() int {
	if s, ok := statusByCode[c]; ok {
		return s
	}
	return 500
}

// Known reports whether c belongs to the closed set.
func (c Code) Known() bool { return slices.Contains(Codes, c) }

// Violation is one thing that is wrong with a document, at the place where it is.
type Violation = strictjson.Violation

// Error is a refusal: a code of the closed set and a sentence for a person that says what to do.
type Error struct {
	Code    Code
	Message string
	// Details lists every violation of the refused document; nil otherwise.
	Details []Violation
	// RetryAfter says how long to wait before the next try; zero when waiting does not help.
	RetryAfter time.Duration
	// Cause is what happened underneath. It is for the log and is never shown to a caller.
	Cause error
}

// Error returns the code and the sentence.
func (e *Error) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("%s: %s: %v", e.Code, e.Message, e.Cause)
	}
	return fmt.Sprintf("%s: %s", e.Code, e.Message)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Errorf makes an [Error] of a code and a formatted sentence.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// RateLimited makes the refusal of a caller who asks too often, with the time after which it may ask again.
func RateLimited(wait time.Duration, format string, args ...any) *Error {
	e := Errorf(CodeRateLimited, format, args...)
	e.RetryAfter = wait
	return e
}

// Invalid makes the validation error that reports all violations of one document.
func Invalid(violations ...Violation) *Error {
	parts := make([]string, 0, len(violations))
	for _, v := range violations {
		if v.Path == "" {
			parts = append(parts, v.Message)
			continue
		}
		parts = append(parts, v.Path+": "+v.Message)
	}
	const shown = 3
	more := ""
	if len(parts) > shown {
		more = fmt.Sprintf(" (and %d more, see details)", len(parts)-shown)
		parts = parts[:shown]
	}
	return &Error{Code: CodeValidationFailed, Message: strings.Join(parts, "; ") + more, Details: violations}
}

// CodeOf returns the code of an error, [CodeInternal] for one that carries none, and "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return CodeInternal
}

// StepCode names why a step failed. The set is closed.
type StepCode string

// The codes of step errors. Only [StepErrTransportUnavailable] is transient, and a process never yields it.
const (
	StepErrCommandNotFound      StepCode = "command_not_found"
	StepErrCommandNotExecutable StepCode = "command_not_executable"
	StepErrCwdMissing           StepCode = "cwd_missing"
	StepErrInterpreterNotFound  StepCode = "interpreter_not_found"
	StepErrArgumentTooLong      StepCode = "argument_too_long"
	StepErrSpawnFailed          StepCode = "spawn_failed"
	StepErrNonzeroExit          StepCode = "nonzero_exit"
	StepErrKilledBySignal       StepCode = "killed_by_signal"
	StepErrTimedOut             StepCode = "timed_out"
	StepErrCancelled            StepCode = "cancelled"
	StepErrActionNotFound       StepCode = "action_not_found"
	StepErrActionFailed         StepCode = "action_failed"
	StepErrActionUnauthorized   StepCode = "action_unauthorized"
	StepErrInvalidTemplate      StepCode = "invalid_template"
	StepErrTransportUnavailable StepCode = "transport_unavailable"
	StepErrMachineLost          StepCode = "machine_lost"
)

// StepError is why a step did not complete.
type StepError struct {
	Code    StepCode `json:"code"`
	Message string   `json:"message"`
}

// Error returns the code and the sentence.
func (e *StepError) Error() string { return string(e.Code) + ": " + e.Message }
