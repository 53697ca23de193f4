package api

import (
	"encoding/json"
	"testing"
)

// FuzzSplice checks that adding members to a body neither hides nor makes up anything: the result decodes to
// what the body holds and the members, exactly when the body is an object.
func FuzzSplice(f *testing.F) {
	for _, body := range []string{``, `{}`, ` {} `, `{"a":1}`, `[]`, `{"a":{}}x`, "\ufeff{}", `{"id":2}`, `{`, `"{"`} {
		f.Add(body, "value")
	}
	f.Fuzz(func(t *testing.T, body, value string) {
		quoted, err := json.Marshal(value)
		if err != nil {
			t.Skip()
		}
		got := splice([]byte(body), []member{{"id", quoted}})
		var before, after map[string]json.RawMessage
		if json.Unmarshal([]byte(body), &before) != nil || before == nil {
			if len(body) > 0 && json.Unmarshal(got, &after) == nil && after != nil && json.Valid([]byte(body)) {
				t.Errorf("%q became the object %q", body, got)
			}
			return
		}
		if err := json.Unmarshal(got, &after); err != nil {
			t.Fatalf("%q became %q: %v", body, got, err)
		}
		for name, raw := range before {
			if string(after[name]) != string(raw) {
				t.Errorf("%q became %q: %s differs", body, got, name)
			}
		}
		if _, there := before["id"]; !there && string(after["id"]) != string(quoted) {
			t.Errorf("%q became %q: the member is missing", body, got)
		}
	})
}
