//go:build unix

package acceptance_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/apptest"
	"github.com/errandhq/errand/internal/catalog"
	"github.com/errandhq/errand/internal/machineconfig"
	"github.com/errandhq/errand/internal/strictjson"
	"github.com/errandhq/errand/internal/yamljson"
)

// Pages are tested block by block. The language of a fence says how:
//
//	sh            executed by bash, in the order of the page, with one installation for all blocks of a page
//	json, yaml    decoded strictly; a definition, a plan or a step is also checked by its rules
//	text          an illustration
//
// A comment on the line before the fence says more:
//
//	<!-- test: skip, REASON -->     not executed, or not decoded, for that reason
//	<!-- test: input COMMAND -->    the input of that command
//	<!-- test: machine.yaml -->     the settings of a machine
const blockComment = `<!-- test: `

// pageMinutes bounds how long the blocks of one page may take.
const pageMinutes = 3

// block is one fenced block of a page.
type block struct {
	page     string
	line     int
	language string
	about    string // what the comment before it says
	text     string
}

func (b block) String() string { return fmt.Sprintf("%s:%d", filepath.Base(b.page), b.line) }

var fence = regexp.MustCompile("^ *```(.*)$")

// blocksOf returns the fenced blocks of a page, and refuses blocks that only their indentation marks: nothing says
// what they are.
func blocksOf(page string) ([]block, error) {
	content, err := os.ReadFile(page)
	if err != nil {
		return nil, err
	}
	var blocks []block
	var open *block
	before, list := "", false
	for i, line := range strings.Split(string(content), "\n") {
		switch match := fence.FindStringSubmatch(line); {
		case match != nil && open == nil:
			open = &block{page: page, line: i + 1, language: match[1]}
			if rest, found := strings.CutPrefix(strings.TrimSpace(before), blockComment); found {
				open.about = strings.TrimSuffix(rest, " -->")
			}
		case match != nil:
			blocks = append(blocks, *open)
			open, before = nil, ""
		case open != nil:
			open.text += line + "\n"
		case strings.HasPrefix(line, "    ") && before == "" && !list:
			return nil, fmt.Errorf("%s:%d: a block is marked by its indentation; use a fence with a language", page, i+1)
		default:
			list = strings.HasPrefix(line, "- ") || strings.HasPrefix(line, "1. ") || list && (line == "" || strings.HasPrefix(line, " "))
			before = line
		}
	}
	if open != nil {
		return nil, fmt.Errorf("%s: the fence is not closed", open)
	}
	return blocks, nil
}

// TestBlocksOfPages executes or validates every block of the README and of the pages in docs.
func TestBlocksOfPages(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob(filepath.Join("..", "docs", "*.md"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	for _, page := range append(pages, filepath.Join("..", "README.md")) {
		t.Run(filepath.Base(page), func(t *testing.T) {
			t.Parallel()
			blocks, err := blocksOf(page)
			if err != nil {
				t.Fatal(err)
			}
			var scripts []block
			for _, b := range blocks {
				reason, skipped := strings.CutPrefix(b.about, "skip, ")
				switch {
				case skipped && strings.TrimSpace(reason) == "" || b.about == "skip":
					t.Errorf("%s is not tested and does not say why", b)
				case skipped:
				case b.language == "sh":
					scripts = append(scripts, b)
				case b.language == "text":
				default:
					if err := validate(b); err != nil {
						t.Errorf("%s: %v", b, err)
					}
				}
			}
			if len(scripts) > 0 {
				execute(t, scripts)
			}
		})
	}
}

// validate checks a block that is a document.
func validate(b block) error {
	document := []byte(b.text)
	switch b.language {
	case "yaml":
		if b.about == "machine.yaml" {
			if _, violations := machineconfig.Parse(document); len(violations) > 0 {
				return fmt.Errorf("%v", violations)
			}
			return nil
		}
		converted, err := yamljson.Convert(document)
		if err != nil {
			return err
		}
		document = converted
	case "json":
	default:
		return fmt.Errorf("the language %q says not how to test it; see blocks_test.go", b.language)
	}
	if name, found := strings.CutPrefix(b.about, "input "); found {
		command, found := catalog.Find(name)
		if !found {
			return fmt.Errorf("there is no command %q", name)
		}
		return command.Check(document)
	}
	if b.about != "" {
		return fmt.Errorf("%q is no kind of document", b.about)
	}
	return validateByShape(document)
}

// validateByShape decodes a document, and checks what is a definition, a plan or a step by the rules of those.
func validateByShape(document []byte) error {
	if _, violations := strictjson.Compact(document); len(violations) > 0 {
		return fmt.Errorf("%v", violations)
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(document, &members) != nil {
		return nil //nolint:nilerr // it is JSON; what is no object has no shape
	}
	has := func(names ...string) bool {
		for _, name := range names {
			if _, found := members[name]; !found {
				return false
			}
		}
		return true
	}
	plan := `{"name":"x","workflow":{"compiled":%s}}`
	switch {
	case has("name", "workflow") && !has("id", "version"):
	case has("version", "steps"):
		document = fmt.Appendf(nil, plan, document)
	case has("id", "kind") && (has("actionId") || has("command") || has("source")):
		document = fmt.Appendf(nil, plan, fmt.Sprintf(`{"version":2,"steps":[%s]}`, document))
	default:
		return nil
	}
	_, _, err := automation.DecodeDefinition(document)
	return err
}

// execute runs the blocks of a page one after another in one shell: variables and files of one are there for the
// next. The shell starts in a folder in which bin and examples are those of the repository.
func execute(t *testing.T, blocks []block) {
	t.Helper()
	s := apptest.Start(t, apptest.Options{})
	dir := t.TempDir()
	examples, err := filepath.Abs(filepath.Join("..", "examples"))
	if err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"bin": apptest.Binaries(t), "examples": examples} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	var script strings.Builder
	for _, b := range blocks {
		fmt.Fprintf(&script, "echo '== %s' >&2\n%s", b, b.text)
	}
	ctx, cancel := context.WithTimeout(t.Context(), pageMinutes*time.Minute)
	defer cancel()
	shell := exec.CommandContext(ctx, "bash", "-eu", "-o", "pipefail", "-c", script.String())
	shell.Dir, shell.Env = dir, s.Environment()
	var output bytes.Buffer
	shell.Stdout, shell.Stderr = &output, &output
	if err := errors.Join(shell.Run(), ctx.Err()); err != nil {
		t.Errorf("the last of these blocks fails: %v\n%s", err, output.String())
	}
}
