-- +goose Up
CREATE TABLE schedules (
    id                 UUID PRIMARY KEY,
    automation_id      UUID NOT NULL REFERENCES automations (id),
    spec               TEXT NOT NULL, -- when it fires, as JSON, in its author's words
    overlap            TEXT NOT NULL,
    catch_up           TEXT NOT NULL,
    catch_up_window_ms BIGINT NOT NULL,
    jitter_ms          BIGINT NOT NULL,
    max_occurrences    BIGINT NOT NULL, -- 0 is no limit
    input              TEXT NOT NULL,
    enabled            BOOLEAN NOT NULL,
    created_at         BIGINT NOT NULL,
    status             TEXT NOT NULL,
    status_reason      TEXT NOT NULL,
    settled_until      BIGINT NOT NULL, -- every instant up to this time is admitted or dropped
    occurrences        BIGINT NOT NULL,
    next_wake          BIGINT, -- when to decide again; NULL while it does not fire
    next_run_at        BIGINT,
    last_run_at        BIGINT,
    removed_at         BIGINT, -- set on a tombstone, which stays until the engine has forgotten the schedule
    generation         BIGINT NOT NULL, -- counts the changes that the engine must learn
    synced_generation  BIGINT NOT NULL, -- the one that the engine has learned
    engine_id          TEXT NOT NULL COLLATE "C" -- the engine that has learned it, or empty
);
CREATE INDEX schedules_by_automation ON schedules (automation_id, created_at, id) WHERE removed_at IS NULL;
CREATE INDEX schedules_due ON schedules (next_wake, id) WHERE next_wake IS NOT NULL;
CREATE INDEX schedules_ahead ON schedules (settled_until, id) WHERE next_wake IS NOT NULL;
CREATE INDEX schedules_unsynced ON schedules (id) WHERE synced_generation < generation;
CREATE INDEX schedules_by_engine ON schedules (engine_id, id);

-- Firings that were not admitted, as ranges of instants in the order of position.
CREATE TABLE schedule_drops (
    schedule_id UUID NOT NULL REFERENCES schedules (id) ON DELETE CASCADE,
    position    BIGINT NOT NULL,
    first_at    BIGINT NOT NULL,
    last_at     BIGINT NOT NULL,
    firings     BIGINT NOT NULL,
    reason      TEXT NOT NULL,
    recorded_at BIGINT NOT NULL,
    PRIMARY KEY (schedule_id, position)
);

-- The number of a run among those of its schedule, and whether it must not start because an earlier one has not
-- ended. Both change only under the lock of the schedule's row.
ALTER TABLE runs ADD COLUMN occurrence BIGINT;
ALTER TABLE runs ADD COLUMN held BOOLEAN NOT NULL DEFAULT FALSE;
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
