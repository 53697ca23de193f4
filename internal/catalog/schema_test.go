package catalog_test

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"

	"github.com/errandhq/errand/internal/catalog"
	"github.com/errandhq/errand/internal/strictjson"
)

// resolve reads a schema with a library of its own.
func resolve(t *testing.T, schema *catalog.Schema) *jsonschema.Resolved {
	t.Helper()
	document, err := json.Marshal(schema)
	if err != nil {
		t.Fatal(err)
	}
	var parsed jsonschema.Schema
	if err := json.Unmarshal(document, &parsed); err != nil {
		t.Fatalf("%v: %s", err, document)
	}
	resolved, err := parsed.Resolve(nil)
	if err != nil {
		t.Fatalf("%v: %s", err, document)
	}
	return resolved
}

func value(t *testing.T, document string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(document), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestInputSchemasSayWhatTheDecoderDoes compares the schema of every command with its strict decoder.
func TestInputSchemasSayWhatTheDecoderDoes(t *testing.T) {
	t.Parallel()
	for _, c := range catalog.Commands() {
		schema := resolve(t, c.InputSchema())
		if err := schema.Validate(value(t, c.Example)); err != nil {
			t.Errorf("%s: its schema refuses its example: %v", c.Name, err)
		}
		if schema.Validate(value(t, `{"no_such_member":1}`)) == nil {
			t.Errorf("%s: its schema takes a member that it does not know", c.Name)
		}
		if byDecoder, bySchema := c.Check([]byte(`{}`)) == nil, schema.Validate(value(t, `{}`)) == nil; bySchema && !byDecoder {
			for _, member := range catalog.Members(c.Input) {
				if member.Required {
					t.Errorf("%s: its schema takes {}, and %s is required", c.Name, member.Name)
				}
			}
		}
		resolve(t, c.ResultSchema())
	}
}

func TestNestedInputsAreDescribed(t *testing.T) {
	t.Parallel()
	create, _ := catalog.Find("create")
	schema := resolve(t, create.InputSchema())
	tests := map[string]bool{
		`{"name":"x"}`: true,
		`{"name":"x","description":null,"workflow":null}`: true,
		`{"name":null}`: false,
		`{"name":"x","workflow":{"compiled":{"version":2}}}`:                                                              false,
		`{"name":"x","workflow":{"compiled":{"version":2,"steps":[{"id":"a","kind":"shell"}]}}}`:                          false,
		`{"name":"x","workflow":{"compiled":{"version":2,"steps":[{"id":"a","kind":"command","shell":true}]}}}`:           false,
		`{"name":"x","workflow":{"compiled":{"version":2,"steps":[{"kind":"command","command":"ls"}]}}}`:                  false,
		`{"name":"x","workflow":{"compiled":{"version":2,"steps":[{"id":"a","command":"ls","env":{"A":1}}]}}}`:            false,
		`{"name":"x","workflow":{"compiled":{"version":2,"steps":[{"id":"a","actionId":"b.c","input":[null,{"d":1}]}]}}}`: true,
	}
	for document, want := range tests {
		if err := schema.Validate(value(t, document)); (err == nil) != want {
			t.Errorf("%s: %v", document, err)
		}
	}
}

type node struct {
	Name     string                   `json:"name" strict:"required" doc:"what it is called"`
	Kinds    []string                 `json:"kinds" enum:"a,b"`
	Children []node                   `json:"children,omitempty"`
	Until    *time.Time               `json:"until"`
	Change   strictjson.Optional[int] `json:"change,omitzero"`
	Data     []byte                   `json:"data,omitempty"`
	Hidden   string                   `json:"-"`
}

func TestSchemas(t *testing.T) {
	t.Parallel()
	encoded := func(v any) string {
		document, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(document)
	}
	const input = `{"type":"object","properties":{` +
		`"change":{"type":["integer","null"]},"children":{"type":"array","items":{"type":"object"}},"data":{"type":"string","format":"byte"},` +
		`"kinds":{"type":"array","items":{"type":"string","enum":["a","b"]}},"name":{"type":"string","description":"what it is called"},` +
		`"until":{"type":["string","null"],"format":"date-time"}},"required":["name"],"additionalProperties":false}`
	if diff := cmp.Diff(input, encoded(catalog.NewSchemas("").Input(reflect.TypeFor[node]()))); diff != "" {
		t.Errorf("input (-want +got):\n%s", diff)
	}
	schemas := catalog.NewSchemas("#/x/")
	if diff := cmp.Diff(`{"$ref":"#/x/node"}`, encoded(schemas.Result(reflect.TypeFor[node]()))); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
	const result = `{"node":{"type":"object","properties":{` +
		`"change":{"type":["integer","null"]},"children":{"type":"array","items":{"$ref":"#/x/node"}},"data":{"type":"string","format":"byte"},` +
		`"kinds":{"type":["array","null"],"items":{"type":"string","enum":["a","b"]}},"name":{"type":"string","description":"what it is called"},` +
		`"until":{"type":["string","null"],"format":"date-time"}},"required":["name","kinds","until"]}}`
	if diff := cmp.Diff(result, encoded(schemas.Definitions)); diff != "" {
		t.Errorf("definitions (-want +got):\n%s", diff)
	}
}

func TestTwoTypesOfOneNameAreAMistake(t *testing.T) {
	t.Parallel()
	schemas := catalog.NewSchemas("#/x/")
	schemas.Result(reflect.TypeFor[node]())
	defer func() {
		if recover() == nil {
			t.Error("both were described as one")
		}
	}()
	type node struct{ Other int }
	schemas.Result(reflect.TypeFor[node]())
}
