package process_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/internal/process"
)

func writeFile(t *testing.T, path, content string, mode os.FileMode) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestStartSaysWhyAProgramNeverStarted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, content string, mode os.FileMode) string {
		return writeFile(t, filepath.Join(dir, name), content, mode)
	}
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
	file("first/denied", "#!/bin/sh\n", 0o644)
	file("second/other", "#!/bin/sh\n", 0o755)
	path := "PATH=" + first + ":" + second
	many := make([]string, 100)
	for i := range many {
		many[i] = strings.Repeat("x", 100<<10)
	}

	tests := []struct {
		name    string
		program string
		args    []string
		dir     string
		env     []string
		kind    process.StartErrorKind
		says    []string
	}{
		{name: "a bare name that is not there", program: "nosuch", env: []string{path}, kind: process.CommandNotFound, says: []string{"nosuch", first + ":" + second}},
		{name: "a bare name without PATH", program: "sh", kind: process.CommandNotFound, says: []string{"PATH is not set"}},
		{name: "PATH with relative entries only", program: "sh", env: []string{"PATH=.::bin"}, kind: process.CommandNotFound, says: []string{".::bin"}},
		{name: "an absolute path that is not there", program: "/nosuch/program", kind: process.CommandNotFound, says: []string{"/nosuch/program"}},
		{name: "a path through a file", program: filepath.Join(second, "other/x"), kind: process.CommandNotFound, says: []string{"other/x"}},
		{name: "an empty command", program: "", env: []string{path}, kind: process.CommandNotFound, says: []string{"empty"}},
		{name: "a relative path with a slash", program: "./other", dir: second, env: []string{path}, kind: process.CommandNotFound, says: []string{"./other", "relative"}},
		{name: "a bare name without its x bit", program: "denied", env: []string{path}, kind: process.CommandNotExecutable, says: []string{first + "/denied", "permission denied"}},
		{name: "a file without its x bit", program: filepath.Join(first, "denied"), kind: process.CommandNotExecutable, says: []string{first + "/denied", "permission denied"}},
		{name: "a directory", program: first, kind: process.CommandNotExecutable, says: []string{first, "directory"}},
		{name: "text without a #! line", program: file("text", "echo hello\n", 0o755), kind: process.CommandNotExecutable, says: []string{"text", "#!"}},
		{name: "an empty file", program: file("empty", "", 0o755), kind: process.CommandNotExecutable, says: []string{"empty"}},
		{name: "a #! line with a missing interpreter", program: file("bad1", "#!/nosuch/interpreter -x\n", 0o755), kind: process.InterpreterNotFound, says: []string{"bad1", "/nosuch/interpreter"}},
		{name: "a #! line with a carriage return", program: file("bad2", "#!/bin/sh\r\necho\r\n", 0o755), kind: process.InterpreterNotFound, says: []string{"bad2", "carriage return"}},
		{name: "a #! line that names nothing", program: file("bad3", "#!\necho\n", 0o755), kind: process.InterpreterNotFound, says: []string{"bad3", "no interpreter"}},
		{name: "a #! line with an interpreter without its x bit", program: file("bad4", "#!"+filepath.Join(first, "denied")+"\n", 0o755), kind: process.InterpreterNotFound, says: []string{"bad4", "first/denied"}},
		{name: "a #! line with a directory", program: file("bad5", "#!/usr\n", 0o755), kind: process.InterpreterNotFound, says: []string{"bad5", "/usr"}},
		{name: "a working directory that is not there", program: "/bin/sh", dir: "/nosuch/directory", kind: process.CwdMissing, says: []string{"/nosuch/directory", "does not exist"}},
		{name: "a working directory that is a file", program: "/bin/sh", dir: filepath.Join(second, "other"), kind: process.CwdMissing, says: []string{"second/other", "not a directory"}},
		{name: "a working directory below a file", program: "/bin/sh", dir: filepath.Join(second, "other/x"), kind: process.CwdMissing, says: []string{"second/other/x"}},
		{name: "a relative working directory", program: "/bin/sh", dir: "x", kind: process.CwdMissing, says: []string{`"x"`, "absolute"}},
		{name: "directory and program missing", program: "/nosuch/program", dir: "/nosuch/directory", kind: process.CwdMissing, says: []string{"/nosuch/directory"}},
		{name: "one argument of 200 KiB", program: "/bin/sh", args: []string{strings.Repeat("x", 200<<10)}, kind: process.ArgumentTooLong, says: []string{"204800", "131071"}},
		{name: "one variable of 200 KiB", program: "/bin/sh", env: []string{"BIG=" + strings.Repeat("x", 200<<10)}, kind: process.ArgumentTooLong, says: []string{"BIG", "131071"}},
		{name: "10 MB of arguments", program: "/bin/sh", args: many, kind: process.ArgumentTooLong, says: []string{"together"}},
		{name: "NUL in an argument", program: "/bin/sh", args: []string{"a\x00b"}, kind: process.SpawnFailed, says: []string{"NUL"}},
		{name: "NUL in a variable", program: "/bin/sh", env: []string{"A=a\x00b"}, kind: process.SpawnFailed, says: []string{`"A"`, "NUL"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := process.Spec{Program: tt.program, Args: tt.args, Dir: "/", Env: tt.env, MaxOutputBytes: 1024}
			if tt.dir != "" {
				s.Dir = tt.dir
			}
			p, err := process.Start(s)
			if err == nil {
				t.Fatalf("it started and ended with %+v", p.Wait())
			}
			var startErr *process.StartError
			if !errors.As(err, &startErr) || startErr.Kind != tt.kind {
				t.Fatalf("error %v, want kind %s", err, tt.kind)
			}
			for _, text := range tt.says {
				if !strings.Contains(startErr.Message, text) {
					t.Errorf("message %q does not say %q", startErr.Message, text)
				}
			}
			if len(startErr.Message) > 4096 {
				t.Errorf("the message has %d bytes", len(startErr.Message))
			}
		})
	}
}

// The longest argument that the format allows must be one that the system takes.
func TestLongestArgumentIsPassed(t *testing.T) {
	t.Parallel()
	s := helperSpec(t, "argv", strings.Repeat("x", process.MaxArgumentBytes))
	if r := run(t, s); *r.ExitCode != 0 || r.Stdout.Bytes != process.MaxArgumentBytes+int64(len("[\"\"]\n")) {
		t.Errorf("exit code %d, %d bytes", *r.ExitCode, r.Stdout.Bytes)
	}
}

func TestArgumentsArriveLiterally(t *testing.T) {
	t.Parallel()
	args := []string{"-c", `x=1 y='a b' $HOME *.go`, "", " ", "a\nb", "\\", "\"", "\xff\xfe", "😀", "--"}
	s := spec(t, "sh", append([]string{"-c", `for a; do printf '%s\0' "$a"; done`, "sh"}, args...)...)
	got := strings.Split(strings.TrimSuffix(run(t, s).Stdout.Text, "␀"), "␀")
	want := append([]string{}, args...)
	want[7] = "\uFFFD\uFFFD" // shown so; the count below proves the bytes
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("argv (-want +got):\n%s", diff)
	}

	// The same through a program that is not a shell, for everything that JSON can tell apart.
	valid := append(append([]string{}, args[:7]...), args[8:]...)
	var seen []string
	if err := json.Unmarshal([]byte(run(t, helperSpec(t, "argv", valid...)).Stdout.Text), &seen); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(valid, seen); diff != "" {
		t.Errorf("argv of the helper (-want +got):\n%s", diff)
	}
}

func TestBareNameIsFoundOnThePathOfTheEnvironment(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "a/tool"), "not executable", 0o644)
	writeFile(t, filepath.Join(dir, "b/tool/file"), "tool is a directory here", 0o644)
	want := writeFile(t, filepath.Join(dir, "c/tool"), "#!/bin/sh\necho c\n", 0o755)
	writeFile(t, filepath.Join(dir, "d/tool"), "#!/bin/sh\necho d\n", 0o755)
	s := spec(t, "tool")
	s.Env = []string{"PATH=relative:" + dir + "/a:" + dir + "/b::" + dir + "/c:" + dir + "/d"}
	if got, err := process.Find("tool", s.Env); got != want || err != nil {
		t.Errorf("Find = %q, %v, want %q", got, err, want)
	}
	if got := run(t, s).Stdout.Text; got != "c\n" {
		t.Errorf("stdout %q, want that of c/tool", got)
	}
}

// What runs must not depend on the directory that the worker happens to be in.
func TestRelativeEntriesOfPathArePassedOver(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "tool"), "#!/bin/sh\n", 0o755)
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(here, dir)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := process.Find("tool", []string{"PATH=" + relative}); err == nil {
		t.Errorf("Find = %q by the relative entry %q", got, relative)
	}
}

func TestProcessRunsInItsDirectory(t *testing.T) {
	t.Parallel()
	s := spec(t, "/bin/sh", "-c", "pwd -P")
	want, err := filepath.EvalSymlinks(s.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := run(t, s).Stdout.Text; got != want+"\n" {
		t.Errorf("pwd %q, want %q", got, want)
	}
}
