package cli_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/internal/catalog"
	"github.com/errandhq/errand/internal/cli"
)

const runID = "0193f5a0-0000-7000-8000-000000000000"

// seen is a request as the service saw it.
type seen struct {
	Method, Path, Query, Authorization string
	Body                               any
}

// result is what one call of the program did.
type result struct {
	exit           int
	stdout, stderr string
}

// service answers every request with a status and a body, and remembers them.
func service(t *testing.T, status int, body string) (url string, requests *[]seen) {
	t.Helper()
	requests = &[]seen{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request := seen{r.Method, r.URL.Path, r.URL.Query().Encode(), r.Header.Get("Authorization"), nil}
		if content, _ := io.ReadAll(r.Body); len(content) > 0 {
			if err := json.Unmarshal(content, &request.Body); err != nil {
				t.Errorf("the body is no JSON: %s", content)
			}
		}
		*requests = append(*requests, request)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(server.Close)
	return server.URL, requests
}

func call(t *testing.T, environ map[string]string, stdin string, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	dir := t.TempDir()
	if environ["DATA"] != "" {
		dir = environ["DATA"]
	}
	program := &cli.Program{
		Stdin: strings.NewReader(stdin), Stdout: &stdout, Stderr: &stderr,
		Getenv:  func(name string) string { return environ[name] },
		DataDir: func() (string, error) { return dir, nil },
		Alive:   func(pid int) bool { return pid == 1 },
		Version: "v1",
	}
	exit := program.Main(t.Context(), args)
	return result{exit, stdout.String(), stderr.String()}
}

func api(url string) map[string]string {
	return map[string]string{"ERRAND_API_URL": url, "ERRAND_API_KEY": "key"}
}

// oneErrorLine checks the form of a refusal and returns its code.
func oneErrorLine(t *testing.T, r result) string {
	t.Helper()
	if r.stdout != "" || strings.Count(r.stderr, "\n") != 1 {
		t.Errorf("a refusal is one line on stderr and nothing on stdout: %+v", r)
	}
	var envelope struct {
		Error struct{ Code, Message string }
	}
	if err := json.Unmarshal([]byte(r.stderr), &envelope); err != nil || envelope.Error.Message == "" {
		t.Fatalf("no error envelope: %v: %s", err, r.stderr)
	}
	return envelope.Error.Code
}

func TestRequests(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	create := `{"name":"x","workflow":{"script":"do"}}`
	createYAML := "# a comment\nname: x\nworkflow:\n  script: do\n"
	created := seen{"POST", "/v1/automations", "", "Bearer key", map[string]any{"name": "x", "workflow": map[string]any{"script": "do"}}}
	tests := map[string]struct {
		args  []string
		stdin string
		want  seen
	}{
		"input":                       {[]string{"create", "--input", create}, "", created},
		"the noun before it":          {[]string{"automations", "create", "--input=" + create}, "", created},
		"a JSON file":                 {[]string{"create", "--file", write("a.json", create)}, "", created},
		"a YAML file":                 {[]string{"create", "--file", write("a.yaml", createYAML)}, "", created},
		"a YAML file of another name": {[]string{"create", "--file", write("a.txt", createYAML)}, "", created},
		"YAML that looks like JSON":   {[]string{"create", "--stdin"}, "{name: x, workflow: {script: do}}", created},
		"standard input":              {[]string{"create", "--stdin"}, create, created},
		"YAML on standard input":      {[]string{"create", "--stdin"}, createYAML, created},
		"a file named -":              {[]string{"create", "--file", "-"}, create, created},
		"no input":                    {[]string{"list"}, "", seen{"GET", "/v1/automations", "", "Bearer key", nil}},
		"a query": {
			[]string{"list", "--input", `{"enabled":true,"limit":5,"query":"a&b=c d"}`},
			"",
			seen{"GET", "/v1/automations", "enabled=true&limit=5&query=a%26b%3Dc+d", "Bearer key", nil},
		},
		"an id in the path": {
			[]string{"run", "--input", `{"run_id":"` + runID + `","wait_ms":5}`},
			"",
			seen{"GET", "/v1/runs/" + runID, "wait_ms=5", "Bearer key", nil},
		},
		"an id in the path and the rest in the body": {
			[]string{"cancel-run", "--input", `{"run_id":"` + runID + `","reason":"why","force":true}`},
			"",
			seen{"POST", "/v1/runs/" + runID + "/cancel", "", "Bearer key", map[string]any{"reason": "why", "force": true}},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, requests := service(t, 200, `{"a":"<b>","n":1.0}`)
			r := call(t, api(url), test.stdin, test.args...)
			if r.exit != 0 || r.stderr != "" || r.stdout != `{"result":{"a":"<b>","n":1.0}}`+"\n" {
				t.Errorf("%+v", r)
			}
			if diff := cmp.Diff([]seen{test.want}, *requests); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestUsageErrorsCallNobody(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		args  []string
		stdin string
	}{
		"no command":             {nil, ""},
		"an unknown command":     {[]string{"destroy"}, ""},
		"an unknown flag":        {[]string{"list", "--colour"}, ""},
		"an argument too many":   {[]string{"list", "x"}, ""},
		"two inputs":             {[]string{"list", "--input", "{}", "--stdin"}, "{}"},
		"two inputs of one kind": {[]string{"list", "--file", "-", "--input", "{}"}, "{}"},
		"no UTF-8":               {[]string{"create", "--input", "{\"name\":\"caf\xe9\"}"}, ""},
		"YAML that is no UTF-8":  {[]string{"create", "--stdin"}, "name: caf\xe9\n"},
		"one input twice":        {[]string{"list", "--input", "{}", "--input", "{}"}, ""},
		"one file twice":         {[]string{"list", "--file", "-", "--file", "-"}, "{}"},
		"two YAML documents":     {[]string{"create", "--stdin"}, "name: x\n---\nname: y\n"},
		"YAML that is too deep":  {[]string{"create", "--stdin"}, "name: " + strings.Repeat("[", 200_000)},
		"no object":              {[]string{"list", "--input", "[]"}, ""},
		"a string":               {[]string{"list", "--stdin"}, `"x"`},
		"no JSON":                {[]string{"list", "--input", "{"}, ""},
		"no YAML":                {[]string{"list", "--stdin"}, "a: b: c"},
		"duplicate YAML keys":    {[]string{"list", "--stdin"}, "limit: 1\nlimit: 2\n"},
		"an unknown member":      {[]string{"list", "--input", `{"colour":1}`}, ""},
		"a duplicate member":     {[]string{"list", "--input", `{"limit":1,"limit":2}`}, ""},
		"a missing id":           {[]string{"run"}, ""},
		"an id that is none":     {[]string{"run", "--input", `{"run_id":"../x"}`}, ""},
		"a file that is missing": {[]string{"list", "--file", "/does/not/exist"}, ""},
		"an empty file name":     {[]string{"list", "--file", ""}, ""},
		"a drain of none":        {[]string{"worker", "--drain", "x"}, ""},
		"no concurrency":         {[]string{"worker", "--concurrency", "0"}, ""},
		"a bad plan":             {[]string{"create", "--input", `{"name":"x","workflow":{"compiled":{"version":3,"steps":[]}}}`}, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, requests := service(t, 200, `{}`)
			r := call(t, api(url), test.stdin, test.args...)
			if code := oneErrorLine(t, r); r.exit != 2 || code != "validation_failed" {
				t.Errorf("%+v", r)
			}
			if len(*requests) > 0 {
				t.Errorf("somebody was called: %+v", *requests)
			}
		})
	}
}

func TestUsageErrorsSayWhereToReadOn(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"":                      "no command was given; see errand --help",
		"lst":                   "did you mean one of \\\"get\\\", \\\"list\\\"?; see errand --help",
		"get x":                 "see errand get --help",
		"machine enroll":        "missing flags: --code=CODE, --server=URL; see errand machine enroll --help",
		"machine-enroll":        "see errand machine enroll --help",
		"worker --colour":       "see errand worker --help",
		"completion":            "see errand completion --help",
		"mcp --log-format=loud": "see errand mcp --help",
	} {
		if r := call(t, nil, "", strings.Fields(args)...); r.exit != 2 || !strings.Contains(r.stderr, want) {
			t.Errorf("errand %s: %+v, want %s", args, r, want)
		}
	}
}

func TestRefusalsKeepTheirCodeAndStatus(t *testing.T) {
	t.Parallel()
	url, _ := service(t, 409, `{"error":{"code":"machine_revoked","message":"gone","details":[{"path":"a","message":"b"}]}}`)
	r := call(t, api(url), "", "list")
	want := `{"error":{"code":"machine_revoked","message":"gone","status":409,"details":[{"path":"a","message":"b"}]}}` + "\n"
	if r.exit != 1 || r.stderr != want {
		t.Errorf("%+v, want %s", r, want)
	}
}

func TestALocalRouteWithoutItsServerIsUnavailable(t *testing.T) {
	t.Parallel()
	url, _ := service(t, 502, `{"error":{"code":"runtime_unavailable","message":"the control plane is away"}}`)
	if r := call(t, api(url), "", "list"); r.exit != 3 || oneErrorLine(t, r) != "runtime_unavailable" {
		t.Errorf("%+v", r)
	}
}

func TestUnavailable(t *testing.T) {
	t.Parallel()
	html, _ := service(t, 502, `<html>bad gateway</html>`)
	noJSON, _ := service(t, 200, `<html>hello</html>`)
	tests := map[string]struct {
		environ map[string]string
		says    string
	}{
		"nothing runs":              {nil, "errandd"},
		"a URL without a key":       {map[string]string{"ERRAND_API_URL": "http://x"}, "ERRAND_API_KEY"},
		"a key without a URL":       {map[string]string{"ERRAND_API_KEY": "x"}, "ERRAND_API_URL"},
		"an MCP URL without token":  {map[string]string{"ERRAND_MCP_URL": "http://x"}, "ERRAND_RUNTIME_TOKEN"},
		"a token without MCP URL":   {map[string]string{"ERRAND_RUNTIME_TOKEN": "x"}, "ERRAND_MCP_URL"},
		"nobody listens":            {api("http://127.0.0.1:1"), "127.0.0.1:1"},
		"no URL":                    {api("::"), "ERRAND_API_URL"},
		"something else answers":    {api(html), "502"},
		"something answers no JSON": {api(noJSON), "not JSON"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := call(t, test.environ, "", "list")
			if code := oneErrorLine(t, r); r.exit != 3 || code != "runtime_unavailable" || !strings.Contains(r.stderr, test.says) {
				t.Errorf("%+v, want it to say %s", r, test.says)
			}
		})
	}
}

func TestServiceIsFoundInOrder(t *testing.T) {
	t.Parallel()
	urls, requests := map[string]string{}, map[string]*[]seen{}
	for _, name := range []string{"mcp", "api", "worker", "server"} {
		urls[name], requests[name] = service(t, 200, `{}`)
	}
	dir := t.TempDir()
	write := func(name, url string, pid int) {
		content := fmt.Sprintf(`{"url":%q,"token":"file","pid":%d}`, url, pid)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("server.json", urls["server"], 1)
	expect := func(name, token string, environ map[string]string) {
		t.Helper()
		if r := call(t, environ, "", "list"); r.exit != 0 {
			t.Fatalf("%s: %+v", name, r)
		}
		if got := *requests[name]; len(got) != 1 || got[0].Authorization != "Bearer "+token {
			t.Errorf("%s: %+v", name, got)
		}
	}
	environ := map[string]string{"DATA": dir}
	expect("server", "file", environ)
	write("worker.json", urls["worker"], 1)
	expect("worker", "file", environ)

	// What a machine may not do goes to the control plane itself where there is one here, else to the worker.
	*requests["server"], *requests["worker"] = nil, nil
	if r := call(t, environ, "", "keys"); r.exit != 0 || len(*requests["server"]) != 1 || len(*requests["worker"]) != 0 {
		t.Errorf("keys: %+v", r)
	}
	write("server.json", urls["server"], 2) // its process is gone
	if r := call(t, environ, "", "keys"); r.exit != 0 || len(*requests["worker"]) != 1 {
		t.Errorf("keys on a machine: %+v", r)
	}
	write("server.json", urls["server"], 1)
	environ["ERRAND_API_URL"], environ["ERRAND_API_KEY"] = urls["api"]+"/", "key"
	expect("api", "key", environ)
	environ["ERRAND_MCP_URL"], environ["ERRAND_RUNTIME_TOKEN"] = urls["mcp"]+"/mcp/automations", "token"
	expect("mcp", "token", environ)

	for _, content := range []string{"", "{", "[]", `{"pid":1}`} {
		broken := t.TempDir()
		if err := os.WriteFile(filepath.Join(broken, "server.json"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if r := call(t, map[string]string{"DATA": broken}, "", "list"); r.exit != 3 || !strings.Contains(r.stderr, "server.json is damaged") {
			t.Errorf("%q: %+v", content, r)
		}
	}

	write("worker.json", urls["worker"], 2) // its process is gone
	*requests["server"] = nil
	expect("server", "file", map[string]string{"DATA": dir})
}

func TestHelpNeedsNothing(t *testing.T) {
	t.Parallel()
	broken := map[string]string{"ERRAND_API_URL": "half a pair"}
	for _, args := range [][]string{{"--help"}, {"-h"}, {"help"}, {"automations", "--help"}, {"nonsense", "--help"}} {
		r := call(t, broken, "", args...)
		if r.exit != 0 || r.stderr != "" || !strings.Contains(r.stdout, "Usage: errand") {
			t.Errorf("%v: %+v", args, r)
		}
	}
	for _, command := range catalog.Commands() {
		for _, args := range [][]string{
			{command.Name, "--help"},
			{"--help", command.Name},
			{"automations", command.Name, "-h"},
			{command.Name, "--input", "{broken", "--nonsense", "--help"},
			{"help", command.Name},
		} {
			r := call(t, broken, "", args...)
			if r.exit != 0 || r.stderr != "" || !strings.Contains(r.stdout, command.Contract) || !strings.Contains(r.stdout, command.Example) {
				t.Errorf("%v: %+v", args, r)
			}
			for _, member := range catalog.Members(command.Input) {
				if !strings.Contains(r.stdout, "  "+member.Name+" ") {
					t.Errorf("%v does not say %s", args, member.Name)
				}
			}
		}
		if err := command.Check([]byte(command.Example)); err != nil {
			t.Errorf("the example of %s does not pass its own rules: %v", command.Name, err)
		}
	}
}

func TestPrettyAndVersion(t *testing.T) {
	t.Parallel()
	url, _ := service(t, 200, `{"a":[1]}`)
	if r := call(t, api(url), "", "list", "--pretty"); r.stdout != "{\n  \"result\": {\n    \"a\": [\n      1\n    ]\n  }\n}\n" {
		t.Errorf("%+v", r)
	}
	if r := call(t, nil, "", "get", "--pretty"); r.exit != 2 || !strings.HasPrefix(r.stderr, "{\n  \"error\": {\n") {
		t.Errorf("errors are indented too: %+v", r)
	}
	if r := call(t, nil, "", "--version"); r.exit != 0 || r.stdout != `{"result":{"version":"v1"}}`+"\n" {
		t.Errorf("%+v", r)
	}
	if r := call(t, nil, "", "version"); r.exit != 0 || r.stdout != `{"result":{"version":"v1"}}`+"\n" {
		t.Errorf("%+v", r)
	}
}
