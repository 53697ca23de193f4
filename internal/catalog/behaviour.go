package catalog

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/errandhq/errand/automation"
)

// AutomationResult is an automation as commands return it.
type AutomationResult struct {
	automation.Automation
	// Schedules are in the order of their creation.
	Schedules []ScheduleResult `json:"schedules"`
	// Webhooks are in the order of their creation. Listings leave them out.
	Webhooks []WebhookResult `json:"webhooks,omitzero" doc:"what starts its runs from outside; not in listings"`
	// Drops are there in the answer of get: firings of its schedules that were not admitted, recorded last first.
	Drops *[]automation.ScheduleDrop `json:"drops,omitempty" doc:"firings of its schedules that were not admitted, recorded last first; get only"`
	// Runs are there when they were asked for, newest first, without outputs.
	Runs *[]automation.Run `json:"runs,omitempty" doc:"its latest runs, when they were asked for, without outputs"`
	// Warnings are things that were accepted and may not mean what their author thinks.
	Warnings []automation.Violation `json:"warnings,omitempty" doc:"what was accepted and may not mean what its author thinks"`
	Hinted
}

// Entity returns the version of what is returned, for faces that can name it beside the result.
func (r AutomationResult) Entity() int64 { return r.Version }

// RunResult is a run as the commands for one run return it.
type RunResult struct {
	automation.Run
	Hinted
}

// ListResult is a page of automations.
type ListResult struct {
	Automations []AutomationResult `json:"automations" doc:"newest first, without plans"`
	NextCursor  string             `json:"next_cursor,omitempty" doc:"there are more: give it as cursor"`
}

// RunsResult is a page of runs, without plans, inputs and outputs.
type RunsResult struct {
	Runs       []automation.Run `json:"runs" doc:"newest first, without plans, inputs and outputs"`
	NextCursor string           `json:"next_cursor,omitempty" doc:"there are more: give it as cursor"`
}

// listed returns an automation as listings show it.
func listed(a automation.Automation) AutomationResult {
	return AutomationResult{Automation: a, Schedules: presentSchedules(a)}
}

// present returns an automation as it is shown alone.
func (s *Service) present(a automation.Automation) AutomationResult {
	result := listed(a)
	result.Webhooks = s.presentWebhooks(a.Webhooks)
	return result
}

func create(ctx context.Context, s *Service, p Principal, in CreateInput) (AutomationResult, error) {
	key, err := idempotency("create", in.IdempotencyKey, requestOf(in.definition))
	if err != nil {
		return AutomationResult{}, err
	}
	definition := in.definition
	if definition.MachineID == "" {
		if definition.MachineID, err = s.defaultMachine(ctx, p); err != nil {
			return AutomationResult{}, err
		}
	}
	created, err := s.Ledger.CreateAutomation(ctx, p.OwnerID, definition, key)
	if err != nil {
		return AutomationResult{}, err
	}
	result := s.present(created)
	_, about := automation.CheckTimings("schedules", definition.Schedules, s.Now())
	result.Warnings = slices.Concat(in.warnings, about)
	return result, nil
}

// defaultMachine chooses the machine of an automation that names none: the one that the call came through,
// else the only one there is.
func (s *Service) defaultMachine(ctx context.Context, p Principal) (string, error) {
	if p.MachineID != "" {
		return p.MachineID, nil
	}
	machines, _, err := s.Ledger.Machines(ctx, p.OwnerID, automation.MaxPageSize, "")
	if err != nil {
		return "", err
	}
	var active []string
	only := ""
	for _, m := range machines {
		if m.State == automation.MachineActive {
			active = append(active, fmt.Sprintf("%s (%s)", m.ID, m.Name))
			only = m.ID
		}
	}
	switch len(active) {
	case 0:
		return "", automation.Invalid(automation.Violation{
			Path: "machineId", Message: "there is no machine yet: enrol one, then create the automation",
		})
	case 1:
		return only, nil
	}
	return "", automation.Invalid(automation.Violation{
		Path: "machineId", Message: "is required because there are several machines: " + strings.Join(active, ", "),
	})
}

func list(ctx context.Context, s *Service, p Principal, in ListInput) (ListResult, error) {
	automations, next, err := s.Ledger.ListAutomations(ctx, p.OwnerID, automation.AutomationFilter{
		Enabled: in.Enabled, MachineID: orEmpty(in.MachineID), Query: in.Query, Limit: in.size(), Cursor: in.Cursor,
	})
	if err != nil {
		return ListResult{}, err
	}
	result := ListResult{Automations: make([]AutomationResult, 0, len(automations)), NextCursor: next}
	for _, a := range automations {
		result.Automations = append(result.Automations, listed(a))
	}
	return result, nil
}

func get(ctx context.Context, s *Service, p Principal, in GetInput) (AutomationResult, error) {
	found, err := s.Ledger.Automation(ctx, p.OwnerID, in.AutomationID)
	if err != nil {
		return AutomationResult{}, err
	}
	result := s.present(found)
	addUpcoming(result.Schedules, found.Schedules)
	drops, err := s.Ledger.ScheduleDrops(ctx, p.OwnerID, found.ID, shownDrops)
	if err != nil {
		return AutomationResult{}, err
	}
	drops = notNull(drops)
	result.Drops = &drops
	if in.IncludeRuns {
		page, err := runs(ctx, s, p, RunsInput{AutomationID: &in.AutomationID, PageInput: PageInput{Limit: in.RunsLimit}})
		if err != nil {
			return AutomationResult{}, err
		}
		result.Runs = &page.Runs
	}
	return result, nil
}

func runNow(ctx context.Context, s *Service, p Principal, in RunNowInput) (RunResult, error) {
	request := in
	request.IdempotencyKey, request.WaitMs = "", 0
	key, err := idempotency("run-now", in.IdempotencyKey, request)
	if err != nil {
		return RunResult{}, err
	}
	run, err := s.Ledger.Admit(ctx, automation.Admission{
		OwnerID: p.OwnerID, AutomationID: in.AutomationID, Input: in.Input, Key: key,
		Trigger: automation.Trigger{Kind: automation.TriggerManual},
	})
	if err != nil {
		return RunResult{}, err
	}
	s.Engine.Admitted(run.ID)
	if err := settled(ctx, run); err != nil {
		return RunResult{}, err
	}
	return s.await(ctx, p, run.ID, time.Duration(in.WaitMs)*time.Millisecond)
}

func showRun(ctx context.Context, s *Service, p Principal, in RunInput) (RunResult, error) {
	return s.await(ctx, p, in.RunID, time.Duration(in.WaitMs)*time.Millisecond)
}

func runs(ctx context.Context, s *Service, p Principal, in RunsInput) (RunsResult, error) {
	page, next, err := s.Ledger.ListRuns(ctx, p.OwnerID, automation.RunFilter{
		AutomationID: orEmpty(in.AutomationID), MachineID: orEmpty(in.MachineID), Status: orEmpty(in.Status), Trigger: orEmpty(in.Trigger),
		Since: instantOf(in.Since), Until: instantOf(in.Until), Limit: in.size(), Cursor: in.Cursor,
	})
	if err != nil {
		return RunsResult{}, err
	}
	if page, err = s.explainAll(ctx, page); err != nil {
		return RunsResult{}, err
	}
	return RunsResult{Runs: notNull(page), NextCursor: next}, nil
}

func cancelRun(ctx context.Context, s *Service, p Principal, in CancelInput) (RunResult, error) {
	cancelled, err := s.Ledger.RequestCancel(ctx, p.OwnerID, in.RunID, in.Reason, in.Force)
	if err != nil {
		return RunResult{}, err
	}
	s.Engine.Cancelled(cancelled.Run, cancelled.Begun)
	return s.await(ctx, p, in.RunID, 0)
}

func retryRun(ctx context.Context, s *Service, p Principal, in RetryInput) (RunResult, error) {
	request := in
	request.IdempotencyKey = ""
	key, err := idempotency("retry-run", in.IdempotencyKey, request)
	if err != nil {
		return RunResult{}, err
	}
	run, err := s.Ledger.Retry(ctx, automation.Retry{
		OwnerID: p.OwnerID, RunID: in.RunID, FromStep: orEmpty(in.FromStep), Key: key,
	})
	if err != nil {
		return RunResult{}, err
	}
	s.Engine.Admitted(run.ID)
	run, err = s.explain(ctx, run)
	return RunResult{Run: run}, err
}

// CancelRunsResult says how many runs a cancel was recorded for.
type CancelRunsResult struct {
	Cancelled int `json:"cancelled"`
}

func cancelRuns(ctx context.Context, s *Service, p Principal, in CancelRunsInput) (CancelRunsResult, error) {
	// What was begun must not be left half-done because the caller left.
	cancelled, err := s.cancelAll(context.WithoutCancel(ctx), p, automation.RunSelection{
		AutomationID: orEmpty(in.AutomationID), MachineID: orEmpty(in.MachineID), Until: s.Now(),
	}, in.Reason)
	return CancelRunsResult{Cancelled: cancelled}, err
}

// cancelAll records a cancel of every run of a selection and returns of how many.
func (s *Service) cancelAll(ctx context.Context, p Principal, selection automation.RunSelection, reason string) (int, error) {
	count := 0
	for {
		cancelled, err := s.Ledger.RequestCancels(ctx, p.OwnerID, selection, reason)
		for _, one := range cancelled {
			s.Engine.Cancelled(one.Run, one.Begun)
		}
		count += len(cancelled)
		if err != nil || len(cancelled) == 0 {
			return count, err
		}
	}
}

// idempotency makes the key of a request; the request is what must be equal for a repeat.
func idempotency(operation, key string, request any) (automation.Idempotency, error) {
	if key == "" {
		return automation.Idempotency{}, nil
	}
	content, err := json.Marshal(request)
	if err != nil {
		return automation.Idempotency{}, errors.Join(errors.New("hashing a request"), err)
	}
	sum := sha256.Sum256(content)
	return automation.Idempotency{Operation: operation, Key: key, RequestHash: hex.EncodeToString(sum[:])}, nil
}
