//go:build unix

package acceptance_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/errandhq/errand/internal/apptest"
)

// patience bounds every wait of a script. The longest thing that one waits for is Temporal's notice that a killed
// worker is gone, after 30 s, with the pause before the next attempt.
const patience = 2 * time.Minute

// commands are those that scripts have beside the ones of testscript. The order is that of a script.
//
//	expand FILE...              replace ${NAME} in files by variables of the script
//	build FILE PART...          write a file: each part is text with Go's escapes, or N*text to repeat it
//	errandd start [FLAG...]     start errandd and wait until it is ready
//	errandd terminate|interrupt|kill
//	worker start [FLAG...]      start a worker by hand
//	worker stop|kill            SIGTERM or SIGKILL to the worker, whoever started it, and wait for its end
//	worker pid NAME             wait until a worker runs, and set a variable to its process
//	[!] worker running
//	exits CODE PROGRAM ARG...   like exec, with the exit code that is wanted
//	http [-status N] [-header 'NAME: VALUE']... [-body FILE] METHOD PATH
//	                            call REST with the token of server.json; the body of the answer is the output
//	refused FILE PATH...        creating an automation of the file is refused by command line and REST alike, with
//	                            violations at exactly these places; "-" is the document itself, and
//	                            a place that ends in ... begins so
//	[!] json [-stderr] PATH [VALUE]
//	                            the JSON of the last output has, or has not, a value at the path; VALUE is JSON or bare text
//	json-match PATH REGEXP      the string at the path matches
//	save PATH NAME              set a variable to the text at the path
//	[!] await RUN PATH [VALUE]  wait until a run has, or has not, a value at a path; the run is the output
//	await-lines FILE N          wait until a file is there and has at least N lines
//	[!] alive FILE              the processes whose ids are in the file all run, or none does
//	no-step-processes           no process that was started by a step, or below one, runs
//	await-gone FILE             wait until the processes whose ids are in the file have ended
//	dump-database FILE          write every row of every table of the PostgreSQL database as text
//	[!] secret-free FILE...     no credential of the installation is in the files and in those below directories;
//	                            the files that keep credentials are left out
var commands = map[string]func(ts *testscript.TestScript, neg bool, args []string){
	"alive":             alive,
	"await":             await,
	"await-gone":        awaitGone,
	"await-lines":       awaitLines,
	"build":             build,
	"dump-database":     dumpDatabase,
	"errandd":           errandd,
	"exits":             exits,
	"expand":            expand,
	"http":              callHTTP,
	"json":              assertJSON,
	"json-match":        matchJSON,
	"no-step-processes": noStepProcesses,
	"refused":           refused,
	"save":              save,
	"secret-free":       secretFree,
	"worker":            worker,
}

func server(ts *testscript.TestScript) *apptest.Server {
	s, ok := ts.Value(serverKey{}).(*apptest.Server)
	if !ok {
		ts.Fatalf("the script has no installation")
	}
	return s
}

// usage ends a script that does not use a command as it is meant.
func usage(ts *testscript.TestScript, ok bool, text string) {
	if !ok {
		ts.Fatalf("usage: %s", text)
	}
}

var variable = regexp.MustCompile(`\$\{[A-Z_]+\}`)

func expand(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) > 0, "expand FILE...")
	for _, name := range args {
		content := variable.ReplaceAllStringFunc(ts.ReadFile(name), func(match string) string {
			value := ts.Getenv(match[2 : len(match)-1])
			if value == "" {
				ts.Fatalf("%s has no value", match)
			}
			return value
		})
		ts.Check(os.WriteFile(ts.MkAbs(name), []byte(content), 0o600))
	}
}

var repeated = regexp.MustCompile(`^([0-9]+)\*(.+)$`)

func build(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) > 1, "build FILE PART...")
	var content strings.Builder
	for _, part := range args[1:] {
		count := 1
		if match := repeated.FindStringSubmatch(part); match != nil {
			var err error
			count, err = strconv.Atoi(match[1])
			ts.Check(err)
			part = match[2]
		}
		text, err := strconv.Unquote(`"` + strings.ReplaceAll(part, `"`, `\"`) + `"`)
		if err != nil {
			ts.Fatalf("the part %s: %v", part, err)
		}
		content.WriteString(strings.Repeat(text, count))
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(content.String()), 0o600))
}

func errandd(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) > 0, "errandd start|terminate|interrupt|kill")
	s := server(ts)
	switch args[0] {
	case "start":
		s.Options.NoLocalWorker = slices.Contains(args, "--no-local-worker")
		s.Options.Args = slices.DeleteFunc(slices.Clone(args[1:]), func(arg string) bool { return arg == "--no-local-worker" })
		s.Restart()
	case "terminate":
		s.Terminate()
	case "interrupt":
		s.Interrupt()
	case "kill":
		s.Kill()
	default:
		ts.Fatalf("errandd %s: no such thing to do", args[0])
	}
}

func worker(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, len(args) > 0 && (!neg || args[0] == "running"), "worker start|stop|kill|pid|running")
	s := server(ts)
	switch args[0] {
	case "start":
		s.StartWorker(args[1:]...)
	case "stop":
		s.StopWorker()
	case "kill":
		s.KillWorker()
	case "pid":
		usage(ts, len(args) == 2, "worker pid NAME")
		ts.Setenv(args[1], strconv.Itoa(s.AwaitWorker()))
	case "running":
		if pid, running := s.WorkerPID(); running == neg {
			ts.Fatalf("worker running: %t (pid %d)", running, pid)
		}
	default:
		ts.Fatalf("worker %s: no such thing to do", args[0])
	}
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) > 1, "exits CODE PROGRAM ARG...")
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		got = exit.ExitCode()
	case err != nil:
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("exit code %d, not %d", got, want)
	}
}

// headers collects the values of a flag that may be given many times.
type headers []string

func (h *headers) String() string { return strings.Join(*h, ", ") }

func (h *headers) Set(text string) error {
	*h = append(*h, text)
	return nil
}

func callHTTP(ts *testscript.TestScript, neg bool, args []string) {
	flags := flag.NewFlagSet("http", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	status := flags.Int("status", 0, "")
	bodyFile := flags.String("body", "", "")
	var given headers
	flags.Var(&given, "header", "")
	ts.Check(flags.Parse(args))
	usage(ts, !neg && flags.NArg() == 2, "http [-status N] [-header 'NAME: VALUE']... [-body FILE] METHOD PATH")

	s := server(ts)
	var body []byte
	if *bodyFile != "" {
		body = []byte(ts.ReadFile(*bodyFile))
	}
	request := s.Request(flags.Arg(0), flags.Arg(1), body)
	for _, header := range given {
		name, value, _ := strings.Cut(header, ":")
		value = strings.TrimSpace(value)
		switch {
		case strings.EqualFold(name, "Host"):
			request.Host = value
		case value == "":
			request.Header.Del(name)
		default:
			request.Header.Set(name, value)
		}
	}
	got, answer := s.Do(request)
	_, err := ts.Stdout().Write(answer)
	ts.Check(err)
	if *status == 0 && got/100 != 2 || *status != 0 && got != *status {
		ts.Fatalf("the status is %d: %s", got, answer)
	}
}

func refused(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) > 1, "refused FILE PATH...")
	want := slices.Sorted(slices.Values(args[1:]))

	exits(ts, false, []string{"2", "errand", "create", "--file", args[0]})
	if printed := ts.ReadFile("stdout"); printed != "" {
		ts.Fatalf("the refused command has printed %s", printed)
	}
	checkRefusal(ts, "the command line", ts.ReadFile("stderr"), want)

	s := server(ts)
	status, answer := s.Do(s.Request(http.MethodPost, "/v1/automations", []byte(ts.ReadFile(args[0]))))
	if status != http.StatusBadRequest {
		ts.Fatalf("REST has answered %d: %s", status, answer)
	}
	checkRefusal(ts, "REST", string(answer), want)
}

// checkRefusal checks the envelope of a refusal: its code, and the places of its violations, each with a message
// that says something.
func checkRefusal(ts *testscript.TestScript, face, envelope string, want []string) {
	var refusal struct {
		Error struct {
			Code    string
			Message string
			Details []struct{ Path, Message string }
		}
	}
	if err := json.Unmarshal([]byte(envelope), &refusal); err != nil {
		ts.Fatalf("%s has answered %s: %v", face, envelope, err)
	}
	if refusal.Error.Code != "validation_failed" || refusal.Error.Message == "" {
		ts.Fatalf("%s has answered %s", face, envelope)
	}
	var got []string
	for _, detail := range refusal.Error.Details {
		if len(detail.Message) < 10 {
			ts.Fatalf("the message at %s says nothing: %q", detail.Path, detail.Message)
		}
		if detail.Path == "" {
			detail.Path = "-"
		}
		got = append(got, detail.Path)
	}
	slices.Sort(got)
	for i, place := range want {
		if begin, open := strings.CutSuffix(place, "..."); open && i < len(got) && strings.HasPrefix(got[i], begin) {
			got[i] = place
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		ts.Fatalf("%s has named other places (-want +got):\n%s\n%s", face, diff, envelope)
	}
}

// output returns the JSON value of the last command's output.
func output(ts *testscript.TestScript, name string) any {
	value, err := decode(ts.ReadFile(name))
	if err != nil {
		ts.Fatalf("the output is not one JSON value: %v", err)
	}
	return value
}

func decode(text string) (any, error) {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more behind it")
	}
	return value, nil
}

var pathElement = regexp.MustCompile(`^(?:\.([A-Za-z_][A-Za-z0-9_]*)|\[([0-9]+)\])`)

// at returns the value at a path such as .result.steps[0].status; "." is the whole, and .length of a list its length.
func at(value any, path string) (any, bool, error) {
	for rest := strings.TrimSuffix(path, "."); rest != ""; {
		match := pathElement.FindStringSubmatch(rest)
		if match == nil {
			return nil, false, fmt.Errorf("%q is not a path", path)
		}
		rest = rest[len(match[0]):]
		list, isList := value.([]any)
		object, isObject := value.(map[string]any)
		switch {
		case match[1] != "" && isObject:
			var found bool
			if value, found = object[match[1]]; !found {
				return nil, false, nil
			}
		case match[2] != "" && isList:
			index, err := strconv.Atoi(match[2])
			if err != nil || index >= len(list) {
				return nil, false, err
			}
			value = list[index]
		case match[1] == "length" && isList:
			value = json.Number(strconv.Itoa(len(list)))
		default:
			return nil, false, nil
		}
	}
	return value, true, nil
}

// equal compares a value with a text: JSON, or a bare string.
func equal(value any, text string) bool {
	want, err := decode(text)
	if err != nil {
		want = text
	}
	return cmp.Equal(want, value)
}

// show writes a value for a message.
func show(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	return string(text)
}

func assertJSON(ts *testscript.TestScript, neg bool, args []string) {
	source := "stdout"
	if len(args) > 0 && args[0] == "-stderr" {
		source, args = "stderr", args[1:]
	}
	usage(ts, len(args) == 1 || len(args) == 2, "[!] json [-stderr] PATH [VALUE]")
	value, found, err := at(output(ts, source), args[0])
	ts.Check(err)
	holds := found && (len(args) == 1 || equal(value, args[1]))
	if holds == neg {
		ts.Fatalf("at %s is %s (found: %t)", args[0], show(value), found)
	}
}

// text returns the string at a path, or another value's JSON.
func text(ts *testscript.TestScript, path string) string {
	value, found, err := at(output(ts, "stdout"), path)
	ts.Check(err)
	if !found {
		ts.Fatalf("there is nothing at %s", path)
	}
	if s, ok := value.(string); ok {
		return s
	}
	return show(value)
}

func matchJSON(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) == 2, "json-match PATH REGEXP")
	pattern, err := regexp.Compile("(?s)" + args[1])
	ts.Check(err)
	if got := text(ts, args[0]); !pattern.MatchString(got) {
		ts.Fatalf("at %s is %q", args[0], got)
	}
}

func save(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) == 2, "save PATH NAME")
	ts.Setenv(args[1], text(ts, args[0]))
}

func await(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, len(args) == 2 || len(args) == 3, "[!] await RUN PATH [VALUE]")
	s := server(ts)
	var answer []byte
	s.Await(patience, strings.Join(args, " "), func() (string, bool) {
		var status int
		status, answer = s.Get("/v1/runs/" + args[0])
		if status != http.StatusOK {
			ts.Fatalf("reading the run: %d %s", status, answer)
		}
		run, err := decode(string(answer))
		ts.Check(err)
		value, found, err := at(run, args[1])
		ts.Check(err)
		if holds := found && (len(args) == 2 || equal(value, args[2])); holds != neg {
			return "", true
		}
		if _, finished, _ := at(run, ".finishedAt"); finished && args[1] == ".status" {
			ts.Fatalf("the run has ended otherwise: %s", answer)
		}
		return string(answer), false
	})
	_, err := ts.Stdout().Write(answer)
	ts.Check(err)
}

func awaitLines(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) == 2, "await-lines FILE N")
	want, err := strconv.Atoi(args[1])
	ts.Check(err)
	server(ts).Await(patience, args[0]+" has "+args[1]+" lines", func() (string, bool) {
		content, err := os.ReadFile(ts.MkAbs(args[0]))
		if err != nil {
			return err.Error(), false
		}
		return string(content), bytes.Count(content, []byte("\n")) >= want
	})
}

func awaitGone(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) == 1, "await-gone FILE")
	server(ts).Await(patience, "the processes of "+args[0]+" have ended", func() (string, bool) {
		running := runningOf(ts, args[0])
		return fmt.Sprint(running), len(running) == 0
	})
}

func alive(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, len(args) == 1, "[!] alive FILE")
	all := strings.Fields(ts.ReadFile(args[0]))
	running := runningOf(ts, args[0])
	if neg && len(running) > 0 || !neg && len(running) < len(all) || len(all) == 0 {
		ts.Fatalf("of the processes %v are alive: %v", all, running)
	}
}

// runningOf returns the processes that run of those whose ids are in a file.
func runningOf(ts *testscript.TestScript, name string) []int {
	var running []int
	for field := range strings.FieldsSeq(ts.ReadFile(name)) {
		pid, err := strconv.Atoi(field)
		ts.Check(err)
		if apptest.Alive(pid) {
			running = append(running, pid)
		}
	}
	return running
}

func noStepProcesses(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) == 0, "no-step-processes")
	if pids := server(ts).StepProcesses(""); len(pids) > 0 {
		ts.Fatalf("processes of steps that are alive: %v", pids)
	}
}
