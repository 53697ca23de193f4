package automation

import (
	"context"
	"encoding/json"
	"time"

	"github.com/errandhq/errand/automation/schedule"
)

// Limits of an automation's triggers.
const (
	MaxSchedules = 100
	MaxWebhooks  = 20
)

// ScheduleDefinition is what the author of a schedule decides: a part of [Definition].
type ScheduleDefinition struct {
	ID      string // empty for a schedule that the ledger is to add
	Spec    schedule.Spec
	Policy  schedule.Policy
	Input   json.RawMessage // the input of its runs; nil means null
	Enabled bool
	// Resume asks a change to let the schedule fire again if an operator has paused it. It is never stored.
	Resume bool `json:"-"`
}

// Schedule is a stored schedule with what the control plane knows about it.
type Schedule struct {
	ScheduleDefinition
	CreatedAt    time.Time
	Status       schedule.Status
	StatusReason string
	Occurrences  int64
	NextRunAt    *time.Time // the instant that is settled next, nil when there is none or the schedule does not fire
	LastRunAt    *time.Time // the instant of the run that was admitted last
}

// MaxScheduleDrops is how many ranges of drops the ledger keeps of one schedule: the newest.
const MaxScheduleDrops = 1_000

// ScheduleDrop is a range of firings that were not admitted.
type ScheduleDrop struct {
	ScheduleID string          `json:"scheduleId"`
	From       time.Time       `json:"from"`
	To         time.Time       `json:"to"`
	Count      int64           `json:"count"`
	Reason     schedule.Reason `json:"reason"`
	RecordedAt time.Time       `json:"recordedAt"`
}

// ScheduleDecision is what one call of DecideSchedule has done.
type ScheduleDecision struct {
	// Admitted are the runs that were admitted and may start now. Those that wait for an earlier run are not among
	// them.
	Admitted []string
	// Cancelled are the runs whose cancel was recorded.
	Cancelled []Cancellation
	// NextWake is when to decide again; zero when the schedule does not fire.
	NextWake time.Time
}

// ScheduleSync is a schedule as the engine is to hold it. The engine never learns its author's input.
type ScheduleSync struct {
	ID             string
	AutomationID   string
	AutomationName string
	MachineID      string
	CreatedAt      time.Time
	Spec           schedule.Spec
	// Paused is set when it does not fire now: paused, finished, disabled, or its automation is disabled. Note says why.
	Paused bool
	Note   string
	// Removed marks a tombstone: the engine is to forget it.
	Removed bool
	// Generation counts the changes that the engine must learn; SyncedGeneration is the one that it has learned,
	// in the engine EngineID, or 0.
	Generation, SyncedGeneration int64
	EngineID                     string
}

// ScheduleStore is the part of the ledger that firing schedules and showing them to the engine needs. It is not
// bound to an owner.
type ScheduleStore interface {
	// DecideSchedule locks the schedule, settles every instant that is due at the ledger's time, and stores runs,
	// cancels, drops and the new cursor in one transaction. A wake-up carries no authority: it may come early,
	// late or doubled. A schedule that is unknown or removed settles nothing and is no error.
	DecideSchedule(ctx context.Context, id string) (ScheduleDecision, error)
	// DueSchedules returns ids of schedules that are to be decided at the ledger's time, those that are due longest
	// first.
	DueSchedules(ctx context.Context, limit int) ([]string, error)
	// NextScheduleWake returns when the first schedule is to be decided, in the past for one that is due; zero when
	// none fires.
	NextScheduleWake(ctx context.Context) (time.Time, error)
	// UnsyncedSchedules returns schedules whose state the engine has not learned, tombstones included.
	UnsyncedSchedules(ctx context.Context, engineID string, limit int) ([]ScheduleSync, error)
	// ScheduleSyncs returns a page of all schedules that the engine is to hold, in the order of their ids, after
	// the id after.
	ScheduleSyncs(ctx context.Context, after string, limit int) ([]ScheduleSync, error)
	// ScheduleSync returns one schedule, also a tombstone; false when it is unknown.
	ScheduleSync(ctx context.Context, id string) (ScheduleSync, bool, error)
	// MarkScheduleSynced records that the engine has learned a generation, unless a later one is recorded. The
	// tombstone of a schedule without unfinished runs is forgotten when its removal is confirmed. A generation of 0
	// records that the engine has lost the schedule.
	MarkScheduleSynced(ctx context.Context, id string, generation int64, engineID string) error
	// PauseSchedule records a pause (or, with paused false, its end) that an operator made in the engine, if the
	// schedule is still at that generation.
	PauseSchedule(ctx context.Context, id string, generation int64, paused bool, reason string) error
}
