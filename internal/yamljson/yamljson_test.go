package yamljson_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/errandhq/errand/internal/yamljson"
)

func TestConvert(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ in, want string }{
		"a mapping in its order":  {"z: 1\na: [x, 'y']\n", `{"z":1,"a":["x","y"]}`},
		"numbers keep digits":     {"a: 1.50\nb: 12345678901234567890123\nc: -0\nd: 1e3\n", `{"a":1.50,"b":12345678901234567890123,"c":-0,"d":1e3}`},
		"numbers that JSON lacks": {"a: 0x1F\nb: 1_000\nc: 0o17\n", `{"a":31,"b":1000,"c":15}`},
		"truth and nothing":       {"a: true\nb: no\nc: ~\nd:\n", `{"a":true,"b":"no","c":null,"d":null}`},
		"a date is text":          {"at: 2026-12-01T07:00:00Z\nday: 2026-12-01\n", `{"at":"2026-12-01T07:00:00Z","day":"2026-12-01"}`},
		"a quoted number":         {"a: '1'\n", `{"a":"1"}`},
		"a key that is a number":  {"1: a\n", `{"1":"a"}`},
		"a block of text":         {"a: |\n  one <b>\n  two\n", `{"a":"one <b>\ntwo\n"}`},
		"JSON":                    {`{"a": [1, "\u0000"]}`, `{"a":[1,"\u0000"]}`},
		"an alias":                {"a: &x {b: 1}\nc: *x\n", `{"a":{"b":1},"c":{"b":1}}`},
		"duplicates stay":         {"a: 1\na: 2\n", `{"a":1,"a":2}`},
		"a byte order mark goes":  {"\ufeffa: 1\n", `{"a":1}`},
		"comments go":             {"# c\na: 1 # d\n", `{"a":1}`},
	}
	for name, test := range tests {
		got, err := yamljson.Convert([]byte(test.in))
		if err != nil || string(got) != test.want {
			t.Errorf("%s: %s, %v; want %s", name, got, err, test.want)
		}
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	bomb := "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
	for i := 1; i < 9; i++ {
		n := string(rune('0' + i))
		p := string(rune('0' + i - 1))
		bomb += "a" + n + ": &a" + n + " [" + strings.TrimSuffix(strings.Repeat("*a"+p+",", 9), ",") + "]\n"
	}
	tests := map[string]struct{ in, says string }{
		"nothing":             {"", "empty"},
		"a second document":   {"a: 1\n---\nb: 2\n", "second document"},
		"aliases multiply":    {bomb, "bytes"},
		"an alias of itself":  {"a: &a [*a]\n", ""},
		"brackets":            {"a: " + strings.Repeat("[", 200_000), "deeper"},
		"braces":              {strings.Repeat("{a: ", 50_000), ""},
		"nested sequences":    {strings.Repeat("- ", 50_000) + "x", ""},
		"no YAML":             {"a: b: c", "YAML"},
		"a mapping as a key":  {"? {a: 1}\n: b\n", "key"},
		"a merge":             {"a: &x {b: 1}\nc:\n  <<: *x\n", "key"},
		"no UTF-8":            {"a: \xff\n", "YAML"},
		"no number":           {"a: .inf\n", "number"},
		"bytes":               {"a: !!binary aGVsbG8=\n", "type"},
		"a tag of one's own":  {"a: !thing x\n", "type"},
		"an alias of nothing": {"a: *b\n", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := yamljson.Convert([]byte(test.in))
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%.100s, %v; want an error that says %q", got, err, test.says)
			}
		})
	}
}

// FuzzConvert checks that whatever is accepted is JSON of a bounded size.
func FuzzConvert(f *testing.F) {
	for _, seed := range []string{"a: 1", "- x\n- {y: [z]}", "&a [*a]", "? a\n: b", "a: |\n  x", "\xff", "a: !!int x", "{a: 0x1}"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := yamljson.Convert(data)
		if err == nil && (!json.Valid(got) || len(got) > yamljson.MaxBytes+len(data)) {
			t.Errorf("%q became %q", data, got)
		}
	})
}

func TestConvertAll(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ data, want, fails string }{
		"several":     {"a: 1\n---\n- x\n---\n~\n", `{"a":1} ["x"] null`, ""},
		"empty ones":  {"---\n# nothing\n---\na: 1\n---\n", `{"a":1}`, ""},
		"one":         {"a: 1", `{"a":1}`, ""},
		"none":        {"# nothing\n", "", "empty"},
		"too many":    {strings.Repeat("--- a\n", 5), "", "line 5"},
		"a bad later": {"a: 1\n---\nb: [\n", "", "reading YAML"},
		"aliases": {
			strings.Repeat("---\na: &a ["+strings.Repeat("x,", 2000)+"]\nb: &b ["+strings.Repeat("*a,", 1000)+"]\n", 4), "", "more than",
		},
	}
	for name, test := range tests {
		documents, err := yamljson.ConvertAll([]byte(test.data), 4)
		if got := string(bytes.Join(documents, []byte(" "))); test.fails == "" && (err != nil || got != test.want) {
			t.Errorf("%s: %s, %v", name, got, err)
		}
		if test.fails != "" && (err == nil || !strings.Contains(err.Error(), test.fails)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
