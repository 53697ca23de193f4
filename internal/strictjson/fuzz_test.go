package strictjson_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/internal/strictjson"
)

var canonical = cmp.Transformer("canonical", func(raw json.RawMessage) string {
	if len(raw) == 0 {
		return ""
	}
	compact, violations := strictjson.Compact(raw)
	if violations != nil {
		return "not canonical: " + string(raw)
	}
	return string(compact)
})

// FuzzUnmarshal holds the decoder to its promises: it never panics; what it accepts, encoding/json reads the
// same; and what it has read is accepted again with the same values.
func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte(`{"runId":"r","stepId":"s","name":"A\u00e9","count":-3,"big":9223372036854775807,"ratio":1e-3}`))
	f.Add([]byte(`{"runId":"r","at":"2025-01-31T09:00:00Z","until":null,"bytes":"AAEC","args":["a"],"labels":{"a b":"x"}}`))
	f.Add([]byte(`{"runId":"r","nested":{"runId":"n"},"list":[{"runId":"l"}],"input":{"b":1.0,"a":[1e3]},"text":null}`))
	f.Add([]byte("{\"runId\":\"\xff\",\"runId\":\"\\ud800\",\"nmae\":[[[]]]} x"))
	f.Add([]byte(strings.Repeat(`{"input":`, 70)))
	f.Fuzz(func(t *testing.T, data []byte) {
		var got target
		violations := strictjson.Unmarshal(data, &got)
		for _, v := range violations {
			if !utf8.ValidString(v.Path) || !utf8.ValidString(v.Message) || v.Message == "" {
				t.Errorf("violation %q is no sentence", v)
			}
		}
		if violations != nil {
			return
		}
		options := cmp.Options{cmp.AllowUnexported(target{}), canonical}
		var plain target
		if err := json.Unmarshal(data, &plain); err != nil {
			t.Fatalf("accepted what encoding/json refuses: %v", err)
		}
		if diff := cmp.Diff(plain, got, options); diff != "" {
			t.Errorf("read otherwise than encoding/json (-json +strict):\n%s", diff)
		}
		for _, encode := range []func(any) ([]byte, error){
			json.Marshal,
			func(v any) ([]byte, error) { return strictjson.Marshal(v) },
		} {
			encoded, err := encode(withoutZeros(got))
			if err != nil {
				t.Fatal(err)
			}
			var again target
			if violations := strictjson.Unmarshal(encoded, &again); violations != nil {
				t.Fatalf("what was read is refused when it comes back: %v\n%s", violations, encoded)
			}
			if diff := cmp.Diff(got, again, options); diff != "" {
				t.Errorf("changed on the way (-first +second):\n%s", diff)
			}
		}
	})
}

// withoutZeros returns the members of a target that are not zero: its zero slices and maps would be encoded
// as null, which is no array and no object.
func withoutZeros(v target) map[string]any {
	members := map[string]any{"runId": v.RunID, "stepId": v.StepID}
	rv := reflect.ValueOf(v)
	for i := range rv.NumField() {
		name, _, _ := strings.Cut(rv.Type().Field(i).Tag.Get("json"), ",")
		if name != "" && name != "-" && !rv.Field(i).IsZero() {
			members[name] = rv.Field(i).Interface()
		}
	}
	return members
}

// FuzzCompact checks that a compact value is stable, no longer than it was, and the same value.
func FuzzCompact(f *testing.F) {
	f.Add([]byte(` { "b" : [ 1.0 , 1e3 ] , "a" : "\u003c\ud83d\ude00\u0000" } `))
	f.Add([]byte("\"\u2028\\u2028\\/\""))
	f.Add([]byte(`[[],{},"",-0,null,true,false]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		compact, violations := strictjson.Compact(data)
		if violations != nil {
			if compact != nil {
				t.Errorf("compact is %q beside violations", compact)
			}
			return
		}
		if len(compact) > len(data) {
			t.Errorf("compact of %d bytes has %d", len(data), len(compact))
		}
		again, violations := strictjson.Compact(compact)
		if violations != nil || string(again) != string(compact) {
			t.Errorf("compact of %q is %q (violations %v)", compact, again, violations)
		}
		if diff := cmp.Diff(decodeNumbers(t, data), decodeNumbers(t, compact)); diff != "" {
			t.Errorf("another value (-before +after):\n%s", diff)
		}
	})
}

func decodeNumbers(t *testing.T, data []byte) any {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(string(data)))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("encoding/json refuses %q: %v", data, err)
	}
	return v
}
