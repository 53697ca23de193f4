package strictjson

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Unmarshal decodes a document into target, a non-nil pointer, and returns everything that is wrong with it.
// The target is unspecified unless nothing is. A target of an unsupported type is a programming error and panics.
func Unmarshal(data []byte, target any) []Violation {
	violations, _ := Decode(data, target)
	return violations
}

// Decode is [Unmarshal] that also returns the warnings of targets that give some.
func Decode(data []byte, target any) (violations, warnings []Violation) {
	doc := &document{}
	if doc.check(data) {
		root := Value{raw: trim(data), doc: doc}
		root.Decode(target)
	}
	return doc.violations, doc.warnings
}

// Compact returns one JSON value without insignificant whitespace, each string in its shortest form, numbers
// and the order of members as they were; or what is wrong with it. Compact values that are equal as texts in
// this sense are equal byte by byte.
func Compact(data []byte) (json.RawMessage, []Violation) {
	doc := &document{}
	if !doc.check(data) || doc.found > 0 {
		return nil, doc.violations
	}
	return Value{raw: trim(data), doc: doc}.Raw(), nil
}

// Marshal returns the JSON of v in the form of [Compact]: unlike json.Marshal it does not spell <, > and &
// as escapes, which would make values longer than what was measured against a limit.
func Marshal(v any) (json.RawMessage, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return jsontext.AppendFormat(nil, data, lenient...)
}

// trim removes the whitespace around a document.
func trim(data []byte) jsontext.Value {
	return bytes.Trim(data, " \t\r\n")
}

var (
	unmarshalerType = reflect.TypeFor[Unmarshaler]()
	rawType         = reflect.TypeFor[json.RawMessage]()
	valueType       = reflect.TypeFor[Value]()
	timeType        = reflect.TypeFor[time.Time]()
)

func (v Value) decode(rv reflect.Value) {
	if rv.Addr().Type().Implements(unmarshalerType) {
		rv.Addr().Interface().(Unmarshaler).UnmarshalStrict(v)
		return
	}
	switch rv.Type() {
	case rawType:
		rv.SetBytes(v.Raw())
		return
	case valueType:
		rv.Set(reflect.ValueOf(v))
		return
	case timeType:
		v.decodeTime(rv)
		return
	}
	switch rv.Kind() {
	case reflect.Pointer:
		v.decodePointer(rv)
	case reflect.Struct:
		v.decodeStruct(rv)
	case reflect.Map:
		v.decodeMap(rv)
	case reflect.Slice:
		v.decodeSlice(rv)
	case reflect.String:
		if s, ok := v.text(); ok {
			rv.SetString(s)
		}
	case reflect.Bool:
		if v.expect("true or false", 't', 'f') {
			rv.SetBool(v.Kind() == 't')
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.decodeInt(rv)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.decodeUint(rv)
	case reflect.Float32, reflect.Float64:
		v.decodeFloat(rv)
	default:
		panic(fmt.Sprintf("strictjson: %s cannot be a target", rv.Type()))
	}
}

// expect reports a value that is of none of the kinds.
func (v Value) expect(what string, kinds ...jsontext.Kind) bool {
	for _, k := range kinds {
		if v.Kind() == k {
			return true
		}
	}
	v.Report("must be %s, not %s", what, describe(v.Kind()))
	return false
}

func describe(k jsontext.Kind) string {
	switch k {
	case 'n':
		return "null"
	case 't':
		return "true"
	case 'f':
		return "false"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case '{':
		return "an object"
	case '[':
		return "an array"
	}
	return "nothing"
}

// text returns the string that the value is.
func (v Value) text() (string, bool) {
	if !v.expect("a string", '"') {
		return "", false
	}
	// Invalid UTF-8 has been reported with the syntax.
	s, _ := jsontext.AppendUnquote(nil, v.raw)
	if bytes.IndexByte(s, 0) >= 0 {
		v.Report("must not contain a NUL character")
		return "", false
	}
	return string(s), true
}

func (v Value) decodeTime(rv reflect.Value) {
	s, ok := v.text()
	if !ok {
		return
	}
	var t time.Time
	if err := t.UnmarshalText([]byte(s)); err != nil {
		v.Report("must be a time in RFC 3339, such as 2006-01-02T15:04:05Z")
		return
	}
	rv.Set(reflect.ValueOf(t))
}

func (v Value) decodePointer(rv reflect.Value) {
	if v.IsNull() {
		rv.SetZero()
		return
	}
	p := reflect.New(rv.Type().Elem())
	v.decode(p.Elem())
	rv.Set(p)
}

func (v Value) decodeStruct(rv reflect.Value) {
	if !v.Object() {
		return
	}
	fields := fieldsOf(rv.Type())
	present := make([]bool, len(fields.list))
	for name, member := range v.Members() {
		i, ok := fields.byName[name]
		if !ok {
			member.Unknown(fields.names)
			continue
		}
		present[i] = true
		member.decode(rv.FieldByIndex(fields.list[i].index))
	}
	for i, f := range fields.list {
		if f.required && !present[i] {
			v.Missing(f.name)
		}
	}
}

func (v Value) decodeMap(rv reflect.Value) {
	if !v.Object() {
		return
	}
	t := rv.Type()
	if t.Key().Kind() != reflect.String {
		panic(fmt.Sprintf("strictjson: %s cannot be a target", t))
	}
	m := reflect.MakeMap(t)
	for name, member := range v.Members() {
		if strings.IndexByte(name, 0) >= 0 {
			member.Report("is a member name with a NUL character")
			continue
		}
		elem := reflect.New(t.Elem()).Elem()
		member.decode(elem)
		m.SetMapIndex(reflect.ValueOf(name).Convert(t.Key()), elem)
	}
	rv.Set(m)
}

func (v Value) decodeSlice(rv reflect.Value) {
	if rv.Type().Elem().Kind() == reflect.Uint8 {
		v.decodeBytes(rv)
		return
	}
	if !v.Array() {
		return
	}
	s := reflect.MakeSlice(rv.Type(), 0, 0)
	for _, element := range v.Elements() {
		elem := reflect.New(rv.Type().Elem()).Elem()
		element.decode(elem)
		s = reflect.Append(s, elem)
	}
	rv.Set(s)
}

func (v Value) decodeBytes(rv reflect.Value) {
	s, ok := v.text()
	if !ok {
		return
	}
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil || strings.ContainsAny(s, "\r\n") {
		v.Report("must be base64")
		return
	}
	rv.SetBytes(b)
}

// integer reports whether the value is an integer literal.
func (v Value) integer() bool {
	if !v.expect("an integer", '0') {
		return false
	}
	if strings.ContainsAny(string(v.raw), ".eE") {
		v.Report("must be an integer without fraction or exponent, not %s", shorten(string(v.raw)))
		return false
	}
	return true
}

func (v Value) decodeInt(rv reflect.Value) {
	if !v.integer() {
		return
	}
	n, err := strconv.ParseInt(string(v.raw), 10, rv.Type().Bits())
	if err != nil {
		limit := int64(math.MaxInt64) >> (64 - rv.Type().Bits())
		v.Report("must be an integer from %d to %d", -limit-1, limit)
		return
	}
	rv.SetInt(n)
}

func (v Value) decodeUint(rv reflect.Value) {
	if !v.integer() {
		return
	}
	n, err := strconv.ParseUint(string(v.raw), 10, rv.Type().Bits())
	if err != nil {
		v.Report("must be an integer from 0 to %d", uint64(math.MaxUint64)>>(64-rv.Type().Bits()))
		return
	}
	rv.SetUint(n)
}

func (v Value) decodeFloat(rv reflect.Value) {
	if !v.expect("a number", '0') {
		return
	}
	f, err := strconv.ParseFloat(string(v.raw), rv.Type().Bits())
	if err != nil {
		v.Report("must be a number in the range of %d-bit floating point", rv.Type().Bits())
		return
	}
	rv.SetFloat(f)
}
