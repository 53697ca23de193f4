-- +goose Up
-- Whether the instant of the run was missed and is caught up.
ALTER TABLE runs ADD COLUMN late INTEGER NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE runs DROP COLUMN late;
