//go:build unix

package mcphost_test

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/mcphost"
)

func TestToolsOfAProgram(t *testing.T) {
	t.Parallel()
	_, source := host(t, program(t, "server", t.TempDir()))
	const failed = automation.StepErrActionFailed
	tests := []struct {
		name, tool, input string
		code              automation.StepCode
		says              string
	}{
		{"called", "greet", `{"name":"Ada"}`, "", `{"content":[{"type":"text","text":"Hello Ada. "}]}`},
		{"no input for a tool that needs none", "environ", ``, "", `"cwd"`},
		{"the key goes along", "meta", `{"n":1.50}`, "", `"errand/idempotencyKey":"run-1:call"`},
		{"numbers stay as they were sent", "meta", `{"n":1.50}`, "", `{\"n\":1.50}`},
		{"a missing argument", "greet", `{}`, failed, "name"},
		{"an argument of another type", "greet", `{"name":"x","times":"3"}`, failed, "times"},
		{"an unknown argument", "greet", `{"name":"x","loud":true}`, failed, "loud"},
		{"no object", "greet", `["x"]`, failed, "object"},
		{"null", "greet", `null`, failed, "object"},
		{"the tool reports an error", "refuse", `{}`, failed, "the disk is full"},
		{"the server reports an error", "protocolerror", `{}`, failed, "something broke"},
		{"an unknown tool", "greeet", `{}`, automation.StepErrActionNotFound, "srv.greeet"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := source.Run(t.Context(), step(tt.tool, tt.input))
			text := string(got)
			if err != nil {
				text = err.Error()
			}
			if stepCode(err) != tt.code || (err == nil) != (tt.code == "") || !strings.Contains(text, tt.says) {
				t.Errorf("%s, error %v, want code %q and %q", got, err, tt.code, tt.says)
			}
		})
	}
}

func TestIDsOfAServer(t *testing.T) {
	t.Parallel()
	_, source := host(t, program(t, "server", t.TempDir()))
	ids, err := source.IDs(t.Context())
	want := []string{"srv.die", "srv.environ", "srv.greet", "srv.grow", "srv.meta", "srv.protocolerror", "srv.refuse", "srv.slow"}
	if err != nil || !slices.Equal(ids, want) {
		t.Errorf("ids %v, %v", ids, err)
	}
	if _, err := source.Run(t.Context(), step("grow", `{}`)); err != nil {
		t.Fatal(err)
	}
	if _, err := source.Run(t.Context(), step("grown", `{}`)); err != nil {
		t.Errorf("a tool that came later: %v", err)
	}
}

func TestStepCredentialIsRefused(t *testing.T) {
	t.Parallel()
	_, source := host(t, program(t, "server", t.TempDir()))
	s := step("greet", `{"name":"Ada"}`)
	s.Credential = "forge"
	if _, err := source.Run(t.Context(), s); stepCode(err) != automation.StepErrActionFailed || !strings.Contains(err.Error(), "machine.yaml") {
		t.Errorf("error %v", err)
	}
}

// about is what the tool environ tells of its server.
type about struct {
	Environ []string `json:"environ"`
	PID     int      `json:"pid"`
	Cwd     string   `json:"cwd"`
}

func askAbout(t *testing.T, source *mcphost.Source) about {
	t.Helper()
	got, err := source.Run(t.Context(), step("environ", `{}`))
	if err != nil {
		t.Fatal(err)
	}
	var answer struct {
		StructuredContent about `json:"structuredContent"`
	}
	if err := json.Unmarshal(got, &answer); err != nil {
		t.Fatal(err)
	}
	return answer.StructuredContent
}

func TestServerInheritsNothingOfOurs(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	server := program(t, "server", dir)
	server.Env["GIVEN"] = "a=b\nc"
	_, source := host(t, server)
	got := askAbout(t, source)
	for _, entry := range got.Environ {
		if strings.HasPrefix(entry, "ERRAND_") || strings.HasPrefix(entry, "NOTIFY_SOCKET") {
			t.Errorf("the server has %s", entry)
		}
	}
	if !slices.Contains(got.Environ, "GIVEN=a=b\nc") || got.Cwd != dir {
		t.Errorf("cwd %q, environment %q", got.Cwd, got.Environ)
	}
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestServerIsKeptAndStartedAgain(t *testing.T) {
	t.Parallel()
	h, source := host(t, program(t, "server", t.TempDir()))
	var calls sync.WaitGroup
	pids := make([]int, 8)
	for i := range pids {
		calls.Go(func() { pids[i] = askAbout(t, source).PID })
	}
	calls.Wait()
	if slices.Min(pids) != slices.Max(pids) {
		t.Errorf("several servers were started: %v", pids)
	}
	_, err := source.Run(t.Context(), step("die", `{}`))
	if stepCode(err) != automation.StepErrTransportUnavailable {
		t.Errorf("it dies in a call: error %v", err)
	}
	var again int
	eventually(t, "another server answers", func() bool {
		_, err := source.Run(t.Context(), step("greet", `{"name":"x"}`))
		return err == nil
	})
	if again = askAbout(t, source).PID; again == pids[0] {
		t.Error("the dead server answers")
	}
	h.Close()
	if alive(again) {
		t.Error("the server outlives its host")
	}
	if _, err := source.Run(t.Context(), step("greet", `{"name":"x"}`)); err == nil {
		t.Error("a closed host starts a server")
	}
}

func TestStubbornServerIsEnded(t *testing.T) {
	t.Parallel()
	server := program(t, "server", t.TempDir())
	server.Env["MCPHOST_TEST_STUBBORN"] = "1"
	h, source := host(t, server)
	pid := askAbout(t, source).PID
	h.Close()
	if alive(pid) {
		t.Error("the server outlives its host")
	}
}

func TestCancelIsPassedOn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, source := host(t, program(t, "server", dir))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := source.Run(ctx, step("slow", `{}`))
		done <- err
	}()
	eventually(t, "the call is under way", exists(filepath.Join(dir, "slow-started")))
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	eventually(t, "the server was told", exists(filepath.Join(dir, "slow-cancelled")))
	if _, err := source.Run(t.Context(), step("greet", `{"name":"x"}`)); err != nil {
		t.Errorf("the next call: %v", err)
	}
}

func TestServersThatDoNotStart(t *testing.T) {
	t.Parallel()
	broken := program(t, "broken", t.TempDir())
	missing := mcphost.Server{Name: "srv", Command: "nosuch-mcp-server"}
	tests := []struct {
		name   string
		server mcphost.Server
		code   automation.StepCode
		says   string
	}{
		{"it ends at once", broken, automation.StepErrTransportUnavailable, "exit code 3: the licence has expired"},
		{"there is no such program", missing, automation.StepErrActionFailed, "nosuch-mcp-server"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, source := host(t, tt.server)
			for range 2 {
				_, err := source.Run(t.Context(), step("greet", `{}`))
				if stepCode(err) != tt.code || !strings.Contains(err.Error(), tt.says) {
					t.Errorf("error %v, want %s that says %q", err, tt.code, tt.says)
				}
			}
			if _, err := source.IDs(t.Context()); err == nil {
				t.Error("it has actions")
			}
		})
	}
}

func TestNewRefusesBadServers(t *testing.T) {
	t.Parallel()
	for name, list := range map[string][]mcphost.Server{
		"neither": {{Name: "a"}},
		"both":    {{Name: "a", Command: "x", URL: "http://x"}},
		"twice":   {{Name: "a", Command: "x"}, {Name: "a", Command: "y"}},
	} {
		if _, err := mcphost.New(list, mcphost.Options{}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
