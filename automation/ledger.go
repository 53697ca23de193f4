package automation

import (
	"context"
	"encoding/json"
	"time"
)

// Installation is one control plane's identity: every workflow id and task queue carries it, so that several
// installations can share a Temporal namespace.
type Installation struct {
	ID string
	// LocalOwnerID is the owner that a single-user installation works as.
	LocalOwnerID string
	CreatedAt    time.Time
}

// Idempotency makes a repeated request answer with the first one's result. A zero value means none was asked for.
type Idempotency struct {
	Operation string
	Key       string
	// RequestHash tells a repeat from another request under the same key.
	RequestHash string
}

// IdempotencyFor is how long a key is remembered, at least; a key also lives as long as the run it names.
const IdempotencyFor = 30 * 24 * time.Hour

// AutomationFilter selects automations of one owner, newest first.
type AutomationFilter struct {
	Enabled   *bool
	MachineID string
	Query     string // part of the name, in any case
	Limit     int
	Cursor    string
}

// RunFilter selects runs of one owner, newest first.
type RunFilter struct {
	AutomationID string
	MachineID    string
	Status       RunStatus
	Trigger      TriggerKind
	Since, Until *time.Time // of creation; Until is exclusive
	Limit        int
	Cursor       string
}

// Page sizes of listings.
const (
	DefaultPageSize = 50
	MaxPageSize     = 200
)

// AutomationStore keeps definitions.
type AutomationStore interface {
	// CreateAutomation stores a definition as version 1, after checking in the same transaction that its
	// machine exists, belongs to the owner and is not revoked. A repeated idempotency key returns the first
	// result. Errors: validation_failed, machine_revoked, idempotency_conflict.
	CreateAutomation(ctx context.Context, ownerID string, d Definition, key Idempotency) (Automation, error)
	// Automation returns one automation of the owner, else not_found.
	Automation(ctx context.Context, ownerID, id string) (Automation, error)
	// UpdateAutomation applies a change to the definition, all or nothing, and raises the version when it
	// changed something. expectedVersion 0 means any. change may be called more than once. Whatever is due of a
	// schedule that it changes is settled first. Errors: not_found, version_conflict, validation_failed,
	// machine_revoked, and those of change.
	UpdateAutomation(
		ctx context.Context, ownerID, id string, expectedVersion int64, change func(*Definition) error,
	) (Automation, error)
	// DeleteAutomation deletes the configuration; runs stay readable and go on. expectedVersion 0 means any.
	// What is due of its schedules is settled first; no run is admitted afterwards. Errors: not_found,
	// version_conflict.
	DeleteAutomation(ctx context.Context, ownerID, id string, expectedVersion int64) error
	// ListAutomations returns a page without compiled plans, and the cursor of the next page or "".
	ListAutomations(ctx context.Context, ownerID string, f AutomationFilter) ([]Automation, string, error)
	// ScheduleDrops returns what an automation's schedules have dropped, recorded last first, at most limit
	// ranges. An automation that the owner does not have has none.
	ScheduleDrops(ctx context.Context, ownerID, automationID string, limit int) ([]ScheduleDrop, error)
}

// Admission is a request to admit one run.
type Admission struct {
	OwnerID      string
	AutomationID string
	Trigger      Trigger
	Input        json.RawMessage // nil means null
	Key          Idempotency
	// DeliveryKeys are the names by which a delivery of a webhook is recognised; see [webhook.Delivery].
	DeliveryKeys []string
}

// Cancellation is the result of recording a cancel.
type Cancellation struct {
	Run Run
	// Begun is the step that was executing when the cancel was recorded, or "".
	Begun string
}

// RunStore keeps runs and their journals.
type RunStore interface {
	// Admit stores one pending run with its snapshot, in one transaction that checks everything that
	// admission depends on. It is for manual triggers and webhooks, which must still be there and enabled; the
	// instants of schedules are admitted by [ScheduleStore]. Errors: not_found, automation_disabled, not_executable,
	// unsupported_plan_version, machine_revoked, idempotency_conflict, and unauthorized for a webhook.
	Admit(ctx context.Context, a Admission) (Run, error)
	// Retry stores one pending run that repeats a finished one; see [Run.Repeat]. It is an admission: the run's
	// automation must exist and be enabled, and the run's machine, whichever the automation targets now, must not be
	// revoked. Errors: those of Admit and of [Run.Repeat].
	Retry(ctx context.Context, r Retry) (Run, error)
	// Run returns one run of the owner with plan, input, steps and outputs, else not_found.
	Run(ctx context.Context, ownerID, id string) (Run, error)
	// RunState returns one run of the owner with its steps, without plan, input and outputs, else not_found.
	RunState(ctx context.Context, ownerID, id string) (Run, error)
	// RunStatus returns only the status of one run of the owner, for those who ask often; else not_found.
	RunStatus(ctx context.Context, ownerID, id string) (RunStatus, error)
	// ListRuns returns a page of run states, and the cursor of the next page or "".
	ListRuns(ctx context.Context, ownerID string, f RunFilter) ([]Run, string, error)
	// UnfinishedRuns returns the oldest unfinished runs of an automation, at most limit, and how many there
	// are; also of one that was deleted.
	UnfinishedRuns(ctx context.Context, ownerID, automationID string, limit int) ([]string, int, error)
	// RequestCancel records a cancel; see [Run.Cancel]. Errors: not_found, already_finished.
	RequestCancel(ctx context.Context, ownerID, id, reason string, force bool) (Cancellation, error)
	// RequestCancels records a cancel of unfinished runs of a selection for which none is recorded yet, oldest
	// first, and returns those that it recorded: a part of them at a time, and none when there are no more. Runs that
	// wait for an earlier one of their schedule come before all others: else the end of that one would start the next,
	// just to be cancelled. A run that ends meanwhile is left out. On an error it returns those that were recorded
	// before it.
	RequestCancels(ctx context.Context, ownerID string, s RunSelection, reason string) ([]Cancellation, error)
}

// RunSelection selects unfinished runs by what is set: of an automation, also of one that was deleted, and of a
// machine.
type RunSelection struct {
	AutomationID string
	MachineID    string
	// Until leaves out the runs that were admitted after it; zero leaves out none.
	Until time.Time
}

// Startable is a run whose workflow is to be started.
type Startable struct {
	RunID          string
	AutomationID   string
	AutomationName string
	MachineID      string
	Trigger        TriggerKind
	Generation     int64
	Steps          []StepOutline
}

// OpenRun is an unfinished run of an engine.
type OpenRun struct {
	ID         string
	Generation int64
	CreatedAt  time.Time
}

// EngineStore is the part of the ledger that starting and ending workflows needs. It is not bound to an owner.
type EngineStore interface {
	// StartableRuns returns unfinished runs whose workflow is not known to be in the engine, oldest first, without
	// those that wait for an earlier run of their schedule.
	// A run that belongs to another engine has had its generation raised, so that calls of its earlier
	// workflow are superseded.
	StartableRuns(ctx context.Context, engineID string, limit int) ([]Startable, error)
	// StartableRun returns one run of that kind; false when it needs no start.
	StartableRun(ctx context.Context, engineID, runID string) (Startable, bool, error)
	// MarkStarted records that the engine holds the workflow of that generation. A finished run or another
	// generation is left alone.
	MarkStarted(ctx context.Context, runID string, generation int64, engineID string) error
	// FinalizeRun ends a run whose steps have all ended, or which the workflow gave up on; see [Run.Finalize].
	FinalizeRun(ctx context.Context, in FinalizeInput) (FinalizeVerdict, error)
	// OpenRuns returns unfinished runs that were admitted before a time and whose workflows this engine is known to
	// hold, oldest first after a run, at most limit.
	OpenRuns(ctx context.Context, engineID string, before time.Time, after OpenRun, limit int) ([]OpenRun, error)
	// RunMarks returns where the named runs stand; those that do not exist are missing.
	RunMarks(ctx context.Context, runIDs []string) (map[string]RunMark, error)
	// ReconcileRun makes a run agree with the engine; see [Run.Reconcile].
	ReconcileRun(ctx context.Context, w ClosedWorkflow) (Repair, error)
	// WaitingQueues returns the active machines that were seen since a time and for which runs of this engine wait,
	// each with the oldest of these.
	WaitingQueues(ctx context.Context, engineID string, seenSince time.Time) ([]MachineQueueLook, error)
	// StallRun records that the task of a step is taken for lost; see [Run.Stall].
	StallRun(ctx context.Context, s StalledStep) (bool, error)
	// CancelRun records a cancel that was made in the engine.
	CancelRun(ctx context.Context, in CancelInput) (CancelVerdict, error)
}

// ChoreStore is the part of the ledger that periodic work of several servers needs.
type ChoreStore interface {
	// PurgeKeys removes at most limit idempotency keys that have expired, and returns how many.
	PurgeKeys(ctx context.Context, limit int) (int, error)
	// Lease takes or renews the named lease for the holder; false when another holder's lease has not expired.
	Lease(ctx context.Context, name, holder string, ttl time.Duration) (bool, error)
}

// StepLedger is the ledger's side of the machine protocol. Every call is idempotent and concerns one machine:
// a run of another machine is not_found.
type StepLedger interface {
	// Hello records the instance that a machine runs as and answers for each held execution. Labels that are
	// nil leave those of the enrolment. A machine whose earlier instance still lives elsewhere is refused with forbidden and told where that one is.
	Hello(ctx context.Context, machineID string, h Hello) ([]HeldAnswer, error)
	// Begin decides whether a step executes now; see [Run.Begin].
	Begin(ctx context.Context, machineID string, r BeginRequest) (BeginAnswer, error)
	// Finish records the end of an execution; see [Run.Finish]. It is durable when it returns.
	Finish(ctx context.Context, machineID string, r FinishRequest) (FinishAnswer, error)
	// OpenEnds returns the executions of the given machines that are to be ended and are not confirmed.
	OpenEnds(ctx context.Context, machineIDs []string) (map[string][]Event, error)
}

// NewMachine is what enrolment stores.
type NewMachine struct {
	OwnerID   string
	Name      string
	Platform  string
	Version   string
	Labels    map[string]string
	PublicKey string
}

// MachineLoad is a machine with what runs and waits on it.
type MachineLoad struct {
	Machine
	RunningSteps int
	PendingRuns  int
}

// EnrollmentStore keeps one-time codes, and lets machines in.
type EnrollmentStore interface {
	// EnrollMachine stores a new machine. A public key that is enrolled already returns that machine.
	EnrollMachine(ctx context.Context, m NewMachine) (Machine, error)
	// SaveEnrollmentCode keeps a new code. Errors: not_found when it names a machine that the owner does not
	// have, rate_limited when the owner has [MaxOpenEnrollmentCodes] open ones.
	SaveEnrollmentCode(ctx context.Context, c EnrollmentCode) error
	// RedeemEnrollmentCode stores the machine that presents an open code, for the code's owner, and uses the
	// code up, in one transaction: of several keys exactly one gets it. The key that has it may repeat the
	// call, so that an answer that was lost costs nothing. A code that names a machine gives that machine the
	// key: it keeps its id, queue and name, and works again if it was revoked. m.OwnerID is not read. Errors:
	// not_found for any code that is not open, forbidden for a key that another machine has, machine_revoked
	// for the key of a revoked one, validation_failed.
	RedeemEnrollmentCode(ctx context.Context, hash string, m NewMachine) (Machine, error)
}

// MachineStore keeps machines.
type MachineStore interface {
	// OwnedMachine returns one machine of the owner, else not_found.
	OwnedMachine(ctx context.Context, ownerID, id string) (MachineLoad, error)
	// ChangeMachine changes name and labels. Errors: not_found, validation_failed.
	ChangeMachine(ctx context.Context, ownerID, id string, c MachineChange) (MachineLoad, error)
	// RevokeMachine ends a machine's access, durably; nothing is admitted for it or begins on it afterwards.
	// Its unfinished runs are for [MachineStore.LoseRuns]. Repeating it changes nothing. Error: not_found.
	RevokeMachine(ctx context.Context, ownerID, id string) (Machine, error)
	// LoseRuns ends at most limit unfinished runs of revoked machines, see [Run.LoseMachine], and returns
	// them. It may be called by several servers at once.
	LoseRuns(ctx context.Context, limit int) ([]Run, error)
	// AccessChanges returns the machines that were revoked or got another key at since or later.
	AccessChanges(ctx context.Context, since time.Time) ([]AccessChange, error)
	// Machine returns one machine by id whoever owns it, else not_found.
	Machine(ctx context.Context, id string) (Machine, error)
	// Machines returns a page of the owner's machines, oldest first, and the cursor of the next page or "".
	Machines(ctx context.Context, ownerID string, limit int, cursor string) ([]MachineLoad, string, error)
	// MachineLoads returns the load of the named machines by id.
	MachineLoads(ctx context.Context, ids []string) (map[string]MachineLoad, error)
	// TouchMachine records that a machine was seen at t. Calls may come often; the stored value is at most
	// ten seconds behind.
	TouchMachine(ctx context.Context, id string, t time.Time) error
}

// Ledger is everything that the database keeps.
type Ledger interface { //nolint:interfacebloat // the sum of the others; nobody takes it as a whole but who wires
	AutomationStore
	RunStore
	EngineStore
	ChoreStore
	ScheduleStore
	StepLedger
	EnrollmentStore
	MachineStore
	AccessStore
	AuditStore
	WebhookStore
	SecretStore
	CensusStore
	// Installation returns the identity of this installation.
	Installation(ctx context.Context) (Installation, error)
	// Ping reports store_unavailable when the database does not answer.
	Ping(ctx context.Context) error
}
