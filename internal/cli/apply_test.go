package cli_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/internal/catalog"
)

// folder writes files into a new folder.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestApplyReadsDocuments(t *testing.T) {
	t.Parallel()
	dir := folder(t, map[string]string{
		"b.json":        `{"name":"b"}`,
		"a.yaml":        "# the first\nname: a1\n---\nname: a2\n---\n# nothing\n",
		"c.YML":         "automations: [{name: c1}, {name: c2}]\n",
		"d.json":        `{"result":{"automations":[{"name":"d"}],"next_cursor":"more"}}`,
		".hidden.json":  `{"name":"hidden"}`,
		"notes.txt":     "no definition",
		"below/e.json":  `{"name":"below"}`,
		"f.json.backup": `{"name":"backup"}`,
	})
	all := []any{}
	for _, name := range []string{"a1", "a2", "b", "c1", "c2", "d"} {
		all = append(all, map[string]any{"name": name})
	}
	one := []any{map[string]any{"name": "b"}}
	tests := map[string]struct {
		args  []string
		stdin string
		want  map[string]any
	}{
		"a folder":             {[]string{"--file", dir}, "", map[string]any{"automations": all}},
		"a folder, dry":        {[]string{"--file", dir, "--dry-run"}, "", map[string]any{"automations": all, "dry_run": true}},
		"a file":               {[]string{"--file", filepath.Join(dir, "b.json")}, "", map[string]any{"automations": one}},
		"its own input":        {[]string{"--input", `{"automations":[{"name":"b"}],"dry_run":true}`}, "", map[string]any{"automations": one, "dry_run": true}},
		"a definition":         {[]string{"--input", `{"name":"b"}`}, "", map[string]any{"automations": one}},
		"what export prints":   {[]string{"--stdin"}, `{"result":{"automations":[{"name":"b"}]}}`, map[string]any{"automations": one}},
		"documents from stdin": {[]string{"--file", "-"}, "name: b\n---\nname: c\n", map[string]any{"automations": []any{map[string]any{"name": "b"}, map[string]any{"name": "c"}}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, requests := service(t, 200, `{}`)
			if r := call(t, api(url), test.stdin, append([]string{"apply"}, test.args...)...); r.exit != 0 {
				t.Fatalf("%+v", r)
			}
			if diff := cmp.Diff([]seen{{"POST", "/v1/apply", "", "Bearer key", test.want}}, *requests); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestApplyRefusesBeforeAnyCall(t *testing.T) {
	t.Parallel()
	bad := folder(t, map[string]string{"a.json": `{"name":"a"}`, "b.yaml": "name: b\n---\nname: c\nnmae: x\n"})
	tests := map[string]struct {
		args  []string
		stdin string
		says  string
	}{
		"no input":                        {nil, "", "automations"},
		"a folder of none":                {[]string{"--file", folder(t, map[string]string{"a.txt": "x"})}, "", "holds no file"},
		"a mistake in a file of a folder": {[]string{"--file", bad}, "", `"path":"automations[2].nmae","message":"is not a known member; did you mean \"name\"? (in ` + filepath.Join(bad, "b.yaml") + ")"},
		"a file of a folder that is none": {[]string{"--file", folder(t, map[string]string{"a.json": `{"name":`})}, "", "a.json"},
		"what would splice":               {[]string{"--input", `{"name":"a"}],"dry_run":false,"x":[{}`}, "", "input"},
		"a member beside the list":        {[]string{"--input", `{"automations":[],"name":"x"}`}, "", "name"},
		"the list twice":                  {[]string{"--input", `{"automations":[],"automations":[]}`}, "", "automations"},
		"a list that is none":             {[]string{"--input", `{"automations":{}}`}, "", "automations"},
		"a text":                          {[]string{"--input", `"x"`}, "", "automations[0]"},
		"a folder for another command":    {[]string{"create", "--file", bad}, "", "is a folder"},
		"a dry run of another command":    {[]string{"create", "--dry-run"}, "", "--dry-run"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := test.args
			if len(args) == 0 || args[0] != "create" {
				args = append([]string{"apply"}, args...)
			}
			url, requests := service(t, 200, `{}`)
			r := call(t, api(url), test.stdin, args...)
			if code := oneErrorLine(t, r); r.exit != 2 || code != "validation_failed" || !strings.Contains(r.stderr, test.says) || len(*requests) > 0 {
				t.Errorf("%+v, want it to say %s", r, test.says)
			}
		})
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	url, _ := service(t, 200, `{"id":"1","name":"A \u001b[31mred\u0007 one","steps":[{"id":"a","output":{"stdout":"x\ny\n","exitCode":0}},{"id":"b"}],"none":[],"input":null,"tags":["p","q"]}`)
	want := "id: 1\nname: A \ufffd[31mred\ufffd one\nsteps:\n  - id: a\n    output:\n      stdout:\n        x\n        y\n      exitCode: 0\n  - id: b\n" +
		"none: -\ninput: null\ntags:\n  - p\n  - q\n"
	r := call(t, api(url), "", "list", "--text")
	if diff := cmp.Diff(want, r.stdout); diff != "" || r.exit != 0 {
		t.Error(diff)
	}
	r = call(t, nil, "", "get", "--text")
	if r.exit != 2 || r.stdout != "" || !strings.HasPrefix(r.stderr, "code: validation_failed\nmessage: automation_id: is required\ndetails:\n  - path: automation_id\n") {
		t.Errorf("%+v", r)
	}
	if r := call(t, nil, "", "list", "--text", "--pretty"); r.exit != 2 {
		t.Errorf("two forms: %+v", r)
	}
}

func TestTopics(t *testing.T) {
	t.Parallel()
	overview := call(t, nil, "", "--help").stdout
	for _, topic := range catalog.Topics() {
		r := call(t, nil, "", "help", topic.Name)
		if r.exit != 0 || !strings.Contains(r.stdout, topic.Text) || !strings.Contains(overview, topic.Name+" ") {
			t.Errorf("%s: %+v", topic.Name, r)
		}
	}
	if r := call(t, nil, "", "help", "errors"); !strings.Contains(r.stdout, "version_conflict (409)") || !strings.Contains(r.stdout, "killed_by_signal") {
		t.Errorf("%+v", r)
	}
}

// TestCompletion lets a shell read the script of each, and bash complete with it.
func TestCompletion(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish"} {
		r := call(t, nil, "", "completion", shell)
		if r.exit != 0 || r.stderr != "" {
			t.Fatalf("%+v", r)
		}
		for _, command := range catalog.Commands() {
			if !strings.Contains(r.stdout, command.Name) {
				t.Errorf("%s does not know %s", shell, command.Name)
			}
		}
		if path, err := exec.LookPath(shell); err == nil {
			check := exec.CommandContext(t.Context(), path, "-n")
			check.Stdin = strings.NewReader(r.stdout)
			if output, err := check.CombinedOutput(); err != nil {
				t.Errorf("%s: %v %s", shell, err, output)
			}
		}
	}
	if r := call(t, nil, "", "completion", "tcsh"); r.exit != 2 {
		t.Errorf("%+v", r)
	}
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Fatalf("bash completes nothing without bash: %v", err)
	}
	script := call(t, nil, "", "completion", "bash").stdout
	for line, want := range map[string]string{
		"errand canc":                "cancel-run",
		"errand automations canc":    "cancel-run",
		"errand create --pr":         "--pretty",
		"errand apply --dry":         "--dry-run",
		"errand create --dry":        "",
		"errand help err":            "errors",
		"errand completion fi":       "fish",
		"errand run-now --input x-y": "",
	} {
		words := strings.Fields(line)
		ask := script + "\nCOMP_WORDS=(" + line + "); COMP_CWORD=" + string(rune('0'+len(words)-1)) + "; _errand; printf '%s ' \"${COMPREPLY[@]}\""
		output, err := exec.CommandContext(t.Context(), bash, "--norc", "-c", ask).CombinedOutput()
		if got := strings.TrimSpace(string(output)); err != nil || (want == "") != (got == "") || !strings.HasPrefix(got, want) {
			t.Errorf("%s: %v %q, want %q", line, err, got, want)
		}
	}
}
