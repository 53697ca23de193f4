package catalog

import (
	"reflect"
	"strings"
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
