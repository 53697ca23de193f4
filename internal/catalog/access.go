package catalog

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"unicode"

	"github.com/errandhq/errand/automation"
)

// WhoamiInput is nothing.
type WhoamiInput struct{}

func (WhoamiInput) violations() []automation.Violation { return nil }

// WhoamiResult is who the caller is taken for.
type WhoamiResult struct {
	Owner automation.Owner `json:"owner"`
	Scope automation.Scope `json:"scope" doc:"read, control, person or admin"`
	Actor automation.Actor `json:"actor" doc:"the credential, as the audit names it"`
	// MachineID is the machine that a call came through.
	MachineID string `json:"machineId,omitempty" doc:"the machine that the call came through"`
}

var whoamiCommand = define(Command{
	Name:    "whoami",
	Summary: "Show who you are and what you may do",
	Effect:  EffectRead,
	Scope:   automation.ScopeRead,
	Contract: `Returns the owner whose automations, runs and machines you see, the scope of your credential, and the
credential itself by kind and id, as the audit names it.
Scopes, each with all before it: read shows; control also creates, changes, runs and cancels; person, which
somebody has who has signed in, also makes keys; admin also concerns other owners, the audit, /metrics and /temporal.`,
	Example: `{}`,
	Route:   Route{Method: http.MethodGet, Path: "/whoami", Status: http.StatusOK},
}, decodeInto[WhoamiInput], whoami)

func whoami(ctx context.Context, s *Service, p Principal, _ WhoamiInput) (WhoamiResult, error) {
	owner, err := s.Ledger.Owner(ctx, p.OwnerID)
	if err != nil {
		return WhoamiResult{}, err
	}
	return WhoamiResult{Owner: owner, Scope: p.Scope, Actor: p.Actor, MachineID: p.MachineID}, nil
}

// CreateKeyInput describes an API key.
type CreateKeyInput struct {
	Name      string           `json:"name" strict:"required" doc:"what it is for, 1 to 200 characters"`
	Scope     automation.Scope `json:"scope" strict:"required" enum:"read,control,admin" doc:"read, control or admin; at most your own"`
	ExpiresAt *string          `json:"expires_at,omitempty" doc:"the RFC 3339 time at which it ends; default: never"`
	OwnerID   *string          `json:"owner_id,omitempty" doc:"the owner that it stands for; default: you; another one needs the scope admin"`
}

// grantable are the scopes that a key may have.
var grantable = []automation.Scope{automation.ScopeRead, automation.ScopeControl, automation.ScopeAdmin}

func (in CreateKeyInput) violations() []automation.Violation {
	var v violations
	v.title("name", in.Name)
	if !slices.Contains(grantable, in.Scope) {
		v.add("scope", "%q is not a scope of keys; use read, control or admin", in.Scope)
	}
	v.instant("expires_at", in.ExpiresAt)
	v.filterID("owner_id", in.OwnerID)
	return v
}

// title checks a name that a person gives.
func (v *violations) title(path, text string) {
	switch {
	case strings.TrimSpace(text) == "":
		v.add(path, "must not be blank")
	case strings.ContainsFunc(text, unicode.IsControl):
		v.add(path, "must not contain control characters")
	}
	v.length(path, text, automation.MaxNameLength)
}

// CreatedKey is a new key with its secret, which is shown this once.
type CreatedKey struct {
	automation.APIKey
	// Secret is the key itself.
	Secret string `json:"secret" doc:"the key itself, shown this once"`
}

var createKeyCommand = define(Command{
	Name:    "create-key",
	Summary: "Create an API key",
	Effect:  EffectAdd,
	Scope:   automation.ScopePerson,
	Contract: `Makes a key for a program: it is in secret, begins with errand_, and is shown this once; only its hash is kept.
A program sends it as Authorization: Bearer, or has it in ERRAND_API_KEY beside ERRAND_API_URL.
The scope read shows automations, runs with their outputs, and machines. control also changes them, and so
decides what is executed on the machines. admin also makes keys, concerns other owners, reads the audit and /metrics and
opens /temporal. A key never has a larger scope than whoever makes it, and one with read or control makes none.
With the scope admin owner_id makes a key for another owner. A repeat makes another key.`,
	Example: `{"name":"continuous integration","scope":"control","expires_at":"2030-01-01T00:00:00Z"}`,
	Route:   Route{Method: http.MethodPost, Path: "/keys", Status: http.StatusCreated},
	Errors:  []automation.Code{automation.CodeNotFound},
}, decodeInto[CreateKeyInput], createKey)

func createKey(ctx context.Context, s *Service, p Principal, in CreateKeyInput) (CreatedKey, error) {
	owner, err := p.concerning("create-key for another owner", in.OwnerID)
	if err != nil {
		return CreatedKey{}, err
	}
	if err := p.Scope.Authorize("a key with the scope "+string(in.Scope), in.Scope); err != nil {
		return CreatedKey{}, err
	}
	expires := instantOf(in.ExpiresAt)
	if expires != nil && !s.Now().Before(*expires) {
		return CreatedKey{}, automation.Invalid(automation.Violation{Path: "expires_at", Message: "is in the past"})
	}
	secret, hash, err := s.NewKey()
	if err != nil {
		return CreatedKey{}, fmt.Errorf("making an API key: %w", err)
	}
	key, err := s.Ledger.CreateKey(ctx, automation.NewAPIKey{
		OwnerID: owner, Name: in.Name, Hash: hash, Scope: in.Scope, CreatedBy: p.Actor, ExpiresAt: expires,
	})
	if err != nil {
		return CreatedKey{}, err
	}
	return CreatedKey{APIKey: key, Secret: secret}, nil
}

// concerning returns the owner that an input names, or the caller when it names none. Another owner needs admin.
func (p Principal) concerning(what string, ownerID *string) (string, error) {
	if ownerID == nil || *ownerID == p.OwnerID {
		return p.OwnerID, nil
	}
	return *ownerID, p.Scope.Authorize(what, automation.ScopeAdmin)
}

// KeysInput selects keys.
type KeysInput struct {
	OwnerID *string `json:"owner_id,omitempty" doc:"keys of this owner; default: yours; another one needs the scope admin"`
	PageInput
}

func (in KeysInput) violations() []automation.Violation {
	v := violations(in.PageInput.violations())
	v.filterID("owner_id", in.OwnerID)
	return v
}

// KeysResult is a page of keys, without their secrets.
type KeysResult struct {
	Keys       []automation.APIKey `json:"keys"`
	NextCursor string              `json:"next_cursor,omitempty" doc:"there are more: give it as cursor"`
}

var keysCommand = define(Command{
	Name:    "keys",
	Summary: "List API keys",
	Effect:  EffectRead,
	Scope:   automation.ScopePerson,
	Contract: `Returns a page of keys, newest first, also of those that are revoked or expired; never a secret. lastUsedAt is at
most a minute behind. When next_cursor is there, give it as cursor to get the next page.`,
	Example: `{"limit":20}`,
	Route:   Route{Method: http.MethodGet, Path: "/keys", Status: http.StatusOK},
}, decodeInto[KeysInput], keys)

func keys(ctx context.Context, s *Service, p Principal, in KeysInput) (KeysResult, error) {
	owner, err := p.concerning("keys of another owner", in.OwnerID)
	if err != nil {
		return KeysResult{}, err
	}
	page, next, err := s.Ledger.Keys(ctx, owner, in.size(), in.Cursor)
	if err != nil {
		return KeysResult{}, err
	}
	return KeysResult{Keys: notNull(page), NextCursor: next}, nil
}

// RevokeKeyInput names a key.
type RevokeKeyInput struct {
	KeyID string `json:"key_id" strict:"required" doc:"the id of the key"`
}

func (in RevokeKeyInput) violations() []automation.Violation {
	var v violations
	v.id("key_id", in.KeyID)
	return v
}

var revokeKeyCommand = define(Command{
	Name:    "revoke-key",
	Summary: "Revoke an API key",
	Effect:  EffectChange,
	Scope:   automation.ScopePerson,
	Contract: `Makes a key useless at once, on every server, for good. Calls that are being answered are finished. A key that
was revoked before stays as it is. With the scope admin also a key of another owner.`,
	Example: `{"key_id":"0193f5a0-0000-7000-8000-000000000000"}`,
	Route:   Route{Method: http.MethodPost, Path: "/keys/{key_id}/revoke", Status: http.StatusOK},
	Errors:  []automation.Code{automation.CodeNotFound},
}, decodeInto[RevokeKeyInput], revokeKey)

func revokeKey(ctx context.Context, s *Service, p Principal, in RevokeKeyInput) (automation.APIKey, error) {
	owner := p.OwnerID
	if p.Scope.Allows(automation.ScopeAdmin) {
		owner = ""
	}
	return s.Ledger.RevokeKey(ctx, owner, in.KeyID)
}

// CreateOwnerInput describes an owner.
type CreateOwnerInput struct {
	Name    string `json:"name" strict:"required" doc:"what to call it, 1 to 200 characters"`
	Issuer  string `json:"issuer,omitempty" doc:"the issuer that vouches for it, as in the iss of its tokens"`
	Subject string `json:"subject,omitempty" doc:"who it is there, as in the sub of its tokens"`
}

func (in CreateOwnerInput) violations() []automation.Violation {
	var v violations
	v.title("name", in.Name)
	return v
}

var createOwnerCommand = define(Command{
	Name:    "create-owner",
	Summary: "Create an owner",
	Effect:  EffectAdd,
	Scope:   automation.ScopeAdmin,
	Contract: `Makes somebody who has automations, runs, machines and keys of their own and sees nobody else's. Give them
access with create-key and owner_id. With issuer and subject, which go together, it is the person whom that
identity provider vouches for; without create-owner such a person becomes an owner by signing in.`,
	Example: `{"name":"Build robot"}`,
	Route:   Route{Method: http.MethodPost, Path: "/owners", Status: http.StatusCreated},
}, decodeInto[CreateOwnerInput], createOwner)

func createOwner(ctx context.Context, s *Service, _ Principal, in CreateOwnerInput) (automation.Owner, error) {
	return s.Ledger.CreateOwner(ctx, automation.NewOwner{Name: in.Name, Issuer: in.Issuer, Subject: in.Subject})
}

// OwnersInput selects owners.
type OwnersInput struct {
	PageInput
}

// OwnersResult is a page of owners.
type OwnersResult struct {
	Owners     []automation.Owner `json:"owners"`
	NextCursor string             `json:"next_cursor,omitempty" doc:"there are more: give it as cursor"`
}

var ownersCommand = define(Command{
	Name:    "owners",
	Summary: "List owners",
	Effect:  EffectRead,
	Scope:   automation.ScopeAdmin,
	Contract: `Returns a page of owners, oldest first; the first is the user of the computer that errandd runs on. When
next_cursor is there, give it as cursor to get the next page.`,
	Example: `{"limit":20}`,
	Route:   Route{Method: http.MethodGet, Path: "/owners", Status: http.StatusOK},
}, decodeInto[OwnersInput], owners)

func owners(ctx context.Context, s *Service, _ Principal, in OwnersInput) (OwnersResult, error) {
	page, next, err := s.Ledger.Owners(ctx, in.size(), in.Cursor)
	return OwnersResult{Owners: notNull(page), NextCursor: next}, err
}

// AuditInput selects entries of the audit.
type AuditInput struct {
	ObjectID *string `json:"object_id,omitempty" doc:"only what was done to this automation, run, machine, key or owner, or made it"`
	ActorID  *string `json:"actor_id,omitempty" doc:"only what this key, machine or owner did"`
	OwnerID  *string `json:"owner_id,omitempty" doc:"only what was done to things of this owner"`
	Action   string  `json:"action,omitempty" doc:"only this command, or authenticate"`
	Since    *string `json:"since,omitempty" doc:"only entries at or after this RFC 3339 time"`
	Until    *string `json:"until,omitempty" doc:"only entries before this RFC 3339 time"`
	PageInput
}

func (in AuditInput) violations() []automation.Violation {
	v := violations(in.PageInput.violations())
	v.filterID("object_id", in.ObjectID)
	v.filterID("actor_id", in.ActorID)
	v.filterID("owner_id", in.OwnerID)
	v.length("action", in.Action, automation.MaxNameLength)
	v.instant("since", in.Since)
	v.instant("until", in.Until)
	return v
}

// AuditResult is a page of the audit.
type AuditResult struct {
	Entries    []automation.AuditEntry `json:"entries"`
	NextCursor string                  `json:"next_cursor,omitempty" doc:"there are more: give it as cursor"`
}

var auditCommand = define(Command{
	Name:    "audit",
	Summary: "Show who did what",
	Effect:  EffectRead,
	Scope:   automation.ScopeAdmin,
	Contract: `Returns a page of the audit, newest first, of all owners: every command that changes something, whether it was
done (outcome ok) or refused (the code), and every credential that is known and was refused. An entry says when,
by which key, user, machine or runtime token, on which object, from which address and under which request id. It
holds ids and codes, no names, inputs or secrets; nothing changes one, and old ones go after the retention time.
When next_cursor is there, give it as cursor to get the next page.`,
	Example: `{"object_id":"0193f5a0-0000-7000-8000-000000000000","since":"2026-01-01T00:00:00Z","limit":20}`,
	Route:   Route{Method: http.MethodGet, Path: "/audit", Status: http.StatusOK},
}, decodeInto[AuditInput], audit)

func audit(ctx context.Context, s *Service, _ Principal, in AuditInput) (AuditResult, error) {
	page, next, err := s.Ledger.Audit(ctx, automation.AuditFilter{
		Object: orEmpty(in.ObjectID), Actor: orEmpty(in.ActorID), OwnerID: orEmpty(in.OwnerID), Action: in.Action,
		Since: instantOf(in.Since), Until: instantOf(in.Until), Limit: in.size(), Cursor: in.Cursor,
	})
	if err != nil {
		return AuditResult{}, err
	}
	return AuditResult{Entries: notNull(page), NextCursor: next}, nil
}
