package strictjson

import (
	"encoding/json"
	"fmt"
	"iter"
	"reflect"

	"github.com/go-json-experiment/json/jsontext"
)

// Value is one value of a document whose syntax has been checked. It knows its place and collects what is
// wrong with it. As a field of a target it keeps the member for later; the zero Value is an absent member.
type Value struct {
	raw jsontext.Value // exactly the value, in the document's buffer
	at  *place
	doc *document
}

// Unmarshaler is implemented by types that read their value themselves: polymorphic ones, and ones whose
// format has rules of its own. UnmarshalStrict must report what it refuses. Do not embed such a type in a
// struct target: the struct would inherit the method.
type Unmarshaler interface {
	UnmarshalStrict(v Value)
}

// Present reports whether there is a value: false for the zero Value.
func (v Value) Present() bool { return v.doc != nil }

// Kind returns the kind of the value: one of n f t " 0 { [ (see [jsontext.Kind]).
func (v Value) Kind() jsontext.Kind { return v.raw.Kind() }

// IsNull reports whether the value is null.
func (v Value) IsNull() bool { return v.Kind() == 'n' }

// Object reports whether the value is an object, and refuses the document when it is not.
func (v Value) Object() bool { return v.expect("an object", '{') }

// Member returns a member of an object; the zero Value when there is none.
func (v Value) Member(name string) Value {
	for n, member := range v.Members() {
		if n == name {
			return member
		}
	}
	return Value{}
}

// Path returns the place of the value as in [Violation.Path].
func (v Value) Path() string { return v.at.String() }

// Report refuses the document for a reason that lies in this value.
func (v Value) Report(format string, args ...any) {
	v.doc.report(v.at, fmt.Sprintf(format, args...))
}

// ReportMember refuses the document for a reason that lies in a member of this object, which may be absent.
func (v Value) ReportMember(name, format string, args ...any) {
	v.doc.report(v.at.member(name), fmt.Sprintf(format, args...))
}

// Missing refuses the document because this object has no member of that name.
func (v Value) Missing(name string) { v.doc.report(v.at.member(name), "is required") }

// Unknown refuses the document because this value is a member whose name is none of the known ones.
func (v Value) Unknown(known []string) {
	message := "is not a known member"
	if near := nearest(v.at.name, known); near != "" {
		message += fmt.Sprintf("; did you mean %q?", near)
	}
	v.doc.report(v.at, message)
}

// Warn notes something that does not refuse the document, at a path that is this value's or below it (see
// [PathMember] and [PathElement]).
func (v Value) Warn(path, format string, args ...any) {
	v.doc.warn(path, fmt.Sprintf(format, args...))
}

// Raw returns the value in the form of [Compact], in memory of its own.
func (v Value) Raw() json.RawMessage {
	// A document that was checked can be formatted; AppendFormat returns it unchanged otherwise.
	raw, _ := jsontext.AppendFormat(nil, []byte(v.raw), lenient...)
	return raw
}

var lenient = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}

// Array reports whether the value is an array, and refuses the document when it is not.
func (v Value) Array() bool { return v.expect("an array", '[') }

// Members returns the members of an object in their order, and nothing for any other kind. A member that
// is repeated comes once: that it is a duplicate has been reported. It ends early when no further violation
// would be listed, so that a large document of nonsense is cheap to refuse.
func (v Value) Members() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		if v.Kind() != '{' {
			return
		}
		var seen map[string]bool
		if v.doc.duplicates {
			seen = map[string]bool{}
		}
		dec := newDecoder(v.raw)
		if _, err := dec.ReadToken(); err != nil {
			return
		}
		for dec.PeekKind() == '"' && !v.doc.full() {
			quoted, err := dec.ReadValue()
			if err != nil {
				return
			}
			unquoted, _ := jsontext.AppendUnquote(nil, quoted)
			name := string(unquoted)
			raw, ok := v.read(dec)
			if !ok {
				return
			}
			if seen[name] {
				continue
			}
			if seen != nil {
				seen[name] = true
			}
			if !yield(name, Value{raw: raw, at: v.at.member(name), doc: v.doc}) {
				return
			}
		}
	}
}

// Elements returns the elements of an array in their order, and nothing for any other kind. It ends early
// as Members does.
func (v Value) Elements() iter.Seq2[int, Value] {
	return func(yield func(int, Value) bool) {
		if v.Kind() != '[' {
			return
		}
		dec := newDecoder(v.raw)
		if _, err := dec.ReadToken(); err != nil {
			return
		}
		for i := 0; dec.PeekKind() != ']' && !v.doc.full(); i++ {
			raw, ok := v.read(dec)
			if !ok || !yield(i, Value{raw: raw, at: v.at.element(i), doc: v.doc}) {
				return
			}
		}
	}
}

// read reads one value of the object or array as a part of the document's buffer.
func (v Value) read(dec *jsontext.Decoder) (jsontext.Value, bool) {
	raw, err := dec.ReadValue()
	if err != nil {
		return nil, false
	}
	end := int(dec.InputOffset())
	return v.raw[end-len(raw) : end : end], true
}

// Decode reads the value into target, a non-nil pointer, and reports what does not fit. It returns whether
// everything fitted.
func (v Value) Decode(target any) bool {
	rv := reflect.ValueOf(target)
	if rv.Kind() != reflect.Pointer || rv.IsNil() {
		panic(fmt.Sprintf("strictjson: the target is a %T, not a pointer to one", target))
	}
	before := v.doc.found
	v.decode(rv.Elem())
	return v.doc.found == before
}
