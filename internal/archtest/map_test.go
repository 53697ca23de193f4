package archtest_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const (
	mapFile  = "AGENTS.md"
	mapStart = "| package | what |"
)

// TestMapNamesEachPackageOnce compares the packages of AGENTS.md with the import table. A row may name several, and
// tools stands for those below it.
func TestMapNamesEachPackageOnce(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, mapFile))
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(text), mapStart)
	if !found {
		t.Fatalf("%s has no line that begins with %q", mapFile, mapStart)
	}
	lines, _, _ := strings.Cut(after, "\n\n")
	named := map[string]int{}
	for line := range strings.Lines(lines) {
		cell, _, _ := strings.Cut(strings.TrimPrefix(line, "|"), "|")
		for _, match := range backticked.FindAllStringSubmatch(cell, -1) {
			named[match[1]]++
		}
	}
	for _, r := range readTable(t).rows {
		if strings.HasPrefix(r.pkg, "tools/") || r.pkg == "bench/minimal" {
			continue
		}
		if named[r.pkg] != 1 {
			t.Errorf("%s names the package %s %d times, want once", mapFile, r.pkg, named[r.pkg])
		}
	}
	for name := range named {
		if _, err := os.Stat(filepath.Join(root, name)); err != nil {
			t.Errorf("%s names the package %s: %v", mapFile, name, err)
		}
	}
}

// TestMapAndArchitectureNameFilesThatExist looks at what both pages call by a path of the repository.
func TestMapAndArchitectureNameFilesThatExist(t *testing.T) {
	t.Parallel()
	path := regexp.MustCompile("`((?:api|automation|internal|schedules|worker|workflows)/[a-z0-9_./-]+)`")
	for _, page := range []string{mapFile, tableFile} {
		text, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		matches := path.FindAllStringSubmatch(string(text), -1)
		if len(matches) == 0 {
			t.Errorf("%s names nothing", page)
		}
		for _, match := range matches {
			if _, err := os.Stat(filepath.Join(root, match[1])); err != nil {
				t.Errorf("%s names %s: %v", page, match[1], err)
			}
		}
	}
}
