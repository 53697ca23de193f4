package api

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/catalog"
	"github.com/errandhq/errand/internal/strictjson"
)

// openAPI describes the catalog's projection as an OpenAPI 3.1 document. It is derived from the commands and
// their types; nothing in it is written twice.
func openAPI(version string) ([]byte, error) {
	registry := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
	// What a change may leave out, set to null or give is described as the value or null.
	registry.RegisterTypeAlias(reflect.TypeFor[strictjson.Optional[bool]](), reflect.TypeFor[*bool]())
	registry.RegisterTypeAlias(reflect.TypeFor[strictjson.Optional[automation.DescriptionText]](), reflect.TypeFor[*string]())
	registry.RegisterTypeAlias(reflect.TypeFor[strictjson.Optional[automation.MachineRef]](), reflect.TypeFor[*string]())
	registry.RegisterTypeAlias(reflect.TypeFor[strictjson.Optional[automation.WorkflowInput]](), reflect.TypeFor[automation.WorkflowInput]())
	document := &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info:    &huma.Info{Title: "Errand", Version: version, Description: "Durable automations on people's own machines."},
		Components: &huma.Components{
			Schemas:         registry,
			SecuritySchemes: map[string]*huma.SecurityScheme{"bearer": {Type: "http", Scheme: "bearer"}},
		},
		Security: []map[string][]string{{"bearer": {}}},
	}
	for _, command := range catalog.Commands() {
		document.AddOperation(operation(command, registry))
	}
	encoded, err := json.MarshalIndent(document, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encoding the OpenAPI document: %w", err)
	}
	return encoded, nil
}

func operation(command catalog.Command, registry huma.Registry) *huma.Operation {
	op := &huma.Operation{
		Method: command.Route.Method, Path: "/v1" + command.Route.Path, OperationID: command.Name,
		Summary: command.Summary, Description: command.Contract,
		Responses: map[string]*huma.Response{},
		Security:  []map[string][]string{{"bearer": {string(command.Scope)}}},
	}
	input := huma.SchemaFromType(registry, command.Input)
	inPath := placeholders(command.Route.Path)
	for _, name := range inPath {
		op.Parameters = append(op.Parameters, parameter(input, name, "path"))
	}
	if command.Route.InQuery() {
		for _, member := range catalog.Members(command.Input) {
			if !slices.Contains(inPath, member.Name) {
				op.Parameters = append(op.Parameters, parameter(input, member.Name, "query"))
			}
		}
	} else {
		op.RequestBody = requestBody(command, input, inPath)
	}
	op.Responses[strconv.Itoa(command.Route.Status)] = response("Success", schema(registry, command.Result))
	for status, codes := range errorStatuses(command) {
		op.Responses[strconv.Itoa(status)] = response(strings.Join(codes, ", "), schema(registry, reflect.TypeFor[ErrorEnvelope]()))
	}
	return op
}

// requestBody is the command's input without the members that the path carries.
func requestBody(command catalog.Command, input *huma.Schema, inPath []string) *huma.RequestBody {
	body := *input
	body.Properties = map[string]*huma.Schema{}
	for name, property := range input.Properties {
		if !slices.Contains(inPath, name) {
			body.Properties[name] = property
		}
	}
	body.Required = nil
	for _, member := range catalog.Members(command.Input) {
		if member.Required && !slices.Contains(inPath, member.Name) {
			body.Required = append(body.Required, member.Name)
		}
	}
	var example map[string]any
	if json.Unmarshal([]byte(command.Example), &example) == nil {
		for _, name := range inPath {
			delete(example, name)
		}
	}
	return &huma.RequestBody{
		Required: len(body.Required) > 0,
		Content:  map[string]*huma.MediaType{"application/json": {Schema: &body, Example: example}},
	}
}

func parameter(input *huma.Schema, name, in string) *huma.Param {
	property := input.Properties[name]
	return &huma.Param{
		Name: name, In: in, Required: in == "path", Schema: property, Description: property.Description,
	}
}

func schema(registry huma.Registry, t reflect.Type) *huma.Schema {
	return registry.Schema(t, true, t.Name())
}

func response(description string, content *huma.Schema) *huma.Response {
	return &huma.Response{
		Description: description,
		Content:     map[string]*huma.MediaType{"application/json": {Schema: content}},
	}
}

// errorStatuses groups the codes that a command may answer with by their HTTP status.
func errorStatuses(command catalog.Command) map[int][]string {
	statuses := map[int][]string{}
	for _, code := range append(slices.Clone(catalog.CommonErrors), command.Errors...) {
		statuses[code.Status()] = append(statuses[code.Status()], string(code))
	}
	for _, codes := range statuses {
		slices.Sort(codes)
	}
	return statuses
}
