package catalog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/strictjson"
)

// MaxApply bounds how many automations one apply or one page of export holds.
const MaxApply = automation.MaxPageSize

// ApplyInput is the automations that are wanted.
type ApplyInput struct {
	Automations []ApplyDefinition `json:"automations" strict:"required" doc:"1 to 200 definitions in the format of create, each with another name"`
	DryRun      bool              `json:"dry_run,omitempty" doc:"only say what would change; default false"`

	definitions []automation.Definition
	warnings    []automation.Violation
}

// Actions that apply takes.
const (
	Created   = "created"
	Updated   = "updated"
	Unchanged = "unchanged"
)

// AppliedAutomation is what became of one definition.
type AppliedAutomation struct {
	Name string `json:"name"`
	// AutomationID is absent when a dry run would create the automation.
	AutomationID string `json:"automation_id,omitempty" doc:"absent when a dry run would create it"`
	Action       string `json:"action" enum:"created,updated,unchanged" doc:"created, updated or unchanged"`
	// Changes are the places that differ from what was stored, at most 50 and then "…".
	Changes []string `json:"changes" doc:"the places that differ from what was stored"`
}

// ApplyResult says what became of every definition, in the order of the input.
type ApplyResult struct {
	Automations []AppliedAutomation    `json:"automations"`
	DryRun      bool                   `json:"dry_run" doc:"true: nothing was changed"`
	Warnings    []automation.Violation `json:"warnings,omitempty"`
	Hinted
}

// decodeApply decodes the wanted automations by every rule that needs no ledger.
func decodeApply(input []byte) (ApplyInput, error) {
	var in ApplyInput
	refused, warnings := strictjson.Decode(input, &in)
	v := violations(refused)
	if n := len(in.Automations); len(refused) == 0 && (n == 0 || n > MaxApply) {
		v.add("automations", "holds %d definitions; 1 to %d are possible", n, MaxApply)
	}
	first := map[string]int{}
	for i, definition := range in.Automations {
		v.checkWebhooks(fmt.Sprintf("automations[%d].webhooks", i), definition.Webhooks)
		name := string(definition.Name)
		if name == "" {
			continue // refused already
		}
		if other, found := first[name]; found {
			v.add(fmt.Sprintf("automations[%d].name", i), "is the name of automations[%d] too; apply goes by name", other)
			continue
		}
		first[name] = i
	}
	if len(v) > 0 {
		return in, automation.Invalid(v...)
	}
	for _, definition := range in.Automations {
		in.definitions = append(in.definitions, definition.definition())
	}
	in.warnings = warnings
	return in, nil
}

// wanted is one definition of an apply beside what is stored under its name.
type wanted struct {
	definition automation.Definition
	stored     *automation.Automation // nil for one that is to be created
	changes    []string
	// sent are its schedules in the order of the input, those that are stored already with their ids.
	sent []automation.ScheduleDefinition
	// warnings are about its webhooks.
	warnings []automation.Violation
}

func (w wanted) result() AppliedAutomation {
	applied := AppliedAutomation{Name: w.definition.Name, Action: Created, Changes: []string{}}
	if w.stored != nil {
		applied.AutomationID, applied.Action = w.stored.ID, Unchanged
		if len(w.changes) > 0 {
			applied.Action, applied.Changes = Updated, w.changes
		}
	}
	return applied
}

// apply makes the owner's automations of the given names what the input says. Everything is checked before the
// first is changed; each is then changed by itself, and only from the version that was compared with.
func apply(ctx context.Context, s *Service, p Principal, in ApplyInput) (ApplyResult, error) {
	// Two applies of one server take turns: else both could create the same name.
	s.applying.Lock()
	defer s.applying.Unlock()
	all, err := s.compareWithStored(ctx, p, in.definitions)
	if err != nil {
		return ApplyResult{}, err
	}
	about, err := checkTimings(all, s.Now())
	if err != nil {
		return ApplyResult{}, err
	}
	result := ApplyResult{DryRun: in.DryRun, Warnings: slices.Concat(in.warnings, about), Automations: make([]AppliedAutomation, 0, len(all))}
	for i, w := range all {
		applied := w.result()
		if !in.DryRun {
			if applied.AutomationID, err = s.applyOne(ctx, p, w); err != nil {
				return ApplyResult{}, partly(err, i, w.definition.Name)
			}
		}
		result.Automations = append(result.Automations, applied)
	}
	return result, nil
}

// checkTimings refuses new schedules that never fire, and returns the warnings about schedules and webhooks.
func checkTimings(all []wanted, now time.Time) ([]automation.Violation, error) {
	var refused violations
	var warnings []automation.Violation
	for i, w := range all {
		bad, about := automation.CheckTimings(fmt.Sprintf("automations[%d].schedules", i), w.sent, now)
		refused, warnings = append(refused, bad...), slices.Concat(warnings, about, w.warnings)
	}
	if len(refused) > 0 {
		return nil, automation.Invalid(refused...)
	}
	return warnings, nil
}

// applyOne makes one change and returns the id of the automation.
func (s *Service) applyOne(ctx context.Context, p Principal, w wanted) (string, error) {
	switch {
	case w.stored == nil:
		created, err := s.Ledger.CreateAutomation(ctx, p.OwnerID, w.definition, automation.Idempotency{})
		return created.ID, err
	case len(w.changes) == 0:
		return w.stored.ID, nil
	}
	_, err := s.Ledger.UpdateAutomation(ctx, p.OwnerID, w.stored.ID, w.stored.Version, func(d *automation.Definition) error {
		d.Name, d.Description, d.Enabled = w.definition.Name, w.definition.Description, w.definition.Enabled
		d.MachineID, d.Workflow = w.definition.MachineID, w.definition.Workflow
		d.Schedules, d.Webhooks = w.definition.Schedules, w.definition.Webhooks
		return nil
	})
	return w.stored.ID, err
}

// partly says of an error how much of an apply was done before it.
func partly(err error, done int, name string) error {
	var refusal *automation.Error
	if !errors.As(err, &refusal) {
		return err
	}
	said := *refusal
	said.Message = fmt.Sprintf("%q was not applied (%s); the %d before it were, and the same apply goes on from there",
		name, refusal.Message, done)
	return &said
}

// compareWithStored finds for each definition the automation of its name and what differs.
func (s *Service) compareWithStored(ctx context.Context, p Principal, definitions []automation.Definition) ([]wanted, error) {
	ids, err := s.idsByName(ctx, p, definitions)
	if err != nil {
		return nil, err
	}
	all := make([]wanted, 0, len(definitions))
	var refused violations
	for i, definition := range definitions {
		w := wanted{definition: definition, sent: definition.Schedules}
		var storedWebhooks []automation.Webhook
		if id := ids[definition.Name]; id != "" {
			stored, err := s.Ledger.Automation(ctx, p.OwnerID, id)
			if err != nil {
				return nil, err
			}
			w.stored = &stored
			w.sent = nameSchedules(stored.Schedules, definition.Schedules)
			w.definition.Schedules = inStoredOrder(stored.Schedules, w.sent)
			storedWebhooks = stored.Webhooks
		}
		var bad violations
		w.definition.Webhooks, bad, w.warnings = nameWebhooks(fmt.Sprintf("automations[%d].webhooks", i), storedWebhooks, definition.Webhooks)
		refused = append(refused, bad...)
		if err := s.chooseMachine(ctx, p, &w, i); err != nil {
			return nil, err
		}
		if w.stored != nil {
			if w.changes, err = changedPaths(definitionOf(*w.stored), w.definition); err != nil {
				return nil, err
			}
		}
		all = append(all, w)
	}
	if len(refused) > 0 {
		return nil, automation.Invalid(refused...)
	}
	return all, s.checkMachines(ctx, p, all)
}

// idsByName returns the ids of the owner's automations that have a name of the definitions. A name that several
// have is refused: which of them is meant is not known.
func (s *Service) idsByName(ctx context.Context, p Principal, definitions []automation.Definition) (map[string]string, error) {
	found := map[string][]string{}
	for _, definition := range definitions {
		found[definition.Name] = nil
	}
	for cursor, more := "", true; more; more = cursor != "" {
		page, next, err := s.Ledger.ListAutomations(ctx, p.OwnerID, automation.AutomationFilter{Limit: automation.MaxPageSize, Cursor: cursor})
		if err != nil {
			return nil, err
		}
		for _, a := range page {
			if ids, wanted := found[a.Name]; wanted {
				found[a.Name] = append(ids, a.ID)
			}
		}
		cursor = next
	}
	var v violations
	ids := map[string]string{}
	for i, definition := range definitions {
		switch same := found[definition.Name]; len(same) {
		case 0:
		case 1:
			ids[definition.Name] = same[0]
		default:
			v.add(fmt.Sprintf("automations[%d].name", i), "is the name of %d automations (%s); rename or delete all but one",
				len(same), strings.Join(same, ", "))
		}
	}
	if len(v) > 0 {
		return nil, automation.Invalid(v...)
	}
	return ids, nil
}

// chooseMachine fills in the machine of a definition that names none: the stored one, else what create chooses.
func (s *Service) chooseMachine(ctx context.Context, p Principal, w *wanted, i int) error {
	if w.definition.MachineID != "" {
		return nil
	}
	if w.stored != nil {
		w.definition.MachineID = w.stored.MachineID
		return nil
	}
	machineID, err := s.defaultMachine(ctx, p)
	if err != nil {
		return placed(err, i)
	}
	w.definition.MachineID = machineID
	return nil
}

// placed puts the violations of one definition where it is among several.
func placed(err error, i int) error {
	var refusal *automation.Error
	if !errors.As(err, &refusal) || len(refusal.Details) == 0 {
		return err
	}
	var v violations
	for _, violation := range refusal.Details {
		v.add(fmt.Sprintf("automations[%d].%s", i, violation.Path), "%s", violation.Message)
	}
	return automation.Invalid(v...)
}

// checkMachines refuses machines that are not the owner's, or revoked, before anything is changed. The ledger
// checks them again with each change.
func (s *Service) checkMachines(ctx context.Context, p Principal, all []wanted) error {
	var ids []string
	for _, w := range all {
		ids = append(ids, w.definition.MachineID)
	}
	machines, err := s.Ledger.MachineLoads(ctx, ids)
	if err != nil {
		return err
	}
	var v violations
	for i, w := range all {
		machine, found := machines[w.definition.MachineID]
		switch chosen := w.stored == nil || w.stored.MachineID != w.definition.MachineID; {
		case !chosen: // what targets a revoked machine may still be changed otherwise
		case !found || machine.OwnerID != p.OwnerID:
			v.add(fmt.Sprintf("automations[%d].machineId", i), "names no machine of yours")
		case machine.State == automation.MachineRevoked:
			return automation.Errorf(automation.CodeMachineRevoked,
				"automations[%d].machineId: machine %s is revoked; choose another one", i, machine.ID)
		}
	}
	if len(v) > 0 {
		return automation.Invalid(v...)
	}
	return nil
}

// ExportInput selects automations to export.
type ExportInput struct {
	AutomationID *string `json:"automation_id,omitempty" doc:"only this automation"`
	MachineID    *string `json:"machine_id,omitempty" doc:"only automations that target this machine"`
	Query        string  `json:"query,omitempty" doc:"only automations whose name contains this text, in any case"`
	Limit        *int    `json:"limit,omitempty" doc:"at most this many, 1 to 200; default 200"`
	Cursor       string  `json:"cursor,omitempty" doc:"next_cursor of the page before"`
}

func (in ExportInput) violations() []automation.Violation {
	var v violations
	v.filterID("automation_id", in.AutomationID)
	v.filterID("machine_id", in.MachineID)
	v.length("query", in.Query, automation.MaxNameLength)
	v.limit("limit", in.Limit)
	if in.AutomationID != nil && (in.MachineID != nil || in.Query != "" || in.Limit != nil || in.Cursor != "") {
		v.add("automation_id", "names one automation; leave the other members out")
	}
	return v
}

// ExportResult is a page of definitions. Without NextCursor it is an input of apply as it stands.
type ExportResult struct {
	Automations []DefinitionDocument `json:"automations" doc:"definitions in the format of create, newest first"`
	NextCursor  string               `json:"next_cursor,omitempty" doc:"there are more: give it as cursor"`
}

func export(ctx context.Context, s *Service, p Principal, in ExportInput) (ExportResult, error) {
	result := ExportResult{Automations: []DefinitionDocument{}}
	if in.AutomationID != nil {
		a, err := s.Ledger.Automation(ctx, p.OwnerID, *in.AutomationID)
		if err != nil {
			return ExportResult{}, err
		}
		result.Automations = append(result.Automations, documentOf(definitionOf(a)))
		return result, nil
	}
	limit := MaxApply
	if in.Limit != nil {
		limit = *in.Limit
	}
	err := s.exportPage(ctx, p, in, limit, &result)
	return result, err
}

// maxExport bounds a page of more than one definition, in bytes: below the body of a request, so that apply can take
// the page.
const maxExport = 6 << 20

// exportPage adds definitions until there are as many as the limit, or one more would make the page too large. It
// lists them one by one: only so there is a cursor behind each.
func (s *Service) exportPage(ctx context.Context, p Principal, in ExportInput, limit int, result *ExportResult) error {
	cursor, size := in.Cursor, 0
	for range limit {
		page, next, err := s.Ledger.ListAutomations(ctx, p.OwnerID, automation.AutomationFilter{
			MachineID: orEmpty(in.MachineID), Query: in.Query, Limit: 1, Cursor: cursor,
		})
		if err != nil {
			return err
		}
		for _, listed := range page {
			document, written, err := s.exported(ctx, p, listed.ID)
			if automation.CodeOf(err) == automation.CodeNotFound { // deleted since it was listed
				continue
			}
			if err != nil {
				return err
			}
			if size += written; size > maxExport && len(result.Automations) > 0 {
				return nil
			}
			result.Automations = append(result.Automations, document)
		}
		if cursor, result.NextCursor = next, next; next == "" {
			return nil
		}
	}
	return nil
}

// exported returns the definition of an automation, and how many bytes it has.
func (s *Service) exported(ctx context.Context, p Principal, id string) (DefinitionDocument, int, error) {
	a, err := s.Ledger.Automation(ctx, p.OwnerID, id)
	if err != nil {
		return DefinitionDocument{}, 0, err
	}
	document := documentOf(definitionOf(a))
	written, err := strictjson.Marshal(document)
	if err != nil {
		return DefinitionDocument{}, 0, fmt.Errorf("writing automation %s: %w", a.ID, err)
	}
	return document, len(written), nil
}
