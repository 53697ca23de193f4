package automation_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/strictjson"
)

// refused returns the violations of an error that must be a validation_failed.
func refused(t *testing.T, err error) []automation.Violation {
	t.Helper()
	var e *automation.Error
	if !errors.As(err, &e) || e.Code != automation.CodeValidationFailed {
		t.Fatalf("error %v, want validation_failed", err)
	}
	if len(e.Details) == 0 {
		t.Fatalf("error %v has no details", err)
	}
	return e.Details
}

// plan1 and plan2 make a plan of a version from its steps.
func plan1(steps string) string { return `{"version":1,"steps":[` + steps + `]}` }
func plan2(steps string) string { return `{"version":2,"steps":[` + steps + `]}` }

// actionStep, commandStep and scriptStep make a valid step with further members.
func actionStep(more string) string {
	return `{"id":"a","actionId":"channels.notify_user","input":{}` + more + `}`
}

func commandStep(more string) string {
	return `{"id":"c","kind":"command","command":"true"` + more + `}`
}

func scriptStep(more string) string {
	return `{"id":"s","kind":"script","runtime":"shell","source":"true"` + more + `}`
}

func repeat(step string, n int) string {
	steps := make([]string, n)
	for i := range steps {
		steps[i] = strings.Replace(step, `"id":"`, fmt.Sprintf(`"id":"x%d-`, i), 1)
	}
	return strings.Join(steps, ",")
}

func TestDecodePlanAcceptsAndReadsBack(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, plan string }{
		{"version 1", `{"version":1,"steps":[{"id":"notify","actionId":"channels.notify_user","input":{"title":"Reminder","message":"Call Mom"}}]}`},
		{"version 2 without kind", plan2(actionStep(``))},
		{"action with everything", plan2(`{"id":"a","kind":"action","actionId":"x.y-z.w_0","input":[1.0,{"b":1e3,"a":null}],"credential":"a_B.c-1","timeoutMs":1}`)},
		{"input null", plan2(`{"id":"a","actionId":"x.y","input":null}`)},
		{"command with everything", plan2(`{"id":"c","kind":"command","command":"/bin/echo","args":["","a b","$HOME"],"cwd":"/","env":{"A":"x\ny\nz=1","_b1":""},"stdin":"text","timeoutMs":604800000,"maxOutputBytes":8388608,"leftovers":"keep"}`)},
		{"written defaults", plan2(commandStep(`,"args":[],"env":{},"stdin":"","timeoutMs":3600000,"maxOutputBytes":262144,"leftovers":"end"`))},
		{"null stdin", plan2(commandStep(`,"stdin":null`))},
		{"stdin object", plan2(commandStep(`,"stdin":{"b":1,"a":{"$runInput":true}}`))},
		{"script", plan2(`{"id":"s","kind":"script","runtime":"node","source":"await 1\n","args":["x"]}`)},
		{"python", plan2(`{"id":"s","kind":"script","runtime":"python","source":"\n"}`)},
		{"windows paths", plan2(`{"id":"c","kind":"command","command":"C:\\Tools\\x.exe","cwd":"d:/work"}`)},
		{"longest id", plan2(strings.Replace(actionStep(``), `"a"`, `"a`+strings.Repeat("-", 63)+`"`, 1))},
		{"100 steps", plan2(repeat(actionStep(``), 100))},
		{"longest argument", plan2(commandStep(`,"args":["` + strings.Repeat("x", 131_071) + `"]`))},
		{"longest variable", plan2(commandStep(`,"env":{"AB":"` + strings.Repeat("x", 131_068) + `"}`))},
		{"longest source", plan2(`{"id":"s","kind":"script","runtime":"shell","source":"` + strings.Repeat("x", 96<<10) + `"}`)},
		{"free names in a free value", plan2(`{"id":"a","actionId":"x.y","input":{"ERRAND_X":"\u0000","":[]}}`)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			plan, warnings, err := automation.DecodePlan([]byte(tt.plan))
			if err != nil || len(warnings) > 0 {
				t.Fatalf("refused: %v, warnings %v", err, warnings)
			}
			back, err := strictjson.Marshal(plan)
			if err != nil {
				t.Fatal(err)
			}
			if string(back) != tt.plan {
				t.Errorf("reads back as\n%.2000s\nwant\n%.2000s", back, tt.plan)
			}
		})
	}
}

func TestDecodePlanReportsViolation(t *testing.T) {
	t.Parallel()
	const relative = "must be a bare name, to be looked up on the machine's PATH, or an absolute path; " +
		"a relative path would depend on the working directory"
	const cwdHome = "must be an absolute path; nothing is expanded in it. " +
		"Without cwd a step runs in the home directory of the machine's user"
	const version1 = "needs plan version 2; steps of version 1 have id, actionId and input only"
	const id = "must be 1 to 64 letters, digits, _ or -, and start with a letter"
	const actionID = "must be two or more parts of a-z, 0-9, _ and -, separated by dots, such as channels.notify_user"
	const envName = "is not a name for a variable: letters, digits and _, not starting with a digit"
	const envPrefix = "has a reserved prefix; variables that start with ERRAND_ or AMALGM_ are set by the machine"
	const credential = "must be the name of a credential: 1 to 64 letters, digits, _, . or -"
	for _, tt := range []struct{ name, plan, path, message string }{
		{"not an object", `[]`, "", "must be an object, not an array"},
		{"null", `null`, "", "must be an object, not null"},
		{"no version", `{"steps":[` + actionStep(``) + `]}`, "version", "is required"},
		{"no steps", `{"version":2}`, "steps", "is required"},
		{"unknown member", `{"version":1,"step":[],"steps":[` + actionStep(``) + `]}`, "step", `is not a known member; did you mean "steps"?`},
		{"duplicate member", `{"version":1,"version":1,"steps":[` + actionStep(``) + `]}`, "version", "is a duplicate member"},
		{"version 3", `{"version":3,"steps":[{"parallel":[]}]}`, "version", "3 is not a supported plan version; this service supports 1 and 2"},
		{"version 0", `{"version":0,"steps":[]}`, "version", "0 is not a supported plan version; this service supports 1 and 2"},
		{"version text", `{"version":"2","steps":[` + actionStep(``) + `]}`, "version", "must be an integer, not a string"},
		{"version 1.0", `{"version":1.0,"steps":[` + actionStep(``) + `]}`, "version", "must be an integer without fraction or exponent, not 1.0"},
		{"steps object", `{"version":1,"steps":{}}`, "steps", "must be an array, not an object"},
		{"steps null", `{"version":1,"steps":null}`, "steps", "must be an array, not null"},
		{"empty steps", plan1(``), "steps", "holds 0 steps; a plan has 1 to 100"},
		{"101 steps", plan2(repeat(actionStep(``), 101)), "steps", "holds 101 steps; a plan has 1 to 100"},
		{"step not an object", plan2(`"true"`), "steps[0]", "must be an object, not a string"},
		{"no id", plan1(`{"actionId":"x.y","input":1}`), "steps[0].id", "is required"},
		{"empty id", plan1(`{"id":"","actionId":"x.y","input":1}`), "steps[0].id", id},
		{"id with a digit first", plan1(`{"id":"1a","actionId":"x.y","input":1}`), "steps[0].id", id},
		{"id with a dot", plan1(`{"id":"a.b","actionId":"x.y","input":1}`), "steps[0].id", id},
		{"id with a newline", plan1(`{"id":"a\n","actionId":"x.y","input":1}`), "steps[0].id", id},
		{"long id", plan1(`{"id":"` + strings.Repeat("a", 65) + `","actionId":"x.y","input":1}`), "steps[0].id", id},
		{"id with NUL", plan1(`{"id":"a\u0000","actionId":"x.y","input":1}`), "steps[0].id", "must not contain a NUL character"},
		{"duplicate id", plan2(actionStep(``) + `,` + commandStep(``) + `,` + actionStep(``)), "steps[2].id", `"a" is the id of another step too: steps[0].id`},
		{"kind in version 1", plan1(actionStep(`,"kind":"action"`)), "steps[0].kind", version1},
		{"timeout in version 1", plan1(actionStep(`,"timeoutMs":1`)), "steps[0].timeoutMs", version1},
		{"credential in version 1", plan1(actionStep(`,"credential":"x"`)), "steps[0].credential", version1},
		{"unknown kind", plan2(`{"id":"a","kind":"shell","source":"true"}`), "steps[0].kind", "must be one of action, command or script"},
		{"kind of a wrong type", plan2(`{"id":"a","kind":null}`), "steps[0].kind", "must be a string, not null"},
		{"no actionId", plan2(`{"id":"a","input":1}`), "steps[0].actionId", "is required"},
		{"one part", plan2(`{"id":"a","actionId":"notify","input":1}`), "steps[0].actionId", actionID},
		{"upper case", plan2(`{"id":"a","actionId":"Channels.notify","input":1}`), "steps[0].actionId", actionID},
		{"empty part", plan2(`{"id":"a","actionId":"channels..notify","input":1}`), "steps[0].actionId", actionID},
		{"long actionId", plan2(`{"id":"a","actionId":"x.` + strings.Repeat("y", 200) + `","input":1}`), "steps[0].actionId", "must be at most 200 characters"},
		{"no input", plan2(`{"id":"a","actionId":"x.y"}`), "steps[0].input", "is required"},
		{"credential", plan2(actionStep(`,"credential":"a b"`)), "steps[0].credential", credential},
		{"empty credential", plan2(actionStep(`,"credential":""`)), "steps[0].credential", credential},
		{"command on an action", plan2(actionStep(`,"command":"true"`)), "steps[0].command", "belongs to command steps; this is an action, since it has no kind"},
		{"env on an action", plan2(actionStep(`,"env":{}`)), "steps[0].env", "belongs to command and script steps; this is an action, since it has no kind"},
		{"source on a command", plan2(commandStep(`,"source":"x"`)), "steps[0].source", "belongs to script steps; this is of kind command"},
		{"input on a command", plan2(commandStep(`,"input":1`)), "steps[0].input", "belongs to action steps; this is of kind command"},
		{"command on a script", plan2(scriptStep(`,"command":"x"`)), "steps[0].command", "belongs to command steps; this is of kind script"},
		{"credential on a script", plan2(scriptStep(`,"credential":"x"`)), "steps[0].credential", "belongs to action steps; this is of kind script"},
		{"unknown step member", plan2(commandStep(`,"arg":["x"]`)), "steps[0].arg", `is not a known member; did you mean "args"?`},
		{"duplicate step member", plan2(commandStep(`,"id":"c"`)), "steps[0].id", "is a duplicate member"},
		{"no command", plan2(`{"id":"c","kind":"command"}`), "steps[0].command", "is required"},
		{"blank command", plan2(`{"id":"c","kind":"command","command":" "}`), "steps[0].command", "must not be empty"},
		{"relative command", plan2(`{"id":"c","kind":"command","command":"bin/tool"}`), "steps[0].command", relative},
		{"dot command", plan2(`{"id":"c","kind":"command","command":"./tool"}`), "steps[0].command", relative},
		{"relative windows command", plan2(`{"id":"c","kind":"command","command":"bin\\tool"}`), "steps[0].command", relative},
		{"newline in command", plan2(`{"id":"c","kind":"command","command":"true\n"}`), "steps[0].command", "must not contain control characters"},
		{"NUL in command", plan2(`{"id":"c","kind":"command","command":"tr\u0000ue"}`), "steps[0].command", "must not contain a NUL character"},
		{"long command", plan2(`{"id":"c","kind":"command","command":"/` + strings.Repeat("x", 131_071) + `"}`), "steps[0].command", "is 131072 bytes; at most 131071 are possible"},
		{"argument", plan2(commandStep(`,"args":["a",1]`)), "steps[0].args[1]", "must be a string, not a number"},
		{"NUL in an argument", plan2(commandStep(`,"args":["a\u0000"]`)), "steps[0].args[0]", "must not contain a NUL character"},
		{"200 KiB argument", plan2(commandStep(`,"args":["a","` + strings.Repeat("x", 200<<10) + `"]`)), "steps[0].args[1]", "is 204800 bytes; one argument may have 131071"},
		{"args null", plan2(commandStep(`,"args":null`)), "steps[0].args", "must be an array, not null"},
		{"relative cwd", plan2(commandStep(`,"cwd":"work"`)), "steps[0].cwd", `must be an absolute path: /… or a drive such as C:\…`},
		{"empty cwd", plan2(commandStep(`,"cwd":""`)), "steps[0].cwd", `must be an absolute path: /… or a drive such as C:\…`},
		{"drive without slash", plan2(commandStep(`,"cwd":"C:work"`)), "steps[0].cwd", `must be an absolute path: /… or a drive such as C:\…`},
		{"home cwd", plan2(scriptStep(`,"cwd":"~/work"`)), "steps[0].cwd", cwdHome},
		{"variable cwd", plan2(scriptStep(`,"cwd":"$HOME"`)), "steps[0].cwd", cwdHome},
		{"NUL in cwd", plan2(scriptStep(`,"cwd":"/\u0000"`)), "steps[0].cwd", "must not contain a NUL character"},
		{"env array", plan2(commandStep(`,"env":["A=1"]`)), "steps[0].env", "must be an object, not an array"},
		{"env number", plan2(commandStep(`,"env":{"A":1}`)), "steps[0].env.A", "must be a string, not a number"},
		{"env name", plan2(commandStep(`,"env":{"A B":""}`)), `steps[0].env["A B"]`, envName},
		{"env name with =", plan2(commandStep(`,"env":{"A=":""}`)), `steps[0].env["A="]`, envName},
		{"env name empty", plan2(commandStep(`,"env":{"":""}`)), `steps[0].env[""]`, envName},
		{"env name with a newline", plan2(commandStep(`,"env":{"A\n":""}`)), `steps[0].env["A\n"]`, envName},
		{"env prefix", plan2(commandStep(`,"env":{"ERRAND_RUN_ID":"x"}`)), "steps[0].env.ERRAND_RUN_ID", envPrefix},
		{"old env prefix", plan2(scriptStep(`,"env":{"AMALGM_X":"x"}`)), "steps[0].env.AMALGM_X", envPrefix},
		{"NUL in env", plan2(commandStep(`,"env":{"A":"\u0000"}`)), "steps[0].env.A", "must not contain a NUL character"},
		{"long variable", plan2(commandStep(`,"env":{"AB":"` + strings.Repeat("x", 131_069) + `"}`)), "steps[0].env.AB", "is 131072 bytes as NAME=value; one variable may have 131071"},
		{"timeout zero", plan2(commandStep(`,"timeoutMs":0`)), "steps[0].timeoutMs", "must be from 1 to 604800000 milliseconds (7 days)"},
		{"timeout of 7 days and 1 ms", plan2(actionStep(`,"timeoutMs":604800001`)), "steps[0].timeoutMs", "must be from 1 to 604800000 milliseconds (7 days)"},
		{"timeout null", plan2(actionStep(`,"timeoutMs":null`)), "steps[0].timeoutMs", "must be an integer, not null"},
		{"no output", plan2(commandStep(`,"maxOutputBytes":0`)), "steps[0].maxOutputBytes", "must be from 1 to 8388608 bytes (8 MiB)"},
		{"much output", plan2(commandStep(`,"maxOutputBytes":8388609`)), "steps[0].maxOutputBytes", "must be from 1 to 8388608 bytes (8 MiB)"},
		{"leftovers", plan2(commandStep(`,"leftovers":"kill"`)), "steps[0].leftovers", "must be one of end or keep"},
		{"no runtime", plan2(`{"id":"s","kind":"script","source":"x"}`), "steps[0].runtime", "is required"},
		{"unknown runtime", plan2(`{"id":"s","kind":"script","runtime":"bash","source":"x"}`), "steps[0].runtime", "must be one of shell, node or python"},
		{"no source", plan2(`{"id":"s","kind":"script","runtime":"node"}`), "steps[0].source", "is required"},
		{"empty source", plan2(`{"id":"s","kind":"script","runtime":"node","source":""}`), "steps[0].source", "must not be empty"},
		{"NUL in source", plan2(`{"id":"s","kind":"script","runtime":"node","source":"\u0000"}`), "steps[0].source", "must not contain a NUL character"},
		{"long source", plan2(`{"id":"s","kind":"script","runtime":"node","source":"` + strings.Repeat("x", 96<<10+1) + `"}`), "steps[0].source", "is 98305 bytes; a script may have 98304 (96 KiB)"},
		{"2 MiB plan", plan2(`{"id":"a","actionId":"x.y","input":"` + strings.Repeat("x", 2<<20) + `"}`), "", "is 2097214 bytes; a plan may have 1048576 (1 MiB)"},
		{"invalid UTF-8", plan2("{\"id\":\"a\",\"actionId\":\"x.y\",\"input\":[\"\xff\"]}"), "steps[0].input[0]", "is not valid UTF-8"},
		{"10,000 levels", plan2(`{"id":"a","actionId":"x.y","input":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + `}`), "steps[0].input" + strings.Repeat("[0]", 61), "is nested deeper than 64 levels"},
		{"duplicate in input", plan2(`{"id":"a","actionId":"x.y","input":{"b":{"c":1,"c":1}}}`), "steps[0].input.b.c", "is a duplicate member"},
		{"trailing data", plan1(actionStep(``)) + "]", "", "is followed by more data; send one JSON value (line 1, byte 80)"},
		{"not JSON", `version: 2`, "", "is not valid JSON: invalid character 'v' at start of value (line 1, byte 1)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, _, err := automation.DecodePlan([]byte(tt.plan))
			want := []automation.Violation{{Path: tt.path, Message: tt.message}}
			if diff := cmp.Diff(want, refused(t, err)); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecodePlanReportsAllViolationsTogether(t *testing.T) {
	t.Parallel()
	plan := plan2(`{"id":"1","command":"x","timeoutMs":0,"nope":1},
		{"id":"b","kind":"command","command":"a/b","args":[1,"\u0000"],"cwd":"x","env":{"A B":"","ERRAND_X":"","C":null}},
		{"id":"b","kind":"script","runtime":"ruby","maxOutputBytes":1.5},
		7`)
	_, _, err := automation.DecodePlan([]byte(plan))
	var got []string
	for _, v := range refused(t, err) {
		got = append(got, v.Path)
	}
	want := []string{
		"steps[0].id", "steps[0].command", "steps[0].timeoutMs", "steps[0].nope", "steps[0].actionId", "steps[0].input",
		"steps[1].command", "steps[1].args[0]", "steps[1].args[1]", "steps[1].cwd",
		`steps[1].env["A B"]`, "steps[1].env.ERRAND_X", "steps[1].env.C",
		"steps[2].runtime", "steps[2].maxOutputBytes", "steps[2].source", "steps[2].id",
		"steps[3]",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("paths (-want +got):\n%s", diff)
	}
}

func TestDecodePlanJudgesStepsWithoutAVersion(t *testing.T) {
	t.Parallel()
	_, _, err := automation.DecodePlan([]byte(`{"steps":[{"id":"c","kind":"command","command":"a/b"}]}`))
	var got []string
	for _, v := range refused(t, err) {
		got = append(got, v.Path)
	}
	if diff := cmp.Diff([]string{"version", "steps[0].command"}, got); diff != "" {
		t.Errorf("paths (-want +got):\n%s", diff)
	}
}

func TestDecodePlanWarns(t *testing.T) {
	t.Parallel()
	const literal = `is passed as it is: only the exact object {"$runInput": true} is replaced by the run's input`
	const program = "is the name of one program and not a command line: arguments belong into args, shell syntax into a script step"
	plan := plan2(`{"id":"a","actionId":"x.y","input":{"list":[{"$runInput":true},{"$runInput":false}],"o p":{"$runInput":true,"x":1}}},
		{"id":"c","kind":"command","command":"ls -l","stdin":{"$runInput":{"$runInput":true}}},
		{"id":"d","kind":"command","command":"/opt/my tool"}`)
	_, warnings, err := automation.DecodePlan([]byte(plan))
	if err != nil {
		t.Fatal(err)
	}
	want := []automation.Violation{
		{Path: "steps[0].input.list[1]", Message: literal},
		{Path: `steps[0].input["o p"]`, Message: literal},
		{Path: "steps[1].command", Message: program},
		{Path: "steps[1].stdin", Message: literal},
	}
	if diff := cmp.Diff(want, warnings); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}

func TestPlanSurvivesEveryEncoder(t *testing.T) {
	t.Parallel()
	// What json.Marshal escapes (<, >, &, U+2028) makes the text longer, up to over the limit.
	plan := plan2(`{"id":"a","actionId":"x.y","input":"` + strings.Repeat("<", 900<<10) + "\u2028" + `"}`)
	first, _, err := automation.DecodePlan([]byte(plan))
	if err != nil {
		t.Fatal(err)
	}
	escaped, err := json.Marshal(first)
	if err != nil {
		t.Fatal(err)
	}
	second, _, err := automation.DecodePlan(escaped)
	if err != nil {
		t.Fatalf("refused after %d bytes became %d: %.200v", len(plan), len(escaped), err)
	}
	if string(second.Steps[0].Input) != string(first.Steps[0].Input) {
		t.Errorf("changed on the way from %.50q… to %.50q…", first.Steps[0].Input, second.Steps[0].Input)
	}
}

func TestSupportsPlanVersion(t *testing.T) {
	t.Parallel()
	for version, want := range map[int]bool{-1: false, 0: false, 1: true, 2: true, 3: false} {
		if got := automation.SupportsPlanVersion(version); got != want {
			t.Errorf("version %d is supported: %t, want %t", version, got, want)
		}
	}
}
