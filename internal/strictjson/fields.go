package strictjson

import (
	"fmt"
	"reflect"
	"strings"
	"sync"
)

// field is one member of a struct target.
type field struct {
	name     string
	index    []int
	required bool
}

// structFields are the members of a struct target, those of embedded structs included.
type structFields struct {
	list   []field
	names  []string
	byName map[string]int
}

var fieldCache sync.Map // reflect.Type → *structFields

func fieldsOf(t reflect.Type) *structFields {
	if cached, ok := fieldCache.Load(t); ok {
		return cached.(*structFields)
	}
	fields := &structFields{byName: map[string]int{}}
	fields.add(t, nil)
	cached, _ := fieldCache.LoadOrStore(t, fields)
	return cached.(*structFields)
}

// add collects the fields of t, which is found at index in the target. A field of an outer struct hides one
// of the same name in an embedded struct, as in Go; two of the same depth are a programming error.
func (s *structFields) add(t reflect.Type, index []int) {
	var embedded []reflect.StructField
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-":
			continue
		case f.Anonymous && name == "":
			if f.Type.Kind() != reflect.Struct {
				panic(fmt.Sprintf("strictjson: %s embeds %s, which is not a struct", t, f.Type))
			}
			embedded = append(embedded, f)
			continue
		case !f.IsExported():
			continue
		case name == "":
			name = f.Name
		}
		at := append(append([]int{}, index...), i)
		if other, ok := s.byName[name]; ok {
			if len(s.list[other].index) == len(at) {
				panic(fmt.Sprintf("strictjson: %s has two members %q", t, name))
			}
			continue
		}
		s.byName[name] = len(s.list)
		s.names = append(s.names, name)
		s.list = append(s.list, field{name: name, index: at, required: f.Tag.Get("strict") == "required"})
	}
	for _, f := range embedded {
		s.add(f.Type, append(append([]int{}, index...), f.Index...))
	}
}
