package catalog_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/internal/catalog"
)

const (
	toolsBegin = "<!-- tools: made from internal/catalog; after a change there: go test ./internal/catalog -update -->\n"
	toolsEnd   = "<!-- end of tools -->\n"
)

// TestToolsOfThePage compares the table of tools in docs/mcp.md with the catalog. `go test ./internal/catalog -update`
// writes it anew.
func TestToolsOfThePage(t *testing.T) {
	t.Parallel()
	path := filepath.Join("..", "..", "docs", "mcp.md")
	committed, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(committed), toolsBegin)
	_, after, ends := strings.Cut(rest, toolsEnd)
	if !begins || !ends {
		t.Fatal("docs/mcp.md has no place for the table of tools")
	}
	text := before + toolsBegin + toolTable() + toolsEnd + after
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(committed), text); diff != "" {
		t.Errorf("docs/mcp.md is not what the catalog says (-committed +catalog); run go test ./internal/catalog -update\n%s", diff)
	}
}

func toolTable() string {
	effects := map[catalog.Effect]string{
		catalog.EffectRead: "reads", catalog.EffectAdd: "adds", catalog.EffectChange: "changes", catalog.EffectExecute: "executes",
	}
	var b strings.Builder
	b.WriteString("| tool | what it does | effect | scope |\n| --- | --- | --- | --- |\n")
	for _, c := range catalog.Commands() {
		fmt.Fprintf(&b, "| [`%s`](reference.md#%s) | %s | %s | %s |\n", c.Name, c.Name, c.Summary, effects[c.Effect], c.Scope)
	}
	return b.String()
}
