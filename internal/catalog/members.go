package catalog

import (
	"encoding/json"
	"reflect"
	"strings"
	"time"
)

// Member is one member of a command's input or result, for the faces that describe it.
type Member struct {
	Name string
	Type reflect.Type
	// Required says that an input must have it; Omissible that a result may lack it.
	Required, Omissible bool
	Doc                 string
	// Enum are the only values that it may have, of those that are texts.
	Enum []string
}

// Members returns the members of an input or result type, those of embedded structs included, in their order.
func Members(t reflect.Type) []Member {
	var members []Member
	for _, field := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if field.Anonymous || !field.IsExported() || name == "" || name == "-" {
			continue
		}
		member := Member{
			Name: name, Type: field.Type, Doc: field.Tag.Get("doc"),
			Required:  strings.Contains(field.Tag.Get("strict"), "required"),
			Omissible: strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero"),
		}
		if enum := field.Tag.Get("enum"); enum != "" {
			member.Enum = strings.Split(enum, ",")
		}
		members = append(members, member)
	}
	return members
}

// MemberOf returns one member of an input type.
func MemberOf(input reflect.Type, name string) (Member, bool) {
	for _, member := range Members(input) {
		if member.Name == name {
			return member, true
		}
	}
	return Member{}, false
}

// TypeName says of what kind the values of the member are, for a person.
func (m Member) TypeName() string { return typeName(m.Type) }

func typeName(t reflect.Type) string {
	switch t { // these are written as JSON of other kinds than their Go kind
	case reflect.TypeFor[time.Time]():
		return "time"
	case reflect.TypeFor[json.RawMessage]():
		return "any value"
	}
	switch t.Kind() { // every other kind is some JSON value
	case reflect.Pointer:
		return typeName(t.Elem())
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "integer"
	case reflect.Struct, reflect.Map:
		if strings.HasPrefix(t.Name(), "Optional[") {
			value, _ := t.FieldByName("Value")
			return typeName(value.Type) + " or null"
		}
		return "object"
	case reflect.Slice:
		return "list"
	}
	return "value"
}
