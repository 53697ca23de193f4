package catalog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/strictjson"
)

// DefinitionDocument is what the author of an automation decides, in the format of create: a document that create
// and apply accept. It holds no id of the automation and nothing that the control plane knows about it.
type DefinitionDocument struct {
	Name        string              `json:"name"`
	Description string              `json:"description,omitempty"`
	Enabled     bool                `json:"enabled"`
	MachineID   string              `json:"machineId,omitempty"`
	Workflow    automation.Workflow `json:"workflow"`
	Schedules   []ScheduleDocument  `json:"schedules,omitempty"`
	Webhooks    []WebhookDocument   `json:"webhooks,omitempty"`
}

func documentOf(d automation.Definition) DefinitionDocument {
	return DefinitionDocument{
		Name: d.Name, Description: d.Description, Enabled: d.Enabled, MachineID: d.MachineID, Workflow: d.Workflow,
		Schedules: scheduleDocuments(d.Schedules), Webhooks: webhookDocuments(d.Webhooks),
	}
}

// definitionOf returns the part of a stored automation that its author decides.
func definitionOf(a automation.Automation) automation.Definition {
	return automation.Definition{
		Name: a.Name, Description: a.Description, Enabled: a.Enabled, MachineID: a.MachineID, Workflow: a.Workflow,
		Schedules: scheduleDefinitions(a.Schedules), Webhooks: webhookDefinitions(a.Webhooks),
	}
}

// maxChangedPaths bounds how many places of one automation are named as changed.
const maxChangedPaths = 50

// changedPaths returns the places in which two definitions differ, in the form of [automation.Violation], in the
// order of their names. The steps of a plan are compared one by one by position. After [maxChangedPaths] one more
// says that there are others.
func changedPaths(before, after automation.Definition) ([]string, error) {
	old, err := tree(documentOf(before))
	if err != nil {
		return nil, err
	}
	changed, err := tree(documentOf(after))
	if err != nil {
		return nil, err
	}
	paths := compare(nil, "", old, changed)
	if len(paths) > maxChangedPaths {
		paths = append(paths[:maxChangedPaths:maxChangedPaths], "…")
	}
	return paths, nil
}

// tree returns a document as the maps and lists that it is made of; numbers keep their digits.
func tree(document DefinitionDocument) (any, error) {
	encoded, err := strictjson.Marshal(document)
	if err != nil {
		return nil, fmt.Errorf("encoding a definition: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(encoded))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, fmt.Errorf("decoding a definition: %w", err)
	}
	return value, nil
}

// absent stands for a member or an element that one of two trees lacks.
type absent struct{}

// compare appends the paths at which two trees differ.
func compare(paths []string, path string, a, b any) []string {
	switch a := a.(type) {
	case map[string]any:
		if b, ok := b.(map[string]any); ok {
			return compareMembers(paths, path, a, b)
		}
	case []any:
		if b, ok := b.([]any); ok {
			return compareElements(paths, path, a, b)
		}
	default:
		switch b.(type) {
		case map[string]any, []any: // cannot be compared with ==, and differs
		default:
			if a == b {
				return paths
			}
		}
	}
	return append(paths, path)
}

func compareMembers(paths []string, path string, a, b map[string]any) []string {
	names := map[string]bool{}
	for name := range a {
		names[name] = true
	}
	for name := range b {
		names[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		paths = compare(paths, strictjson.PathMember(path, name), valueOr(a, name), valueOr(b, name))
	}
	return paths
}

func valueOr(object map[string]any, name string) any {
	if value, found := object[name]; found {
		return value
	}
	return absent{}
}

func compareElements(paths []string, path string, a, b []any) []string {
	element := func(list []any, i int) any {
		if i < len(list) {
			return list[i]
		}
		return absent{}
	}
	for i := range max(len(a), len(b)) {
		paths = compare(paths, strictjson.PathElement(path, i), element(a, i), element(b, i))
	}
	return paths
}
