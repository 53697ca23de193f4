package automation

import (
	"context"
	"time"
)

// Scope is how much a caller may do with what belongs to its owner. Each scope includes those before it.
type Scope string

// The scopes. An empty one allows nothing.
const (
	// ScopeRead shows automations, runs, outputs and machines.
	ScopeRead Scope = "read"
	// ScopeControl also changes automations and starts, cancels and repeats runs.
	ScopeControl Scope = "control"
	// ScopePerson also hands out access: keys and machines of one's own. It is what a person has who has signed
	// in, and no key has it: whoever finds a key that controls automations cannot make themself another one.
	ScopePerson Scope = "person"
	// ScopeAdmin also gives access to others, reads the audit of everybody, and may use Temporal's interface.
	ScopeAdmin Scope = "admin"
)

// scopeOrder is the order of the scopes; what is not in it has none.
var scopeOrder = map[Scope]int{ScopeRead: 1, ScopeControl: 2, ScopePerson: 3, ScopeAdmin: 4}

// Known reports whether s is one of the scopes.
func (s Scope) Known() bool { return scopeOrder[s] > 0 }

// Allows reports whether a caller of scope s may do what needs the scope needed. Nobody may do what needs none.
func (s Scope) Allows(needed Scope) bool {
	return needed.Known() && scopeOrder[s] >= scopeOrder[needed]
}

// Authorize returns forbidden, naming the missing scope, unless a caller of scope s may do what needs the
// scope needed.
func (s Scope) Authorize(what string, needed Scope) error {
	if s.Allows(needed) {
		return nil
	}
	has := "no scope"
	if s.Known() {
		has = "the scope " + string(s)
	}
	if needed == ScopePerson {
		return Errorf(CodeForbidden, "%s needs a person who is signed in, or a key with the scope admin; the credential has %s",
			what, has)
	}
	return Errorf(CodeForbidden, "%s needs the scope %s; the credential has %s: use one that has it", what, needed, has)
}

// ActorKind says by what kind of credential a caller is known.
type ActorKind string

// The kinds of actors.
const (
	// ActorRuntime is a program of the computer's user, known by the token of server.json.
	ActorRuntime ActorKind = "runtime"
	// ActorKey is whoever holds an API key.
	ActorKey ActorKind = "key"
	// ActorUser is a person whom the identity provider vouches for.
	ActorUser ActorKind = "user"
	// ActorMachine is an enrolled machine.
	ActorMachine ActorKind = "machine"
)

// Actor is who did something. The id is that of the key or the machine, and the owner's for a person and for
// the runtime token.
type Actor struct {
	Kind ActorKind `json:"kind" doc:"runtime (the token of server.json), key, user or machine"`
	ID   string    `json:"id" doc:"of the key or the machine; else of the owner"`
}

// Origin is where a call came from.
type Origin struct {
	// Address is the caller's network address, without a port.
	Address string
	// RequestID is the id of the call in the log.
	RequestID string
}

// Owner is a person or a program to whom automations, runs, machines and keys belong.
type Owner struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// Issuer and Subject are who the owner is at an identity provider; empty for one that is known by keys alone.
	Issuer    string    `json:"issuer,omitempty" doc:"the identity provider that vouches for it"`
	Subject   string    `json:"subject,omitempty" doc:"who it is there"`
	CreatedAt time.Time `json:"createdAt"`
}

// NewOwner is an owner to be stored.
type NewOwner struct{ Name, Issuer, Subject string }

// APIKey is a key as it is kept: without its secret, which only whoever made it has seen.
type APIKey struct {
	ID         string     `json:"id"`
	OwnerID    string     `json:"ownerId" doc:"whose automations, runs and machines it opens"`
	Name       string     `json:"name"`
	Scope      Scope      `json:"scope" doc:"read, control or admin"`
	CreatedBy  Actor      `json:"createdBy"`
	CreatedAt  time.Time  `json:"createdAt"`
	ExpiresAt  *time.Time `json:"expiresAt,omitempty" doc:"when it ends; absent: never"`
	LastUsedAt *time.Time `json:"lastUsedAt,omitempty" doc:"at most a minute behind; absent: never used"`
	RevokedAt  *time.Time `json:"revokedAt,omitempty" doc:"since when it is useless"`
}

// Usable returns nil for a key that is accepted at a time, else unauthorized with the reason.
func (k APIKey) Usable(now time.Time) error {
	switch {
	case k.RevokedAt != nil:
		return Errorf(CodeUnauthorized, "the API key was revoked at %s; make a new one", k.RevokedAt.Format(time.RFC3339))
	case k.ExpiresAt != nil && !now.Before(*k.ExpiresAt):
		return Errorf(CodeUnauthorized, "the API key expired at %s; make a new one", k.ExpiresAt.Format(time.RFC3339))
	}
	return nil
}

// NewAPIKey is a key to be stored. Hash is the SHA-256 of the secret in hexadecimal.
type NewAPIKey struct {
	OwnerID   string
	Name      string
	Hash      string
	Scope     Scope
	CreatedBy Actor
	ExpiresAt *time.Time
}

// KeyUsedEvery is how far the stored time of a key's last use may be behind.
const KeyUsedEvery = time.Minute

// AccessStore keeps owners and API keys.
type AccessStore interface {
	// CreateOwner stores an owner. Errors: validation_failed, also when the subject has an owner already.
	CreateOwner(ctx context.Context, o NewOwner) (Owner, error)
	// Owner returns one owner, else not_found.
	Owner(ctx context.Context, id string) (Owner, error)
	// OwnerOfSubject returns the owner whom an identity provider vouches for, and makes it at the first time.
	OwnerOfSubject(ctx context.Context, o NewOwner) (Owner, error)
	// Owners returns a page of all owners, oldest first, and the cursor of the next page or "".
	Owners(ctx context.Context, limit int, cursor string) ([]Owner, string, error)

	// CreateKey stores a key. Errors: validation_failed, not_found for an owner that does not exist.
	CreateKey(ctx context.Context, k NewAPIKey) (APIKey, error)
	// KeyOfHash returns the key with a hash, whatever its state, else not_found.
	KeyOfHash(ctx context.Context, hash string) (APIKey, error)
	// KeyUsed records that a key, as it was read, was used at t. Calls may come often; the stored value is at
	// most [KeyUsedEvery] behind.
	KeyUsed(ctx context.Context, k APIKey, t time.Time) error
	// Keys returns a page of the owner's keys, newest first, and the cursor of the next page or "".
	Keys(ctx context.Context, ownerID string, limit int, cursor string) ([]APIKey, string, error)
	// RevokeKey makes a key useless at once. A key that is revoked stays as it is. An empty owner means any;
	// another owner's key is not_found.
	RevokeKey(ctx context.Context, ownerID, id string) (APIKey, error)
}
