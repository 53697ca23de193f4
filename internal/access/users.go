package access

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/catalog"
)

// runtimePrefix starts the tokens of server.json.
const runtimePrefix = "errand_rt_"

// Store is what is needed of the ledger.
type Store interface {
	KeyOfHash(ctx context.Context, hash string) (automation.APIKey, error)
	KeyUsed(ctx context.Context, k automation.APIKey, t time.Time) error
	OwnerOfSubject(ctx context.Context, o automation.NewOwner) (automation.Owner, error)
}

// Person is somebody for whom an issuer vouches.
type Person struct {
	Issuer, Subject string
	// Name is what to call the person; it identifies nobody.
	Name string
	// Admin says that the person's claims name an administrator.
	Admin bool
}

// Issuer checks tokens of an identity provider.
type Issuer interface {
	// Verify returns whom a token vouches for, else unauthorized, or store_unavailable when the issuer has not
	// been reached.
	Verify(ctx context.Context, token string) (Person, error)
}

// Options are what [Users] are made of.
type Options struct {
	Store Store
	// Runtime reports whether a token is the one of server.json, in a time that tells nothing about it. It stands
	// for LocalOwnerID, with every scope.
	Runtime      func(token string) bool
	LocalOwnerID string
	// Issuer is nil when there is none.
	Issuer Issuer
	Now    func() time.Time
	Logger *slog.Logger
}

// Users know who a bearer token stands for.
type Users struct{ Options }

// New returns the users of the options.
func New(o Options) *Users { return &Users{o} }

// Local reports whether a token is the one of server.json.
func (u *Users) Local(token string) bool { return u.Runtime(token) }

// User returns who a bearer token stands for, else unauthorized. With a refused key that is known the principal
// says whose it is, and has no scope.
func (u *Users) User(ctx context.Context, token string) (catalog.Principal, error) {
	switch {
	case u.Runtime(token):
		return catalog.Principal{
			OwnerID: u.LocalOwnerID, Scope: automation.ScopeAdmin,
			Actor: automation.Actor{Kind: automation.ActorRuntime, ID: u.LocalOwnerID},
		}, nil
	case strings.HasPrefix(token, runtimePrefix):
		return catalog.Principal{}, automation.Errorf(automation.CodeUnauthorized,
			"the token is not valid; a local one is in server.json and changes with each start of errandd")
	case isKey(token):
		return u.ofKey(ctx, token)
	case strings.HasPrefix(token, keyPrefix):
		return catalog.Principal{}, automation.Errorf(automation.CodeUnauthorized,
			"the token is no whole API key: one is %d characters long, and its last six are a checksum; copy it again", keyLength)
	case u.Issuer != nil && strings.Count(token, ".") == 2:
		return u.ofPerson(ctx, token)
	}
	return catalog.Principal{}, automation.Errorf(automation.CodeUnauthorized,
		"the token is not valid; send an API key, the token of server.json%s", u.andIssuer())
}

func (u *Users) andIssuer() string {
	if u.Issuer == nil {
		return ""
	}
	return ", or a token of the configured issuer"
}

func (u *Users) ofKey(ctx context.Context, token string) (catalog.Principal, error) {
	key, err := u.Store.KeyOfHash(ctx, HashKey(token))
	if automation.CodeOf(err) == automation.CodeNotFound {
		return catalog.Principal{}, automation.Errorf(automation.CodeUnauthorized, "the API key is not known here; make one with create-key")
	}
	if err != nil {
		return catalog.Principal{}, err
	}
	p := catalog.Principal{OwnerID: key.OwnerID, Actor: automation.Actor{Kind: automation.ActorKey, ID: key.ID}}
	now := u.Now()
	if err := key.Usable(now); err != nil {
		return p, err
	}
	if err := u.Store.KeyUsed(ctx, key, now); err != nil {
		u.Logger.DebugContext(ctx, "the last use of an API key could not be stored", "key", key.ID, "error", err)
	}
	p.Scope = key.Scope
	return p, nil
}

func (u *Users) ofPerson(ctx context.Context, token string) (catalog.Principal, error) {
	person, err := u.Issuer.Verify(ctx, token)
	if err != nil {
		return catalog.Principal{}, err
	}
	owner, err := u.Store.OwnerOfSubject(ctx, automation.NewOwner{
		Name: person.Name, Issuer: person.Issuer, Subject: person.Subject,
	})
	if err != nil {
		return catalog.Principal{}, err
	}
	scope := automation.ScopePerson
	if person.Admin {
		scope = automation.ScopeAdmin
	}
	return catalog.Principal{
		OwnerID: owner.ID, Scope: scope, Actor: automation.Actor{Kind: automation.ActorUser, ID: owner.ID},
	}, nil
}
