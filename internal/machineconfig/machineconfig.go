// Package machineconfig reads machine.yaml, the settings of one machine that its user writes: the PATH of
// steps, the MCP servers whose tools are actions, the credentials that plans may name, the channels of
// notifications, and what http.request may reach. Reading is strict, and everything that is wrong is reported together with its place. The package
// starts nothing and connects to nothing. A value of a credential or the URL of a channel appears in no error and
// no log.
package machineconfig

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/errandhq/errand/internal/strictjson"
	"github.com/errandhq/errand/internal/yamljson"
)

// FileName is the name of the file in the directory of [Dir].
const FileName = "machine.yaml"

// maxFileBytes bounds what is read.
const maxFileBytes = 1 << 20

// Config is the content of machine.yaml. The zero value is that of a machine without one.
type Config struct {
	// Path replaces the PATH of commands and scripts: directories as in the variable, all absolute.
	Path string `json:"path"`
	// MCPServers are the MCP servers by name; the tools of one are the actions `<name>.<tool>`.
	MCPServers map[string]MCPServer `json:"mcpServers"`
	// Credentials are what actions may present to services, by name.
	Credentials map[string]Credential `json:"credentials"`
	// Channels are where notifications go beside the desktop, by name.
	Channels map[string]Channel `json:"channels"`
	// HTTP says what http.request may do.
	HTTP HTTP `json:"http"`
}

// Channel is a service that takes notifications.
type Channel struct {
	// URL names the service and how it is reached, and so is a secret. Exactly one of URL and File is set.
	URL string `json:"url"`
	// File holds the URL; it is read at each use, without the line end.
	File string `json:"file"`
}

// MCPServer says how a server is reached: a program that is started (Command), or an address (URL).
type MCPServer struct {
	// Type is optional: stdio, or http (also written streamable-http).
	Type    string            `json:"type"`
	Command string            `json:"command"`
	Args    []string          `json:"args"`
	Env     map[string]string `json:"env"`
	// Cwd is absolute; empty means the home directory.
	Cwd     string            `json:"cwd"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers"`
	// Credential names one that is presented to the server at URL.
	Credential string `json:"credential"`
	// Disabled servers have no actions.
	Disabled bool `json:"disabled"`
}

// Credential is a header for requests to some hosts.
type Credential struct {
	// Header is the header's name; empty means Authorization.
	Header string `json:"header"`
	// Value is the header's whole value, such as "Bearer …". Exactly one of Value and File is set.
	Value string `json:"value"`
	// File holds the value; it is read at each use, without the line end.
	File string `json:"file"`
	// Hosts are where the credential may be sent: a name, a name with a port, or `*.` before a domain.
	Hosts []string `json:"hosts" strict:"required"`
	// AllowHTTP permits to send it unencrypted, for services in one's own network. To this machine itself that
	// is always permitted.
	AllowHTTP bool `json:"allowHttp"`
}

// Redirects says which redirects http.request follows.
type Redirects string

// The values of Redirects. The default is RedirectsSameHost: another host gets nothing that it was not meant to.
const (
	RedirectsNone     Redirects = "none"
	RedirectsSameHost Redirects = "same-host"
	RedirectsAny      Redirects = "any"
)

// HTTP says what http.request may do.
type HTTP struct {
	// Redirects is empty for the default.
	Redirects Redirects `json:"redirects"`
	// RefusePrivateAddresses keeps requests away from this machine and the networks around it. It is off by
	// default: plans run for the machine's own user, and services at home or on localhost are what they are for.
	// Link-local addresses, where cloud machines have their metadata, are refused always.
	RefusePrivateAddresses bool `json:"refusePrivateAddresses"`
}

// Dir returns the directory of the configuration: ERRAND_CONFIG_DIR, else `errand` in XDG_CONFIG_HOME, else in
// the platform's place (`~/.config` on Linux). getenv reads the environment, as [os.Getenv] does.
func Dir(getenv func(string) string) (string, error) {
	if dir := getenv("ERRAND_CONFIG_DIR"); dir != "" {
		if !filepath.IsAbs(dir) {
			return "", fmt.Errorf("ERRAND_CONFIG_DIR must be an absolute path, not %q", dir)
		}
		return dir, nil
	}
	// A relative XDG_CONFIG_HOME is to be ignored, says its specification.
	if dir := getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "errand"), nil
	}
	home := getenv("HOME")
	switch {
	case runtime.GOOS == "windows" && getenv("AppData") != "":
		return filepath.Join(getenv("AppData"), "errand"), nil
	case home == "":
		return "", errors.New("the place of machine.yaml cannot be found: neither ERRAND_CONFIG_DIR nor HOME is set")
	case runtime.GOOS == "darwin":
		return filepath.Join(home, "Library", "Application Support", "errand"), nil
	}
	return filepath.Join(home, ".config", "errand"), nil
}

// Load reads machine.yaml in dir. A file that is not there is an empty one. The warnings are sentences about
// what works but should not stay so.
func Load(dir string) (c Config, warnings []string, err error) {
	path := filepath.Join(dir, FileName)
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Config{}, nil, nil
	}
	if err != nil {
		return Config{}, nil, fmt.Errorf("reading the machine's settings: %w", err)
	}
	if info.Size() > maxFileBytes {
		return Config{}, nil, fmt.Errorf("%s is larger than %d bytes", path, maxFileBytes)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return Config{}, nil, fmt.Errorf("reading the machine's settings: %w", err)
	}
	c, violations := Parse(text)
	if len(violations) > 0 {
		return Config{}, nil, fmt.Errorf("%s is not valid: %s", path, sentence(violations))
	}
	if runtime.GOOS != "windows" && c.holdsSecrets() && info.Mode().Perm()&0o077 != 0 {
		warnings = append(warnings, fmt.Sprintf("%s holds secrets and can be read by others: chmod 600 it", path))
	}
	return c, warnings, nil
}

func (c Config) holdsSecrets() bool {
	for _, credential := range c.Credentials {
		if credential.Value != "" {
			return true
		}
	}
	for _, channel := range c.Channels {
		if channel.URL != "" {
			return true
		}
	}
	for _, server := range c.MCPServers {
		if len(server.Env) > 0 || len(server.Headers) > 0 {
			return true
		}
	}
	return false
}

func sentence(violations []strictjson.Violation) string {
	parts := make([]string, len(violations))
	for i, v := range violations {
		parts[i] = strings.TrimSpace(v.Path + " " + v.Message)
	}
	return strings.Join(parts, "; ")
}

// Parse reads the text of machine.yaml and returns everything that is wrong with it.
func Parse(text []byte) (Config, []strictjson.Violation) {
	var c Config
	document, err := yamljson.Convert(text)
	if errors.Is(err, yamljson.ErrEmpty) {
		return c, nil
	}
	if err != nil {
		return c, []strictjson.Violation{{Message: "is not YAML: " + err.Error()}}
	}
	if strings.TrimSpace(string(document)) == "null" {
		return c, nil // comments alone
	}
	violations := strictjson.Unmarshal(document, &c)
	if len(violations) == 0 {
		violations = c.check()
	}
	return c, violations
}

// Resolve returns the value of a credential's header.
func (c Credential) Resolve() (string, error) {
	if c.File == "" {
		return c.Value, nil
	}
	text, err := os.ReadFile(c.File)
	if err != nil {
		return "", fmt.Errorf("reading a credential: %w", err)
	}
	value := strings.TrimRight(string(text), "\r\n")
	if value == "" || !printable(value) {
		return "", fmt.Errorf("the credential in %s is empty or no single line of text", c.File)
	}
	return value, nil
}

// Resolve returns the URL of a channel. The error does not hold it.
func (c Channel) Resolve() (string, error) {
	if c.File == "" {
		return c.URL, nil
	}
	text, err := os.ReadFile(c.File)
	if err != nil {
		return "", fmt.Errorf("reading the url of a channel: %w", err)
	}
	address := strings.TrimRight(string(text), "\r\n")
	if !channelURL(address) {
		return "", fmt.Errorf("%s does not hold a url such as ntfy://host/topic on one line", c.File)
	}
	return address, nil
}

func channelURL(address string) bool {
	u, err := url.Parse(address)
	return err == nil && u.Scheme != "" && strings.Contains(address, "://")
}

// checker collects violations.
type checker struct{ violations []strictjson.Violation }

func (k *checker) report(path, format string, args ...any) {
	k.violations = append(k.violations, strictjson.Violation{Path: path, Message: fmt.Sprintf(format, args...)})
}

var (
	serverName     = strictjson.Pattern(`^[a-z0-9_-]{1,64}$`)
	credentialName = strictjson.Pattern(`^[A-Za-z0-9_.-]{1,64}$`)
	channelName    = strictjson.Pattern(`^[A-Za-z0-9_-]{1,64}$`)
	headerName     = strictjson.Pattern("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")
	variableName   = strictjson.Pattern(`^[A-Za-z_][A-Za-z0-9_]*$`)
	hostPattern    = strictjson.Pattern(`^(\*\.)?([A-Za-z0-9_-]+\.)*[A-Za-z0-9_-]+(:[0-9]{1,5})?$|^\[[0-9a-fA-F:.]+\](:[0-9]{1,5})?$`)
)

// check returns what is wrong although every member has its type.
func (c Config) check() []strictjson.Violation {
	k := &checker{}
	for _, dir := range filepath.SplitList(c.Path) {
		if !filepath.IsAbs(dir) {
			k.report("path", "has the entry %q, which is not an absolute path", dir)
		}
	}
	for name, server := range c.MCPServers {
		at := strictjson.PathMember("mcpServers", name)
		switch {
		case !serverName(name):
			k.report(at, "is no name of a server: 1 to 64 of a-z, 0-9, _ and -, since it begins action ids")
		case name == "channels" || name == "http":
			k.report(at, "is the name of built-in actions; choose another")
		}
		k.server(at, server, c.Credentials)
	}
	for name, credential := range c.Credentials {
		at := strictjson.PathMember("credentials", name)
		if !credentialName(name) {
			k.report(at, "is no name of a credential: 1 to 64 letters, digits, _, . or -")
		}
		k.credential(at, credential)
	}
	for name, channel := range c.Channels {
		k.channel(strictjson.PathMember("channels", name), name, channel)
	}
	switch c.HTTP.Redirects {
	case "", RedirectsNone, RedirectsSameHost, RedirectsAny:
	default:
		k.report("http.redirects", "must be %s, %s or %s", RedirectsNone, RedirectsSameHost, RedirectsAny)
	}
	return k.violations
}

func (k *checker) server(at string, s MCPServer, credentials map[string]Credential) {
	switch {
	case (s.Command == "") == (s.URL == ""):
		k.report(at, "must have either command, for a program, or url, for an address")
	case s.Command != "":
		k.program(at, s)
	default:
		k.address(at, s, credentials)
	}
}

func (k *checker) program(at string, s MCPServer) {
	if s.Type != "" && s.Type != "stdio" {
		k.report(at+".type", "must be stdio for a server with a command, not %q", s.Type)
	}
	if len(s.Headers) > 0 || s.Credential != "" {
		k.report(at, "has headers or a credential, which only a server with a url takes; use env")
	}
	if s.Cwd != "" && !filepath.IsAbs(s.Cwd) {
		k.report(at+".cwd", "must be an absolute path")
	}
	for name := range s.Env {
		if !variableName(name) {
			k.report(strictjson.PathMember(at+".env", name), "is no name of a variable")
		}
	}
}

func (k *checker) address(at string, s MCPServer, credentials map[string]Credential) {
	switch s.Type {
	case "", "http", "streamable-http":
	default:
		k.report(at+".type", "must be http for a server with a url, not %q", s.Type)
	}
	if len(s.Args) > 0 || len(s.Env) > 0 || s.Cwd != "" {
		k.report(at, "has args, env or cwd, which only a server with a command takes")
	}
	u, err := url.Parse(s.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		k.report(at+".url", "must be an address that begins with http:// or https://")
	}
	for name, value := range s.Headers {
		if !headerName(name) || !printable(value) {
			k.report(strictjson.PathMember(at+".headers", name), "is no header: a name and one line of text")
		}
	}
	if s.Credential == "" {
		return
	}
	credential, ok := credentials[s.Credential]
	switch {
	case !ok:
		k.report(at+".credential", "names %q, which is not among the credentials", s.Credential)
	case err == nil && !credential.Allows(u):
		k.report(at+".credential", "names %q, whose hosts do not include %s", s.Credential, u.Host)
	}
}

func (k *checker) credential(at string, c Credential) {
	if c.Header != "" && !headerName(c.Header) {
		k.report(at+".header", "is no name of a header")
	}
	switch {
	case (c.Value == "") == (c.File == ""):
		k.report(at, "must have either value or file")
	case c.File != "" && !filepath.IsAbs(c.File):
		k.report(at+".file", "must be an absolute path")
	case !printable(c.Value):
		k.report(at+".value", "must be one line of text")
	}
	if len(c.Hosts) == 0 {
		k.report(at+".hosts", "must name at least one host that the credential may be sent to")
	}
	for i, host := range c.Hosts {
		if !hostPattern(host) {
			k.report(strictjson.PathElement(at+".hosts", i), "must be a host such as api.example.com, localhost:8080 or *.example.com")
		}
	}
}

func (k *checker) channel(at, name string, c Channel) {
	switch {
	case !channelName(name):
		k.report(at, "is no name of a channel: 1 to 64 letters, digits, _ or -")
	case name == "desktop" || name == "log":
		k.report(at, "is the name of what is there without it; choose another")
	}
	switch {
	case (c.URL == "") == (c.File == ""):
		k.report(at, "must have either url or file")
	case c.File != "" && !filepath.IsAbs(c.File):
		k.report(at+".file", "must be an absolute path")
	case c.File == "" && !channelURL(c.URL):
		k.report(at+".url", "must name a service and how it is reached, such as ntfy://host/topic")
	}
}

func printable(value string) bool {
	return !strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}

// HeaderName returns the name of the header that carries the credential.
func (c Credential) HeaderName() string {
	if c.Header == "" {
		return "Authorization"
	}
	return c.Header
}

// Allows reports whether the credential may be sent to an address. A host without a port means the usual port
// of the scheme. Unencrypted, it is sent to this machine only, unless AllowHTTP is set.
func (c Credential) Allows(u *url.URL) bool {
	name, port := strings.ToLower(u.Hostname()), u.Port()
	usual := map[string]string{"http": "80", "https": "443"}[u.Scheme]
	if port == "" {
		port = usual
	}
	if u.Scheme != "https" && !c.AllowHTTP && name != "localhost" && name != "127.0.0.1" && name != "::1" {
		return false
	}
	for _, pattern := range c.Hosts {
		allowed := url.URL{Host: strings.ToLower(pattern)}
		want := allowed.Port()
		if want == "" {
			want = usual
		}
		domain, wild := strings.CutPrefix(allowed.Hostname(), "*.")
		if port == want && (!wild && name == domain || wild && strings.HasSuffix(name, "."+domain)) {
			return true
		}
	}
	return false
}
