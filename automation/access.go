package automation

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
	Kind ActorKind `json:"kind"`
	ID   string    `json:"id"`
}

// Origin is where a call came from.
type Origin struct {
	// Address is the caller's network address, without a port.
	Address string
	// RequestID is the id of the call in the log.
	RequestID string
}
