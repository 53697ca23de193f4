package machineconfig_test

import (
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/internal/machineconfig"
)

const full = `
path: /opt/tools:/usr/bin
mcpServers:
  files: {command: npx, args: [-y, "server", "1"], env: {ROOT: /srv, N: "1"}, cwd: /srv}
  forge:
    type: http
    url: https://forge.example.com/mcp
    headers: {X-Team: "a b"}
    credential: forge
credentials:
  forge: {value: Bearer s3cret, hosts: [forge.example.com]}
  key: {header: X-Api-Key, file: /etc/key, hosts: ["*.example.com", "localhost:8080"]}
channels:
  phone: {url: "ntfy://:s3cret@ntfy.example.com/topic"}
  team_chat-1: {file: /etc/chat}
http:
  redirects: none
  refusePrivateAddresses: true
`

func TestParse(t *testing.T) {
	t.Parallel()
	want := machineconfig.Config{
		Path: "/opt/tools:/usr/bin",
		MCPServers: map[string]machineconfig.MCPServer{
			"files": {Command: "npx", Args: []string{"-y", "server", "1"}, Env: map[string]string{"ROOT": "/srv", "N": "1"}, Cwd: "/srv"},
			"forge": {Type: "http", URL: "https://forge.example.com/mcp", Headers: map[string]string{"X-Team": "a b"}, Credential: "forge"},
		},
		Credentials: map[string]machineconfig.Credential{
			"forge": {Value: "Bearer s3cret", Hosts: []string{"forge.example.com"}},
			"key":   {Header: "X-Api-Key", File: "/etc/key", Hosts: []string{"*.example.com", "localhost:8080"}},
		},
		Channels: map[string]machineconfig.Channel{
			"phone":       {URL: "ntfy://:s3cret@ntfy.example.com/topic"},
			"team_chat-1": {File: "/etc/chat"},
		},
		HTTP: machineconfig.HTTP{Redirects: machineconfig.RedirectsNone, RefusePrivateAddresses: true},
	}
	got, violations := machineconfig.Parse([]byte(full))
	if len(violations) > 0 {
		t.Fatal(violations)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, empty := range []string{"", " \n", "# nothing yet\n", "{}"} {
		if got, violations := machineconfig.Parse([]byte(empty)); len(violations) > 0 || !cmp.Equal(got, machineconfig.Config{}) {
			t.Errorf("%q: %+v, %v", empty, got, violations)
		}
	}
}

func TestParseNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, text, path, says string }{
		{"no YAML", "path: [", "", "YAML"},
		{"a list", "- a", "", "object"},
		{"an unknown member", "paths: /a", "paths", "path"},
		{"a member twice", "path: /a\npath: /b", "path", "duplicate"},
		{"a relative entry of the path", "path: /a:b", "path", `"b"`},
		{"a path of another type", "path: 1", "path", "string"},
		{"neither command nor url", "mcpServers: {a: {}}", "mcpServers.a", "command"},
		{"command and url", "mcpServers: {a: {command: x, url: 'http://x'}}", "mcpServers.a", "either"},
		{"a name that cannot begin an action id", "mcpServers: {A.b: {command: x}}", `mcpServers["A.b"]`, "action ids"},
		{"a built-in name", "mcpServers: {http: {command: x}}", "mcpServers.http", "built-in"},
		{"an unknown member of a server", "mcpServers: {a: {command: x, arg: []}}", "mcpServers.a.arg", "args"},
		{"a number as a variable", "mcpServers: {a: {command: x, env: {N: 1}}}", "mcpServers.a.env.N", "string"},
		{"a bad variable", "mcpServers: {a: {command: x, env: {A-B: x}}}", "mcpServers.a.env.A-B", "variable"},
		{"headers for a program", "mcpServers: {a: {command: x, headers: {A: b}}}", "mcpServers.a", "env"},
		{"args for an address", "mcpServers: {a: {url: 'http://x', args: [y]}}", "mcpServers.a", "command"},
		{"the type of a program", "mcpServers: {a: {command: x, type: http}}", "mcpServers.a.type", "stdio"},
		{"an old type", "mcpServers: {a: {url: 'http://x', type: sse}}", "mcpServers.a.type", "sse"},
		{"a bad url", "mcpServers: {a: {url: 'ftp://x'}}", "mcpServers.a.url", "http"},
		{"a header of two lines", `mcpServers: {a: {url: 'http://x', headers: {A: "b\nc"}}}`, "mcpServers.a.headers.A", "header"},
		{"a relative cwd", "mcpServers: {a: {command: x, cwd: y}}", "mcpServers.a.cwd", "absolute"},
		{"an unknown credential", "mcpServers: {a: {url: 'https://x', credential: c}}", "mcpServers.a.credential", "c"},
		{
			"a credential for another host",
			"{mcpServers: {a: {url: 'https://x', credential: c}}, credentials: {c: {value: v, hosts: [y]}}}", "mcpServers.a.credential", "hosts",
		},
		{"a credential without hosts", "credentials: {c: {value: v}}", "credentials.c.hosts", "required"},
		{"a credential for no host", "credentials: {c: {value: v, hosts: []}}", "credentials.c.hosts", "at least one"},
		{"a credential for every host", "credentials: {c: {value: v, hosts: ['*']}}", "credentials.c.hosts[0]", "host"},
		{"a credential without a value", "credentials: {c: {hosts: [x]}}", "credentials.c", "either"},
		{"a credential with two", "credentials: {c: {value: v, file: /f, hosts: [x]}}", "credentials.c", "either"},
		{"a relative file", "credentials: {c: {file: f, hosts: [x]}}", "credentials.c.file", "absolute"},
		{"a value of two lines", `credentials: {c: {value: "a\nb", hosts: [x]}}`, "credentials.c.value", "line"},
		{"a channel of nothing", "channels: {c: {}}", "channels.c", "either"},
		{"a channel with both", "channels: {c: {url: 'ntfy://x/y', file: /f}}", "channels.c", "either"},
		{"a relative file of a channel", "channels: {c: {file: f}}", "channels.c.file", "absolute"},
		{"a channel without a service", "channels: {c: {url: ntfy.sh/topic}}", "channels.c.url", "service"},
		{"a url of two lines", `channels: {c: {url: "ntfy://x\ny"}}`, "channels.c.url", "service"},
		{"a channel as a text", "channels: {c: 'ntfy://x/y'}", "channels.c", "object"},
		{"an unknown member of a channel", "channels: {c: {uri: 'ntfy://x/y'}}", "channels.c.uri", "url"},
		{"the name of a channel", "channels: {a.b: {url: 'ntfy://x/y'}}", `channels["a.b"]`, "name"},
		{"the name of the desktop", "channels: {desktop: {url: 'ntfy://x/y'}}", "channels.desktop", "another"},
		{"redirects", "http: {redirects: all}", "http.redirects", "same-host"},
	}
	for _, tt := range tests {
		_, violations := machineconfig.Parse([]byte(tt.text))
		if len(violations) != 1 || violations[0].Path != tt.path || !strings.Contains(violations[0].Message, tt.says) {
			t.Errorf("%s: %v, want one at %q that says %q", tt.name, violations, tt.path, tt.says)
		}
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if c, warnings, err := machineconfig.Load(dir); err != nil || len(warnings) > 0 || !cmp.Equal(c, machineconfig.Config{}) {
		t.Errorf("without a file: %+v, %v, %v", c, warnings, err)
	}
	path := filepath.Join(dir, machineconfig.FileName)
	if err := os.WriteFile(path, []byte(full), 0o644); err != nil {
		t.Fatal(err)
	}
	_, warnings, err := machineconfig.Load(dir)
	if err != nil || runtime.GOOS != "windows" && (len(warnings) != 1 || !strings.Contains(warnings[0], "chmod")) {
		t.Errorf("readable by all: %v, %v", warnings, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, warnings, err := machineconfig.Load(dir); err != nil || len(warnings) > 0 {
		t.Errorf("private: %v, %v", warnings, err)
	}
	if err := os.WriteFile(path, []byte("credentials: {c: {value: [s3cret], hosts: [x]}}\nnonsense: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err = machineconfig.Load(dir)
	if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "credentials.c.value") ||
		!strings.Contains(err.Error(), "nonsense") || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("invalid: %v", err)
	}
}

func TestSecretsAreNotInErrors(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"credentials:\n  c: {value: s3cret, hosts: [x]\n", "credentials:\n\tc: s3cret\n", "a: 's3cret\n", "channels: {c: {url: s3cret}}", "channels: {c: {url: \"ntfy://s3cret\\n\"}}", "channels: {c: s3cret}",
		"credentials: {c: {value: \"s3cret\\n\", hosts: [x]}}",
	} {
		if _, violations := machineconfig.Parse([]byte(text)); len(violations) == 0 || strings.Contains(violations[0].Message, "s3cret") {
			t.Errorf("%q: %v", text, violations)
		}
	}
}

func TestDir(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		env  map[string]string
		want string
	}{
		{"the setting", map[string]string{"ERRAND_CONFIG_DIR": "/c", "XDG_CONFIG_HOME": "/x", "HOME": "/h"}, "/c"},
		{"XDG", map[string]string{"XDG_CONFIG_HOME": "/x", "HOME": "/h"}, "/x/errand"},
		{"a relative setting", map[string]string{"ERRAND_CONFIG_DIR": "c"}, ""},
		{"nothing", nil, ""},
	}
	if runtime.GOOS == "linux" {
		tests = append(tests, struct {
			name string
			env  map[string]string
			want string
		}{"home", map[string]string{"XDG_CONFIG_HOME": "x", "HOME": "/h"}, "/h/.config/errand"})
	}
	for _, tt := range tests {
		got, err := machineconfig.Dir(func(name string) string { return tt.env[name] })
		if got != tt.want || (err != nil) != (tt.want == "") {
			t.Errorf("%s: %q, %v, want %q", tt.name, got, err, tt.want)
		}
	}
}

func TestCredentialAllows(t *testing.T) {
	t.Parallel()
	c := machineconfig.Credential{Hosts: []string{"api.example.com", "*.Example.org", "localhost:8080", "127.0.0.1", "x.example.com:8443"}}
	tests := map[string]bool{
		"https://api.example.com/a":         true,
		"https://API.example.com:443/":      true,
		"https://api.example.com:444/":      false,
		"http://api.example.com/":           false, // unencrypted
		"https://api.example.com.evil.com":  false,
		"https://evil.com/?api.example.com": false,
		"https://api.example.com@evil.com/": false,
		"https://a.b.example.org/":          true,
		"https://example.org/":              false,
		"https://evilexample.org/":          false,
		"http://localhost:8080/":            true,
		"http://localhost/":                 false,
		"http://127.0.0.1/":                 true,
		"https://x.example.com:8443/":       true,
		"https://x.example.com/":            false,
	}
	for address, want := range tests {
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Allows(u); got != want {
			t.Errorf("%s: %v, want %v", address, got, want)
		}
	}
}

func TestCredentialOverHTTP(t *testing.T) {
	t.Parallel()
	c := machineconfig.Credential{Hosts: []string{"nas.local:8123"}}
	u := &url.URL{Scheme: "http", Host: "nas.local:8123"}
	if c.Allows(u) {
		t.Error("it is sent unencrypted")
	}
	c.AllowHTTP = true
	if !c.Allows(u) {
		t.Error("it is not sent although that is permitted")
	}
}

func TestCredentialResolve(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte("Bearer x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := (machineconfig.Credential{File: file}).Resolve(); got != "Bearer x" || err != nil {
		t.Errorf("file: %q, %v", got, err)
	}
	if got, err := (machineconfig.Credential{Value: "v"}).Resolve(); got != "v" || err != nil {
		t.Errorf("value: %q, %v", got, err)
	}
	for _, content := range []string{"", "\n", "a\nb"} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := (machineconfig.Credential{File: file}).Resolve(); err == nil {
			t.Errorf("file with %q: %q", content, got)
		}
	}
	if _, err := (machineconfig.Credential{File: file + "-not"}).Resolve(); err == nil {
		t.Error("a missing file is no error")
	}
}

func TestChannelResolve(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "chat")
	if err := os.WriteFile(file, []byte("ntfy://:s3cret@x/y\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := (machineconfig.Channel{File: file}).Resolve(); got != "ntfy://:s3cret@x/y" || err != nil {
		t.Errorf("file: %q, %v", got, err)
	}
	if got, err := (machineconfig.Channel{URL: "ntfy://x"}).Resolve(); got != "ntfy://x" || err != nil {
		t.Errorf("url: %q, %v", got, err)
	}
	for _, content := range []string{"", "\n", "s3cret", "ntfy://s3cret\nb", "://s3cret"} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := (machineconfig.Channel{File: file}).Resolve(); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("file with %q: %q, %v", content, got, err)
		}
	}
	if _, err := (machineconfig.Channel{File: file + "-not"}).Resolve(); err == nil {
		t.Error("a missing file is no error")
	}
}

func TestAChannelIsASecret(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("files have no mode there")
	}
	dir := t.TempDir()
	for text, want := range map[string]int{"channels: {c: {url: 'ntfy://x/y'}}": 1, "channels: {c: {file: /f}}": 0} {
		if err := os.WriteFile(filepath.Join(dir, machineconfig.FileName), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, warnings, err := machineconfig.Load(dir); err != nil || len(warnings) != want {
			t.Errorf("%s: %v, %v, want %d warnings", text, warnings, err, want)
		}
	}
}
