-- +goose Up
CREATE TABLE owners (
    id         TEXT PRIMARY KEY,
    name       TEXT NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;

-- One row: the identity that every workflow id and task queue of this control plane carries.
CREATE TABLE installation (
    only_row       INTEGER PRIMARY KEY CHECK (only_row = 1),
    id             TEXT NOT NULL,
    local_owner_id TEXT NOT NULL REFERENCES owners (id),
    created_at     INTEGER NOT NULL
) STRICT;

CREATE TABLE machines (
    id                 TEXT PRIMARY KEY,
    owner_id           TEXT NOT NULL REFERENCES owners (id),
    name               TEXT NOT NULL,
    platform           TEXT NOT NULL,
    version            TEXT NOT NULL,
    labels             TEXT NOT NULL,
    public_key         TEXT NOT NULL UNIQUE,
    state              TEXT NOT NULL,
    concurrency        INTEGER NOT NULL,
    instance_directory TEXT NOT NULL,
    instance_boot      TEXT NOT NULL,
    instance_start     INTEGER NOT NULL,
    instance_host      TEXT NOT NULL,
    last_seen_at       INTEGER,
    created_at         INTEGER NOT NULL,
    revoked_at         INTEGER
) STRICT;
CREATE INDEX machines_by_owner ON machines (owner_id, created_at, id);

CREATE TABLE automations (
    id          TEXT PRIMARY KEY,
    owner_id    TEXT NOT NULL REFERENCES owners (id),
    version     INTEGER NOT NULL,
    name        TEXT NOT NULL,
    name_folded TEXT NOT NULL, -- lower case by the program's rules, for searching
    description TEXT NOT NULL,
    enabled     INTEGER NOT NULL,
    machine_id  TEXT NOT NULL REFERENCES machines (id),
    script      TEXT NOT NULL,
    plan        TEXT, -- NULL for a draft
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    deleted_at  INTEGER
) STRICT;
CREATE INDEX automations_by_owner ON automations (owner_id, created_at, id) WHERE deleted_at IS NULL;
CREATE INDEX automations_by_machine ON automations (machine_id, created_at, id) WHERE deleted_at IS NULL;

CREATE TABLE runs (
    id                  TEXT PRIMARY KEY,
    owner_id            TEXT NOT NULL REFERENCES owners (id),
    automation_id       TEXT NOT NULL REFERENCES automations (id),
    automation_name     TEXT NOT NULL,
    automation_version  INTEGER NOT NULL,
    machine_id          TEXT NOT NULL REFERENCES machines (id),
    trigger_kind        TEXT NOT NULL,
    trigger_id          TEXT,
    scheduled_at        INTEGER,
    delivery_id         TEXT,
    retry_of            TEXT,
    status              TEXT NOT NULL,
    cancel_requested_at INTEGER,
    cancel_reason       TEXT NOT NULL,
    engine_id           TEXT NOT NULL, -- empty until the workflow is known to be in an engine
    generation          INTEGER NOT NULL,
    revision            INTEGER NOT NULL,
    executing           INTEGER NOT NULL, -- how many steps execute, derived from them on each change
    open_ends           INTEGER NOT NULL, -- how many ends the machine has not confirmed, derived likewise
    error_code          TEXT NOT NULL,
    error_message       TEXT NOT NULL,
    error_step_id       TEXT NOT NULL,
    error_details       TEXT NOT NULL,
    created_at          INTEGER NOT NULL,
    started_at          INTEGER,
    finished_at         INTEGER
) STRICT;
CREATE INDEX runs_by_owner ON runs (owner_id, created_at, id);
CREATE INDEX runs_by_automation ON runs (automation_id, created_at, id);
CREATE INDEX runs_by_machine ON runs (machine_id, created_at, id);
CREATE INDEX runs_by_status ON runs (owner_id, status, created_at, id);
CREATE INDEX runs_startable ON runs (engine_id, created_at, id) WHERE finished_at IS NULL;
CREATE INDEX runs_unfinished ON runs (machine_id, status) WHERE finished_at IS NULL;
CREATE INDEX runs_unfinished_by_automation ON runs (automation_id, created_at, id) WHERE finished_at IS NULL;
CREATE INDEX runs_executing ON runs (machine_id) WHERE executing > 0;
CREATE INDEX runs_open_ends ON runs (machine_id, id) WHERE open_ends > 0;
CREATE UNIQUE INDEX runs_schedule_instant ON runs (trigger_id, scheduled_at) WHERE trigger_kind = 'schedule';
CREATE UNIQUE INDEX runs_webhook_delivery ON runs (trigger_id, delivery_id) WHERE trigger_kind = 'webhook';

-- What a run executes. Apart from runs because it never changes and may be large: SQLite writes a whole row
-- again whenever one of its columns changes.
CREATE TABLE snapshots (
    run_id TEXT PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE,
    plan   TEXT NOT NULL,
    input  TEXT NOT NULL
) STRICT;

CREATE TABLE steps (
    run_id             TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    position           INTEGER NOT NULL,
    id                 TEXT NOT NULL,
    kind               TEXT NOT NULL,
    summary            TEXT NOT NULL,
    timeout_ms         INTEGER NOT NULL,
    status             TEXT NOT NULL,
    attempt            INTEGER NOT NULL, -- the number of the current execution
    begin_id           TEXT NOT NULL,
    started_at         INTEGER,
    finished_at        INTEGER,
    retry_at           INTEGER,
    first_transient_at INTEGER,
    error_code         TEXT NOT NULL,
    error_message      TEXT NOT NULL,
    carried_from       TEXT NOT NULL,
    unconfirmed        INTEGER NOT NULL,
    output             TEXT,
    PRIMARY KEY (run_id, position)
) STRICT;

CREATE TABLE idempotency (
    owner_id     TEXT NOT NULL REFERENCES owners (id),
    operation    TEXT NOT NULL,
    key          TEXT NOT NULL,
    request_hash TEXT NOT NULL,
    result_id    TEXT NOT NULL,
    run_id       TEXT REFERENCES runs (id) ON DELETE SET NULL, -- while set, the key does not expire
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (owner_id, operation, key)
) STRICT;
CREATE INDEX idempotency_by_run ON idempotency (run_id) WHERE run_id IS NOT NULL;

CREATE TABLE leases (
    name       TEXT PRIMARY KEY,
    holder     TEXT NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT;

-- +goose Down
DROP TABLE leases;
DROP TABLE idempotency;
DROP TABLE steps;
DROP TABLE snapshots;
DROP TABLE runs;
DROP TABLE automations;
DROP TABLE machines;
DROP TABLE installation;
DROP TABLE owners;
