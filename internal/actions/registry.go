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
)

// Action is one thing that plans can ask for by its id.
type Action struct {
	// ID is what a plan says in `actionId`.
	ID string
	// Run does it. An error that is no [automation.StepError] becomes action_failed with its text.
	Run func(ctx context.Context, step automation.ConcreteStep) (json.RawMessage, error)
}

// Registry is the set of actions of one machine. It does not change and is safe for concurrent use.
type Registry struct {
	byID map[string]Action
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

// IDs returns the ids of all actions, sorted.
func (r *Registry) IDs() []string { return slices.Sorted(maps.Keys(r.byID)) }

// Run runs the action that the step names. The error is a [*automation.StepError], or the context's when
// that ended the action.
func (r *Registry) Run(ctx context.Context, step automation.ConcreteStep) (json.RawMessage, error) {
	action, ok := r.byID[step.ActionID]
	if !ok {
		return nil, &automation.StepError{Code: automation.StepErrActionNotFound, Message: r.notFound(step.ActionID)}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	result, err := action.Run(ctx, step)
	if err == nil {
		return result, nil
	}
	var stepErr *automation.StepError
	if errors.As(err, &stepErr) || ctx.Err() != nil {
		return nil, err
	}
	return nil, failed("%v", err)
}

// failed is an action_failed with a formatted sentence.
func failed(format string, args ...any) *automation.StepError {
	return &automation.StepError{Code: automation.StepErrActionFailed, Message: fmt.Sprintf(format, args...)}
}

func (r *Registry) notFound(id string) string {
	ids := r.IDs()
	if near := nearNames(id, ids); len(near) > 0 {
		return fmt.Sprintf("this machine has no action %q; did you mean %s?", id, strings.Join(near, " or "))
	}
	if len(ids) == 0 {
		return fmt.Sprintf("this machine has no action %q, and no other", id)
	}
	const shown = 20
	more := ""
	if len(ids) > shown {
		more = fmt.Sprintf(" and %d more", len(ids)-shown)
		ids = ids[:shown]
	}
	return fmt.Sprintf("this machine has no action %q; it has %s%s", id, strings.Join(ids, ", "), more)
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
