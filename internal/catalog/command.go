// Package catalog defines every command of the product once: its name, contract, input, result, errors and
// behaviour. REST routes, CLI commands and later faces are projections of it, and none of them invents an
// operation of its own. What a command does is here too, over small interfaces of the ledger and the engine;
// it never executes a step.
package catalog

import (
	"context"
	"net/http"
	"reflect"
	"slices"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/strictjson"
)

// Principal is who asks: the owner whose things are meant, what the caller may do with them and, for a call
// that comes through a machine, that machine.
type Principal struct {
	OwnerID   string
	MachineID string
	// Scope is what the caller may do; the zero value may do nothing.
	Scope automation.Scope
	// Actor and Origin say for the audit who calls and from where.
	Actor  automation.Actor
	Origin automation.Origin
}

type principalKey struct{}

// WithPrincipal returns a context that says who asks, for faces that are handed a request and not a principal.
func WithPrincipal(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// PrincipalOf returns who asks. Without [WithPrincipal] that is nobody, who may do nothing.
func PrincipalOf(ctx context.Context) Principal {
	p, _ := ctx.Value(principalKey{}).(Principal)
	return p
}

// Route is the REST projection of a command. Members of the input that appear in the path in braces are taken
// from there; the others are query parameters or members of the body, see [Route.InQuery].
type Route struct {
	Method string
	// Path is below /v1.
	Path string
	// Status is the HTTP status of success.
	Status int
}

// InQuery reports whether the members that are not in the path are query parameters: those of a GET and of a
// DELETE, whose body much software drops.
func (r Route) InQuery() bool { return r.Method == http.MethodGet || r.Method == http.MethodDelete }

// Effect is what a command may do, for faces that tell people before it is called.
type Effect int

// The effects. A command without one is a mistake, which a test finds.
const (
	// EffectRead changes nothing.
	EffectRead Effect = iota + 1
	// EffectAdd makes something new with each call and touches nothing that exists.
	EffectAdd
	// EffectChange replaces or removes; a repeat of the call changes nothing more.
	EffectChange
	// EffectExecute makes programs run on a machine, which may do anything that its user may.
	EffectExecute
)

// Command is one command of the catalog.
type Command struct {
	Name string
	// Summary is one line; Contract is everything that a reader with no other context needs.
	Summary  string
	Contract string
	// Example is an input that works as it stands, apart from ids.
	Example string
	Effect  Effect
	Route   Route
	// Scope is what a caller needs; [Command.Execute] refuses everybody else. read is for what changes nothing,
	// control for automations and runs, person for keys and machines of one's own, admin for what concerns
	// others. A command without a scope is refused to all.
	Scope automation.Scope
	// Bundle is the member of the input that is a list of documents, which a face may take from several files; ""
	// for a command whose input is one document.
	Bundle string
	// Errors are the codes that the command itself may answer with, beside those of every command.
	Errors []automation.Code
	// Input and Result are the types of what goes in and comes out.
	Input, Result reflect.Type

	check func(input []byte) error
	run   func(ctx context.Context, s *Service, p Principal, input []byte) (any, error)
}

// CommonErrors are the codes that every command may answer with.
var CommonErrors = []automation.Code{
	automation.CodeValidationFailed, automation.CodeUnauthorized, automation.CodeForbidden,
	automation.CodePayloadTooLarge, automation.CodeRateLimited, automation.CodeStoreUnavailable, automation.CodeInternal,
}

// Codes returns every code that the command may answer with, its own ones first.
func (c Command) Codes() []string {
	codes := make([]string, 0, len(c.Errors)+len(CommonErrors))
	for _, code := range slices.Concat(c.Errors, CommonErrors) {
		codes = append(codes, string(code))
	}
	return codes
}

// Check decodes an input by every rule that needs no ledger, and changes nothing. Its errors are
// validation_failed with all violations.
func (c Command) Check(input []byte) error { return c.check(input) }

// Execute decodes an input and does what the command says, for the principal. It is the one place where the
// principal's scope is compared with what the command needs; without it nothing of the input is looked at. The
// audit gets an entry for each call that changes something, and for each that the scope does not allow.
func (c Command) Execute(ctx context.Context, s *Service, p Principal, input []byte) (any, error) {
	n := &note{service: s, principal: p, command: c, input: input}
	result, refusal := c.authorized(context.WithValue(ctx, noteKey{}, n), s, p, input)
	if !c.Changes() && automation.CodeOf(refusal) != automation.CodeForbidden {
		return result, refusal
	}
	// A refusal whose entry cannot be written is a refusal all the same.
	if err := n.write(ctx, result, refusal); err != nil && refusal == nil {
		return nil, err
	}
	return result, refusal
}

func (c Command) authorized(ctx context.Context, s *Service, p Principal, input []byte) (any, error) {
	if err := p.Scope.Authorize(c.Name, c.Scope); err != nil {
		return nil, err
	}
	return c.run(ctx, s, p, input)
}

// define binds a command's description to its typed behaviour.
func define[In, Out any](
	c Command, decode func([]byte) (In, error), run func(context.Context, *Service, Principal, In) (Out, error),
) Command {
	c.Input, c.Result = reflect.TypeFor[In](), reflect.TypeFor[Out]()
	c.check = func(input []byte) error {
		_, err := decode(input)
		return err
	}
	c.run = func(ctx context.Context, s *Service, p Principal, input []byte) (any, error) {
		in, err := decode(input)
		if err != nil {
			return nil, err
		}
		return run(ctx, s, p, in)
	}
	return c
}

// decodeInto decodes an input into a struct and lets the struct check its own rules.
func decodeInto[In interface{ violations() []automation.Violation }](input []byte) (In, error) {
	var in In
	violations := strictjson.Unmarshal(input, &in)
	if len(violations) == 0 {
		violations = in.violations()
	}
	if len(violations) > 0 {
		return in, automation.Invalid(violations...)
	}
	return in, nil
}

// Find returns the command of a name.
func Find(name string) (Command, bool) {
	for _, c := range Commands() {
		if c.Name == name {
			return c, true
		}
	}
	return Command{}, false
}
