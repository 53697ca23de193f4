package catalog_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/internal/catalog"
)

var update = flag.Bool("update", false, "write the pages anew")

const generated = "<!-- made from internal/catalog; after a change there: go test ./internal/catalog -update -->\n"

// TestPages compares the pages that are derived from the catalog with the committed ones.
// `go test ./internal/catalog -update` writes them anew.
func TestPages(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"reference.md": reference(t), "errors.md": errorsPage()} {
		path := filepath.Join("..", "..", "docs", name)
		if *update {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		committed, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(committed), text); diff != "" {
			t.Errorf("docs/%s is not what the catalog says (-committed +catalog); run go test ./internal/catalog -update\n%s", name, diff)
		}
	}
}

// TestEveryCodeIsExplained compares the explanations with the closed sets that the core declares: none is missing,
// and none is there that is no code.
func TestEveryCodeIsExplained(t *testing.T) {
	t.Parallel()
	for kind, explanations := range map[string][]catalog.Explanation{"Code": catalog.CommandErrors(), "StepCode": catalog.StepErrors()} {
		declared := declaredCodes(t, kind)
		var explained []string
		for _, e := range explanations {
			explained = append(explained, e.Code)
			if !strings.HasSuffix(e.Meaning, ".") || !strings.HasSuffix(e.Remedy, ".") {
				t.Errorf("%s is not explained in sentences: %+v", e.Code, e)
			}
		}
		slices.Sort(explained)
		if diff := cmp.Diff(declared, explained); diff != "" {
			t.Errorf("%s: the core declares, the catalog explains: %s", kind, diff)
		}
	}
}

// declaredCodes returns the values of all constants of a type of the core.
func declaredCodes(t *testing.T, kind string) []string {
	t.Helper()
	packages, err := filepath.Glob(filepath.Join("..", "..", "automation", "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var codes []string
	for _, path := range packages {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, declaration := range file.Decls {
			constants, ok := declaration.(*ast.GenDecl)
			if !ok || constants.Tok != token.CONST {
				continue
			}
			for _, spec := range constants.Specs {
				value := spec.(*ast.ValueSpec)
				if name, ok := value.Type.(*ast.Ident); ok && name.Name == kind {
					codes = append(codes, strings.Trim(value.Values[0].(*ast.BasicLit).Value, `"`))
				}
			}
		}
	}
	if len(codes) == 0 {
		t.Fatalf("no constant of the type %s was found", kind)
	}
	slices.Sort(codes)
	return codes
}

// cell writes a text into a cell of a table.
func cell(text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(text, "|", "\\|"), "\n", " ")
}

func errorsPage() string {
	var b strings.Builder
	b.WriteString("# Errors\n\n" + generated + `
Each error has a code of a closed set and a message that says what to do here and now. This page says what each code means
in general; ` + "`errand help errors`" + ` says the same.

## Of commands

REST answers with ` + "`{\"error\": {\"code\", \"message\", \"details\"?, \"requestId\"?}}`" + ` and the status of the table. The command line
prints that on standard error, with ` + "`status`" + `, and ends with 1 (refused by the service), 2 (usage or invalid input, before any
call) or 3 (no service reached). In ` + "`details`" + ` each violation has its place, such as ` + "`workflow.compiled.steps[2].args[0]`" + `.

`)
	table := func(header string, explanations []catalog.Explanation, row func(catalog.Explanation) string) {
		b.WriteString(header)
		for _, e := range explanations {
			b.WriteString(row(e))
		}
	}
	table("| code | HTTP | meaning | what to do |\n| --- | --- | --- | --- |\n", catalog.CommandErrors(), func(e catalog.Explanation) string {
		status := ""
		if e.Status != 0 {
			status = fmt.Sprint(e.Status)
		}
		return fmt.Sprintf("| `%s` | %s | %s | %s |\n", e.Code, status, cell(e.Meaning), cell(e.Remedy))
	})
	b.WriteString(`
## Of steps

A step that does not complete has one of these in its ` + "`error`" + `, and the run has it too, with ` + "`stepId`" + `. A program that failed
has its whole result beside it, in ` + "`output`" + `.

`)
	table("| code | meaning | what to do |\n| --- | --- | --- |\n", catalog.StepErrors(), func(e catalog.Explanation) string {
		return fmt.Sprintf("| `%s` | %s | %s |\n", e.Code, cell(e.Meaning), cell(e.Remedy))
	})
	return b.String()
}

// writer collects the reference page.
type writer struct {
	strings.Builder
	t     *testing.T
	types []reflect.Type // of results, that have a section of their own
}

func reference(t *testing.T) string {
	w := &writer{t: t}
	w.WriteString("# Reference\n\n" + generated + `
Every command, for all faces: the command line (` + "`errand <command>`" + `), REST (below ` + "`/v1`" + `) and MCP (a tool of the same name).
What the words mean is in [concepts.md](concepts.md), the format of a plan in [plans.md](plans.md), what to do about an error in
[errors.md](errors.md). errandd shows REST at ` + "`/docs`" + `, to read and to try, and describes it at ` + "`/openapi.json`" + `.

| command | what it does | REST | scope |
| --- | --- | --- | --- |
`)
	for _, c := range catalog.Commands() {
		fmt.Fprintf(w, "| [`%s`](#%s) | %s | `%s /v1%s` | %s |\n", c.Name, c.Name, cell(c.Summary), c.Route.Method, c.Route.Path, c.Scope)
	}
	for _, c := range catalog.Commands() {
		w.command(c)
	}
	w.WriteString("\n## Types\n\nThe objects in results. A later version may add members.\n")
	for i := 0; i < len(w.types); i++ { // describing one may add others
		fmt.Fprintf(w, "\n### %s object\n", w.types[i].Name())
		w.members(w.types[i], false)
	}
	return w.String()
}

func (w *writer) command(c catalog.Command) {
	fmt.Fprintf(w, "\n## %s\n\n%s.\n\n```text\n%s\n```\n\nInput:\n", c.Name, c.Summary, c.Contract)
	w.members(c.Input, true)
	w.WriteString("\nResult:\n")
	w.members(c.Result, false)
	var codes []string
	for _, code := range c.Codes() {
		codes = append(codes, "`"+code+"`")
	}
	fmt.Fprintf(w, "\nErrors: %s.\n", strings.Join(codes, ", "))
	place := "body"
	if c.Route.InQuery() {
		place = "query"
	}
	fmt.Fprintf(w, "\nREST: `%s /v1%s` answers %d; members that are not in the path are in the %s.", c.Route.Method, c.Route.Path, c.Route.Status, place)
	if _, keyed := catalog.MemberOf(c.Input, "idempotency_key"); keyed {
		w.WriteString(" The header `Idempotency-Key` is `idempotency_key`.")
	}
	if _, versioned := catalog.MemberOf(c.Input, "expected_version"); versioned {
		w.WriteString(" The header `If-Match` is `expected_version`, in quotes.")
	}
	var example bytes.Buffer
	if err := json.Indent(&example, []byte(c.Example), "", "  "); err != nil {
		w.t.Fatalf("%s: the example is no JSON: %v", c.Name, err)
	}
	fmt.Fprintf(w, "\n\nExample, for `errand %s --file`:\n\n<!-- test: input %s -->\n```json\n%s\n```\n", c.Name, c.Name, example.String())
}

// members writes the table of a type's members.
func (w *writer) members(t reflect.Type, input bool) {
	members := catalog.Members(t)
	if len(members) == 0 {
		w.WriteString("\nNone.\n")
		return
	}
	w.WriteString("\n| member | type | about |\n| --- | --- | --- |\n")
	for _, m := range members {
		about := m.Doc
		switch {
		case input && m.Required:
			about = "required; " + about
		case !input && m.Omissible && about == "":
			about = "where there is one"
		}
		fmt.Fprintf(w, "| `%s` | %s | %s |\n", m.Name, w.typeOf(m, input), cell(about))
	}
}

// typeOf names the type of a member, with a link where a section describes it.
func (w *writer) typeOf(m catalog.Member, input bool) string {
	t, list := m.Type, false
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		list = list || t.Kind() == reflect.Slice
		t = t.Elem()
	}
	if input || t.Kind() != reflect.Struct || m.TypeName() != "object" && m.TypeName() != "list" || len(catalog.Members(t)) == 0 {
		return m.TypeName()
	}
	if !slices.Contains(w.types, t) {
		w.types = append(w.types, t)
	}
	link := fmt.Sprintf("[%s](#%s-object)", t.Name(), strings.ToLower(t.Name()))
	if list {
		return "list of " + link
	}
	return link
}
