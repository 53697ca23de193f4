package strictjson_test

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/internal/strictjson"
)

type ref struct {
	RunID  string `json:"runId" strict:"required"`
	StepID string `json:"stepId,omitempty"`
}

type level string

// target has a field of every kind that a document of ours has.
type target struct {
	ref
	Name     string                       `json:"name"`
	Level    level                        `json:"level"`
	Count    int                          `json:"count"`
	Big      int64                        `json:"big"`
	Small    int8                         `json:"small"`
	Unsigned uint16                       `json:"unsigned"`
	Ratio    float64                      `json:"ratio"`
	Enabled  bool                         `json:"enabled"`
	Wanted   *bool                        `json:"wanted"`
	At       time.Time                    `json:"at"`
	Until    *time.Time                   `json:"until"`
	Bytes    []byte                       `json:"bytes"`
	Args     []string                     `json:"args"`
	Labels   map[string]string            `json:"labels"`
	Nested   *ref                         `json:"nested"`
	List     []ref                        `json:"list"`
	Input    json.RawMessage              `json:"input"`
	Text     strictjson.Optional[string]  `json:"text,omitzero"`
	Numbers  map[string]map[string]int64  `json:"numbers"`
	Hidden   string                       `json:"-"`
	Maybe    strictjson.Optional[*string] `json:"maybe,omitzero"`
	private  string                       //nolint:unused // a target may have fields that are no members
}

func TestUnmarshalReadsEveryKindOfField(t *testing.T) {
	t.Parallel()
	document := ` {
		"runId": "r", "stepId": "s", "name": "A\u00e9\ud83d\ude00", "level": "high", "count": -3, "big": 9223372036854775807,
		"small": -128, "unsigned": 65535, "ratio": 1e-3, "enabled": true, "wanted": false,
		"at": "2025-01-31T09:00:00.000001Z", "until": null, "bytes": "AAEC", "args": [],
		"labels": {"a b": "x\ny"}, "nested": {"runId": "r2"}, "list": [{"runId": "r3"}, {"runId": "r4", "stepId": ""}],
		"input": { "b" : 1.0, "a" : [ 1e3, 10000000000000000000000000 ], "u" : "\u003c\u0000\/" },
		"text": null, "numbers": {"x": {"y": 1}}
	} `
	got := target{Name: "before", Hidden: "kept"}
	if violations := strictjson.Unmarshal([]byte(document), &got); violations != nil {
		t.Fatalf("violations: %v", violations)
	}
	wanted := false
	want := target{
		ref: ref{RunID: "r", StepID: "s"}, Name: "Aé😀", Level: "high", Count: -3, Big: 9223372036854775807,
		Small: -128, Unsigned: 65535, Ratio: 0.001, Enabled: true, Wanted: &wanted,
		At: time.Date(2025, 1, 31, 9, 0, 0, 1000, time.UTC), Bytes: []byte{0, 1, 2}, Args: []string{},
		Labels: map[string]string{"a b": "x\ny"}, Nested: &ref{RunID: "r2"},
		List:    []ref{{RunID: "r3"}, {RunID: "r4"}},
		Input:   json.RawMessage(`{"b":1.0,"a":[1e3,10000000000000000000000000],"u":"<\u0000/"}`),
		Text:    strictjson.Optional[string]{Present: true, Null: true},
		Numbers: map[string]map[string]int64{"x": {"y": 1}},
		Hidden:  "kept",
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(target{})); diff != "" {
		t.Errorf("decoded (-want +got):\n%s", diff)
	}
}

func TestUnmarshalKeepsDefaultsOfAbsentMembers(t *testing.T) {
	t.Parallel()
	got := target{Name: "default", Count: 7}
	if violations := strictjson.Unmarshal([]byte(`{"runId":"r","count":0}`), &got); violations != nil {
		t.Fatalf("violations: %v", violations)
	}
	if got.Name != "default" || got.Count != 0 || got.Text.Present || got.Input != nil {
		t.Errorf("decoded %+v; want the absent members left alone", got)
	}
}

func TestUnmarshalReportsViolation(t *testing.T) {
	t.Parallel()
	// Each document is an object with a valid runId unless it starts with "=".
	for _, tt := range []struct{ name, document, path, message string }{
		{"unknown member", `"frob":1`, "frob", `is not a known member`},
		{"near name", `"nmae":"x"`, "nmae", `is not a known member; did you mean "name"?`},
		{"other case", `"Name":"x"`, "Name", `is not a known member; did you mean "name"?`},
		{"snake case", `"step_id":"x"`, "step_id", `is not a known member; did you mean "stepId"?`},
		{"untagged field", `"Hidden":"x"`, "Hidden", `is not a known member`},
		{"unexported field", `"private":"x"`, "private", `is not a known member`},
		{"duplicate member", `"name":"x","name":"y"`, "name", "is a duplicate member"},
		{"duplicate that is wrong too", `"name":"x","name":7`, "name", "is a duplicate member"},
		{"duplicate by escape", `"name":"x","n\u0061me":"y"`, "name", "is a duplicate member"},
		{"duplicate in free value", `"input":{"a":[0,{"b":1,"b":2}]}`, "input.a[1].b", "is a duplicate member"},
		{"string wanted", `"name":1`, "name", "must be a string, not a number"},
		{"null for a string", `"name":null`, "name", "must be a string, not null"},
		{"boolean wanted", `"enabled":"true"`, "enabled", "must be true or false, not a string"},
		{"null for a boolean", `"enabled":null`, "enabled", "must be true or false, not null"},
		{"pointer to boolean", `"wanted":[]`, "wanted", "must be true or false, not an array"},
		{"array wanted", `"args":{}`, "args", "must be an array, not an object"},
		{"null for an array", `"args":null`, "args", "must be an array, not null"},
		{"element", `"args":["a",true]`, "args[1]", "must be a string, not true"},
		{"map value", `"labels":{"a b":false}`, `labels["a b"]`, "must be a string, not false"},
		{"object wanted", `"labels":["x"]`, "labels", "must be an object, not an array"},
		{"nested", `"list":[{"runId":"a"},{"runId":0}]`, "list[1].runId", "must be a string, not a number"},
		{"nested missing", `"list":[{"stepId":"a"}]`, "list[0].runId", "is required"},
		{"nested unknown", `"nested":{"runId":"a","name":"b"}`, "nested.name", "is not a known member"},
		{"optional", `"text":5`, "text", "must be a string, not a number"},
		{"fraction", `"count":1.0`, "count", "must be an integer without fraction or exponent, not 1.0"},
		{"exponent", `"count":1e3`, "count", "must be an integer without fraction or exponent, not 1e3"},
		{"number as string", `"count":"1"`, "count", "must be an integer, not a string"},
		{"too large", `"big":9223372036854775808`, "big", "must be an integer from -9223372036854775808 to 9223372036854775807"},
		{"out of int8", `"small":128`, "small", "must be an integer from -128 to 127"},
		{"out of uint16", `"unsigned":-1`, "unsigned", "must be an integer from 0 to 65535"},
		{"float", `"ratio":1e999`, "ratio", "must be a number in the range of 64-bit floating point"},
		{"time", `"at":"yesterday"`, "at", "must be a time in RFC 3339, such as 2006-01-02T15:04:05Z"},
		{"base64", `"bytes":"%"`, "bytes", "must be base64"},
		{"NUL in a string", `"name":"a\u0000b"`, "name", "must not contain a NUL character"},
		{"NUL in an element", `"args":["\u0000"]`, "args[0]", "must not contain a NUL character"},
		{"NUL in a key", `"labels":{"\u0000":"x"}`, `labels["\x00"]`, "is a member name with a NUL character"},
		{"UTF-8", "\"name\":\"\xff\"", "name", "is not valid UTF-8"},
		{"UTF-8 of a name", "\"labels\":{\"\xff\":\"x\"}", "labels[\"\uFFFD\"]", "is a member name that is not valid UTF-8"},
		{"UTF-8 in a free value", "\"input\":[[\"\xc3\"]]", "input[0][0]", "is not valid UTF-8"},
		{"lone surrogate", `"name":"\ud800"`, "name", "is not valid UTF-8"},
		{"missing", `={}`, "runId", "is required"},
		{"document is an array", `=[]`, "", "must be an object, not an array"},
		{"document is null", `=null`, "", "must be an object, not null"},
		{"empty", `=`, "", "is empty; send one JSON value"},
		{"blank", "= \n\t", "", "is empty; send one JSON value"},
		{"trailing data", `={"runId":"r"} {}`, "", "is followed by more data; send one JSON value (line 1, byte 15)"},
		{"trailing bracket", `={"runId":"r"}}`, "", "is followed by more data; send one JSON value (line 1, byte 14)"},
		{"cut", `={"name":{"a":[1,`, "name.a[0]", "is not valid JSON: it ends too early (line 1, byte 17)"},
		{"trailing comma", "={\n\"list\": [1,]}", "list[0]", "is not valid JSON: invalid character ',' at start of value (line 2, byte 11)"},
		{"comment", `={/**/}`, "", `is not valid JSON: invalid character '/' at start of value (line 1, byte 2)`},
		{"NaN", `={"ratio":NaN}`, "ratio", "is not valid JSON: invalid character 'N' at start of value (line 1, byte 10)"},
		{"byte order mark", "=\ufeff{}", "", "is not valid JSON: invalid character '\\ufeff' at start of value (line 1, byte 1)"},
		{"raw control character", "=\"a\nb\"", "", "is not valid JSON: invalid character '\\n' in string (expecting non-control character) (line 1, byte 3)"},
		{"65 levels", `"input":` + nested(64), "input" + strings.Repeat("[0]", 63), "is nested deeper than 64 levels"},
		{"10,000 levels", `=` + strings.Repeat("[", 10_000), strings.Repeat("[0]", 64), "is nested deeper than 64 levels"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			document, whole := strings.CutPrefix(tt.document, "=")
			if !whole {
				document = `{"runId":"r",` + document + `}`
			}
			got := strictjson.Unmarshal([]byte(document), new(target))
			want := []strictjson.Violation{{Path: tt.path, Message: tt.message}}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("violations of %s (-want +got):\n%s", document, diff)
			}
		})
	}
}

func nested(levels int) string {
	return strings.Repeat("[", levels) + strings.Repeat("]", levels)
}

func TestUnmarshalAcceptsTheDeepestDocument(t *testing.T) {
	t.Parallel()
	var got target
	document := `{"runId":"r","input":` + nested(strictjson.MaxDepth-1) + `}`
	if violations := strictjson.Unmarshal([]byte(document), &got); violations != nil {
		t.Errorf("violations: %v", violations)
	}
}

func TestUnmarshalReportsAllViolationsTogether(t *testing.T) {
	t.Parallel()
	document := "{\"name\": 1, \"nmae\": 2, \"count\": 1.5, \"count\": 2, \"args\": [\"\xff\", 3], \"nested\": {}, " +
		"\"labels\": {\"a\": null}, \"input\": {\"x\": 1, \"x\": 1}}"
	var got []string
	for _, v := range strictjson.Unmarshal([]byte(document), new(target)) {
		got = append(got, v.Path)
	}
	want := []string{
		"count", "args[0]", "input.x",
		"name", "nmae", "count", "args[1]", "nested.runId", "labels.a", "runId",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("paths (-want +got):\n%s", diff)
	}
}

func TestUnmarshalCapsViolations(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, document string }{
		{"of the target", `{"runId":"r","args":[` + strings.Repeat("0,", 200_000) + `0]}`},
		{"unknown members", `{"runId":"r"` + manyMembers(200_000) + `}`},
		{"of the syntax", `[` + strings.Repeat("\"\xff\",", 200_000) + `0]`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := strictjson.Unmarshal([]byte(tt.document), new(target))
			if len(got) != strictjson.MaxViolations+1 {
				t.Fatalf("%d violations, want %d and one that says there are more", len(got), strictjson.MaxViolations)
			}
			want := strictjson.Violation{Message: "more is wrong; only the first 50 violations are listed"}
			if last := got[len(got)-1]; last != want {
				t.Errorf("the last violation is %v, want %v", last, want)
			}
		})
	}
}

func manyMembers(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"m%d":0`, i)
	}
	return b.String()
}

func TestUnmarshalBoundsPathsAndMessages(t *testing.T) {
	t.Parallel()
	name := strings.Repeat("é", 1<<20)
	document := fmt.Sprintf(`{"runId":"r",%q:1,"count":1%s.5,"input":%s{"a":1,"a":2}%s}`, name,
		strings.Repeat("0", 1<<20),
		strings.Repeat(`{"`+strings.Repeat("x", 100)+`":`, 60), strings.Repeat("}", 60))
	got := strictjson.Unmarshal([]byte(document), new(target))
	if len(got) != 3 {
		t.Fatalf("%d violations, want 3", len(got))
	}
	for _, v := range got {
		if len(v.Path) > 2048 || len(v.Message) > 2048 {
			t.Errorf("a path of %d and a message of %d bytes for a huge name or number", len(v.Path), len(v.Message))
		}
	}
}

func TestUnmarshalRefusesHugeDocuments(t *testing.T) { //nolint:paralleltest // it measures what the whole process allocates
	for _, tt := range []struct {
		name, document string
		violations     int
	}{
		{"10 million arrays", strings.Repeat("[", 10_000_000), 1},
		{"10 million objects", strings.Repeat(`{"a":`, 10_000_000), 1},
		{"8 MiB of one string", `{"runId":"` + strings.Repeat("x", 8<<20), 1},
		{"1 million wrong elements", `{"runId":"r","list":[` + strings.Repeat("0,", 1_000_000) + `0]}`, strictjson.MaxViolations + 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			document := []byte(tt.document)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			got := strictjson.Unmarshal(document, new(target))
			runtime.ReadMemStats(&after)
			if len(got) != tt.violations {
				t.Errorf("%d violations, want %d", len(got), tt.violations)
			}
			if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 1<<20 {
				t.Errorf("refusing %d bytes allocated %d", len(document), allocated)
			}
		})
	}
}

// shape is a polymorphic target: the type of a member depends on another one.
type shape struct {
	kind string
	size int
}

func (s *shape) UnmarshalStrict(v strictjson.Value) {
	if !v.Object() {
		return
	}
	for name, member := range v.Members() {
		switch name {
		case "kind":
			member.Decode(&s.kind)
		case "size":
			if member.Decode(&s.size) && s.size < 0 {
				member.Report("must not be %d", s.size)
			}
			if s.size > 100 {
				member.Warn(strictjson.PathMember(member.Path(), "unit"), "is large")
			}
		default:
			member.Unknown([]string{"kind", "size"})
		}
	}
	if !v.Member("kind").Present() {
		v.Missing("kind")
	}
	if s.kind == "round" && !v.Member("size").Present() {
		v.ReportMember("size", "is required for the kind %q", s.kind)
	}
}

func TestUnmarshalerReportsWithItsPlace(t *testing.T) {
	t.Parallel()
	var got struct {
		Shapes []shape `json:"shapes"`
	}
	document := `{"shapes":[{"kind":"a","size":101},{"kind":"b","size":-1,"siez":1},7,{"size":1.5},{"kind":"round"}]}`
	violations, warnings := strictjson.Decode([]byte(document), &got)
	wantViolations := []strictjson.Violation{
		{Path: "shapes[1].size", Message: "must not be -1"},
		{Path: "shapes[1].siez", Message: `is not a known member; did you mean "size"?`},
		{Path: "shapes[2]", Message: "must be an object, not a number"},
		{Path: "shapes[3].size", Message: "must be an integer without fraction or exponent, not 1.5"},
		{Path: "shapes[3].kind", Message: "is required"},
		{Path: "shapes[4].size", Message: `is required for the kind "round"`},
	}
	if diff := cmp.Diff(wantViolations, violations); diff != "" {
		t.Errorf("violations (-want +got):\n%s", diff)
	}
	wantWarnings := []strictjson.Violation{{Path: "shapes[0].size.unit", Message: "is large"}}
	if diff := cmp.Diff(wantWarnings, warnings); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

func TestValueKeepsAMemberForLater(t *testing.T) {
	t.Parallel()
	var got struct {
		Later  strictjson.Value `json:"later"`
		Absent strictjson.Value `json:"absent"`
	}
	if violations := strictjson.Unmarshal([]byte(`{"later": [1, {"a": "b"}]}`), &got); violations != nil {
		t.Fatalf("violations: %v", violations)
	}
	if got.Absent.Present() {
		t.Error("an absent member is present")
	}
	var elements []strictjson.Value
	if !got.Later.Decode(&elements) || len(elements) != 2 {
		t.Fatalf("decoded %d elements, want 2", len(elements))
	}
	if path, raw := elements[1].Path(), string(elements[1].Raw()); path != "later[1]" || raw != `{"a":"b"}` {
		t.Errorf("the second element is %s at %s", raw, path)
	}
	if a := elements[1].Member("a"); a.Path() != "later[1].a" || string(a.Raw()) != `"b"` {
		t.Errorf("its member is %s at %s", a.Raw(), a.Path())
	}
}

func TestCompact(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, document, want string }{
		{"whitespace", " { \"b\" : [ 1 , 2 ] ,\n\"a\" : null }\n", `{"b":[1,2],"a":null}`},
		{"numbers", `[1.0, 1e3, -0, 0.10, 12345678901234567890]`, `[1.0,1e3,-0,0.10,12345678901234567890]`},
		{"strings", `["\u003c\/\u00e9\ud83d\ude00\u0000\u2028\"\\\u000a"]`, "[\"</é😀\\u0000\u2028\\\"\\\\\\n\"]"},
		{"scalar", ` true `, `true`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, violations := strictjson.Compact([]byte(tt.document))
			if violations != nil || string(got) != tt.want {
				t.Errorf("compact of %s is %s (violations %v), want %s", tt.document, got, violations, tt.want)
			}
		})
	}
	for _, document := range []string{``, `{`, `{"a":1,"a":1}`, "\"\xff\"", nested(65), `1 2`} {
		if got, violations := strictjson.Compact([]byte(document)); got != nil || violations == nil {
			t.Errorf("compact of %s is %s; want a violation", document, got)
		}
	}
}

func TestMarshalIsCompact(t *testing.T) {
	t.Parallel()
	value := map[string]any{"z": "<a & b>\u2028", "a": json.RawMessage(`{"n": 1.0}`)}
	got, err := strictjson.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	want := "{\"a\":{\"n\":1.0},\"z\":\"<a & b>\u2028\"}"
	if string(got) != want {
		t.Errorf("marshalled %s, want %s", got, want)
	}
}
