package automation_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/strictjson"
)

const someMachine = "01936b2e-4f3a-7c11-8a44-3a1b5c6d7e8f"

func TestDecodeDefinition(t *testing.T) {
	t.Parallel()
	callMom := automation.Plan{Version: 1, Steps: []automation.Step{{
		ID: "notify", ActionID: "channels.notify_user",
		Input: []byte(`{"title":"Reminder","message":"Call Mom"}`),
	}}}
	for _, tt := range []struct {
		name, document string
		want           automation.Definition
	}{
		{"draft", `{"name":"A"}`, automation.Definition{Name: "A", Enabled: true}},
		{
			"nulls mean defaults",
			`{"name":"A","description":null,"enabled":null,"machineId":null,"workflow":null,"schedules":null,"webhooks":null}`,
			automation.Definition{Name: "A", Enabled: true},
		},
		{
			"nulls in the workflow", `{"name":"A","workflow":{"script":null,"compiled":null}}`,
			automation.Definition{Name: "A", Enabled: true},
		},
		{
			"everything",
			`{"name":"Call Mom","description":"a\nb","enabled":false,"machineId":"` + strings.ToUpper(someMachine) + `",
			 "workflow":{"script":"Notify me to call Mom.","compiled":{"version":1,"steps":[
			   {"id":"notify","actionId":"channels.notify_user","input":{"title":"Reminder","message":"Call Mom"}}]}},
			 "schedules":[],"webhooks":[]}`,
			automation.Definition{
				Name: "Call Mom", Description: "a\nb", MachineID: someMachine,
				Workflow: automation.Workflow{Script: "Notify me to call Mom.", Compiled: &callMom},
			},
		},
		{
			"longest texts",
			`{"name":"` + strings.Repeat("é", 200) + `","description":"` + strings.Repeat("é", 4000) +
				`","workflow":{"script":"` + strings.Repeat("x", 64<<10) + `"}}`,
			automation.Definition{
				Name: strings.Repeat("é", 200), Description: strings.Repeat("é", 4000), Enabled: true,
				Workflow: automation.Workflow{Script: strings.Repeat("x", 64<<10)},
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, warnings, err := automation.DecodeDefinition([]byte(tt.document))
			if err != nil || len(warnings) > 0 {
				t.Fatalf("refused: %v, warnings %v", err, warnings)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("definition (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecodeDefinitionReportsViolation(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, document, path, message string }{
		{"no name", `{}`, "name", "is required"},
		{"null name", `{"name":null}`, "name", "must be a string, not null"},
		{"empty name", `{"name":""}`, "name", "must not be blank"},
		{"blank name", `{"name":" \u3000"}`, "name", "must not be blank"},
		{"newline in name", `{"name":"a\nb"}`, "name", "must not contain control characters"},
		{"C1 control in name", `{"name":"a\u0085b"}`, "name", "must not contain control characters"},
		{"NUL in name", `{"name":"a\u0000b"}`, "name", "must not contain a NUL character"},
		{"long name", `{"name":"` + strings.Repeat("é", 201) + `"}`, "name", "is 201 characters; at most 200 are possible"},
		{"long description", `{"name":"A","description":"` + strings.Repeat("x", 4001) + `"}`, "description", "is 4001 characters; at most 4000 are possible"},
		{"enabled text", `{"name":"A","enabled":"yes"}`, "enabled", "must be true or false, not a string"},
		{"machine name", `{"name":"A","machineId":"laptop"}`, "machineId", "must be the id of a machine, a UUID"},
		{"machine in other case", `{"name":"A","machine_id":"laptop"}`, "machine_id", `is not a known member; did you mean "machineId"?`},
		{"server field", `{"name":"A","version":3}`, "version", "is not a known member"},
		{"workflow text", `{"name":"A","workflow":"do it"}`, "workflow", "must be an object, not a string"},
		{"unknown in workflow", `{"name":"A","workflow":{"steps":[]}}`, "workflow.steps", "is not a known member"},
		{"NUL in script", `{"name":"A","workflow":{"script":"\u0000"}}`, "workflow.script", "must not contain a NUL character"},
		{"long script", `{"name":"A","workflow":{"script":"` + strings.Repeat("x", 64<<10+1) + `"}}`, "workflow.script", "is 65537 bytes; the text of a workflow may have 65536 (64 KiB)"},
		{"plan", `{"name":"A","workflow":{"compiled":{"version":2,"steps":[` + commandStep(`,"args":[""],"args":[]`) + `]}}}`, "workflow.compiled.steps[0].args", "is a duplicate member"},
		{"argument", `{"name":"A","workflow":{"compiled":{"version":2,"steps":[` + actionStep(``) + `,` + commandStep(`,"args":[0]`) + `]}}}`, "workflow.compiled.steps[1].args[0]", "must be a string, not a number"},
		{"version 3", `{"name":"A","workflow":{"compiled":{"version":3,"steps":[]}}}`, "workflow.compiled.version", "3 is not a supported plan version; this service supports 1 and 2"},
		{"duplicate step id", `{"name":"A","workflow":{"compiled":{"version":2,"steps":[` + actionStep(``) + `,` + actionStep(``) + `]}}}`, "workflow.compiled.steps[1].id", `"a" is the id of another step too: workflow.compiled.steps[0].id`},
		{"2 MiB plan", `{"name":"A","workflow":{"compiled":{"version":1,"steps":[{"id":"a","actionId":"x.y","input":"` + strings.Repeat("x", 2<<20) + `"}]}}}`, "workflow.compiled", "is 2097214 bytes; a plan may have 1048576 (1 MiB)"},
		{"schedule without zone", `{"name":"A","schedules":[{"every":"1m"},{"cron":"* * * * *"}]}`, "schedules[1].timezone", "is required with cron; write an IANA name, such as Europe/Berlin, or UTC"},
		{"schedule of nothing", `{"name":"A","schedules":[{}]}`, "schedules[0]", "has no time; a schedule has exactly one of cron (with timezone), every and at"},
		{"schedule of two kinds", `{"name":"A","schedules":[{"every":"1m","at":"2030-01-01T00:00:00Z"}]}`, "schedules[0]", "has every and at; a schedule has exactly one of cron (with timezone), every and at"},
		{"unknown in schedule", `{"name":"A","schedules":[{"every":"1m","jitter":5}]}`, "schedules[0].jitter", `is not a known member; did you mean "jitterMs"?`},
		{"policy of schedule", `{"name":"A","schedules":[{"every":"1m","overlap":"wait"}]}`, "schedules[0].overlap", `"wait" is not known; write one of ["queue" "parallel" "skip" "queue_one" "cancel_running"]`},
		{"large schedule input", `{"name":"A","schedules":[{"every":"1m","input":"` + strings.Repeat("x", 1<<20) + `"}]}`, "schedules[0].input", "is 1048578 bytes; a run input is at most 1048576: pass a path or a URL instead of the data"},
		{"many schedules", `{"name":"A","schedules":[` + strings.Repeat(`{"every":"1m"},`, 100) + `{"every":"1m"}]}`, "schedules", "holds 101 schedules; an automation may have 100"},
		{"webhooks object", `{"name":"A","webhooks":{}}`, "webhooks", "must be an array, not an object"},
		{"schedules object", `{"name":"A","schedules":{}}`, "schedules", "must be an array, not an object"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, _, err := automation.DecodeDefinition([]byte(tt.document))
			want := []automation.Violation{{Path: tt.path, Message: tt.message}}
			if diff := cmp.Diff(want, refused(t, err)); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDefinitionInputIsPartOfACommand(t *testing.T) {
	t.Parallel()
	type create struct {
		automation.DefinitionInput
		IdempotencyKey string `json:"idempotency_key"`
	}
	var in create
	if violations := strictjson.Unmarshal([]byte(`{"name":"A","idempotency_key":"k"}`), &in); violations != nil {
		t.Fatalf("violations: %v", violations)
	}
	if d := in.Definition(); d.Name != "A" || !d.Enabled || in.IdempotencyKey != "k" {
		t.Errorf("decoded %+v", in)
	}
	bad := `{"name":"","idempotency_key":1,"idempotency":2,"workflow":{"compiled":{"version":2,"steps":[]}}}`
	var got []string
	for _, v := range strictjson.Unmarshal([]byte(bad), new(create)) {
		got = append(got, v.Path)
	}
	want := []string{"name", "idempotency_key", "idempotency", "workflow.compiled.steps"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("paths (-want +got):\n%s", diff)
	}
}

func TestMachineRequestsDecodeStrictly(t *testing.T) {
	t.Parallel()
	var hello automation.Hello
	document := `{"instance":{"directoryId":"d","bootId":"b","start":3,"host":"h"},"version":"v","platform":"linux/amd64",
		"labels":{"a":"b"},"concurrency":4,"held":[{"runId":"r","stepId":"s","execution":2,"state":"running"}]}`
	if violations := strictjson.Unmarshal([]byte(document), &hello); violations != nil {
		t.Fatalf("violations: %v", violations)
	}
	want := automation.Hello{
		Instance: automation.Instance{DirectoryID: "d", BootID: "b", Start: 3, Host: "h"}, Version: "v", Platform: "linux/amd64",
		Labels: map[string]string{"a": "b"}, Concurrency: 4,
		Held: []automation.Held{{StepRef: automation.StepRef{RunID: "r", StepID: "s"}, Execution: 2, State: automation.HeldRunning}},
	}
	if diff := cmp.Diff(want, hello); diff != "" {
		t.Errorf("hello (-want +got):\n%s", diff)
	}
	var finish automation.FinishRequest
	document = `{"runId":"r","stepId":"s","execution":1,"outcome":"failed","result":{"a": 1.0},"error":{"code":"timed_out","message":"m","more":1}}`
	got := strictjson.Unmarshal([]byte(document), &finish)
	if diff := cmp.Diff([]automation.Violation{{Path: "error.more", Message: "is not a known member"}}, got); diff != "" {
		t.Errorf("violations (-want +got):\n%s", diff)
	}
	if finish.RunID != "r" || string(finish.Result) != `{"a":1.0}` {
		t.Errorf("finish is %+v", finish)
	}
}
