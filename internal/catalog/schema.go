package catalog

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/errandhq/errand/internal/strictjson"
)

// Schema is a JSON Schema (2020-12), in the part of the language that inputs and results need.
type Schema struct {
	// Ref points to a definition of the [Schemas] that made this one; beside it there is at most a description.
	Ref         string
	Description string
	// Type is "" for any value.
	Type   string
	Format string
	// Nullable says that null is possible beside the type.
	Nullable bool
	Enum     []string
	// Properties and Required are those of an object; Closed says that it has no others.
	Properties map[string]*Schema
	Required   []string
	Closed     bool
	// Values are what the members of a map are, Items what the elements of an array are.
	Values, Items *Schema
	// Definitions are what references within a schema that stands alone point to.
	Definitions map[string]*Schema
}

// anyValue lists every type. Some readers of schemas take one without a type for a text.
var anyValue = []string{"object", "array", "string", "number", "boolean", "null"}

// MarshalJSON writes the schema.
func (s *Schema) MarshalJSON() ([]byte, error) {
	out := struct {
		Ref         string             `json:"$ref,omitempty"`
		Type        any                `json:"type,omitempty"`
		Description string             `json:"description,omitempty"`
		Format      string             `json:"format,omitempty"`
		Enum        []any              `json:"enum,omitempty"`
		Properties  map[string]*Schema `json:"properties,omitempty"`
		Required    []string           `json:"required,omitempty"`
		Additional  any                `json:"additionalProperties,omitempty"`
		Items       *Schema            `json:"items,omitempty"`
		Definitions map[string]*Schema `json:"$defs,omitempty"`
	}{
		Ref: s.Ref, Type: s.Type, Description: s.Description, Format: s.Format, Enum: s.EnumValues(),
		Properties: s.Properties, Required: s.Required, Items: s.Items, Definitions: s.Definitions,
	}
	switch {
	case s.Ref != "":
		out.Type = nil
	case s.Type == "":
		out.Type = anyValue
	case s.Nullable:
		out.Type = []string{s.Type, "null"}
	}
	if s.Closed {
		out.Additional = false
	} else if s.Values != nil {
		out.Additional = s.Values
	}
	return json.Marshal(out)
}

// EnumValues returns the values that are possible, null included where it is; nil when nothing restricts them.
func (s *Schema) EnumValues() []any {
	var values []any
	for _, value := range s.Enum {
		values = append(values, value)
	}
	if values != nil && s.Nullable {
		values = append(values, nil)
	}
	return values
}

// Schemas derives the schemas of inputs and results from their types, and collects the definitions of the
// structs in them. Inputs are closed and know what may be null, as the strict decoder does. Results are open:
// later versions add members.
type Schemas struct {
	// Definitions are the structs that references point to, by name.
	Definitions map[string]*Schema

	// prefix is what a reference has before the name; "" when structs are written where they are used.
	prefix string
	types  map[string]definition
	within []reflect.Type
}

// definition is what a name stands for.
type definition struct {
	t     reflect.Type
	input bool
}

// NewSchemas returns an empty collection. The prefix is what a reference has before the name of a definition,
// such as "#/components/schemas/"; with "" there are no references, and structs are written where they are used.
func NewSchemas(prefix string) *Schemas {
	return &Schemas{Definitions: map[string]*Schema{}, prefix: prefix, types: map[string]definition{}}
}

// Input returns the schema of an input type, whose own members are always written out.
func (s *Schemas) Input(t reflect.Type) *Schema { return s.object(t, true) }

// Result returns the schema of a result type.
func (s *Schemas) Result(t reflect.Type) *Schema { return s.of(t, false) }

// InputSchema returns the schema of the command's input. It stands alone and has no references, since not every
// reader follows them.
func (c Command) InputSchema() *Schema { return NewSchemas("").Input(c.Input) }

// ResultSchema returns the schema of the command's result, with the definitions that it refers to.
func (c Command) ResultSchema() *Schema {
	schemas := NewSchemas("#/$defs/")
	root := schemas.object(c.Result, false)
	if len(schemas.Definitions) > 0 {
		root.Definitions = schemas.Definitions
	}
	return root
}

var (
	rawType       = reflect.TypeFor[json.RawMessage]()
	timeType      = reflect.TypeFor[time.Time]()
	jsonType      = reflect.TypeFor[json.Marshaler]()
	textType      = reflect.TypeFor[encoding.TextMarshaler]()
	strictType    = reflect.TypeFor[strictjson.Unmarshaler]()
	strictValue   = reflect.TypeFor[strictjson.Value]()
	optionalTypes = reflect.TypeFor[strictjson.Optional[bool]]().PkgPath()
)

// of returns the schema of any type.
func (s *Schemas) of(t reflect.Type, input bool) *Schema {
	if value, ok := optionalOf(t); ok {
		return nullable(s.of(value, input))
	}
	switch {
	case t == rawType || t == strictValue:
		return &Schema{}
	case t == timeType:
		return &Schema{Type: "string", Format: "date-time"}
	case t.Kind() == reflect.Pointer && input:
		return nullable(s.of(t.Elem(), input))
	case t.Kind() == reflect.Pointer:
		return s.of(t.Elem(), input)
	case input && reflect.PointerTo(t).Implements(strictType):
		// Its kind says what it reads.
	case t.Implements(jsonType):
		return &Schema{}
	case t.Implements(textType):
		return &Schema{Type: "string"}
	}
	switch t.Kind() {
	case reflect.Struct:
		return s.structure(t, input)
	case reflect.Map:
		return &Schema{Type: "object", Values: s.of(t.Elem(), input)}
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return &Schema{Type: "string", Format: "byte"}
		}
		return &Schema{Type: "array", Items: s.of(t.Elem(), input)}
	case reflect.String:
		return &Schema{Type: "string"}
	case reflect.Bool:
		return &Schema{Type: "boolean"}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return &Schema{Type: "integer"}
	case reflect.Float32, reflect.Float64:
		return &Schema{Type: "number"}
	default: // an interface: any value
		return &Schema{}
	}
}

// optionalOf returns the type of the value of a [strictjson.Optional].
func optionalOf(t reflect.Type) (reflect.Type, bool) {
	if t.Kind() != reflect.Struct || t.PkgPath() != optionalTypes || !strings.HasPrefix(t.Name(), "Optional[") {
		return nil, false
	}
	value, found := t.FieldByName("Value")
	return value.Type, found
}

// nullable says of a schema that null is possible too. Where a definition is referred to, null is left out: what
// it would mean is the same as leaving the member out.
func nullable(s *Schema) *Schema {
	if s.Type != "" {
		s.Nullable = true
	}
	return s
}

// structure returns a struct, or a reference to it.
func (s *Schemas) structure(t reflect.Type, input bool) *Schema {
	if slices.Contains(s.within, t) && s.prefix == "" {
		return &Schema{Type: "object"} // a type within itself cannot be written out
	}
	if s.prefix == "" || t.Name() == "" {
		return s.object(t, input)
	}
	name := definitionName(t, input)
	known, found := s.types[name]
	if wanted := (definition{t, input}); !found {
		s.types[name] = wanted
		s.Definitions[name] = s.object(t, input)
	} else if known != wanted {
		panic(fmt.Sprintf("catalog: the types %s and %s would both be described as %s; rename one", known.t, t, name))
	}
	return &Schema{Ref: s.prefix + name}
}

// definitionName names a struct. A type that is sent and returned has two definitions, since only what is sent
// is closed.
func definitionName(t reflect.Type, input bool) string {
	name := strings.NewReplacer("[", "", "]", "", ".", "", "/", "").Replace(t.Name())
	if input && !strings.HasSuffix(name, "Input") {
		name += "Input"
	}
	return name
}

// object returns a struct with its members written out.
func (s *Schemas) object(t reflect.Type, input bool) *Schema {
	s.within = append(s.within, t)
	defer func() { s.within = s.within[:len(s.within)-1] }()
	object := &Schema{Type: "object", Properties: map[string]*Schema{}, Closed: input}
	for _, member := range Members(t) {
		schema := s.of(member.Type, input)
		schema.Description = member.Doc
		enumerate(schema, member.Enum)
		required := member.Required
		if !input {
			required = !member.Omissible
			if required && mayBeNil(member.Type) {
				nullable(schema)
			}
		}
		if required {
			object.Required = append(object.Required, member.Name)
		}
		object.Properties[member.Name] = schema
	}
	return object
}

// enumerate restricts a text, or the texts of a list.
func enumerate(s *Schema, values []string) {
	if s.Items != nil {
		s = s.Items
	}
	if s.Type == "string" {
		s.Enum = values
	}
}

// mayBeNil reports whether a value of the type can be encoded as null.
func mayBeNil(t reflect.Type) bool {
	return t.Kind() == reflect.Slice || t.Kind() == reflect.Map || t.Kind() == reflect.Pointer
}
