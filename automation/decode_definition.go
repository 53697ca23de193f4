package automation

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/errandhq/errand/internal/strictjson"
)

// DefinitionInput is a definition as it is sent, with the members of `create`. It is made to be embedded in
// the input of a command: [strictjson.Decode] applies every rule to it, and [DefinitionInput.Definition]
// returns what was meant. null means default.
type DefinitionInput struct {
	Name        NameText         `json:"name" strict:"required" doc:"what people call it, 1 to 200 characters"`
	Description *DescriptionText `json:"description" doc:"at most 4000 characters; default empty"`
	Enabled     *bool            `json:"enabled" doc:"whether runs may be admitted; default true"`
	MachineID   *MachineRef      `json:"machineId" doc:"the machine that executes it; may be left out when there is one"`
	Workflow    *WorkflowInput   `json:"workflow" doc:"script, the human text, and compiled, the plan"`
	Schedules   ScheduleInputs   `json:"schedules" doc:"when it runs by itself: cron with timezone, every, or at, and more, at most 100"`
	Webhooks    WebhookInputs    `json:"webhooks" doc:"what starts runs from outside: name, scheme, secret and more, at most 20"`
}

// Definition returns the definition with its defaults applied.
func (in DefinitionInput) Definition() Definition {
	d := Definition{Name: string(in.Name), Enabled: true}
	if in.Description != nil {
		d.Description = string(*in.Description)
	}
	if in.Enabled != nil {
		d.Enabled = *in.Enabled
	}
	if in.MachineID != nil {
		d.MachineID = string(*in.MachineID)
	}
	if in.Workflow != nil {
		d.Workflow = in.Workflow.Workflow()
	}
	d.Schedules = in.Schedules.Definitions()
	for _, added := range in.Webhooks {
		d.Webhooks = append(d.Webhooks, added.Definition())
	}
	return d
}

// DecodeDefinition decodes the definition of an automation and applies every rule of the format to it. The
// error is a validation_failed that lists all violations of the document; the warnings are about an accepted
// definition.
func DecodeDefinition(data []byte) (Definition, []Violation, error) {
	var in DefinitionInput
	violations, warnings := strictjson.Decode(data, &in)
	if len(violations) > 0 {
		return Definition{}, nil, Invalid(violations...)
	}
	return in.Definition(), warnings, nil
}

// WorkflowInput is a workflow as it is sent: the human text (at most 64 KiB) and the plan, both optional.
type WorkflowInput struct {
	Script   *ScriptText `json:"script,omitempty"`
	Compiled *Plan       `json:"compiled,omitempty"`
}

// Workflow returns the workflow with its defaults applied.
func (in WorkflowInput) Workflow() Workflow {
	w := Workflow{Compiled: in.Compiled}
	if in.Script != nil {
		w.Script = string(*in.Script)
	}
	return w
}

// NameText is the name of an automation: 1 to 200 characters, none of them a control character, not all blank.
type NameText string

// UnmarshalStrict implements [strictjson.Unmarshaler].
func (n *NameText) UnmarshalStrict(v strictjson.Value) {
	if !v.Decode((*string)(n)) {
		return
	}
	switch name := string(*n); {
	case strings.TrimSpace(name) == "":
		v.Report("must not be blank")
	case strings.ContainsFunc(name, unicode.IsControl):
		v.Report("must not contain control characters")
	default:
		checkLength(v, name, MaxNameLength)
	}
}

// DescriptionText is the description of an automation: at most 4,000 characters.
type DescriptionText string

// UnmarshalStrict implements [strictjson.Unmarshaler].
func (d *DescriptionText) UnmarshalStrict(v strictjson.Value) {
	if v.Decode((*string)(d)) {
		checkLength(v, string(*d), MaxDescriptionLength)
	}
}

func checkLength(v strictjson.Value, text string, most int) {
	if n := utf8.RuneCountInString(text); n > most {
		v.Report("is %d characters; at most %d are possible", n, most)
	}
}

// ScriptText is the human text of a workflow: at most 64 KiB.
type ScriptText string

// UnmarshalStrict implements [strictjson.Unmarshaler].
func (s *ScriptText) UnmarshalStrict(v strictjson.Value) {
	if v.Decode((*string)(s)) && len(*s) > MaxScriptTextBytes {
		v.Report("is %d bytes; the text of a workflow may have %d (64 KiB)", len(*s), MaxScriptTextBytes)
	}
}

var uuidPattern = strictjson.Pattern(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// MachineRef is the id of a machine, a UUID; it is kept in lower case.
type MachineRef string

// UnmarshalStrict implements [strictjson.Unmarshaler].
func (m *MachineRef) UnmarshalStrict(v strictjson.Value) {
	if !v.Decode((*string)(m)) {
		return
	}
	*m = MachineRef(strings.ToLower(string(*m)))
	if !uuidPattern(string(*m)) {
		v.Report("must be the id of a machine, a UUID")
	}
}
