package automation_test

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/strictjson"
)

func TestConcreteExpandsActionInput(t *testing.T) {
	t.Parallel()
	const input = `{"n":1.0,"again":{"$runInput":true}}`
	for _, tt := range []struct{ name, value, input, want string }{
		{"no template", `{"b":1.0,"a":[1e3]}`, input, `{"b":1.0,"a":[1e3]}`},
		{"whole value", `{"$runInput":true}`, input, input},
		{"never inside what was substituted", `[{"$runInput":true}]`, input, `[` + input + `]`},
		{"member", `{"a":{"$runInput":true},"b":2}`, input, `{"a":` + input + `,"b":2}`},
		{"element", `[0,{"$runInput":true},{"x":[{"$runInput":true}]}]`, `7`, `[0,7,{"x":[7]}]`},
		{"absent input", `{"a":{"$runInput":true}}`, ``, `{"a":null}`},
		{"string input", `[{"$runInput":true}]`, `"x\n"`, `["x\n"]`},
		{"spelled with an escape", `{"\u0024runInput":true}`, `7`, `7`},
		{"spaces", `[ { "$runInput" : true } ]`, `7`, `[ 7 ]`},
		{"false", `{"$runInput":false}`, `7`, `{"$runInput":false}`},
		{"string", `{"$runInput":"true"}`, `7`, `{"$runInput":"true"}`},
		{"another member", `{"$runInput":true,"x":1}`, `7`, `{"$runInput":true,"x":1}`},
		{"another member first", `{"x":1,"$runInput":true}`, `7`, `{"x":1,"$runInput":true}`},
		{"other case", `{"$runinput":true}`, `7`, `{"$runinput":true}`},
		{"text", `"{\"$runInput\":true}"`, `7`, `"{\"$runInput\":true}"`},
		{"inside one that is none", `{"$runInput":{"$runInput":true}}`, `7`, `{"$runInput":7}`},
		{"array in it", `{"$runInput":[true]}`, `7`, `{"$runInput":[true]}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			step := automation.Step{ID: "a", ActionID: "x.y", Input: json.RawMessage(tt.value)}
			got, stepErr := automation.Concrete("run", step, json.RawMessage(tt.input))
			if stepErr != nil {
				t.Fatal(stepErr)
			}
			if string(got.Input) != tt.want {
				t.Errorf("input is %s, want %s", got.Input, tt.want)
			}
		})
	}
}

func TestConcreteStdin(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, stdin, input, want string }{
		{"absent", ``, `7`, ``},
		{"string", `"a\n\u0000\u00e9"`, `7`, "a\n\x00é"},
		{"empty string", `""`, `7`, ``},
		{"null", `null`, `7`, "null\n"},
		{"number", `1.0`, `7`, "1.0\n"},
		{"object", `{"b":1,"a":"x\n"}`, `7`, "{\"b\":1,\"a\":\"x\\n\"}\n"},
		{"input is an object", `{"$runInput":true}`, `{"k":1e3}`, "{\"k\":1e3}\n"},
		{"input is a string", `{"$runInput":true}`, `"line\n"`, "line\n"},
		{"input is absent", `{"$runInput":true}`, ``, "null\n"},
		{"template in an array", `[{"$runInput":true}]`, `"x"`, "[\"x\"]\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			step := automation.Step{ID: "c", Kind: automation.KindCommand, Command: "cat", Stdin: json.RawMessage(tt.stdin)}
			got, stepErr := automation.Concrete("run", step, json.RawMessage(tt.input))
			if stepErr != nil {
				t.Fatal(stepErr)
			}
			if string(got.Stdin) != tt.want {
				t.Errorf("stdin is %q, want %q", got.Stdin, tt.want)
			}
		})
	}
}

func TestConcreteAppliesDefaults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		step automation.Step
		want automation.ConcreteStep
	}{
		{
			"action",
			automation.Step{ID: "a", ActionID: "x.y", Input: json.RawMessage(`1`), Credential: "k"},
			automation.ConcreteStep{
				RunID: "run", StepID: "a", Kind: automation.KindAction, ActionID: "x.y", Input: json.RawMessage(`1`),
				Credential: "k", TimeoutMs: 3_600_000,
			},
		},
		{
			"command",
			automation.Step{ID: "c", Kind: automation.KindCommand, Command: "true"},
			automation.ConcreteStep{
				RunID: "run", StepID: "c", Kind: automation.KindCommand, Command: "true",
				TimeoutMs: 3_600_000, MaxOutputBytes: 262_144, Leftovers: automation.LeftoversEnd,
			},
		},
		{
			"script with its own values",
			automation.Step{
				ID: "s", Kind: automation.KindScript, Runtime: automation.RuntimePython, Source: "pass",
				Args: []string{"x"}, Cwd: "/", Env: map[string]string{"A": "b"},
				TimeoutMs: 5, MaxOutputBytes: 6, Leftovers: automation.LeftoversKeep,
			},
			automation.ConcreteStep{
				RunID: "run", StepID: "s", Kind: automation.KindScript, Runtime: automation.RuntimePython, Source: "pass",
				Args: []string{"x"}, Cwd: "/", Env: map[string]string{"A": "b"},
				TimeoutMs: 5, MaxOutputBytes: 6, Leftovers: automation.LeftoversKeep,
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, stepErr := automation.Concrete("run", tt.step, nil)
			if stepErr != nil {
				t.Fatal(stepErr)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("concrete step (-want +got):\n%s", diff)
			}
		})
	}
}

func TestConcreteRefusesWhatWouldBeTooLarge(t *testing.T) {
	t.Parallel()
	input := json.RawMessage(`"` + strings.Repeat("x", 1<<20-2) + `"`)
	places := func(n int) json.RawMessage {
		return json.RawMessage(`[` + strings.Repeat(`{"$runInput":true},`, n) + `0]`)
	}
	step := func(stdin json.RawMessage) automation.Step {
		return automation.Step{ID: "c", Kind: automation.KindCommand, Command: "cat", Stdin: stdin}
	}
	if _, stepErr := automation.Concrete("run", step(places(3)), input); stepErr != nil {
		t.Errorf("three times 1 MiB is refused: %v", stepErr)
	}
	for _, n := range []int{4, 50_000} {
		_, stepErr := automation.Concrete("run", step(places(n)), input)
		if stepErr == nil || stepErr.Code != automation.StepErrInvalidTemplate {
			t.Errorf("%d times 1 MiB: error %v, want invalid_template", n, stepErr)
		}
	}
	if size := automation.ExpandedSize(step(places(50_000)), len(input)); size != 50_000*(1<<20+1)+3 {
		t.Errorf("50,000 times 1 MiB is %d bytes", size)
	}
}

// TestExpandedSizeIsExact builds random values with templates and compares the size, the places and the
// untouched rest with an expansion of decoded values.
func TestExpandedSizeIsExact(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		value, input := randomValue(rng, 4), randomValue(rng, 2)
		rawValue, rawInput := encode(t, value), encode(t, input)
		step := automation.Step{ID: "a", ActionID: "x.y", Input: rawValue}
		got, stepErr := automation.Concrete("run", step, rawInput)
		if stepErr != nil {
			t.Fatal(stepErr)
		}
		if size := automation.ExpandedSize(step, len(rawInput)); size != int64(len(got.Input)) {
			t.Errorf("size of %s with %s is %d, and it has %d", rawValue, rawInput, size, len(got.Input))
		}
		if want := encode(t, substitute(value, input)); string(want) != string(got.Input) {
			t.Errorf("expansion of %s with %s is\n%s, want\n%s", rawValue, rawInput, got.Input, want)
		}
	}
}

func encode(t *testing.T, v any) json.RawMessage {
	t.Helper()
	raw, err := strictjson.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// substitute is the template by its definition, on decoded values.
func substitute(value, input any) any {
	switch v := value.(type) {
	case map[string]any:
		if len(v) == 1 && v["$runInput"] == true {
			return input
		}
		out := map[string]any{}
		for name, member := range v {
			out[name] = substitute(member, input)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, element := range v {
			out[i] = substitute(element, input)
		}
		return out
	}
	return value
}

// randomValue returns a JSON value that nests at most depth levels and is rich in (almost) templates.
func randomValue(rng *rand.Rand, depth int) any {
	kinds := 8
	if depth == 0 {
		kinds = 5
	}
	switch rng.IntN(kinds) {
	case 0:
		return nil
	case 1:
		return rng.IntN(2) == 0
	case 2:
		return rng.IntN(1000)
	case 3:
		return randomText(rng, rng.IntN(8))
	case 4:
		return map[string]any{"$runInput": true}
	case 5:
		values := make([]any, rng.IntN(4))
		for i := range values {
			values[i] = randomValue(rng, depth-1)
		}
		return values
	default:
		values := map[string]any{}
		for range rng.IntN(3) {
			values[randomText(rng, 2)] = randomValue(rng, depth-1)
		}
		if rng.IntN(3) == 0 {
			values["$runInput"] = randomValue(rng, depth-1)
		}
		return values
	}
}

var letters = []rune("ab \"\\\n\x01\x1f/<é…😀\u2028\uFFFD\u2400")

func randomText(rng *rand.Rand, n int) string {
	text := make([]rune, n)
	for i := range text {
		text[i] = letters[rng.IntN(len(letters))]
	}
	return string(text)
}
