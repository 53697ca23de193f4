package archtest_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	module     = "github.com/errandhq/errand"
	root       = "../.." // of the repository, from the directory of this package
	tableFile  = "docs/architecture.md"
	tableStart = "| package | meaning |"
	// restrictedStart begins the paragraph that names what each row must allow.
	restrictedStart = "- An empty cell"
)

// table is the import table of docs/architecture.md.
type table struct {
	restricted []string // may be imported only by rows that name them
	rows       []row
}

// row says what one package may import, from the files that are no tests.
type row struct {
	pkg string // relative to the module
	// all own packages may be imported but those of own; else just those.
	all bool
	own []string
	// only the packages of outside, less those of without; else everything but
	// the restricted ones that outside does not name.
	only    bool
	outside []string
	without []string
}

var (
	backticked = regexp.MustCompile("`([^`]+)`")
	// A cell is words and backticked names; only these words have a meaning.
	ownWords     = regexp.MustCompile("^(–|(all( without( `[^`]+`)+)?)|`[^`]+`( `[^`]+`)*)$")
	outsideWords = regexp.MustCompile("^(–|`[^`]+`( `[^`]+`)*|only( `[^`]+`)+( without( `[^`]+`)+)?)$")
)

func readTable(t *testing.T) table {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, tableFile))
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := parseTable(string(text))
	if err != nil {
		t.Fatalf("%s: %v", tableFile, err)
	}

	return parsed
}

func parseTable(text string) (table, error) {
	var parsed table
	lines := strings.Split(text, "\n")
	start := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, tableStart) })
	restricted := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, restrictedStart) })
	if start < 0 || restricted < 0 {
		return parsed, errors.New("there is no import table")
	}
	for i := restricted; i == restricted || strings.HasPrefix(lines[i], "  "); i++ {
		parsed.restricted = append(parsed.restricted, names(lines[i])...)
	}
	for _, line := range lines[start+2:] {
		if !strings.HasPrefix(line, "|") {
			break
		}
		r, err := parseRow(line)
		if err != nil {
			return parsed, err
		}
		parsed.rows = append(parsed.rows, r)
	}

	return parsed, nil
}

func parseRow(line string) (row, error) {
	const columns = 4
	cells := strings.Split(strings.Trim(line, "| "), "|")
	if len(cells) != columns {
		return row{}, fmt.Errorf("a row has %d cells, want %d: %s", len(cells), columns, line)
	}
	for i, cell := range cells {
		cells[i] = strings.TrimSpace(cell)
	}
	pkg, own, outside := names(cells[0]), cells[2], cells[3]
	if len(pkg) != 1 || cells[1] == "" || !ownWords.MatchString(own) || !outsideWords.MatchString(outside) {
		return row{}, fmt.Errorf("a row does not follow the grammar: %s", line)
	}
	allowed, without, _ := strings.Cut(outside, " without ")

	return row{
		pkg:     pkg[0],
		all:     strings.HasPrefix(own, "all"),
		own:     names(own),
		only:    strings.HasPrefix(outside, "only"),
		outside: names(allowed),
		without: names(without),
	}, nil
}

func names(cell string) []string {
	var all []string
	for _, m := range backticked.FindAllStringSubmatch(cell, -1) {
		all = append(all, m[1])
	}

	return all
}

// allows reports whether the row's package may import the path.
func (r row) allows(path string, restricted []string) bool {
	if own, ok := strings.CutPrefix(path, module+"/"); ok {
		return r.all != slices.Contains(r.own, own)
	}
	if r.only {
		return longest(path, r.outside) > longest(path, r.without)
	}

	return longest(path, r.outside) >= longest(path, restricted)
}

// longest is the length of the longest prefix that covers path, 0 if none does.
// The word std covers the standard library, whose paths have no dot in their
// first part, and is shorter than every name.
func longest(path string, prefixes []string) int {
	best := 0
	first, _, _ := strings.Cut(path, "/")
	for _, p := range prefixes {
		switch {
		case p == "std" && !strings.Contains(first, "."):
			best = max(best, 1)
		case path == p || strings.HasPrefix(path, p+"/"):
			best = max(best, len(p))
		}
	}

	return best
}

func TestRowsAllowWhatTheyName(t *testing.T) {
	t.Parallel()
	restricted := []string{"database/sql", "example.com/sdk"}
	plain := "| `p` | m | `automation` | – |"
	pure := "| `p` | m | – | only `std` `example.com/json` without `os` `net` |"
	tests := []struct {
		row, path string
		want      bool
	}{
		{plain, module + "/automation", true},
		{plain, module + "/automation/sub", false},
		{plain, module + "/internal/store", false},
		{plain, "net/http", true},
		{plain, "example.com/any", true},
		{plain, "example.com/sdk", false},
		{plain, "example.com/sdk/client", false},
		{plain, "example.com/sdkother", true},
		{plain, "database/sql", false},
		{"| `p` | m | – | `example.com/sdk/client` |", "example.com/sdk/client", true},
		{"| `p` | m | – | `example.com/sdk/client` |", "example.com/sdk/worker", false},
		{"| `p` | m | – | `example.com/sdk` |", "example.com/sdk/worker", true},
		{"| `p` | m | all | – |", module + "/internal/store", true},
		{"| `p` | m | all without `internal/store` | – |", module + "/internal/store", false},
		{"| `p` | m | all without `internal/store` | – |", module + "/api", true},
		{pure, "strings", true},
		{pure, "encoding/json", true},
		{pure, "example.com/json/text", true},
		{pure, "example.com/other", false},
		{pure, "os", false},
		{pure, "os/exec", false},
		{pure, "net/http", false},
	}
	for _, tt := range tests {
		r, err := parseRow(tt.row)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.allows(tt.path, restricted); got != tt.want {
			t.Errorf("%s: allows(%q) = %t, want %t", tt.row, tt.path, got, tt.want)
		}
	}
}

func TestParseTableRefuses(t *testing.T) {
	t.Parallel()
	head := restrictedStart + " `a`\n\n" + tableStart + "…\n|---|\n"
	for _, text := range []string{
		"no table",
		head + "| `p` | m | – |",
		head + "| p | m | – | – |",
		head + "| `p` | | – | – |",
		head + "| `p` | m | automation | – |",
		head + "| `p` | m | – | sometimes `net` |",
		head + "| `p` | m | – | |",
	} {
		if parsed, err := parseTable(text); err == nil {
			t.Errorf("parseTable(%q) = %+v, want an error", text, parsed)
		}
	}
}
