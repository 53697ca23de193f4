package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	main "github.com/errandhq/errand/tools/runtests"
)

// realOutput runs go test on a package of one file.
func realOutput(t *testing.T, file string, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{"go.mod": "module example\n\ngo 1.24\n", "example_test.go": "package example\n\n" + file} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"test", "-json", "-vet=off"}, args...)...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if len(out) == 0 {
		t.Fatalf("go test wrote nothing: %v", err)
	}

	return string(out)
}

func TestSummaryOfRealRuns(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		file    string
		args    []string // of go test
		closing string
		ok      bool
		shows   []string
		hides   []string
	}{
		{
			name: "passes with subtests",
			file: `import "testing"
				func TestA(t *testing.T) { t.Log("chatter"); t.Run("b", func(t *testing.T) {}) }`,
			closing: "2 passed, 0 failed", ok: true, shows: []string{"ok    example"}, hides: []string{"chatter"},
		},
		{
			name: "failure among passes",
			file: `import "testing"
				func TestGood(t *testing.T) { t.Log("chatter") }
				func TestBad(t *testing.T) { t.Run("deep", func(t *testing.T) { t.Error("the reason") }) }`,
			closing: "1 passed, 2 failed", shows: []string{"the reason", "--- FAIL: TestBad/deep", "FAIL  example"}, hides: []string{"chatter"},
		},
		{
			name: "skip",
			file: `import "testing"
				func TestGood(t *testing.T) {}
				func TestSkipped(t *testing.T) { t.Skip("no such device") }`,
			closing: "1 passed, 0 failed, 1 skipped", ok: true, shows: []string{"SKIP  example TestSkipped", "no such device"},
		},
		{
			name:    "does not compile",
			file:    `func TestA(`,
			closing: "0 passed, 1 failed", shows: []string{"example_test.go:3", "FAIL  example"},
		},
		{
			name: "panic",
			file: `import "testing"
				func TestA(t *testing.T) { panic("the cause") }
				func TestB(t *testing.T) {}`,
			closing: "0 passed, 1 failed", shows: []string{"the cause", "FAIL  example"},
		},
		{
			name: "exits without a word",
			file: `import ("os"; "testing")
				func TestA(t *testing.T) { os.Exit(3) }`,
			closing: "0 passed, 1 failed", shows: []string{"not finished: TestA"},
		},
		{
			name: "exit from TestMain with every test passed",
			file: `import ("os"; "testing")
				func TestMain(m *testing.M) { m.Run(); os.Exit(4) }
				func TestA(t *testing.T) {}`,
			closing: "1 passed, 1 failed", shows: []string{"FAIL  example"},
		},
		{
			name: "hangs", args: []string{"-timeout=1s"},
			file: `import "testing"
				func TestStuck(t *testing.T) { select {} }
				func TestGood(t *testing.T) {}`,
			closing: "0 passed, 1 failed", shows: []string{"test timed out", "TestStuck"},
		},
		{
			name:    "no test at all",
			file:    ``,
			closing: "0 passed, 1 failed", shows: []string{"no test was run"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var shown strings.Builder
			ok, err := main.Summarize(&shown, realOutput(t, tt.file, tt.args...))
			if err != nil {
				t.Fatal(err)
			}
			checkSummary(t, shown.String(), tt.closing, tt.shows, tt.hides)
			if ok != tt.ok {
				t.Errorf("went well = %t, want %t", ok, tt.ok)
			}
		})
	}
}

func checkSummary(t *testing.T, shown, closing string, shows, hides []string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(shown, "\n"), "\n")
	if got := lines[len(lines)-1]; got != closing {
		t.Errorf("closing line = %q, want %q", got, closing)
	}
	for _, want := range shows {
		if !strings.Contains(shown, want) {
			t.Errorf("the output lacks %q", want)
		}
	}
	for _, unwanted := range hides {
		if strings.Contains(shown, unwanted) {
			t.Errorf("the output has %q of a test that passed", unwanted)
		}
	}
	if t.Failed() {
		t.Logf("the output:\n%s", shown)
	}
}

func TestSummaryAddsRuns(t *testing.T) {
	t.Parallel()
	first := `{"Action":"run","Package":"a","Test":"TestX"}
{"Action":"pass","Package":"a","Test":"TestX","Elapsed":0.1}
{"Action":"pass","Package":"a","Elapsed":0.2}
`
	second := `a line that is no event
{"Action":"run","Package":"a","Test":"TestX"}
{"Action":"output","Package":"a","Test":"TestX","Output":"    x_test.go:1: DATA RACE\n"}
{"Action":"fail","Package":"a","Test":"TestX","Elapsed":0.1}
{"Action":"output","Package":"a","Output":"FAIL\n"}
{"Action":"fail","Package":"a","Elapsed":0.2}
`
	var shown strings.Builder
	ok, err := main.Summarize(&shown, first, second)
	if ok || err != nil {
		t.Errorf("Summarize = %t, %v, want false and no error", ok, err)
	}
	checkSummary(t, shown.String(), "1 passed, 1 failed", []string{"a line that is no event", "DATA RACE"}, nil)
}

func TestForRace(t *testing.T) {
	t.Parallel()
	list := `{"ImportPath": "m/pure", "Deps": ["fmt"]}
{"ImportPath": "m/pure.test", "Deps": ["fmt", "m/pure"]}
{"ImportPath": "m/embedded.test", "Deps": ["fmt", "go.temporal.io/server/temporal"]}
{"ImportPath": "m/client.test", "Deps": ["go.temporal.io/sdk/client"]}
{"ImportPath": "m/acceptance.test", "Deps": ["github.com/errandhq/errand/internal/apptest"]}
{"ImportPath": "m/untested", "Deps": ["fmt"]}
`
	got, err := main.ForRace(list)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"m/pure", "m/client"}, got); diff != "" {
		t.Errorf("chosen packages (-want +got):\n%s", diff)
	}
}
