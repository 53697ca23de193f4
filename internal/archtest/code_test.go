package archtest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// goPackage is what go list tells of a package.
type goPackage struct {
	ImportPath   string   `json:"ImportPath"`
	Name         string   `json:"Name"`
	Dir          string   `json:"Dir"`
	GoFiles      []string `json:"GoFiles"`
	TestGoFiles  []string `json:"TestGoFiles"`
	XTestGoFiles []string `json:"XTestGoFiles"`
	Imports      []string `json:"Imports"`
}

// name of the package as the table has it.
func (p goPackage) name() string {
	return strings.TrimPrefix(p.ImportPath, module+"/")
}

// platforms are those that Errand is built for.
var platforms = []string{"linux", "darwin", "windows"}

// goList runs go list in the root of the repository.
func goList(ctx context.Context, platform string, args ...string) ([]goPackage, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-e", "-json=ImportPath,Name,Dir,GoFiles,TestGoFiles,XTestGoFiles,Imports"}, args...)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOOS="+platform)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w\n%s", strings.Join(args, " "), err, stderr.String())
	}
	var all []goPackage
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
}

func TestImportsFollowTheTable(t *testing.T) {
	t.Parallel()
	parsed := readTable(t)
	rows := map[string]row{}
	for _, r := range parsed.rows {
		rows[r.pkg] = r
	}
	for _, platform := range platforms {
		packages, err := goList(t.Context(), platform, "./...")
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range packages {
			if isTestOnly(p) {
				continue
			}
			r, ok := rows[p.name()]
			if !ok {
				t.Errorf("package %s has no row in %s", p.name(), tableFile)

				continue
			}
			for _, imported := range p.Imports {
				if !r.allows(imported, parsed.restricted) {
					t.Errorf("%s (%s) imports %s, which its row in %s does not allow", p.name(), platform, imported, tableFile)
				}
			}
		}
	}
}

// isTestOnly reports whether a package consists of tests, which may import
// everything.
func isTestOnly(p goPackage) bool {
	return len(p.GoFiles) == 0 && len(p.TestGoFiles)+len(p.XTestGoFiles) > 0
}

func TestTableNamesOnlyWhatExists(t *testing.T) {
	t.Parallel()
	packages, err := goList(t.Context(), "linux", "./...")
	if err != nil {
		t.Fatal(err)
	}
	var exist []string
	for _, p := range packages {
		exist = append(exist, p.name())
	}
	for _, r := range readTable(t).rows {
		for _, name := range append([]string{r.pkg}, r.own...) {
			if !slices.Contains(exist, name) {
				t.Errorf("%s names the package %s in the row of %s, but there is none", tableFile, name, r.pkg)
			}
		}
	}
}

func TestPackagesAreDocumented(t *testing.T) {
	t.Parallel()
	packages, err := goList(t.Context(), "linux", "./...")
	if err != nil {
		t.Fatal(err)
	}
	if len(packages) == 0 {
		t.Fatal("go list found no package")
	}
	for _, p := range packages {
		doc, err := packageDoc(p)
		if err != nil {
			t.Error(err)

			continue
		}
		if !isParagraph(doc, p.Name) {
			t.Errorf("package %s has no paragraph (two lines, or a hundred characters) that says what it does; it has %q", p.name(), doc)
		}
	}
}

// packageDoc collects the package comments of all files, of the tests only
// where there is nothing else.
func packageDoc(p goPackage) (string, error) {
	files := p.GoFiles
	if isTestOnly(p) {
		files = slices.Concat(p.TestGoFiles, p.XTestGoFiles)
	}
	var doc strings.Builder
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			return "", err
		}
		doc.WriteString(file.Doc.Text())
	}

	return doc.String(), nil
}

func isParagraph(doc, name string) bool {
	const enough = 100
	doc = strings.TrimSpace(doc)
	opening := "Package "
	if name == "main" {
		opening = "Command "
	}

	return strings.HasPrefix(doc, opening) && (len(doc) >= enough || strings.Contains(doc, "\n"))
}

func TestIsParagraph(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("says a lot ", 10)
	tests := []struct {
		doc, name string
		want      bool
	}{
		{"", "x", false},
		{"Package x does things.", "x", false},
		{"Package x does things.\nAnd others.", "x", true},
		{"Package x " + long, "x", true},
		{"This " + long, "x", false},
		{"Command x " + long, "main", true},
		{"Command x runs.", "main", false},
	}
	for _, tt := range tests {
		if got := isParagraph(tt.doc, tt.name); got != tt.want {
			t.Errorf("isParagraph(%q, %q) = %t, want %t", tt.doc, tt.name, got, tt.want)
		}
	}
}

// TestErrandStaysSmall keeps out of the program errand what only the control
// plane needs: agents call it often, and it runs on every machine.
func TestErrandStaysSmall(t *testing.T) {
	t.Parallel()
	forbidden := []string{
		"go.temporal.io/server",
		"github.com/jackc/pgx", "modernc.org/sqlite", "github.com/lib/pq", "github.com/go-sql-driver/mysql", "github.com/mattn/go-sqlite3",
		"github.com/pressly/goose",
		"github.com/gin-gonic/gin", "github.com/danielgtaylor/huma", "github.com/prometheus/client_golang",
		module + "/api", module + "/migrations",
		module + "/internal/store", module + "/internal/embedded", module + "/internal/app",
	}
	for _, platform := range platforms {
		packages, err := goList(t.Context(), platform, "-deps", "./cmd/errand")
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(packages, func(p goPackage) bool { return p.name() == "internal/machineapp" }) {
			t.Errorf("%s: the dependencies of errand lack internal/machineapp: this test looks at the wrong program", platform)
		}
		for _, p := range packages {
			if longest(p.ImportPath, forbidden) > 0 {
				t.Errorf("%s: errand links %s", platform, p.ImportPath)
			}
		}
	}
}
