// Package actions holds the actions that a machine offers to plans, by id, and runs them.
//
// An action is a function from a JSON input to a JSON result, with the step that it serves beside it. Its
// errors are [automation.StepError] with one of the codes action_not_found, action_failed,
// action_unauthorized and transport_unavailable; the last one alone means that trying again may help. An
// action honours its context: it returns soon after the context has ended. The package decides nothing about
// steps: timeouts, cancels and what an error means for a run are the caller's.
package actions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/strictjson"
)

// Action is one thing that plans can ask for by its id.
type Action struct {
	// ID is what a plan says in `actionId`.
	ID string
	// Run does it. An error that is no [automation.StepError] becomes action_failed with its text.
	Run func(ctx context.Context, step automation.ConcreteStep) (json.RawMessage, error)
}

// Source is a set of actions under a common first part of their ids, which may not be known before they are
// asked for: a server with tools.
type Source interface {
	// Name is the first part of the ids of all its actions.
	Name() string
	// IDs returns the ids of its actions.
	IDs(ctx context.Context) ([]string, error)
	// Run runs the action that the step names, as [Action.Run] does. For an id that it does not have the error
	// is an action_not_found.
	Run(ctx context.Context, step automation.ConcreteStep) (json.RawMessage, error)
}

// Registry is the set of actions of one machine. It does not change and is safe for concurrent use.
type Registry struct {
	byID    map[string]Action
	sources map[string]Source // by name
}

// NewRegistry returns a registry of the given actions. Two with one id are an error.
func NewRegistry(list ...Action) (*Registry, error) {
	r := &Registry{byID: make(map[string]Action, len(list))}
	for _, action := range list {
		if _, taken := r.byID[action.ID]; taken {
			return nil, fmt.Errorf("two actions have the id %s", action.ID)
		}
		r.byID[action.ID] = action
	}
	return r, nil
}

// AddSources returns a registry with further sources of actions. A source whose name begins the id of an
// action that is there already, or is that of another source, is an error.
func (r *Registry) AddSources(list ...Source) (*Registry, error) {
	added := &Registry{byID: r.byID, sources: maps.Clone(r.sources)}
	if added.sources == nil {
		added.sources = make(map[string]Source, len(list))
	}
	for _, source := range list {
		name := source.Name()
		if _, taken := added.sources[name]; taken {
			return nil, fmt.Errorf("two sources of actions have the name %s", name)
		}
		for id := range r.byID {
			if firstPart(id) == name {
				return nil, fmt.Errorf("a source of actions has the name %s, with which the action %s begins", name, id)
			}
		}
		added.sources[name] = source
	}
	return added, nil
}

// IDs returns the ids of all actions but those of sources, sorted.
func (r *Registry) IDs() []string { return slices.Sorted(maps.Keys(r.byID)) }

// Run runs the action that the step names. The error is a [*automation.StepError], or the context's when
// that ended the action.
func (r *Registry) Run(ctx context.Context, step automation.ConcreteStep) (json.RawMessage, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	run := r.byID[step.ActionID].Run
	source := r.sources[firstPart(step.ActionID)]
	switch {
	case run != nil:
	case source != nil:
		run = source.Run
	default:
		return nil, r.notFound(step.ActionID, r.IDs())
	}
	result, err := run(ctx, step)
	if err == nil {
		return result, nil
	}
	var stepErr *automation.StepError
	switch {
	case source != nil && errors.As(err, &stepErr) && stepErr.Code == automation.StepErrActionNotFound:
		if ids, listErr := source.IDs(ctx); listErr == nil && ctx.Err() == nil {
			return nil, r.notFound(step.ActionID, append(ids, r.IDs()...))
		}
		return nil, err
	case errors.As(err, &stepErr), ctx.Err() != nil:
		return nil, err
	}
	return nil, failed("%v", err)
}

// failed is an action_failed with a formatted sentence.
func failed(format string, args ...any) *automation.StepError {
	return &automation.StepError{Code: automation.StepErrActionFailed, Message: fmt.Sprintf(format, args...)}
}

// invalidInput is the action_failed of an input that the action refuses, with every reason.
func invalidInput(id string, violations []strictjson.Violation) *automation.StepError {
	parts := make([]string, len(violations))
	for i, v := range violations {
		parts[i] = strings.TrimSpace(v.Path + " " + v.Message)
	}
	return failed("the input of %s is not valid: %s", id, strings.Join(parts, "; "))
}

// notFound is the action_not_found of an id, with what may have been meant among the known ones.
func (r *Registry) notFound(id string, known []string) *automation.StepError {
	message := ""
	near := nearNames(id, known)
	switch {
	case len(near) > 0:
		message = fmt.Sprintf("this machine has no action %q; did you mean %s?", id, strings.Join(near, " or "))
	case len(known) == 0 && len(r.sources) == 0:
		message = fmt.Sprintf("this machine has no action %q, and no other", id)
	default:
		message = fmt.Sprintf("this machine has no action %q; it has %s", id, r.list(known))
	}
	return &automation.StepError{Code: automation.StepErrActionNotFound, Message: message}
}

// list names some of the known actions, and all sources.
func (r *Registry) list(known []string) string {
	const shown = 20
	more := ""
	if len(known) > shown {
		more = fmt.Sprintf(" and %d more", len(known)-shown)
		known = known[:shown]
	}
	names := slices.Clone(known)
	for _, source := range slices.Sorted(maps.Keys(r.sources)) {
		names = append(names, source+".*")
	}
	return strings.Join(names, ", ") + more
}

// nearNames returns up to three known ids that were probably meant, the nearest first: a few letters apart,
// or with the same first or last part.
func nearNames(id string, known []string) []string {
	const most, longest = 3, 200 // the comparison is quadratic
	if len(id) > longest {
		return nil
	}
	distances := make(map[string]int, len(known))
	var near []string
	for _, k := range known {
		d := distance(id, k)
		if d <= max(2, len(id)/4) || firstPart(id) == firstPart(k) || lastPart(id) == lastPart(k) {
			distances[k] = d
			near = append(near, k)
		}
	}
	slices.SortStableFunc(near, func(a, b string) int { return distances[a] - distances[b] })
	return near[:min(most, len(near))]
}

func firstPart(id string) string {
	first, _, _ := strings.Cut(id, ".")
	return first
}

func lastPart(id string) string { return id[strings.LastIndexByte(id, '.')+1:] }

// distance is how many letters to insert, remove or replace to turn a into b (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(row[j+1]+1, row[j]+1, replace)
		}
	}
	return row[len(b)]
}
