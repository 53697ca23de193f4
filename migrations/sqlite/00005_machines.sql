-- +goose Up
-- When the machine was revoked or got another key. Servers look for the newest, to end what is open elsewhere.
ALTER TABLE machines ADD COLUMN access_changed_at INTEGER;
CREATE INDEX machines_by_access_change ON machines (access_changed_at) WHERE access_changed_at IS NOT NULL;
CREATE INDEX machines_revoked ON machines (id) WHERE state = 'revoked';

CREATE TABLE enrollment_codes (
    hash       TEXT PRIMARY KEY, -- SHA-256 of the code in hexadecimal; the code is kept nowhere
    owner_id   TEXT NOT NULL REFERENCES owners (id),
    machine_id TEXT REFERENCES machines (id), -- the machine that gets a new key; NULL for a new machine
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    used_at    INTEGER,
    used_by    TEXT NOT NULL -- the public key that the code was given to, or empty
) STRICT;
CREATE INDEX enrollment_codes_open ON enrollment_codes (owner_id, expires_at) WHERE used_at IS NULL;
CREATE INDEX enrollment_codes_by_expiry ON enrollment_codes (expires_at);

-- +goose Down
DROP TABLE enrollment_codes;
DROP INDEX machines_revoked;
DROP INDEX machines_by_access_change;
ALTER TABLE machines DROP COLUMN access_changed_at;
