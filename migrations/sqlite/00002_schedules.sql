-- +goose Up
CREATE TABLE schedules (
    id                 TEXT PRIMARY KEY,
    automation_id      TEXT NOT NULL REFERENCES automations (id),
    spec               TEXT NOT NULL, -- when it fires, as JSON, in its author's words
    overlap            TEXT NOT NULL,
    catch_up           TEXT NOT NULL,
    catch_up_window_ms INTEGER NOT NULL,
    jitter_ms          INTEGER NOT NULL,
    max_occurrences    INTEGER NOT NULL, -- 0 is no limit
    input              TEXT NOT NULL,
    enabled            INTEGER NOT NULL,
    created_at         INTEGER NOT NULL,
    status             TEXT NOT NULL,
    status_reason      TEXT NOT NULL,
    settled_until      INTEGER NOT NULL, -- every instant up to this time is admitted or dropped
    occurrences        INTEGER NOT NULL,
    next_wake          INTEGER, -- when to decide again; NULL while it does not fire
    next_run_at        INTEGER,
    last_run_at        INTEGER,
    removed_at         INTEGER, -- set on a tombstone, which stays until the engine has forgotten the schedule
    generation         INTEGER NOT NULL, -- counts the changes that the engine must learn
    synced_generation  INTEGER NOT NULL, -- the one that the engine has learned
    engine_id          TEXT NOT NULL -- the engine that has learned it, or empty
) STRICT;
CREATE INDEX schedules_by_automation ON schedules (automation_id, created_at, id) WHERE removed_at IS NULL;
CREATE INDEX schedules_due ON schedules (next_wake, id) WHERE next_wake IS NOT NULL;
CREATE INDEX schedules_ahead ON schedules (settled_until, id) WHERE next_wake IS NOT NULL;
CREATE INDEX schedules_unsynced ON schedules (id) WHERE synced_generation < generation;
CREATE INDEX schedules_by_engine ON schedules (engine_id, id);

-- Firings that were not admitted, as ranges of instants in the order of position.
CREATE TABLE schedule_drops (
    schedule_id TEXT NOT NULL REFERENCES schedules (id) ON DELETE CASCADE,
    position    INTEGER NOT NULL,
    first_at    INTEGER NOT NULL,
    last_at     INTEGER NOT NULL,
    firings     INTEGER NOT NULL,
    reason      TEXT NOT NULL,
    recorded_at INTEGER NOT NULL,
    PRIMARY KEY (schedule_id, position)
) STRICT;

-- The number of a run among those of its schedule, and whether it must not start because an earlier one has not
-- ended. Both change only under the lock of the schedule's row.
ALTER TABLE runs ADD COLUMN occurrence INTEGER;
ALTER TABLE runs ADD COLUMN held INTEGER NOT NULL DEFAULT 0;
CREATE INDEX runs_unfinished_by_schedule ON runs (trigger_id, occurrence) WHERE finished_at IS NULL AND trigger_kind = 'schedule';
DROP INDEX runs_startable;
CREATE INDEX runs_startable ON runs (engine_id, created_at, id) WHERE finished_at IS NULL AND NOT held;

-- +goose Down
DROP INDEX runs_startable;
CREATE INDEX runs_startable ON runs (engine_id, created_at, id) WHERE finished_at IS NULL;
DROP INDEX runs_unfinished_by_schedule;
ALTER TABLE runs DROP COLUMN held;
ALTER TABLE runs DROP COLUMN occurrence;
DROP TABLE schedule_drops;
DROP TABLE schedules;
