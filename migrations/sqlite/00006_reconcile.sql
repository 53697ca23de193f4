-- +goose Up
-- Since when the run's workflow is started anew, and why; and since when the task of its step is taken for lost.
ALTER TABLE runs ADD COLUMN restarted_at INTEGER;
ALTER TABLE runs ADD COLUMN restart_reason TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN stalled_at INTEGER;
CREATE INDEX runs_waiting ON runs (machine_id, created_at, id) WHERE finished_at IS NULL;
CREATE INDEX idempotency_expiring ON idempotency (created_at) WHERE run_id IS NULL;

-- +goose Down
DROP INDEX idempotency_expiring;
DROP INDEX runs_waiting;
ALTER TABLE runs DROP COLUMN stalled_at;
ALTER TABLE runs DROP COLUMN restart_reason;
ALTER TABLE runs DROP COLUMN restarted_at;
