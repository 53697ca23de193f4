package catalog

import (
	"reflect"
	"strings"
)

// Member is one member of a command's input, for the faces that describe it.
type Member struct {
	Name     string
	Type     reflect.Type
	Required bool
	Doc      string
}

// Members returns the members of an input type, those of embedded structs included, in their order.
func Members(input reflect.Type) []Member {
	var members []Member
	for _, field := range reflect.VisibleFields(input) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if field.Anonymous || !field.IsExported() || name == "" || name == "-" {
			continue
		}
		members = append(members, Member{
			Name: name, Type: field.Type, Doc: field.Tag.Get("doc"),
			Required: strings.Contains(field.Tag.Get("strict"), "required"),
		})
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
