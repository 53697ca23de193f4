package api

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/errandhq/errand/internal/catalog"
)

// definitions is where the document keeps the schemas that others refer to.
const definitions = "#/components/schemas/"

// openAPI describes the catalog's projection as an OpenAPI 3.1 document. It is derived from the commands and
// their types; nothing in it is written twice.
func openAPI(version string) ([]byte, error) {
	registry := huma.NewMapRegistry(definitions, huma.DefaultSchemaNamer)
	schemas := catalog.NewSchemas(definitions)
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
		document.AddOperation(operation(command, schemas))
	}
	for name, schema := range schemas.Definitions {
		registry.Map()[name] = humaSchema(schema)
	}
	encoded, err := json.MarshalIndent(document, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encoding the OpenAPI document: %w", err)
	}
	return encoded, nil
}

func operation(command catalog.Command, schemas *catalog.Schemas) *huma.Operation {
	op := &huma.Operation{
		Method: command.Route.Method, Path: "/v1" + command.Route.Path, OperationID: command.Name,
		Summary: command.Summary, Description: command.Contract, Tags: []string{tag(command.Route.Path)},
		Responses: map[string]*huma.Response{},
		Security:  []map[string][]string{{"bearer": {string(command.Scope)}}},
	}
	input := humaSchema(schemas.Input(command.Input))
	inPath := placeholders(command.Route.Path)
	for _, name := range inPath {
		op.Parameters = append(op.Parameters, parameter(input, name, "path"))
	}
	op.Parameters = append(op.Parameters, headers(command)...)
	if command.Route.InQuery() {
		for _, member := range catalog.Members(command.Input) {
			if !slices.Contains(inPath, member.Name) {
				op.Parameters = append(op.Parameters, parameter(input, member.Name, "query"))
			}
		}
	} else {
		op.RequestBody = requestBody(command, input, inPath)
	}
	success := response("Success", humaSchema(schemas.Result(command.Result)))
	if command.Result.Implements(reflect.TypeFor[interface{ Entity() int64 }]()) {
		success.Headers = map[string]*huma.Param{"ETag": {
			Description: "the version of the automation, for If-Match", Schema: &huma.Schema{Type: huma.TypeString},
		}}
	}
	op.Responses[strconv.Itoa(command.Route.Status)] = success
	for status, codes := range errorStatuses(command) {
		op.Responses[strconv.Itoa(status)] = response(meanings(codes), humaSchema(schemas.Result(reflect.TypeFor[ErrorEnvelope]())))
	}
	return op
}

// headers are the members of a command's input that a header may carry too.
func headers(command catalog.Command) []*huma.Param {
	var params []*huma.Param
	add := func(member, name, description string) {
		if _, found := catalog.MemberOf(command.Input, member); found {
			params = append(params, &huma.Param{
				Name: name, In: "header", Description: description, Schema: &huma.Schema{Type: huma.TypeString},
			})
		}
	}
	add(keyName, "Idempotency-Key", "the same as "+keyName)
	add(versionName, "If-Match", "the same as "+versionName+", in quotes, as the ETag of an answer has it")
	return params
}

// meanings explains the codes of one status.
func meanings(codes []string) string {
	var lines []string
	for _, e := range catalog.CommandErrors() {
		if slices.Contains(codes, e.Code) {
			lines = append(lines, "`"+e.Code+"`: "+e.Meaning)
		}
	}
	return strings.Join(lines, "\n\n")
}

// tag groups operations by what their paths begin with.
func tag(path string) string {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return first
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
	property := *input.Properties[name]
	property.Nullable = false // a text in an address cannot say null
	return &huma.Param{
		Name: name, In: in, Required: in == "path", Schema: &property, Description: property.Description,
	}
}

// humaSchema writes a schema of the catalog in the types of the document.
func humaSchema(s *catalog.Schema) *huma.Schema {
	if s == nil {
		return nil
	}
	out := &huma.Schema{
		Ref: s.Ref, Type: s.Type, Format: s.Format, Description: s.Description, Nullable: s.Nullable,
		Enum: s.EnumValues(), Required: s.Required, Items: humaSchema(s.Items),
	}
	if len(s.Properties) > 0 {
		out.Properties = map[string]*huma.Schema{}
	}
	for name, property := range s.Properties {
		out.Properties[name] = humaSchema(property)
	}
	if s.Closed {
		out.AdditionalProperties = false
	} else if s.Values != nil {
		out.AdditionalProperties = humaSchema(s.Values)
	}
	return out
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
