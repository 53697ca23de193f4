// Package strictjson decodes JSON documents that people and programs send, and reports everything that is
// wrong with one at once, each thing with its place.
//
// A document is refused for an unknown member (with the near name that was probably meant), a duplicate
// member, a value of another type or range than its target, a missing required member, invalid UTF-8, a NUL
// character in a string, nesting over [MaxDepth] levels, trailing data, and for not being JSON. Member names
// are case-sensitive. A document of any size or depth is refused without deep recursion.
//
// Targets are Go structs with `json` tags. What a member that is absent or null does, is up to its target:
//
//   - An absent member leaves its field as it is, so a caller may fill in defaults first. The tag
//     `strict:"required"` makes absence a violation.
//   - null is a violation, except for a pointer (it becomes nil), an [Optional] (it becomes
//     [Optional.Null]) and a json.RawMessage (null is a value).
//   - Strings, also map keys, may not hold NUL.
//   - Integers take integer literals in the range of the Go type; 1.0 and 1e3 are not integers.
//   - json.RawMessage takes any value and keeps its numbers and the order of its members; see [Compact].
//   - time.Time takes RFC 3339, []byte takes base64.
//   - A type that implements [Unmarshaler] reads its [Value] itself and adds the rules of its format; a field
//     of type [Value] keeps one for later.
//
// The package knows nothing of what the documents mean.
package strictjson
