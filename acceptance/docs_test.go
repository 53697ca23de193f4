//go:build unix

package acceptance_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	mdLink = regexp.MustCompile(`\]\(([^)#]+)(#[^)]*)?\)`)
	// mdPath is a file or a folder of the repository, in backticks, without a placeholder.
	mdPath = regexp.MustCompile("`((?:acceptance|activities|api|automation|cmd|deploy|docs|examples|internal|migrations|tools|worker|workflows)/[A-Za-z0-9_./-]+)`")
)

// TestPagesNameWhatExists checks the links of every page to files, and the files that CONTRIBUTING.md names.
func TestPagesNameWhatExists(t *testing.T) {
	t.Parallel()
	root := ".."
	var pages []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/decisions/*.md", "examples/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %d pages, %v", pattern, len(found), err)
		}
		pages = append(pages, found...)
	}
	for _, page := range pages {
		content, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range mdLink.FindAllStringSubmatch(string(content), -1) {
			if strings.Contains(match[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), match[1])); err != nil {
				t.Errorf("%s links to %s: %v", page, match[1], err)
			}
		}
		if filepath.Base(page) != "CONTRIBUTING.md" {
			continue
		}
		paths := mdPath.FindAllStringSubmatch(string(content), -1)
		if len(paths) == 0 {
			t.Errorf("%s names no file", page)
		}
		for _, match := range paths {
			if _, err := os.Stat(filepath.Join(root, match[1])); err != nil && !strings.Contains(match[1], "0000N") {
				t.Errorf("%s names %s: %v", page, match[1], err)
			}
		}
	}
}
