-- +goose Up
-- Who an owner is at the identity provider; NULL for one that is known by keys alone.
ALTER TABLE owners ADD COLUMN issuer TEXT COLLATE "C";
ALTER TABLE owners ADD COLUMN subject TEXT COLLATE "C";
CREATE UNIQUE INDEX owners_by_subject ON owners (issuer, subject) WHERE subject IS NOT NULL;
CREATE INDEX owners_by_creation ON owners (created_at, id);

CREATE TABLE api_keys (
    id              UUID PRIMARY KEY,
    owner_id        UUID NOT NULL REFERENCES owners (id),
    name            TEXT NOT NULL,
    hash            TEXT NOT NULL COLLATE "C" UNIQUE, -- SHA-256 of the key, which is stored nowhere
    scope           TEXT NOT NULL,
    created_by_kind TEXT NOT NULL,
    created_by_id   TEXT NOT NULL,
    created_at      BIGINT NOT NULL,
    expires_at      BIGINT,
    last_used_at    BIGINT,
    revoked_at      BIGINT
);
CREATE INDEX api_keys_by_owner ON api_keys (owner_id, created_at, id);

-- Rows are added, and removed when they are old; none is ever changed.
CREATE TABLE audit (
    id         UUID PRIMARY KEY,
    at         BIGINT NOT NULL,
    owner_id   UUID NOT NULL REFERENCES owners (id),
    actor_kind TEXT NOT NULL,
    actor_id   TEXT NOT NULL COLLATE "C",
    action     TEXT NOT NULL COLLATE "C",
    object_id  TEXT NOT NULL COLLATE "C", -- what was acted on; empty for none
    result_id  TEXT NOT NULL COLLATE "C", -- what came of it, when that is something else
    outcome    TEXT NOT NULL COLLATE "C", -- ok, or the code of the refusal
    address    TEXT NOT NULL,
    request_id TEXT NOT NULL
);
CREATE INDEX audit_by_time ON audit (at, id);
CREATE INDEX audit_by_object ON audit (object_id, at, id) WHERE object_id <> '';
CREATE INDEX audit_by_result ON audit (result_id, at, id) WHERE result_id <> '';
CREATE INDEX audit_by_actor ON audit (actor_id, at, id);

-- +goose StatementBegin
CREATE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit is append-only';
END;
$$;
-- +goose StatementEnd
CREATE TRIGGER audit_is_append_only BEFORE UPDATE ON audit
    FOR EACH ROW EXECUTE FUNCTION audit_is_append_only();

-- +goose Down
DROP TABLE audit;
DROP FUNCTION audit_is_append_only;
DROP TABLE api_keys;
DROP INDEX owners_by_creation;
DROP INDEX owners_by_subject;
ALTER TABLE owners DROP COLUMN subject;
ALTER TABLE owners DROP COLUMN issuer;
