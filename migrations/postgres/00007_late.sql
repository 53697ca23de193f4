-- +goose Up
-- Whether the instant of the run was missed and is caught up.
ALTER TABLE runs ADD COLUMN late BOOLEAN NOT NULL DEFAULT FALSE;

-- +goose Down
ALTER TABLE runs DROP COLUMN late;
