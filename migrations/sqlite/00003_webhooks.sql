-- +goose Up
-- Which master key the sealed secrets are sealed under, by its id; empty until a server has recorded one.
ALTER TABLE installation ADD COLUMN master_key_id TEXT NOT NULL DEFAULT '';

CREATE TABLE webhooks (
    id               TEXT PRIMARY KEY,
    automation_id    TEXT NOT NULL REFERENCES automations (id),
    name             TEXT NOT NULL,
    scheme           TEXT NOT NULL,
    enabled          INTEGER NOT NULL,
    options          TEXT NOT NULL, -- JSON, null for a scheme without options
    headers          TEXT NOT NULL, -- JSON
    created_at       INTEGER NOT NULL,
    last_delivery_at INTEGER
) STRICT;
CREATE INDEX webhooks_by_automation ON webhooks (automation_id, created_at, id);

CREATE TABLE webhook_secrets (
    webhook_id TEXT NOT NULL REFERENCES webhooks (id) ON DELETE CASCADE,
    position   INTEGER NOT NULL, -- 0 is the newest
    key_id     TEXT NOT NULL, -- the master key
    ciphertext TEXT NOT NULL, -- base64
    PRIMARY KEY (webhook_id, position)
) STRICT;

-- The deliveries that are recognised when they come again, each under one or more names. They outlive their webhook,
-- whose removal must not take long, and go with their time.
CREATE TABLE webhook_deliveries (
    webhook_id TEXT NOT NULL,
    key        TEXT NOT NULL,
    run_id     TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (webhook_id, key)
) STRICT;
CREATE INDEX webhook_deliveries_by_time ON webhook_deliveries (created_at);

-- A delivery id may come again after its time; webhook_deliveries decides what is a repeat.
DROP INDEX runs_webhook_delivery;

-- +goose Down
CREATE UNIQUE INDEX runs_webhook_delivery ON runs (trigger_id, delivery_id) WHERE trigger_kind = 'webhook';
DROP TABLE webhook_deliveries;
DROP TABLE webhook_secrets;
DROP TABLE webhooks;
ALTER TABLE installation DROP COLUMN master_key_id;
