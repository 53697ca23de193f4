package api

import (
	"container/list"
	"context"
	"crypto/sha256"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/catalog"
	"github.com/errandhq/errand/internal/ratelimit"
)

const (
	// failuresPerSecond is how many credentials that stand for nobody are looked at from one address. It bounds
	// what they cost; guessing one is hopeless anyhow.
	failuresPerSecond = 200
	// goodFor is how long a credential that was right is looked at although its address sends many wrong ones:
	// behind one address there may be many callers.
	goodFor = 15 * time.Minute
	// remembered bounds how many right credentials are remembered.
	remembered = 10_000
	// burstSeconds is for how long a caller who was quiet may go at once over what the limit allows.
	burstSeconds = 2
)

// recent is a map of bounded size, from which the entry goes that was not used for the longest time. It is not
// safe for concurrent use.
type recent[K comparable, V any] struct {
	entries map[K]*list.Element
	order   list.List // of *pair, the latest first
}

type pair[K comparable, V any] struct {
	key   K
	value V
}

func (r *recent[K, V]) get(key K) (V, bool) {
	if element, found := r.entries[key]; found {
		r.order.MoveToFront(element)
		return element.Value.(*pair[K, V]).value, true //nolint:forcetypeassert // nothing else is put in
	}
	var none V
	return none, false
}

func (r *recent[K, V]) put(key K, value V) {
	if element, found := r.entries[key]; found {
		element.Value.(*pair[K, V]).value = value //nolint:forcetypeassert // nothing else is put in
		r.order.MoveToFront(element)
		return
	}
	if r.entries == nil {
		r.entries = map[K]*list.Element{}
	}
	if len(r.entries) >= remembered {
		oldest := r.order.Remove(r.order.Back()).(*pair[K, V]) //nolint:forcetypeassert // nothing else is put in
		delete(r.entries, oldest.key)
	}
	r.entries[key] = r.order.PushFront(&pair[K, V]{key, value})
}

// gate bounds what wrong credentials cost, for each address by itself, without shutting out right ones.
type gate struct {
	now      func() time.Time
	observer automation.CallObserver
	failures *ratelimit.Buckets

	mu   sync.Mutex
	good recent[[sha256.Size]byte, time.Time]
}

func newGate(now func() time.Time, observer automation.CallObserver) *gate {
	return &gate{now: now, observer: observer, failures: ratelimit.New(failuresPerSecond, failuresPerSecond)}
}

// pass looks at a credential with check, unless its address has sent too many wrong ones and it has not been right
// lately; then it is rate_limited.
func (g *gate) pass(address string, kind automation.CredentialKind, credential string, check func() error) error {
	source, hash := network(address), sha256.Sum256([]byte(credential))
	now := g.now()
	if g.failures.Wait(source, now) > 0 && !g.wasGood(hash, now) {
		g.observer.CallLimited(automation.LimitWrongCredentials)
		return automation.RateLimited(time.Second, "too many wrong credentials come from your address; try again in a moment")
	}
	err := check()
	switch automation.CodeOf(err) { //nolint:exhaustive // no other code says anything of the credential
	case "":
		g.mu.Lock()
		defer g.mu.Unlock()
		g.good.put(hash, now)
	case automation.CodeUnauthorized:
		g.observer.CredentialRefused(kind)
		g.failures.Take(source, now)
	case automation.CodeMachineRevoked:
		g.observer.CredentialRefused(kind)
	}
	return err
}

func (g *gate) wasGood(hash [sha256.Size]byte, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	at, found := g.good.get(hash)
	return found && now.Sub(at) < goodFor
}

// network is the address of an IPv4 host, and the network of an IPv6 host, which has a whole one to choose from.
func network(address string) string {
	const host6 = 64
	ip, err := netip.ParseAddr(address)
	if err != nil || ip.Unmap().Is4() {
		return address
	}
	prefix, err := ip.WithZone("").Prefix(host6)
	if err != nil {
		return address
	}
	return prefix.String()
}

// User returns who a bearer token stands for; see [Users]. Where the call came from is in the context, and how many
// wrong tokens come from there is bounded. A known caller whose token is refused is noted in the audit.
func (a *API) User(ctx context.Context, token string) (catalog.Principal, error) {
	origin := catalog.PrincipalOf(ctx).Origin
	if a.Users.Local(token) { // so cheap to tell that nobody's wrong ones need stand in its way
		principal, err := a.Users.User(ctx, token)
		principal.Origin = origin
		return principal, err
	}
	var principal catalog.Principal
	err := a.gate.pass(origin.Address, automation.CredentialToken, token, func() (err error) {
		principal, err = a.Users.User(ctx, token)
		return err
	})
	principal.Origin = origin
	if err != nil && principal.Actor.ID != "" {
		if noted := a.Service.Note(ctx, principal, "authenticate", principal.Actor.ID, "", err); noted != nil {
			return catalog.Principal{}, noted
		}
	}
	return principal, err
}

// limitCaller bounds how often one caller may call. The user of this computer is free.
func (a *API) limitCaller(p catalog.Principal) error {
	if a.RateLimit == 0 || p.Actor.Kind == automation.ActorRuntime {
		return nil
	}
	wait := a.callers.Take(callerName(p.Actor), a.Now())
	if wait == 0 {
		return nil
	}
	a.Observer.CallLimited(automation.LimitCaller)
	return automation.RateLimited(wait,
		"this %s calls too often: more than ERRAND_RATE_LIMIT allows; wait as long as Retry-After says", p.Actor.Kind)
}

// credentialOf is what a machine presents with each call, apart from the proof, which is another one each time.
func credentialOf(r *http.Request) string {
	return strings.Join(r.Header.Values("Authorization"), "\n")
}

// callerName is what the limits of a caller are counted under.
func callerName(actor automation.Actor) string { return string(actor.Kind) + " " + actor.ID }
