package machine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/activities/machine"
	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/process"
)

// actionsFunc is a registry made of a function.
type actionsFunc func(ctx context.Context, step automation.ConcreteStep) (json.RawMessage, error)

func (f actionsFunc) Run(ctx context.Context, step automation.ConcreteStep) (json.RawMessage, error) {
	return f(ctx, step)
}

func noActions(context.Context, automation.ConcreteStep) (json.RawMessage, error) {
	return nil, errors.New("there are no actions in this test")
}

func runner(t *testing.T, change func(*machine.Options)) *machine.Runner {
	t.Helper()
	o := machine.Options{Actions: actionsFunc(noActions), Environ: []string{"PATH=" + os.Getenv("PATH"), "HOME=/"}, Grace: time.Minute}
	if change != nil {
		change(&o)
	}
	r, err := machine.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// commands numbers the steps: what one of them leaves running is found by its key, and must not be another's.
var commands atomic.Int64

// command is a command step that runs in a directory of its own.
func command(t *testing.T, name string, args ...string) automation.ConcreteStep {
	t.Helper()
	return automation.ConcreteStep{
		RunID: fmt.Sprintf("run-%d-%s", commands.Add(1), strings.ReplaceAll(t.Name(), "/", "-")), StepID: "step", Kind: automation.KindCommand,
		Command: name, Args: args, Cwd: t.TempDir(),
		TimeoutMs: 3_600_000, MaxOutputBytes: 256 << 10, Leftovers: automation.LeftoversEnd,
	}
}

// script is a script step that runs in a directory of its own.
func script(t *testing.T, runtime automation.Runtime, source string, args ...string) automation.ConcreteStep {
	t.Helper()
	s := command(t, "", args...)
	s.Kind, s.Runtime, s.Source = automation.KindScript, runtime, source
	return s
}

// processResult decodes the result of a process.
func processResult(t *testing.T, r machine.Result) automation.ProcessResult {
	t.Helper()
	var p automation.ProcessResult
	if err := json.Unmarshal(r.Data, &p); err != nil {
		t.Fatalf("result %s (error %v): %v", r.Data, r.Err, err)
	}
	return p
}

// completed runs a step that must complete and returns its result.
func completed(t *testing.T, step automation.ConcreteStep) automation.ProcessResult {
	t.Helper()
	r := runner(t, nil).Start(step).Wait()
	if r.Outcome != automation.OutcomeCompleted || r.Err != nil {
		t.Fatalf("outcome %s, error %v, result %s", r.Outcome, r.Err, r.Data)
	}
	return processResult(t, r)
}

// failedWith asserts that a step failed with a code and a message that says something.
func failedWith(t *testing.T, r machine.Result, code automation.StepCode, says ...string) {
	t.Helper()
	if r.Outcome != automation.OutcomeFailed || r.Err == nil || r.Err.Code != code {
		t.Fatalf("outcome %s, error %v, want failed with %s; result %s", r.Outcome, r.Err, code, r.Data)
	}
	for _, text := range says {
		if !strings.Contains(r.Err.Message, text) {
			t.Errorf("message %q does not say %q", r.Err.Message, text)
		}
	}
}

func writeFile(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
}

// eventually waits for a condition, long enough for a machine that is busy with other tests.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("waited 30 s for this, in vain: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func exists(path string) func() bool {
	return func() bool {
		_, err := os.Stat(path)
		return err == nil
	}
}

func TestResultHasExactlyTheMembersOfTheFormat(t *testing.T) {
	t.Parallel()
	r := runner(t, nil).Start(command(t, "sh", "-c", "echo '<out>'; printf err >&2")).Wait()
	var members map[string]any
	if err := json.Unmarshal(r.Data, &members); err != nil {
		t.Fatal(err)
	}
	if d, ok := members["durationMs"].(float64); !ok || d < 0 {
		t.Errorf("durationMs %v", members["durationMs"])
	}
	delete(members, "durationMs")
	want := map[string]any{
		"exitCode": 0.0, "signal": nil, "stdout": "<out>\n", "stderr": "err", "stdoutBytes": 6.0, "stderrBytes": 3.0,
		"stdoutTruncated": false, "stderrTruncated": false, "leftovers": 0.0,
	}
	if diff := cmp.Diff(want, members); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
}

func TestEndsOfPrograms(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		writeFile(t, path, content, mode)
		return path
	}
	with := func(step automation.ConcreteStep, change func(*automation.ConcreteStep)) automation.ConcreteStep {
		change(&step)
		return step
	}
	plain := file("plain", "text", 0o644)
	tests := []struct {
		name string
		step automation.ConcreteStep
		code automation.StepCode
		says []string
		ran  bool
	}{
		{"exit code", command(t, "sh", "-c", "exit 3"), automation.StepErrNonzeroExit, []string{"sh", "exit code 3"}, true},
		{"signal", command(t, "sh", "-c", "kill -9 $$"), automation.StepErrKilledBySignal, []string{"SIGKILL"}, true},
		{"no such program", command(t, "nosuch"), automation.StepErrCommandNotFound, []string{"nosuch", os.Getenv("PATH")}, false},
		{"a relative path", command(t, "./x"), automation.StepErrCommandNotFound, []string{"./x"}, false},
		{"no x bit", command(t, plain), automation.StepErrCommandNotExecutable, []string{plain}, false},
		{"a bad #! line", command(t, file("bad", "#!/nosuch/lang\n", 0o755)), automation.StepErrInterpreterNotFound, []string{"/nosuch/lang"}, false},
		{
			"no such directory", with(command(t, "true"), func(s *automation.ConcreteStep) { s.Cwd = dir + "/nosuch" }),
			automation.StepErrCwdMissing,
			[]string{dir + "/nosuch"},
			false,
		},
		{
			"a file as directory", with(script(t, automation.RuntimeShell, "true"), func(s *automation.ConcreteStep) { s.Cwd = plain }),
			automation.StepErrCwdMissing,
			[]string{plain, "not a directory"},
			false,
		},
		{"an argument of 200 KiB", command(t, "true", strings.Repeat("x", 200<<10)), automation.StepErrArgumentTooLong, []string{"204800"}, false},
		{
			"a NUL in an argument", command(t, "true", "a\x00b"),
			automation.StepErrSpawnFailed,
			[]string{"NUL"},
			false,
		},
		{
			"timeout", with(command(t, "sleep", "600"), func(s *automation.ConcreteStep) { s.TimeoutMs = 50 }),
			automation.StepErrTimedOut,
			[]string{"sleep", "50ms"},
			true,
		},
		{
			"no interpreter", with(script(t, automation.RuntimePython, "1"), func(s *automation.ConcreteStep) {
				s.Env = map[string]string{"PATH": dir}
			}), automation.StepErrInterpreterNotFound, []string{"python3", dir}, false,
		},
		{"an unknown runtime", script(t, "perl", "1"), automation.StepErrInterpreterNotFound, []string{"perl"}, false},
		{"an unknown lane", with(command(t, "true"), func(s *automation.ConcreteStep) { s.Kind = "wait" }), automation.StepErrSpawnFailed, []string{"wait"}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := runner(t, nil).Start(tt.step)
			if _, ok := e.Process(); ok != tt.ran {
				t.Errorf("it has a process: %v, want %v", ok, tt.ran)
			}
			r := e.Wait()
			failedWith(t, r, tt.code, tt.says...)
			if (r.Data != nil) != tt.ran {
				t.Fatalf("result %s", r.Data)
			}
			if !tt.ran {
				return
			}
			if p := processResult(t, r); (p.ExitCode == nil) != (p.Signal != nil) {
				t.Errorf("exit code %v, signal %v", p.ExitCode, p.Signal)
			}
		})
	}
}

func TestEndReasons(t *testing.T) {
	t.Parallel()
	tests := []struct {
		reason  machine.EndReason
		outcome automation.Outcome
		code    automation.StepCode
	}{
		{machine.EndCancelled, automation.OutcomeCancelled, automation.StepErrCancelled},
		{machine.EndInterrupted, automation.OutcomeInterrupted, ""},
	}
	for _, tt := range tests {
		t.Run(string(tt.reason), func(t *testing.T) {
			t.Parallel()
			step := command(t, "sh", "-c", `trap 'echo cleaned; exit 0' TERM; touch ready; while :; do sleep 0.01; done`)
			e := runner(t, nil).Start(step)
			eventually(t, "the program is ready", exists(filepath.Join(step.Cwd, "ready")))
			e.End(tt.reason)
			e.End(machine.EndCancelled)
			e.End(machine.EndInterrupted)
			r := e.Wait()
			var code automation.StepCode
			if r.Err != nil {
				code = r.Err.Code
			}
			if r.Outcome != tt.outcome || code != tt.code {
				t.Errorf("outcome %s, error %v, want %s with code %q", r.Outcome, r.Err, tt.outcome, tt.code)
			}
			if p := processResult(t, r); p.Stdout != "cleaned\n" {
				t.Errorf("stdout %q: the clean-up is not in the result", p.Stdout)
			}
		})
	}
}

func TestLeftovers(t *testing.T) {
	t.Parallel()
	step := command(t, "sh", "-c", "sleep 600 & echo ok")
	if p := completed(t, step); p.Stdout != "ok\n" || p.Leftovers != 1 {
		t.Errorf("end: stdout %q, leftovers %d", p.Stdout, p.Leftovers)
	}
	r := runner(t, nil)
	if n, err := r.EndLeftover(automation.StepRef{RunID: step.RunID, StepID: step.StepID}, nil); n != 0 || err != nil {
		t.Errorf("end: %d processes were alive, %v", n, err)
	}

	step.Leftovers, step.RunID = automation.LeftoversKeep, "kept"+step.RunID
	e := r.Start(step)
	if p := processResult(t, e.Wait()); p.Stdout != "ok\n" || p.Leftovers != 1 {
		t.Errorf("keep: stdout %q, leftovers %d", p.Stdout, p.Leftovers)
	}
	info, _ := e.Process()
	if n, err := r.EndLeftover(automation.StepRef{RunID: step.RunID, StepID: step.StepID}, &info); n != 1 || err != nil {
		t.Errorf("keep: %d processes were alive, %v, want 1", n, err)
	}
}

func TestOutputIsBoundedByTheStepAndTheJournal(t *testing.T) {
	t.Parallel()
	step := command(t, "sh", "-c", "head -c 204801 /dev/zero | tr '\\0' x")
	step.MaxOutputBytes = 204_800
	if p := completed(t, step); p.StdoutBytes != 204_801 || !p.StdoutTruncated || !strings.Contains(p.Stdout, "\n…[1 bytes omitted]…\n") {
		t.Errorf("%d bytes, truncated %v", p.StdoutBytes, p.StdoutTruncated)
	}

	// 8 MiB of NUL are 24 MiB of U+2400.
	step = command(t, "sh", "-c", "head -c 8388608 /dev/zero; head -c 8388608 /dev/zero >&2; exit 1")
	step.MaxOutputBytes = automation.MaxMaxOutputBytes
	r := runner(t, nil).Start(step).Wait()
	failedWith(t, r, automation.StepErrNonzeroExit)
	p := processResult(t, r)
	if len(r.Data) > automation.MaxResultBytes || p.StdoutBytes != 8<<20 || p.StderrBytes != 8<<20 || !p.StdoutTruncated || *p.ExitCode != 1 {
		t.Errorf("%d bytes of JSON; stdout %d, stderr %d, truncated %v", len(r.Data), p.StdoutBytes, p.StderrBytes, p.StdoutTruncated)
	}
}

func TestEnvironmentOfAStep(t *testing.T) {
	t.Parallel()
	r := runner(t, func(o *machine.Options) {
		o.Environ = []string{
			"PATH=" + os.Getenv("PATH"), "HOME=/home/worker", "LANG=C.UTF-8", "PWD=/where/the/worker/is", "KEPT=1",
			"ERRAND_DATA_DIR=/data", "ERRAND_RUNTIME_TOKEN=secret", "ERRAND_IDEMPOTENCY_KEY=stale", "AMALGM_API_KEY=secret",
			"TEMPORAL_API_KEY=secret", "NOTIFY_SOCKET=/run/x", "INVOCATION_ID=x",
		}
	})
	step := command(t, "env", "-0")
	step.Env = map[string]string{
		"A": "x\ny\nz=1", "HOME": "/elsewhere", "EMPTY": "", "ERRAND_STEP_ID": "forged", "AMALGM_AUTOMATION_IDEMPOTENCY_KEY": "forged",
	}
	p := processResult(t, r.Start(step).Wait())
	got := map[string]string{}
	for entry := range strings.SplitSeq(strings.TrimSuffix(p.Stdout, "␀"), "␀") {
		name, value, _ := strings.Cut(entry, "=")
		if _, twice := got[name]; twice {
			t.Errorf("%s is set twice", name)
		}
		got[name] = value
	}
	key := step.RunID + ":step"
	want := map[string]string{
		"PATH": os.Getenv("PATH"), "LANG": "C.UTF-8", "KEPT": "1", "PWD": step.Cwd,
		"A": "x\ny\nz=1", "HOME": "/elsewhere", "EMPTY": "",
		"ERRAND_IDEMPOTENCY_KEY": key, "AMALGM_AUTOMATION_IDEMPOTENCY_KEY": key, "ERRAND_RUN_ID": step.RunID, "ERRAND_STEP_ID": "step",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
}

func TestCommandIsLookedUpOnTheStepsOwnPath(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "tool"), "#!/bin/sh\necho mine\n", 0o755)
	step := command(t, "tool")
	step.Env = map[string]string{"PATH": dir}
	if p := completed(t, step); p.Stdout != "mine\n" {
		t.Errorf("stdout %q", p.Stdout)
	}
}

func TestStepWithoutCwdRunsInTheHomeDirectory(t *testing.T) {
	t.Parallel()
	step := command(t, "pwd")
	step.Cwd = ""
	home := t.TempDir()
	r := runner(t, func(o *machine.Options) { o.Home = func() (string, error) { return home, nil } })
	if p := processResult(t, r.Start(step).Wait()); p.Stdout != home+"\n" {
		t.Errorf("pwd %q, want %q", p.Stdout, home)
	}

	// By default the user database decides, not what HOME happens to be.
	u, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	r = runner(t, func(o *machine.Options) { o.Environ = append(o.Environ, "HOME="+t.TempDir()) })
	if p := processResult(t, r.Start(step).Wait()); p.Stdout != u.HomeDir+"\n" {
		t.Errorf("pwd %q, want %q", p.Stdout, u.HomeDir)
	}

	r = runner(t, func(o *machine.Options) {
		o.Home = func() (string, error) { return "", errors.New("nobody is at home") }
	})
	failedWith(t, r.Start(step).Wait(), automation.StepErrCwdMissing, "home directory", "nobody is at home")
}

func TestStdinIsTheSteps(t *testing.T) {
	t.Parallel()
	for _, step := range []automation.ConcreteStep{
		command(t, "cat"),
		script(t, automation.RuntimeShell, "cat"),
		script(t, automation.RuntimePython, "import sys\nsys.stdout.write(sys.stdin.read())"),
		script(t, automation.RuntimeNode, `import fs from "node:fs"; process.stdout.write(fs.readFileSync(0, "utf8"))`),
	} {
		step.Stdin = []byte(strings.Repeat("line\n", 10_000))
		if p := completed(t, step); p.Stdout != string(step.Stdin) {
			t.Errorf("%s %s: %d bytes came back, want %d", step.Command, step.Runtime, p.StdoutBytes, len(step.Stdin))
		}
	}
}

func action(id string) automation.ConcreteStep {
	return automation.ConcreteStep{
		RunID: "run", StepID: "step", Kind: automation.KindAction, ActionID: id, Input: json.RawMessage(`{"a":1}`), TimeoutMs: 60_000,
	}
}

func TestActionAnswers(t *testing.T) {
	t.Parallel()
	large := json.RawMessage(`"` + strings.Repeat("x", 2<<20) + `"`)
	tests := []struct {
		name    string
		result  json.RawMessage
		err     error
		outcome automation.Outcome
		code    automation.StepCode
	}{
		{"a result", json.RawMessage(`{"delivered": true}`), nil, automation.OutcomeCompleted, ""},
		{"no result", nil, nil, automation.OutcomeCompleted, ""},
		{"a result over the bound", large, nil, automation.OutcomeCompleted, ""},
		{"an error", nil, errors.New("disk full"), automation.OutcomeFailed, automation.StepErrActionFailed},
		{"failed", nil, &automation.StepError{Code: automation.StepErrActionFailed, Message: "m"}, automation.OutcomeFailed, automation.StepErrActionFailed},
		{"not found", nil, &automation.StepError{Code: automation.StepErrActionNotFound, Message: "m"}, automation.OutcomeFailed, automation.StepErrActionNotFound},
		{"unauthorized", nil, &automation.StepError{Code: automation.StepErrActionUnauthorized, Message: "m"}, automation.OutcomeFailed, automation.StepErrActionUnauthorized},
		{"transport", nil, &automation.StepError{Code: automation.StepErrTransportUnavailable, Message: "m"}, automation.OutcomeTransient, automation.StepErrTransportUnavailable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var seen automation.ConcreteStep
			e := runner(t, func(o *machine.Options) {
				o.Actions = actionsFunc(func(_ context.Context, step automation.ConcreteStep) (json.RawMessage, error) {
					seen = step
					return tt.result, tt.err
				})
			}).Start(action("a.b"))
			if _, ok := e.Process(); ok {
				t.Error("an action has a process")
			}
			r := e.Wait()
			if r.Outcome != tt.outcome || (r.Err == nil) != (tt.code == "") || r.Err != nil && r.Err.Code != tt.code {
				t.Errorf("outcome %s, error %v", r.Outcome, r.Err)
			}
			if len(r.Data) > automation.MaxResultBytes || (r.Data == nil) != (tt.result == nil) || r.Data != nil && !json.Valid(r.Data) {
				t.Errorf("result %.100s", r.Data)
			}
			if seen.ActionID != "a.b" || string(seen.Input) != `{"a":1}` || seen.IdempotencyKey() != "run:step" {
				t.Errorf("the action saw %+v", seen)
			}
		})
	}
}

func TestActionThatPanicsFailsAlone(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	r := runner(t, func(o *machine.Options) {
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		o.Actions = actionsFunc(func(context.Context, automation.ConcreteStep) (json.RawMessage, error) { panic("secret detail") })
	})
	result := r.Start(action("a.b")).Wait()
	failedWith(t, result, automation.StepErrActionFailed)
	if strings.Contains(result.Err.Message, "secret detail") || !strings.Contains(log.String(), "secret detail") {
		t.Errorf("message %q, log %q", result.Err.Message, log.String())
	}
}

func TestActionsAreEnded(t *testing.T) {
	t.Parallel()
	obeys := func(ctx context.Context, _ automation.ConcreteStep) (json.RawMessage, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	tests := []struct {
		name    string
		run     actionsFunc
		end     machine.EndReason
		outcome automation.Outcome
		code    automation.StepCode
		after   time.Duration
	}{
		{"cancelled", obeys, machine.EndCancelled, automation.OutcomeCancelled, automation.StepErrCancelled, 0},
		{"interrupted", obeys, machine.EndInterrupted, automation.OutcomeInterrupted, "", 0},
		{"timed out", obeys, "", automation.OutcomeFailed, automation.StepErrTimedOut, time.Minute},
		{"does not listen", func(context.Context, automation.ConcreteStep) (json.RawMessage, error) {
			time.Sleep(time.Hour)
			return nil, nil
		}, machine.EndCancelled, automation.OutcomeCancelled, automation.StepErrCancelled, 10 * time.Second},
		{"succeeds all the same", func(ctx context.Context, _ automation.ConcreteStep) (json.RawMessage, error) {
			<-ctx.Done()
			return json.RawMessage(`1`), nil
		}, machine.EndCancelled, automation.OutcomeCompleted, "", 0},
		{"fails because of it", func(ctx context.Context, _ automation.ConcreteStep) (json.RawMessage, error) {
			<-ctx.Done()
			return nil, &automation.StepError{Code: automation.StepErrTransportUnavailable, Message: "connection closed"}
		}, machine.EndCancelled, automation.OutcomeCancelled, automation.StepErrCancelled, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := runner(t, func(o *machine.Options) { o.Actions, o.Grace = tt.run, 10*time.Second })
				started := time.Now()
				e := r.Start(action("a.b"))
				synctest.Wait()
				if tt.end != "" {
					e.End(tt.end)
					e.End(machine.EndInterrupted)
				}
				result := e.Wait()
				var code automation.StepCode
				if result.Err != nil {
					code = result.Err.Code
				}
				if result.Outcome != tt.outcome || code != tt.code {
					t.Errorf("outcome %s, error %v, want %s with code %q", result.Outcome, result.Err, tt.outcome, tt.code)
				}
				if got := time.Since(started); got != tt.after {
					t.Errorf("ended after %s, want %s", got, tt.after)
				}
				time.Sleep(time.Hour) // of the bubble's clock: until what does not listen is gone too
			})
		})
	}
}

func TestOptionsAreRequired(t *testing.T) {
	t.Parallel()
	if _, err := machine.New(machine.Options{Actions: actionsFunc(noActions)}); err == nil {
		t.Error("a runner without an environment was made: programs would get the worker's own")
	}
	if _, err := machine.New(machine.Options{Environ: []string{}}); err == nil {
		t.Error("a runner without actions was made")
	}
}

func TestSearchPath(t *testing.T) {
	t.Parallel()
	own := []string{"PATH=/own", "SHLVL=1", "INVOCATION_ID=x"}
	if got, err := machine.SearchPath("", own); got != "/own" || err != nil {
		t.Errorf("in a terminal: %q, %v", got, err)
	}
	service := []string{"PATH=/nosuch/own:" + os.Getenv("PATH"), "INVOCATION_ID=x"}
	if got, err := machine.SearchPath("/configured", service); got != "/configured" || err != nil {
		t.Errorf("configured: %q, %v", got, err)
	}
	got, err := machine.SearchPath("", service)
	if err != nil {
		t.Fatal(err)
	}
	entries := filepath.SplitList(got)
	if !slices.Contains(entries, "/nosuch/own") || len(entries) < 2 {
		t.Errorf("as a service: %q", got)
	}
	seen := map[string]bool{}
	for _, entry := range entries {
		if seen[entry] {
			t.Errorf("as a service: %s twice in %q", entry, got)
		}
		seen[entry] = true
	}
}

func TestPathOfTheMachineIsSearchedAndShown(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "tool"), "#!/bin/sh\necho \"$PATH\"\n", 0o755)
	r := runner(t, func(o *machine.Options) { o.Path = dir })
	if p := processResult(t, r.Start(command(t, "tool")).Wait()); p.Stdout != dir+"\n" {
		t.Errorf("stdout %q, stderr %q", p.Stdout, p.Stderr)
	}
	failedWith(t, r.Start(command(t, "nosuch")).Wait(), automation.StepErrCommandNotFound, "nosuch", dir)
}

// A daemon leaves the session and the group of its step, but not the step.
func TestDaemonOfAStepIsEnded(t *testing.T) {
	t.Parallel()
	step := command(t, "sh", "-c", "setsid sh -c 'echo $$ >pid; exec sleep 600' & while [ ! -s pid ]; do sleep 0.01; done")
	if p := completed(t, step); p.Leftovers != 1 {
		t.Errorf("leftovers %d", p.Leftovers)
	}
	if n, err := runner(t, nil).EndLeftover(automation.StepRef{RunID: step.RunID, StepID: step.StepID}, nil); n != 0 || err != nil {
		t.Errorf("%d processes were alive, %v", n, err)
	}
}

// Neither session nor environment tells where it came from; the control group does.
func TestDaemonWithoutEnvironmentIsEndedInAControlGroup(t *testing.T) {
	t.Parallel()
	cgroups := process.FindCgroups()
	if cgroups == nil {
		t.Skip("this process may make no control groups: it needs a delegated cgroup v2")
	}
	r := runner(t, func(o *machine.Options) { o.Cgroups = cgroups })
	step := command(t, "sh", "-c", "setsid env -i sh -c 'echo $$ >pid; exec sleep 600' & while [ ! -s pid ]; do sleep 0.01; done")
	if p := processResult(t, r.Start(step).Wait()); p.Leftovers != 1 {
		t.Errorf("leftovers %d", p.Leftovers)
	}
}
