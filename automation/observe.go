package automation

import (
	"context"
	"time"

	"github.com/errandhq/errand/automation/schedule"
)

// Observer is told what the commits of one ledger have done, for whoever counts. Each call comes after its commit,
// once, and must not block.
type Observer interface {
	// RunAdmitted: a run was admitted. A run that repeats another one is manual.
	RunAdmitted(trigger TriggerKind)
	// RunEnded: a run has ended.
	RunEnded(status RunStatus)
	// StepBegun: a step has a new execution.
	StepBegun(kind StepKind)
	// StepEnded: a step has ended; it was skipped when it had not begun. Steps that were carried over are not among
	// them.
	StepEnded(kind StepKind, status StepStatus)
	// StepInterrupted: an execution has ended without a result, and the step is executed again.
	StepInterrupted(kind StepKind)
	// InstantAdmitted: an instant of a schedule was admitted so long after it was due, its jitter included.
	InstantAdmitted(behind time.Duration)
	// InstantsDropped: so many instants of a schedule were dropped.
	InstantsDropped(reason schedule.Reason, count int64)
}

// Census counts what a ledger holds at one time, whoever owns it.
type Census struct {
	// Unfinished counts the unfinished runs by where they stand. What is not there is 0.
	Unfinished map[RunStanding]int
	// Enrolled are the machines that are not revoked, Online those of them that were seen lately.
	Enrolled, Online int
}

// RunStanding is the status of an unfinished run, and what it waits for, or "".
type RunStanding struct {
	Status RunStatus
	Waits  WaitReason
}

// CensusStore counts.
type CensusStore interface {
	// Census counts unfinished runs and machines; engineUp says whether the engine answers, for which runs may wait.
	Census(ctx context.Context, engineUp bool) (Census, error)
}

// CredentialKind says what a caller presented.
type CredentialKind string

// The kinds of credentials that calls are refused for: there was none, or not a single one, a bearer
// token, the proof of a machine, a one-time code of enrolment.
const (
	CredentialNone    CredentialKind = "none"
	CredentialToken   CredentialKind = "token"
	CredentialMachine CredentialKind = "machine"
	CredentialCode    CredentialKind = "code"
)

// CallLimit is a bound on how often something may be called.
type CallLimit string

// The bounds: of the calls of one key, person or machine (ERRAND_RATE_LIMIT); of what one machine asks and sends; of
// wrong credentials from one address; of enrolments from one address; of what a caller has under way at the same time.
const (
	LimitCaller           CallLimit = "caller"
	LimitMachine          CallLimit = "machine"
	LimitWrongCredentials CallLimit = "wrong_credentials" //nolint:gosec // a name, and no credential
	LimitEnrolments       CallLimit = "enrolments"
	LimitUnderWay         CallLimit = "under_way"
)

// CallObserver is told how calls of this server were answered, for whoever counts. Its methods must not block.
type CallObserver interface {
	// CallAnswered: a request was answered. The route is the pattern that it matched, or "other", and so is its method.
	CallAnswered(method, route string, status int, took time.Duration)
	// CredentialRefused: a credential stands for nobody, or for somebody whose access has ended.
	CredentialRefused(kind CredentialKind)
	// CallLimited: a call was refused because there were too many.
	CallLimited(limit CallLimit)
}
