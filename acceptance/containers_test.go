//go:build unix

package acceptance_test

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/apptest"
	"github.com/errandhq/errand/internal/pgtest"
)

// Nothing here needs a container engine: the files are read and checked, and what in them can be executed without an
// engine is executed.

// compose is what the tests look at in docker-compose.yml. A member that is not named here is an error.
type compose struct {
	Name     string
	Services map[string]service
	Networks map[string]struct{ Internal bool }
	Volumes  map[string]any
}

type service struct {
	Image string
	Build struct {
		Context, Target string
		Args            map[string]string
	}
	Entrypoint      []string
	Command         []string
	User            string
	Hostname        string
	Restart         string
	Init            bool
	NetworkMode     string               `yaml:"network_mode"`
	DependsOn       map[string]condition `yaml:"depends_on"`
	Environment     map[string]string
	Ports           []string
	Volumes         []string
	Networks        []string
	Healthcheck     *healthcheck
	StopSignal      string   `yaml:"stop_signal"`
	StopGracePeriod string   `yaml:"stop_grace_period"`
	CapDrop         []string `yaml:"cap_drop"`
	SecurityOpt     []string `yaml:"security_opt"`
}

type condition struct{ Condition string }

type healthcheck struct {
	Test        []string
	Interval    string
	Timeout     string
	Retries     int
	StartPeriod string `yaml:"start_period"`
}

func readCompose(t *testing.T) compose {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "docker-compose.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var c compose
	if err := yaml.UnmarshalWithOptions(content, &c, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	return c
}

// pinned is an image with a version; latest and bare names are none.
var pinned = regexp.MustCompile(`^[a-z0-9./-]+:\d+(\.\d+)*(-[a-z0-9.]+)?$`)

func TestComposeServices(t *testing.T) {
	t.Parallel()
	c := readCompose(t)
	for _, name := range []string{"postgres", "temporal", "temporal-ui", "errandd"} {
		if c.Services[name].Healthcheck == nil {
			t.Errorf("%s is not there, or has no health check", name)
		}
	}
	for name, s := range c.Services {
		if s.Build.Context == "" && !pinned.MatchString(s.Image) {
			t.Errorf("%s: the image %q has no version", name, s.Image)
		}
		for dependency, wait := range s.DependsOn {
			on, known := c.Services[dependency]
			runs := on.Restart != ""
			if !known || runs != (wait.Condition == "service_healthy") || !runs != (wait.Condition == "service_completed_successfully") {
				t.Errorf("%s waits until %s is %s", name, dependency, wait.Condition)
			}
		}
		// What goes on is checked; what ends is waited for.
		waited := slices.ContainsFunc(slices.Collect(maps.Values(c.Services)), func(other service) bool {
			_, waits := other.DependsOn[name]
			return waits
		})
		if h := s.Healthcheck; (s.Restart != "") != (h != nil) || h == nil && !waited {
			t.Errorf("%s restarts %q, has the health check %v, and is waited for: %t", name, s.Restart, h, waited)
		} else if h != nil && (len(h.Test) < 2 || h.Test[0] != "CMD" || h.Interval == "" || h.Timeout == "" || h.Retries == 0) {
			t.Errorf("%s: the health check %+v is not whole", name, *h)
		}
	}
}

func TestComposeExposesNothing(t *testing.T) {
	t.Parallel()
	c := readCompose(t)
	if !c.Networks["backend"].Internal {
		t.Error("the network of PostgreSQL and Temporal is not internal")
	}
	for name, s := range c.Services {
		inside := slices.Equal(s.Networks, []string{"backend"}) || s.NetworkMode == "none"
		if !inside && !slices.Contains([]string{"errandd", "temporal-ui"}, name) {
			t.Errorf("%s is in the networks %v", name, s.Networks)
		}
		if inside && len(s.Ports) > 0 {
			t.Errorf("%s publishes %v", name, s.Ports)
		}
		for _, port := range s.Ports {
			if !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("%s publishes %s beyond the loopback", name, port)
			}
		}
	}
}

func TestComposeHasNoSecret(t *testing.T) {
	t.Parallel()
	secret := regexp.MustCompile(`(?i)(password|passwd|pwd|secret|token|api_?key)$`)
	for name, s := range readCompose(t).Services {
		for variable, value := range s.Environment {
			if secret.MatchString(variable) {
				t.Errorf("%s: %s is set in the file", name, variable)
			}
			if address, err := url.Parse(value); err == nil && address.User != nil {
				if _, set := address.User.Password(); set {
					t.Errorf("%s: %s holds a password", name, variable)
				}
			}
		}
		if database := s.Environment["POSTGRES_HOST_AUTH_METHOD"]; database == "trust" {
			t.Errorf("%s lets everybody in", name)
		}
	}
}

func TestComposeVolumes(t *testing.T) {
	t.Parallel()
	c := readCompose(t)
	used := map[string]bool{}
	readers := map[string][]string{}
	for name, s := range c.Services {
		for _, volume := range s.Volumes {
			source, _, _ := strings.Cut(volume, ":")
			if strings.HasPrefix(source, "./") {
				if _, err := os.Stat(filepath.Join("..", source)); err != nil || !strings.HasSuffix(volume, ":ro") {
					t.Errorf("%s mounts %s: %v", name, volume, err)
				}
				continue
			}
			if _, declared := c.Volumes[source]; !declared {
				t.Errorf("%s uses the volume %s, which is not declared", name, source)
			}
			used[source] = true
			if strings.HasSuffix(source, "-secrets") && name != "secrets" {
				readers[source] = append(readers[source], name)
				if !strings.HasSuffix(volume, ":ro") {
					t.Errorf("%s may write to %s", name, source)
				}
			}
		}
	}
	for name := range c.Volumes {
		if !used[name] {
			t.Errorf("the volume %s is not used", name)
		}
	}
	for _, names := range readers {
		slices.Sort(names)
	}
	want := map[string][]string{
		"postgres-secrets": {"postgres"}, "temporal-secrets": {"temporal", "temporal-schema"}, "errandd-secrets": {"errandd"},
	}
	if diff := cmp.Diff(want, readers); diff != "" {
		t.Errorf("who sees which secrets (-want +got):\n%s", diff)
	}
}

// TestComposeInstallation makes secrets and databases with the scripts of docker-compose.yml, in a real PostgreSQL, and
// starts errandd on them with the settings of that file.
func TestComposeInstallation(t *testing.T) {
	t.Parallel()
	secrets := filepath.Join(t.TempDir(), "secrets")
	for _, name := range []string{"postgres", "temporal", "errandd"} {
		if err := os.MkdirAll(filepath.Join(secrets, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	own := strconv.Itoa(os.Getuid())
	environment := []string{"SECRETS=" + secrets, "POSTGRES_UID=" + own, "TEMPORAL_UID=" + own, "ERRANDD_UID=" + own}
	runScript(t, environment, "make-secrets.sh")
	made := readTree(t, secrets)
	password := made["postgres/errandd"]
	if names := slices.Sorted(maps.Keys(made)); !slices.Equal(names, []string{
		"errandd/pgpass", "postgres/errandd", "postgres/superuser", "postgres/temporal", "temporal/password",
	}) {
		t.Errorf("the secrets are %q", names)
	}
	if !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(password) || password == made["postgres/temporal"] ||
		made["temporal/password"] != made["postgres/temporal"] || made["errandd/pgpass"] != "postgres:5432:errandd:errandd:"+password+"\n" {
		t.Error("the passwords are not as they should be")
	}
	runScript(t, environment, "make-secrets.sh")
	if diff := cmp.Diff(made, readTree(t, secrets)); diff != "" {
		t.Errorf("a second start has made other secrets (-first +second):\n%s", diff)
	}

	database := makeDatabases(t, filepath.Join(secrets, "postgres"))
	settings := maps.Clone(readCompose(t).Services["errandd"].Environment)
	address, err := url.Parse(settings["ERRAND_DATABASE_URL"])
	if err != nil {
		t.Fatal(err)
	}
	query := address.Query()
	if query.Get("passfile") != "/secrets/pgpass" {
		t.Errorf("errandd finds its password in %q", query.Get("passfile"))
	}
	query.Set("passfile", filepath.Join(secrets, "errandd", "pgpass"))
	query.Set("host", database)
	address.Host, address.RawQuery = "", query.Encode()
	for _, name := range []string{"ERRAND_DATABASE_URL", "ERRAND_TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE", "ERRAND_LISTEN"} {
		if settings[name] == "" {
			t.Errorf("%s is not set", name)
		}
		delete(settings, name)
	}
	s := apptest.Start(t, apptest.Options{DatabaseURL: address.String(), Env: settings})
	run := s.RunNow(s.Create(map[string]any{"name": "Hello", "workflow": map[string]any{"compiled": map[string]any{
		"version": 2, "steps": []any{map[string]any{"id": "hello", "kind": "command", "command": "true"}},
	}}}), nil)
	s.WaitRun(run.ID, automation.RunCompleted)
	check := readCompose(t).Services["errandd"].Healthcheck.Test
	if answer := s.CLI("", check[2:]...); check[1] != "errand" || answer.Exit != 0 {
		t.Errorf("the health check %q: %+v", check, answer)
	}
}

// runScript runs a script of deploy/compose with an environment.
func runScript(t *testing.T, environment []string, name string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), "sh", filepath.Join("..", "deploy", "compose", name))
	command.Env = append([]string{"PATH=" + os.Getenv("PATH")}, environment...)
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, output)
	}
}

// readTree returns the files below a directory, which nobody but their owner may read.
func readTree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if info.Mode().Perm() != 0o400 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		content, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		files[name] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// makeDatabases runs the script for an empty PostgreSQL and returns the directory of its socket.
func makeDatabases(t *testing.T, secrets string) string {
	t.Helper()
	address, err := url.Parse(pgtest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	socket := address.Query().Get("host")
	installed, err := pgtest.Locate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	path := "PATH=" + installed.BinDir + string(os.PathListSeparator) + os.Getenv("PATH")
	superuser := address.User.Username()
	psql := func(statement string) string {
		command := exec.Command("psql", "--no-psqlrc", "--tuples-only", "--no-align", "--username="+superuser, "--dbname=postgres", "--command="+statement)
		command.Env = []string{path, "PGHOST=" + socket}
		output, err := command.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", statement, err, output)
		}
		return strings.TrimSpace(string(output))
	}
	runScript(t, []string{path, "PGHOST=" + socket, "POSTGRES_USER=" + superuser, "SECRETS=" + secrets}, "make-databases.sh")
	t.Cleanup(func() {
		for _, name := range []string{"errandd", "temporal", "temporal_visibility"} {
			psql("DROP DATABASE " + name + " WITH (FORCE)")
		}
		psql("DROP ROLE errandd, temporal")
	})
	roles := psql(`SELECT string_agg(rolname || ' ' || left(rolpassword, 13) || ' ' || rolsuper, ',' ORDER BY rolname)
		FROM pg_authid WHERE rolname IN ('errandd', 'temporal')`)
	if roles != "errandd SCRAM-SHA-256 false,temporal SCRAM-SHA-256 false" {
		t.Errorf("the users are %q", roles)
	}
	if allowed := psql(`SELECT has_database_privilege('temporal', 'errandd', 'CONNECT')`); allowed != "f" {
		t.Error("Temporal's user may connect to errandd's database")
	}
	return socket
}

// instruction is one of a Dockerfile, with its continuation lines joined.
type instruction struct{ name, arguments string }

func readDockerfile(t *testing.T) []instruction {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	var instructions []instruction
	begun := ""
	for line := range strings.Lines(string(content)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		begun += " " + strings.TrimSuffix(line, `\`)
		if strings.HasSuffix(line, `\`) {
			continue
		}
		name, arguments, _ := strings.Cut(strings.TrimSpace(begun), " ")
		instructions = append(instructions, instruction{name, strings.TrimSpace(arguments)})
		begun = ""
	}
	if begun != "" {
		t.Errorf("the last instruction has no end: %s", begun)
	}
	return instructions
}

// stage is one of a Dockerfile's stages.
type stage struct {
	base              string
	user              string
	entrypoint        []string
	installed, copied string
}

func TestDockerfile(t *testing.T) {
	t.Parallel()
	stages := map[string]*stage{}
	var current *stage
	for _, i := range readDockerfile(t) {
		words := strings.Fields(i.arguments)
		switch i.name {
		case "FROM":
			if len(words) != 3 || words[1] != "AS" || words[0] != "scratch" && !pinned.MatchString(words[0]) {
				t.Fatalf("FROM %s", i.arguments)
			}
			current = &stage{base: words[0]}
			stages[words[2]] = current
		case "COPY":
			checkCopy(t, stages, words)
			current.copied += words[len(words)-2] + " " + words[len(words)-1] + "\n"
		case "RUN":
			current.installed += i.arguments + "\n"
			if output, err := shell(t, i.arguments); err != nil {
				t.Errorf("RUN %s: %v\n%s", i.arguments, err, output)
			}
		case "USER":
			current.user = i.arguments
		case "ENTRYPOINT":
			if err := json.Unmarshal([]byte(i.arguments), &current.entrypoint); err != nil {
				t.Errorf("ENTRYPOINT %s: %v", i.arguments, err)
			}
		case "ARG", "ENV", "EXPOSE", "STOPSIGNAL", "WORKDIR":
		case "HEALTHCHECK":
			_, check, _ := strings.Cut(i.arguments, "CMD ")
			if want := readCompose(t).Services["errandd"].Healthcheck.Test[1:]; !json.Valid([]byte(check)) || check != jsonOf(t, want) {
				t.Errorf("the health check is %s, in docker-compose.yml %v", check, want)
			}
		default:
			t.Errorf("%s is no instruction", i.name)
		}
	}
	if target := readCompose(t).Services["errandd"].Build.Target; stages[target] == nil {
		t.Errorf("docker-compose.yml builds %q, which is no stage", target)
	}
	checkBuild(t, stages["build"])
	for _, name := range []string{"errandd", "errandd-with-worker"} {
		s := stages[name]
		if s == nil || s.user != "10001:10001" || !slices.Equal(s.entrypoint, []string{"/usr/local/bin/errandd"}) {
			t.Fatalf("the image %s: %+v", name, s)
		}
	}
	if s := stages["errandd"]; s.base != "scratch" || !strings.Contains(s.copied, "ca-certificates.crt") || !strings.Contains(s.copied, "zoneinfo") {
		t.Errorf("the image errandd: %+v", s)
	}
	for _, program := range []string{"ca-certificates", "tzdata", "python3", "nodejs"} {
		if s := stages["errandd-with-worker"]; !strings.Contains(s.installed, program) {
			t.Errorf("the image with a worker has no %s: %s", program, s.installed)
		}
	}
}

// checkCopy checks that what is copied exists, in an earlier stage or in the repository.
func checkCopy(t *testing.T, stages map[string]*stage, words []string) {
	t.Helper()
	from := ""
	for len(words) > 0 && strings.HasPrefix(words[0], "--") {
		if name, found := strings.CutPrefix(words[0], "--from="); found {
			from = name
		}
		words = words[1:]
	}
	if from != "" {
		if stages[from] == nil {
			t.Errorf("COPY --from=%s: there is no such stage before it", from)
		}
		return
	}
	for _, source := range words[:len(words)-1] {
		if _, err := os.Stat(filepath.Join("..", source)); err != nil {
			t.Errorf("COPY: %v", err)
		}
	}
}

// checkBuild compares how the programs are built with go.mod and the Makefile.
func checkBuild(t *testing.T, build *stage) {
	t.Helper()
	read := func(name string) string {
		content, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	version := regexp.MustCompile(`(?m)^go (\S+)$`).FindStringSubmatch(read("go.mod"))
	if build == nil || version == nil || !strings.HasPrefix(build.base, "golang:"+version[1]+"-") {
		t.Fatalf("the programs are built in %+v, go.mod wants %v", build, version)
	}
	variable := regexp.MustCompile(`(?m)^VERSION_PACKAGE = (\S+)$`).FindStringSubmatch(read("Makefile"))
	for _, part := range []string{"CGO_ENABLED=0 go build", "-X " + variable[1] + ".version=", "./cmd/errand ./cmd/errandd"} {
		if !strings.Contains(build.installed, part) {
			t.Errorf("the build lacks %q: %s", part, build.installed)
		}
	}
}

// shell reports whether a line is one that sh can read.
func shell(t *testing.T, line string) ([]byte, error) {
	t.Helper()
	return exec.CommandContext(t.Context(), "sh", "-n", "-c", line).CombinedOutput()
}

func jsonOf(t *testing.T, words []string) string {
	t.Helper()
	var quoted []string
	for _, word := range words {
		text, err := json.Marshal(word)
		if err != nil {
			t.Fatal(err)
		}
		quoted = append(quoted, string(text))
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// TestUnits checks what leaves programs alone when errandd or a worker is stopped as a service of systemd, and that a
// worker that may not work is not started again and again.
func TestUnits(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]map[string]string{
		"errandd.service": {"[Service]ExecStart": "%h/.local/bin/errandd"},
		"errand-worker.service": {
			"[Service]ExecStart": "%h/.local/bin/errand worker", "[Service]TimeoutStopSec": "60s", "[Service]RestartPreventExitStatus": "1 2",
		},
	} {
		maps.Copy(want, map[string]string{"[Service]KillMode": "process", "[Service]Delegate": "yes", "[Install]WantedBy": "default.target"})
		settings := readUnit(t, filepath.Join("..", "deploy", "systemd", name))
		for setting, value := range want {
			if settings[setting] != value {
				t.Errorf("%s: %s is %q, want %q", name, setting, settings[setting], value)
			}
		}
	}
}

// readUnit returns the settings of a unit of systemd, each with its section before its name.
func readUnit(t *testing.T, path string) map[string]string {
	t.Helper()
	unit, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	settings := map[string]string{}
	section := ""
	for line := range strings.Lines(string(unit)) {
		line = strings.TrimSpace(line)
		name, value, isSetting := strings.Cut(line, "=")
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "[") && strings.HasSuffix(line, "]"):
			section = line
		case isSetting && section != "":
			settings[section+name] = value
		default:
			t.Errorf("%s: %q is neither a section nor a setting", path, line)
		}
	}
	return settings
}

// TestAgents checks the same of launchd.
func TestAgents(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"errandd": "<array> <string> /usr/local/bin/errandd",
		"worker":  "<array> <string> /usr/local/bin/errand <string> worker",
	} {
		flat := readAgent(t, filepath.Join("..", "deploy", "launchd", "com.errandhq."+name+".plist"))
		for _, want := range []string{"<key> AbandonProcessGroup <true>", "<key> Label <string> com.errandhq." + name, want} {
			if !strings.Contains(flat, want) {
				t.Errorf("the plist of %s lacks %q: %s", name, want, flat)
			}
		}
	}
}

// readAgent returns the elements and texts of a property list in one line.
func readAgent(t *testing.T, path string) string {
	t.Helper()
	plist, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	decoder := xml.NewDecoder(strings.NewReader(string(plist)))
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch token := token.(type) {
		case xml.CharData:
			texts = append(texts, strings.TrimSpace(string(token)))
		case xml.StartElement:
			texts = append(texts, "<"+token.Name.Local+">")
		}
	}
	return strings.Join(slices.DeleteFunc(texts, func(text string) bool { return text == "" }), " ")
}
