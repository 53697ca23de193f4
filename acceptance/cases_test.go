//go:build unix

package acceptance_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/apptest"
	"github.com/errandhq/errand/internal/pgtest"
	"github.com/errandhq/errand/internal/process"
)

// The cases from the field that concern processes, output, environment and workers, and what shows each of them
// against the real programs. A script is named by its path below testdata.
//
//	Processes
//	  a child in the background                   TestProcessCases/leftover
//	  job control, timeout                        TestProcessCases/job_control; timeout/tree
//	  ignores TERM, cancel                        TestProcessCases/ignores_TERM; cancel/during-a-step
//	  cleans up on TERM, cancel                   TestProcessCases/cleans_up
//	  ends by its own signal                      TestProcessCases/killed, .../terminated
//	  cwd that is missing or a file               TestProcessCases/cwd_*
//	  no x bit, bad #! line, no such program      TestProcessCases/not_executable, .../interpreter_*, .../missing_*
//	  arguments that a shell would change         TestProcessCases/arguments_*
//	  one argument of 200 KiB                     TestRefusedLengths; bad-input/refused; TestProcessCases/longest_argument
//	  stdin that is closed at once                TestProcessCases/stdin_*
//	Output, each on both databases
//	  a progress bar without a newline            TestOutputCases/*/progress_bar
//	  one line of 350 MB                          TestLongLine (4 GiB in the long form)
//	  NUL                                         TestOutputCases/*/NUL, .../invalid_UTF-8
//	  limits inside a character                   TestOutputCases/*/cut_*
//	  one byte over the limit                     TestOutputCases/*/over_the_limit, .../at_the_limit
//	Environment
//	  env under a worker with settings            TestProcessCases/environment; secrets/environment
//	  a value with newlines                       TestProcessCases/value_with_newlines
//	  the PATH of a service                       TestProcessCases/login_PATH, .../PATH_that_was_searched
//	Workers
//	  control plane restarted during a step       restart/longer-than-heartbeat; TestLongOutage (the long form)
//	  connection dead, process alive              TestDeadConnection; restart/machine-asleep
//	  step that outlives a network cut            TestDeadConnection

// longVariable asks for the forms of tests that take minutes.
const longVariable = "ERRAND_TEST_LONG"

func long() bool { return os.Getenv(longVariable) == "1" }

type step map[string]any

// command is a step that gives a program its arguments. More members are added in place.
func command(id string, more step, argv ...string) step {
	s := step{"id": id, "kind": "command", "command": argv[0], "args": argv[1:]}
	maps.Copy(s, more)
	return s
}

func definition(steps ...step) map[string]any {
	return map[string]any{"name": "Case", "workflow": map[string]any{"compiled": map[string]any{"version": 2, "steps": steps}}}
}

// fieldCase is one step that is executed by itself, and what the journal says of it afterwards.
type fieldCase struct {
	step  step
	input any
	// cancelWhen is a file at whose appearance the run is cancelled.
	cancelWhen string
	// code is that of the step's error; the step completes where it is empty.
	code string
	// says are parts of the error's message.
	says []string
	// result is that of the process, without its duration; nil where the program never started, or check looks.
	result *automation.ProcessResult
	check  func(t *testing.T, run automation.Run, result automation.ProcessResult)
}

func (c fieldCase) id() string { return fmt.Sprint(c.step["id"]) }

// runCases starts all cases at once and checks one after the other.
func runCases(t *testing.T, s *apptest.Server, cases []fieldCase) {
	t.Helper()
	runs := make([]string, len(cases))
	for i, c := range cases {
		runs[i] = s.RunNow(s.Create(definition(c.step)), map[string]any{"input": c.input}).ID
	}
	for i, c := range cases {
		t.Run(c.id(), func(t *testing.T) {
			if c.cancelWhen != "" {
				awaitFile(t, c.cancelWhen)
				if status, answer := s.Post("/v1/runs/"+runs[i]+"/cancel", step{}); status != http.StatusOK {
					t.Fatalf("the cancel is answered by %d: %s", status, answer)
				}
			}
			c.checkRun(t, s, awaitEnd(t, s, runs[i]))
		})
	}
}

func awaitFile(t *testing.T, path string) {
	t.Helper()
	apptest.Eventually(t, patience, path+" exists", func() (string, bool) {
		_, err := os.Stat(path)
		return fmt.Sprint(err), err == nil
	})
}

// awaitEnd waits for the end of a run, whatever that is. Unlike the waits of the installation it may be used in a
// subtest.
func awaitEnd(t *testing.T, s *apptest.Server, id string) automation.Run {
	t.Helper()
	var run automation.Run
	apptest.Eventually(t, patience, "the run has ended", func() (string, bool) {
		run = s.Run(id)
		return string(run.Status), run.Status.Finished()
	})
	return run
}

func (c fieldCase) checkRun(t *testing.T, s *apptest.Server, run automation.Run) {
	t.Helper()
	if survivors := s.StepProcesses(c.id()); len(survivors) > 0 {
		t.Errorf("processes of the step are alive after its end: %v", survivors)
	}
	got := run.Steps[0]
	code, message := "", ""
	if got.Error != nil {
		code, message = string(got.Error.Code), got.Error.Message
	}
	if code != c.code || (code == "") != (got.Status == automation.StepCompleted) {
		t.Fatalf("the step is %s with %q (%s), not with %q; output %.500s", got.Status, code, message, c.code, got.Output)
	}
	for _, part := range c.says {
		if !strings.Contains(message, part) {
			t.Errorf("the message does not say %q: %s", part, message)
		}
	}
	if c.result == nil && c.check == nil {
		if len(got.Output) > 0 {
			t.Errorf("a program that never started has the result %s", got.Output)
		}
		return
	}
	result := resultOf(t, run)
	if c.result != nil {
		if diff := cmp.Diff(*c.result, result, cmpopts.IgnoreFields(automation.ProcessResult{}, "DurationMs")); diff != "" {
			t.Errorf("result (-want +got):\n%s", diff)
		}
	}
	if c.check != nil {
		c.check(t, run, result)
	}
}

func resultOf(t *testing.T, run automation.Run) automation.ProcessResult {
	t.Helper()
	var result automation.ProcessResult
	if err := json.Unmarshal(run.Steps[0].Output, &result); err != nil {
		t.Fatalf("the result %q: %v", run.Steps[0].Output, err)
	}
	if valid := utf8.Valid(run.Steps[0].Output); !valid {
		t.Errorf("the result is not UTF-8: %q", run.Steps[0].Output)
	}
	return result
}

// printed is the result of a program that wrote text and ended with a code.
func printed(code int, text string) *automation.ProcessResult {
	return &automation.ProcessResult{ExitCode: &code, Stdout: text, StdoutBytes: int64(len(text))}
}

// signalled is the result of a program that a signal ended.
func signalled(signal, text string) *automation.ProcessResult {
	return &automation.ProcessResult{Signal: &signal, Stdout: text, StdoutBytes: int64(len(text))}
}

// sinceCancel returns how long after the request of a cancel its step had ended.
func sinceCancel(run automation.Run) time.Duration {
	return run.Steps[0].FinishedAt.Sub(*run.CancelRequestedAt)
}

// writeProgram writes a file into dir and returns its path.
func writeProgram(t *testing.T, dir, name, content string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// grace is how long a program may take after TERM where nothing else is set.
const grace = 10 * time.Second

func stopCases(dir string) []fieldCase {
	stubborn, tidy := filepath.Join(dir, "stubborn"), filepath.Join(dir, "tidy")
	return []fieldCase{
		{
			step:       command("ignores_TERM", nil, "sh", "-c", `trap "" TERM; echo >"$0"; echo begun; sleep 300`, stubborn),
			cancelWhen: stubborn, code: "cancelled",
			check: func(t *testing.T, run automation.Run, result automation.ProcessResult) {
				t.Helper()
				if result.Signal == nil || *result.Signal != "SIGKILL" || result.ExitCode != nil || result.Stdout != "begun\n" {
					t.Errorf("the program was not killed: %s", run.Steps[0].Output)
				}
				if after := sinceCancel(run); run.Status != automation.RunCancelled || after < grace {
					t.Errorf("the run is %s, and its step ended %s after the request, within the grace of %s", run.Status, after, grace)
				}
			},
		},
		{
			step: command("cleans_up", nil, "sh", "-c",
				`trap 'sleep 3; echo cleaned; exit 7' TERM; echo >"$0"; while :; do sleep 0.1; done`, tidy),
			cancelWhen: tidy, code: "cancelled",
			check: func(t *testing.T, run automation.Run, result automation.ProcessResult) {
				t.Helper()
				if result.ExitCode == nil || *result.ExitCode != 7 || result.Signal != nil || result.Stdout != "cleaned\n" {
					t.Errorf("the program did not end by itself: %s", run.Steps[0].Output)
				}
				if after := sinceCancel(run); run.Status != automation.RunCancelled || after < 3*time.Second {
					t.Errorf("the run is %s, and its step ended %s after the request, before its clean-up could", run.Status, after)
				}
			},
		},
		{
			step: command("leftover", nil, "sh", "-c", "sleep 600 & echo ok"),
			result: func() *automation.ProcessResult {
				result := printed(0, "ok\n")
				result.Leftovers = 1
				return result
			}(),
		},
		{
			step: command("job_control", step{"timeoutMs": 4000}, "bash", "-c", "set -m; sleep 300 & echo begun; sleep 300"),
			code: "timed_out",
			check: func(t *testing.T, _ automation.Run, result automation.ProcessResult) {
				t.Helper()
				if result.Stdout != "begun\n" {
					t.Errorf("the program was ended before it had started its children: %+v", result)
				}
			},
		},
		{
			step: command("killed", nil, "sh", "-c", "kill -9 $$"), code: "killed_by_signal",
			result: signalled("SIGKILL", ""), says: []string{"SIGKILL"},
		},
		{
			step: command("terminated", nil, "sh", "-c", "echo so far; kill -TERM $$"), code: "killed_by_signal",
			result: signalled("SIGTERM", "so far\n"), says: []string{"SIGTERM"},
		},
	}
}

func startCases(t *testing.T, dir string) []fieldCase {
	t.Helper()
	file := writeProgram(t, dir, "file", "#!/bin/sh\necho ran\n", 0o600)
	badLine := writeProgram(t, dir, "bad-line", "#!/nonexistent/interpreter -x\necho ran\n", 0o700)
	windows := writeProgram(t, dir, "windows", "#!/bin/sh\r\necho ran\r\n", 0o700)
	missing := filepath.Join(dir, "no such thing")
	pwd := func(id, cwd string) step { return command(id, step{"cwd": cwd}, "pwd") }
	return []fieldCase{
		{step: pwd("cwd_missing", missing), code: "cwd_missing", says: []string{missing}},
		{step: pwd("cwd_below_file", filepath.Join(file, "x")), code: "cwd_missing", says: []string{file}},
		{step: pwd("cwd_file", file), code: "cwd_missing", says: []string{file, "not a directory"}},
		{step: command("not_executable", nil, file), code: "command_not_executable", says: []string{file}},
		{step: command("directory", nil, dir), code: "command_not_executable", says: []string{dir}},
		{step: command("interpreter_missing", nil, badLine), code: "interpreter_not_found", says: []string{badLine, "/nonexistent/interpreter"}},
		{step: command("interpreter_carriage_return", nil, windows), code: "interpreter_not_found", says: []string{windows, "carriage return"}},
		{step: command("missing_path", nil, missing), code: "command_not_found", says: []string{missing}},
	}
}

// literal are arguments that a shell, or a runner that goes through one, would change.
var literal = []string{
	"-c", "x=1 y='a b' $HOME *.go", "", " ", "--", `\`, `"`, "'", "~", "$(id)", "`id`", "%s", "!!", "a\nb\n", "\t", "ünï ✓ 😀", "*", "{a,b}", "#", "|&;<>",
}

func argumentCases(t *testing.T, dir string) []fieldCase {
	t.Helper()
	const show = `for argument; do printf '%s\n--\n' "$argument"; done`
	program := writeProgram(t, dir, "arguments.sh", "#!/bin/sh\n"+show+"\n", 0o700)
	writeProgram(t, dir, "match.go", "", 0o600)
	want := printed(0, strings.Join(literal, "\n--\n")+"\n--\n")
	longest := strings.Repeat("x", 131_070) + "y"
	return []fieldCase{
		{step: command("arguments_of_a_command", step{"cwd": dir}, append([]string{program}, literal...)...), result: want},
		{
			step:   step{"id": "arguments_of_a_script", "kind": "script", "runtime": "shell", "source": show, "args": literal, "cwd": dir},
			result: want,
		},
		{step: command("longest_argument", nil, "printf", "%s", longest), result: printed(0, longest)},
	}
}

func stdinCases() []fieldCase {
	// A plan holds at most 1 MiB, and so does an input: the expansion holds twice that.
	input := strings.Repeat("x", 1<<20-2)
	given := step{"stdin": []any{step{"$runInput": true}, step{"$runInput": true}}}
	return []fieldCase{
		{step: command("stdin_closed_and_failing", given, "sh", "-c", "exec <&-; exit 3"), input: input, code: "nonzero_exit", result: printed(3, "")},
		{
			step: command("stdin_closed_and_going_on", given, "sh", "-c", "exec <&-; sleep 1; echo done"), input: input,
			result: printed(0, "done\n"),
		},
		{step: command("stdin_never_read", given, "true"), input: input, result: printed(0, "")},
		{step: command("stdin_read_in_part", given, "head", "-c", "10"), input: input, result: printed(0, `["xxxxxxxx`)},
		{
			step: command("stdin_read_whole", given, "sh", "-c", `wc -c | tr -d ' '`), input: input,
			result: printed(0, fmt.Sprintf("%d\n", 2*(len(input)+2)+len("[,]\n"))),
		},
	}
}

// serviceVariables are the environment of a worker that a service manager started, with settings and credentials of its own.
var serviceVariables = map[string]string{
	"INVOCATION_ID": "canary-of-the-manager", "TMOUT": "9999", "CREDENTIALS_DIRECTORY": "/canary",
	"ERRAND_API_KEY": "canary", "ERRAND_API_URL": "http://canary.invalid", "ERRAND_LOG_LEVEL": "info", "AMALGM_TOKEN": "canary",
	"TEMPORAL_API_KEY": "canary", "PATH": "/only/of/the/service:/usr/bin:/bin", "ORDINARY": "kept",
}

func environmentCases(t *testing.T, s *apptest.Server) []fieldCase {
	t.Helper()
	key, err := os.ReadFile(filepath.Join(s.DataDir(), "machine", "device.key"))
	if err != nil {
		t.Fatal(err)
	}
	var device struct{ D string }
	if err := json.Unmarshal(key, &device); err != nil || len(device.D) < 32 {
		t.Fatalf("the device key: %v", err)
	}
	value, path := "x\ny\nz=1", loginPath(t)
	return []fieldCase{
		{
			step: command("environment", nil, "env"),
			check: func(t *testing.T, run automation.Run, result automation.ProcessResult) {
				t.Helper()
				checkEnvironment(t, run, strings.Split(strings.TrimSuffix(result.Stdout, "\n"), "\n"), device.D)
			},
		},
		{
			step:   command("value_with_newlines", step{"env": step{"A": value}}, "sh", "-c", `printf '%s' "$A"`),
			result: printed(0, value),
		},
		{step: command("login_PATH", nil, "printenv", "PATH"), result: printed(0, path+"\n")},
		{
			step: command("PATH_that_was_searched", nil, "no-such-program"), code: "command_not_found",
			says: []string{"no-such-program", path},
		},
		{
			step: command("PATH_of_the_plan", step{"env": step{"PATH": "/searched/by/the/plan"}}, "no-such-program"), code: "command_not_found",
			says: []string{"/searched/by/the/plan"},
		},
	}
}

// loginPath returns the PATH of the user's login shell, followed by what that of the service has beside.
func loginPath(t *testing.T) string {
	t.Helper()
	user, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	environ := []string{"HOME=" + user.HomeDir, "PATH=" + serviceVariables["PATH"]}
	login := exec.CommandContext(t.Context(), process.LoginShell(environ), "-l", "-c", "printenv PATH")
	login.Dir, login.Env = user.HomeDir, environ
	output, err := login.Output()
	if err != nil {
		t.Fatalf("asking %s for its PATH: %v", login, err)
	}
	lines := strings.Split(strings.TrimSuffix(string(output), "\n"), "\n") // start-up files may write too
	var entries []string
	for _, entry := range filepath.SplitList(lines[len(lines)-1] + ":" + serviceVariables["PATH"]) {
		if !slices.Contains(entries, entry) {
			entries = append(entries, entry)
		}
	}
	return strings.Join(entries, ":")
}

func checkEnvironment(t *testing.T, run automation.Run, variables []string, deviceKey string) {
	t.Helper()
	key := run.ID + ":environment"
	want := []string{"AMALGM_AUTOMATION_IDEMPOTENCY_KEY=" + key, "ERRAND_IDEMPOTENCY_KEY=" + key, "ERRAND_RUN_ID=" + run.ID, "ERRAND_STEP_ID=environment"}
	var ours []string
	for _, variable := range variables {
		name, _, _ := strings.Cut(variable, "=")
		switch {
		case strings.HasPrefix(name, "ERRAND_"), strings.HasPrefix(name, "AMALGM_"), strings.HasPrefix(name, "TEMPORAL_"):
			ours = append(ours, variable)
		case serviceVariables[name] != "" && name != "ORDINARY" && name != "PATH", strings.Contains(variable, "canary"), strings.Contains(variable, deviceKey):
			t.Errorf("a step sees %s", variable)
		}
	}
	slices.Sort(ours)
	if diff := cmp.Diff(want, ours); diff != "" {
		t.Errorf("variables of ours that a step sees (-want +got):\n%s", diff)
	}
	if !slices.Contains(variables, "ORDINARY=kept") {
		t.Errorf("a step does not see the ordinary environment: %v", variables)
	}
}

// serveByHand starts an installation whose worker is started as a service manager would, with room for many steps.
func serveByHand(t *testing.T) *apptest.Server {
	t.Helper()
	s := apptest.Start(t, apptest.Options{})
	s.AwaitWorker()
	s.Interrupt()
	s.Options.NoLocalWorker = true
	s.Restart()
	s.Options.Env = serviceVariables
	s.StartWorker("--concurrency", "16")
	return s
}

// TestProcessCases also measures how long it takes from a call of cancel to a dead tree, where nothing disturbs it.
func TestProcessCases(t *testing.T) {
	t.Parallel()
	s := serveByHand(t)
	dir := t.TempDir()
	runCases(t, s, slices.Concat(
		stopCases(dir), startCases(t, dir), argumentCases(t, dir), stdinCases(), environmentCases(t, s)))
	measureCancel(t, s)
}

// measureCancel logs how long it takes from a call of cancel until no process of a tree that obeys TERM is alive.
func measureCancel(t *testing.T, s *apptest.Server) {
	t.Helper()
	const rounds, processes = 10, 3
	id := s.Create(definition(command("obedient", nil, "sh", "-c", "sleep 300 & sleep 300 & wait")))
	var took []time.Duration
	for range rounds {
		run := s.RunNow(id, nil).ID
		var tree []int
		s.Await(patience, "the tree runs", func() (string, bool) {
			tree = s.StepProcesses("obedient")
			return fmt.Sprint(tree), len(tree) == processes
		})
		began := time.Now()
		if status, answer := s.Post("/v1/runs/"+run+"/cancel", step{}); status != http.StatusOK {
			t.Fatalf("the cancel is answered by %d: %s", status, answer)
		}
		s.Await(patience, "the tree is dead", func() (string, bool) {
			return fmt.Sprint(tree), !slices.ContainsFunc(tree, apptest.Alive)
		})
		took = append(took, time.Since(began))
		s.WaitRun(run, automation.RunCancelled)
	}
	slices.Sort(took)
	t.Logf("from the call of cancel to a dead tree: median %s of %v", (took[rounds/2-1]+took[rounds/2])/2, took)
}

// TestRefusedLengths shows that what no program could be given is refused when it is saved.
func TestRefusedLengths(t *testing.T) {
	t.Parallel()
	s := apptest.Start(t, apptest.Options{NoLocalWorker: true})
	text := strings.Repeat("x", 200<<10)
	tests := map[string]step{
		"args[1]": command("a", nil, "echo", "short", text),
		"env.A":   command("a", step{"env": step{"A": text}}, "true"),
		"args[0]": {"id": "a", "kind": "script", "runtime": "shell", "source": "true", "args": []string{text}},
	}
	for place, refused := range tests {
		status, answer := s.Post("/v1/automations", definition(refused))
		var envelope struct {
			Error struct {
				Code    string
				Details []struct{ Path, Message string }
			}
		}
		if err := json.Unmarshal(answer, &envelope); err != nil {
			t.Fatalf("%.500s: %v", answer, err)
		}
		if status != http.StatusBadRequest || envelope.Error.Code != "validation_failed" ||
			!slices.ContainsFunc(envelope.Error.Details, func(d struct{ Path, Message string }) bool {
				return d.Path == "workflow.compiled.steps[0]."+place && strings.Contains(d.Message, "131")
			}) {
			t.Errorf("200 KiB at %s: %d %.500s", place, status, answer)
		}
	}
}

// TestOutputCases stores output that is hard to store in both databases.
func TestOutputCases(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]func(t *testing.T) apptest.Options{
		"SQLite": func(*testing.T) apptest.Options { return apptest.Options{} },
		"PostgreSQL": func(t *testing.T) apptest.Options {
			t.Helper()
			return apptest.Options{DatabaseURL: pgtest.Database(t)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runCases(t, apptest.Start(t, options(t)), outputCases())
		})
	}
}

func outputCases() []fieldCase {
	const frame = "\r[#####     ] 50 %"
	bar := strings.Repeat(frame, 300_000/len(frame)+1)
	write := func(id string, limit int, text string) step {
		return command(id, step{"stdin": text, "maxOutputBytes": limit}, "cat")
	}
	const limit = 204_800
	// What is cut: the character in the middle, between the halves.
	over := printed(0, strings.Repeat("x", limit/2)+omitted(1)+strings.Repeat("x", limit/2))
	over.StdoutBytes, over.StdoutTruncated = limit+1, true
	nul, invalid := printed(0, "a␀b"), printed(0, "a\uFFFDb\uFFFD")
	nul.StdoutBytes, invalid.StdoutBytes = 3, 4
	cases := []fieldCase{
		{step: write("progress_bar", 1<<20, bar), result: printed(0, bar)},
		{step: command("NUL", nil, "printf", `a\0b`), result: nul},
		{step: command("invalid_UTF-8", nil, "printf", `a\377b\303`), result: invalid},
		{step: write("at_the_limit", limit, strings.Repeat("x", limit)), result: printed(0, strings.Repeat("x", limit))},
		{step: write("over_the_limit", limit, strings.Repeat("x", limit+1)), result: over},
	}
	for _, character := range []string{"é", "€", "😀"} {
		for offset := range len(character) {
			cases = append(cases, cutCases(character, offset)...)
		}
	}
	return cases
}

func omitted(bytes int) string { return fmt.Sprintf("\n…[%d bytes omitted]…\n", bytes) }

// cutCases writes characters of one length to either stream, so that both cuts fall that far into one of them.
func cutCases(character string, offset int) []fieldCase {
	const half, count = 600, 2000 // 600 is a multiple of every length of a character
	text := strings.Repeat("x", offset) + strings.Repeat(character, count) + strings.Repeat("y", offset)
	kept := offset + (half-offset)/len(character)*len(character)
	shown := text[:kept] + omitted(len(text)-2*kept) + text[len(text)-kept:]
	code := 0
	id := func(stream string) string { return fmt.Sprintf("cut_%s_%d_%d", stream, len(character), offset) }
	given := step{"stdin": text, "maxOutputBytes": 2 * half}
	return []fieldCase{
		{
			step:   command(id("stdout"), given, "cat"),
			result: &automation.ProcessResult{ExitCode: &code, Stdout: shown, StdoutBytes: int64(len(text)), StdoutTruncated: true},
		},
		{
			step:   command(id("stderr"), given, "sh", "-c", "cat >&2"),
			result: &automation.ProcessResult{ExitCode: &code, Stderr: shown, StderrBytes: int64(len(text)), StderrTruncated: true},
		},
	}
}

// TestLongLine measures the worker's memory while a step writes one line that is far longer than that may become.
func TestLongLine(t *testing.T) {
	t.Parallel()
	const bound = 64 << 20
	length := int64(350_000_000)
	if long() {
		length = 4 << 30
	}
	s := apptest.Start(t, apptest.Options{})
	worker := s.AwaitWorker()
	s.WaitRun(s.RunNow(s.Create(definition(command("warm", nil, "echo", "warm"))), nil).ID, automation.RunCompleted)
	before := apptest.ResidentBytes(worker)
	id := s.RunNow(s.Create(definition(command("line", nil, "sh", "-c",
		`printf begin; head -c "$0" /dev/zero | tr '\0' x; printf end`, fmt.Sprint(length)))), nil).ID
	most, samples := before, 0
	var run automation.Run
	s.Await(10*time.Minute, "the line is written", func() (string, bool) {
		most, samples = max(most, apptest.ResidentBytes(worker)), samples+1
		run = s.Run(id)
		return string(run.Status), run.Status.Finished()
	})
	if run.Status != automation.RunCompleted {
		t.Fatalf("the run is %s: %+v", run.Status, run.Error)
	}
	t.Logf("the worker's memory: %d bytes before, at most %d in %d samples", before, most, samples)
	if before == 0 || most-before >= bound {
		t.Errorf("the worker's memory grew from %d to %d bytes, by %d or more", before, most, bound)
	}
	result := resultOf(t, run)
	if want := length + int64(len("beginend")); result.StdoutBytes != want || !result.StdoutTruncated {
		t.Errorf("%d bytes, truncated: %t; written were %d", result.StdoutBytes, result.StdoutTruncated, want)
	}
	if !strings.HasPrefix(result.Stdout, "beginxxx") || !strings.HasSuffix(result.Stdout, "xxxend") || len(result.Stdout) > 300<<10 {
		t.Errorf("of the line %d bytes are kept: %.20q … %q", len(result.Stdout), result.Stdout, result.Stdout[max(0, len(result.Stdout)-20):])
	}
}

// cable carries the connections between a worker and its control plane, until it is cut.
type cable struct {
	target   string
	listener net.Listener

	mutex sync.Mutex
	isCut bool
	open  []io.Closer
	dead  []*atomic.Bool // of each connection, whether it was caught in a cut, which is for ever
}

// newCable returns a cable to an address.
func newCable(t *testing.T, target string) *cable {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cable{target: target, listener: listener, open: []io.Closer{listener}}
	t.Cleanup(func() {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		for _, closer := range c.open {
			_ = closer.Close() // one that has ended meanwhile is no trouble
		}
	})
	go c.serve()
	return c
}

func (c *cable) url() string { return "http://" + c.listener.Addr().String() }

func (c *cable) serve() {
	for {
		near, err := c.listener.Accept()
		if err != nil {
			return // the test is over
		}
		far, err := net.Dial("tcp", c.target)
		if err != nil {
			_ = near.Close() // errandd is not there
			continue
		}
		dead := &atomic.Bool{}
		c.mutex.Lock()
		dead.Store(c.isCut)
		c.open, c.dead = append(c.open, near, far), append(c.dead, dead)
		c.mutex.Unlock()
		go carry(near, far, dead)
		go carry(far, near, dead)
	}
}

// carry copies until the connection is dead; then it swallows what comes, and says nothing to anybody.
func carry(from, to net.Conn, dead *atomic.Bool) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if dead.Load() {
			if err != nil {
				return
			}
			continue
		}
		if n > 0 {
			_, _ = to.Write(buffer[:n]) // the other side's reader sees the end
		}
		if err != nil {
			_ = to.Close() // twice is no trouble
			return
		}
	}
}

// cut makes every connection dead, those that come until the cable is mended too.
func (c *cable) cut() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.isCut = true
	for _, dead := range c.dead {
		dead.Store(true)
	}
}

// mend lets new connections through.
func (c *cable) mend() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.isCut = false
}

// ticker is a step that goes on until its gate exists, and says that it began and, every second, that it is alive.
type ticker struct{ begun, ticks, gate string }

func newTicker(dir string) ticker {
	return ticker{begun: filepath.Join(dir, "begun"), ticks: filepath.Join(dir, "ticks"), gate: filepath.Join(dir, "gate")}
}

func (k ticker) step() step {
	return command("ticker", nil, "sh", "-c",
		`echo begun >>"$0"; until [ -e "$2" ]; do echo tick >>"$1"; sleep 1; done; echo the real result`, k.begun, k.ticks, k.gate)
}

func lines(path string) int {
	content, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	return strings.Count(string(content), "\n")
}

// awaitTicks waits until the program has ticked some more times.
func (k ticker) awaitTicks(t *testing.T, more int) {
	t.Helper()
	want := lines(k.ticks) + more
	apptest.Eventually(t, patience, fmt.Sprintf("the program has ticked %d times", want), func() (string, bool) {
		got := lines(k.ticks)
		return fmt.Sprint(got), got >= want
	})
}

// finish lets the program end, and checks that its result is the run's and that it was started once.
func (k ticker) finish(t *testing.T, s *apptest.Server, runID string) {
	t.Helper()
	open(t, k.gate)
	run := s.WaitRun(runID, automation.RunCompleted)
	if result := resultOf(t, run); result.Stdout != "the real result\n" || run.Steps[0].Attempt != 1 || lines(k.begun) != 1 {
		t.Errorf("after %d attempts and %d starts the result is %s", run.Steps[0].Attempt, lines(k.begun), run.Steps[0].Output)
	}
}

// awaitOnline waits until the list of machines shows the only one as online, or as offline.
func awaitOnline(s *apptest.Server, want bool) {
	s.Await(patience, fmt.Sprintf("the machine's online is %t", want), func() (string, bool) {
		status, answer := s.Get("/v1/machines")
		var list struct{ Machines []struct{ Online bool } }
		err := json.Unmarshal(answer, &list)
		return string(answer), err == nil && status == http.StatusOK && len(list.Machines) == 1 && list.Machines[0].Online == want
	})
}

// TestDeadConnection lets the connections of a worker die in silence during a step, for longer than the heartbeat
// timeout: the machine shows as offline, the program goes on, and when the network is back the worker finds its way by
// itself, while the old connections stay dead.
func TestDeadConnection(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("a machine is offline 30 s after it was last seen")
	}
	s := apptest.New(t, apptest.Options{})
	network := newCable(t, strings.TrimPrefix(s.URL(), "http://"))
	s.Options.Env = map[string]string{"ERRAND_PUBLIC_URL": network.url()}
	s.Restart()
	s.AwaitWorker()
	s.Interrupt()
	s.Options.NoLocalWorker = true
	s.Restart()
	s.StartWorker("--server", network.url())
	worker := s.AwaitWorker()

	k := newTicker(t.TempDir())
	id := s.RunNow(s.Create(definition(k.step())), nil).ID
	s.AwaitRun(id, "the step executes", func(run automation.Run) bool { return run.Steps[0].Status == automation.StepRunning })
	awaitOnline(s, true)
	k.awaitTicks(t, 1)

	network.cut()
	awaitOnline(s, false)
	s.AwaitRun(id, "the run says so", func(run automation.Run) bool {
		return run.Status == automation.RunRunning && run.WaitingFor != nil && run.WaitingFor.Reason == automation.WaitMachineOffline
	})
	k.awaitTicks(t, 10)

	network.mend()
	awaitOnline(s, true)
	s.AwaitRun(id, "the run does not wait", func(run automation.Run) bool { return run.WaitingFor == nil })
	other := s.RunNow(s.Create(definition(command("other", nil, "echo", "other"))), nil)
	s.WaitRun(other.ID, automation.RunCompleted)
	k.awaitTicks(t, 1)
	k.finish(t, s, id)
	if again := s.AwaitWorker(); again != worker {
		t.Errorf("the worker is pid %d, and was %d", again, worker)
	}
}

// TestLongOutage has the control plane away for a minute of a step of a minute and a half.
func TestLongOutage(t *testing.T) {
	t.Parallel()
	if !long() {
		t.Skip("takes a minute and a half; restart/longer-than-heartbeat is the short form, " + longVariable + "=1 asks for this one")
	}
	s := apptest.Start(t, apptest.Options{})
	k := newTicker(t.TempDir())
	id := s.RunNow(s.Create(definition(k.step())), nil).ID
	s.AwaitRun(id, "the step executes", func(run automation.Run) bool { return run.Steps[0].Status == automation.StepRunning })
	k.awaitTicks(t, 5)
	s.Terminate()
	k.awaitTicks(t, 60)
	s.Restart()
	k.awaitTicks(t, 25)
	k.finish(t, s, id)
}
