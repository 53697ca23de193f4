package strictjson

import "encoding/json"

// Optional tells an absent member, a null and a value apart: the three things that a change may say of a field.
type Optional[T any] struct {
	// Present is set when the member is there, null or not.
	Present bool
	// Null is set when the member is null; Value is the zero T then.
	Null  bool
	Value T
}

// UnmarshalStrict implements [Unmarshaler].
func (o *Optional[T]) UnmarshalStrict(v Value) {
	o.Present, o.Null = true, v.IsNull()
	if !o.Null {
		v.Decode(&o.Value)
	}
}

// MarshalJSON returns null or the value. A field that may be absent needs the option omitzero.
func (o Optional[T]) MarshalJSON() ([]byte, error) {
	if !o.Present || o.Null {
		return []byte("null"), nil
	}
	return json.Marshal(o.Value)
}

// UnmarshalJSON reads what MarshalJSON returns, with the leniency of encoding/json.
func (o *Optional[T]) UnmarshalJSON(data []byte) error {
	*o = Optional[T]{Present: true, Null: string(data) == "null"}
	if o.Null {
		return nil
	}
	return json.Unmarshal(data, &o.Value)
}
