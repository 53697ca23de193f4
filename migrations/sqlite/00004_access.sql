-- +goose Up
-- Who an owner is at the identity provider; NULL for one that is known by keys alone.
ALTER TABLE owners ADD COLUMN issuer TEXT;
ALTER TABLE owners ADD COLUMN subject TEXT;
CREATE UNIQUE INDEX owners_by_subject ON owners (issuer, subject) WHERE subject IS NOT NULL;
CREATE INDEX owners_by_creation ON owners (created_at, id);

CREATE TABLE api_keys (
    id              TEXT PRIMARY KEY,
    owner_id        TEXT NOT NULL REFERENCES owners (id),
    name            TEXT NOT NULL,
    hash            TEXT NOT NULL UNIQUE, -- SHA-256 of the key, which is stored nowhere
    scope           TEXT NOT NULL,
    created_by_kind TEXT NOT NULL,
    created_by_id   TEXT NOT NULL,
    created_at      INTEGER NOT NULL,
    expires_at      INTEGER,
    last_used_at    INTEGER,
    revoked_at      INTEGER
) STRICT;
CREATE INDEX api_keys_by_owner ON api_keys (owner_id, created_at, id);

-- Rows are added, and removed when they are old; none is ever changed.
CREATE TABLE audit (
    id         TEXT PRIMARY KEY,
    at         INTEGER NOT NULL,
    owner_id   TEXT NOT NULL REFERENCES owners (id),
    actor_kind TEXT NOT NULL,
    actor_id   TEXT NOT NULL,
    action     TEXT NOT NULL,
    object_id  TEXT NOT NULL, -- what was acted on; empty for none
    result_id  TEXT NOT NULL, -- what came of it, when that is something else
    outcome    TEXT NOT NULL, -- ok, or the code of the refusal
    address    TEXT NOT NULL,
    request_id TEXT NOT NULL
) STRICT;
CREATE INDEX audit_by_time ON audit (at, id);
CREATE INDEX audit_by_object ON audit (object_id, at, id) WHERE object_id <> '';
CREATE INDEX audit_by_result ON audit (result_id, at, id) WHERE result_id <> '';
CREATE INDEX audit_by_actor ON audit (actor_id, at, id);

-- +goose StatementBegin
CREATE TRIGGER audit_is_append_only BEFORE UPDATE ON audit
BEGIN
    SELECT RAISE(ABORT, 'the audit is append-only');
END;
-- +goose StatementEnd

-- +goose Down
DROP TABLE audit;
DROP TABLE api_keys;
DROP INDEX owners_by_creation;
DROP INDEX owners_by_subject;
ALTER TABLE owners DROP COLUMN subject;
ALTER TABLE owners DROP COLUMN issuer;
