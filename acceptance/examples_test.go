//go:build unix

package acceptance_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/apptest"
)

// standIn has the command line of codex, as far as the example uses it, and no model behind it.
const standIn = `#!/bin/sh
[ $# = 4 ] && [ "$1" = exec ] && [ "$2" = --sandbox ] && [ "$3" = workspace-write ] || { echo "usage: codex exec --sandbox workspace-write TASK" >&2; exit 2; }
[ -z "$(cat)" ] || { echo "the task is followed by something" >&2; exit 2; }
[ -d .git ] || { echo "not inside a repository" >&2; exit 1; }
if [ -e "$0.fails" ]; then echo half >>go.mod; echo "stream error" >&2; exit 1; fi
echo "reading the repository" >&2
[ -e "$0.idle" ] || echo "require example.com/a v1.1.0" >go.mod
echo "Asked to: $4"
`

// TestCodingAgentExample executes examples/coding-agent with a stand-in for codex on the PATH.
func TestCodingAgentExample(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	project, programs := filepath.Join(dir, "my project"), filepath.Join(dir, "programs")
	codex := filepath.Join(programs, "codex")
	write(t, codex, standIn)
	if err := os.Chmod(codex, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(project, "go.mod"), "require example.com/a v1.0.0\n")
	git(t, project, "init", "--quiet", "--initial-branch=main")
	git(t, project, "config", "user.name", "Mom")
	git(t, project, "config", "user.email", "mom@example.com")
	git(t, project, "add", ".")
	git(t, project, "commit", "--quiet", "--message", "First")

	s := apptest.Start(t, apptest.Options{Env: map[string]string{"PATH": programs + string(os.PathListSeparator) + os.Getenv("PATH")}})
	content, err := os.ReadFile(filepath.Join("..", "examples", "coding-agent", "automation.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	definition, err := yaml.YAMLToJSON([]byte(strings.ReplaceAll(string(content), "/home/me/src/project", project)))
	if err != nil {
		t.Fatal(err)
	}
	id := s.Create(definition)

	// The work is committed on a branch of its own; the branch that was there is as it was.
	run := s.WaitRun(s.RunNow(id, nil).ID, automation.RunCompleted)
	if output := string(run.Steps[1].Output); !strings.Contains(output, "Asked to: Update the dependencies") ||
		!strings.Contains(output, "reading the repository") {
		t.Errorf("the agent's output: %s", output)
	}
	if got := git(t, project, "diff", "--stat", "main", "agent-"+run.ID); !strings.Contains(got, "1 file changed") {
		t.Errorf("the branch differs by %q", got)
	}
	if got := git(t, project, "log", "-1", "--format=%s %b", "agent-"+run.ID); got != "Weekly upkeep by a coding agent Run "+run.ID {
		t.Errorf("the commit says %q", got)
	}
	if got := git(t, project, "show", "main:go.mod"); got != "require example.com/a v1.0.0" {
		t.Errorf("main holds %q", got)
	}

	// An agent that changes nothing makes no commit.
	before := git(t, project, "rev-parse", "HEAD")
	write(t, codex+".idle", "")
	run = s.WaitRun(s.RunNow(id, nil).ID, automation.RunCompleted)
	if got := git(t, project, "rev-parse", "agent-"+run.ID); got != before || !strings.Contains(string(run.Steps[2].Output), "changed nothing") {
		t.Errorf("an idle agent: commit %s after %s, %s", got, before, run.Steps[2].Output)
	}

	// A failing agent fails the run. What it has left makes the next run refuse to begin.
	write(t, codex+".fails", "")
	for _, want := range []struct{ step, output string }{{"agent", "stream error"}, {"branch", "unfinished work"}} {
		run = s.WaitRun(s.RunNow(id, nil).ID, automation.RunFailed)
		if run.Error.StepID != want.step || !strings.Contains(string(run.Step(want.step).Output), want.output) {
			t.Errorf("the run has failed in %q: %s", run.Error.StepID, run.Step(want.step).Output)
		}
	}
	if got := git(t, project, "rev-parse", "HEAD"); got != before {
		t.Errorf("failed runs have moved the branch to %s", got)
	}
}

// write writes a file and the directory that it is in.
func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// git runs git in a repository and returns what it printed, without the last newline.
func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "git", args...)
	command.Dir = dir
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, output)
	}
	return strings.TrimSpace(string(output))
}
