package archtest_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

const (
	linterFile = ".golangci.yml"
	rulesBegin = "        # Written by `go test ./internal/archtest -update` from docs/architecture.md.\n"
	rulesEnd   = "        # End of the written rules.\n"
)

var update = flag.Bool("update", false, "write the import rules of "+linterFile+" from "+tableFile)

// rule is one rule of depguard.
type rule struct {
	ListMode string   `yaml:"list-mode"`
	Files    []string `yaml:"files"`
	Allow    []string `yaml:"allow,omitempty"`
	Deny     []denied `yaml:"deny,omitempty"`
}

type denied struct {
	Pkg  string `yaml:"pkg"`
	Desc string `yaml:"desc"`
}

// ruleName is the name of a row's rule: depguard's rules cannot have a slash.
func (r row) ruleName() string {
	return strings.ReplaceAll(r.pkg, "/", "-")
}

// rule translates a row. A name with $ at its end stands for that package
// alone; the longer of two names that cover an import decides.
func (r row) rule(restricted []string) rule {
	translated := rule{
		ListMode: "lax",
		Files:    []string{"${base-path}/" + r.pkg + "/*.go", "!$test"},
	}
	if r.all {
		for _, own := range r.own {
			translated.deny(r, module+"/"+own+"$")
		}
	} else {
		for _, own := range r.own {
			translated.Allow = append(translated.Allow, module+"/"+own+"$")
		}
	}
	if r.only {
		translated.ListMode = "strict"
		translated.outsideOnly(r)

		return translated
	}
	if !r.all {
		translated.deny(r, module)
	}
	for _, name := range restricted {
		if longest(name, r.outside) < len(name) {
			translated.deny(r, name)
		}
	}
	for _, name := range r.outside {
		if longest(name, restricted) < len(name) {
			translated.Allow = append(translated.Allow, name)
		}
	}

	return translated
}

func (translated *rule) outsideOnly(r row) {
	for _, name := range r.outside {
		if name == "std" {
			name = "$gostd"
		}
		translated.Allow = append(translated.Allow, name)
	}
	for _, name := range r.without {
		translated.deny(r, name)
	}
}

func (translated *rule) deny(r row, name string) {
	translated.Deny = append(translated.Deny, denied{Pkg: name, Desc: fmt.Sprintf("%s: see the row of %s", tableFile, r.pkg)})
}

func (parsed table) rules() map[string]rule {
	rules := map[string]rule{}
	for _, r := range parsed.rows {
		rules[r.ruleName()] = r.rule(parsed.restricted)
	}

	return rules
}

func TestLinterHasTheTable(t *testing.T) {
	t.Parallel()
	parsed := readTable(t)
	if *update {
		writeRules(t, parsed)
	}
	text, err := os.ReadFile(filepath.Join(root, linterFile))
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Linters struct {
			Enable   []string
			Settings struct {
				Depguard struct {
					Rules map[string]rule
				}
			}
		}
	}
	if err := yaml.Unmarshal(text, &config); err != nil {
		t.Fatalf("%s: %v", linterFile, err)
	}
	want, got := parsed.rules(), config.Linters.Settings.Depguard.Rules
	if len(want) != len(parsed.rows) {
		t.Errorf("%s has %d rows for %d packages", tableFile, len(parsed.rows), len(want))
	}
	for name := range want {
		if diff := cmp.Diff(want[name], got[name]); diff != "" {
			t.Errorf("%s: rule %s differs from its row in %s; run `go test ./internal/archtest -update` (-table +linter):\n%s",
				linterFile, name, tableFile, diff)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s: rule %s has no row in %s", linterFile, name, tableFile)
		}
	}
	if !strings.Contains(strings.Join(config.Linters.Enable, " "), "depguard") {
		t.Errorf("%s does not enable depguard", linterFile)
	}
}

// writeRules replaces the written part of the linter's configuration. The YAML
// is made by hand: it keeps the order of the table.
func writeRules(t *testing.T, parsed table) {
	t.Helper()
	path := filepath.Join(root, linterFile)
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(old), rulesBegin)
	_, after, ends := strings.Cut(rest, rulesEnd)
	if !begins || !ends {
		t.Fatalf("%s lacks the lines around the written rules", linterFile)
	}
	var b strings.Builder
	b.WriteString(before + rulesBegin)
	for _, r := range parsed.rows {
		translated := r.rule(parsed.restricted)
		fmt.Fprintf(&b, "        %s:\n          list-mode: %s\n          files: [%q, %q]\n",
			r.ruleName(), translated.ListMode, translated.Files[0], translated.Files[1])
		if len(translated.Allow) > 0 {
			b.WriteString("          allow:\n")
		}
		for _, name := range translated.Allow {
			fmt.Fprintf(&b, "            - %s\n", name)
		}
		if len(translated.Deny) > 0 {
			b.WriteString("          deny:\n")
		}
		for _, d := range translated.Deny {
			fmt.Fprintf(&b, "            - {pkg: %s, desc: %q}\n", d.Pkg, d.Desc)
		}
	}
	b.WriteString(rulesEnd + after)
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestRestrictedNamesDoNotNest(t *testing.T) {
	t.Parallel()
	parsed := readTable(t)
	// depguard looks only at the nearest name in sorted order, so of two nested
	// names the shorter one would not cover all that it should.
	for _, r := range parsed.rows {
		for _, list := range [][]string{parsed.restricted, r.without, r.outside} {
			for i, name := range list {
				others := append(append([]string{}, list[:i]...), list[i+1:]...)
				if longest(name, others) > 1 {
					t.Errorf("%s: %s is below or equal to another name beside it", r.pkg, name)
				}
			}
		}
	}
}
