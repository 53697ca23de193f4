package machineconfig_test

import (
	"testing"

	"github.com/errandhq/errand/internal/machineconfig"
)

// FuzzParse reads anything as machine.yaml: what is refused says why, and nothing breaks.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"", "path: /a:/b", "mcpServers: {a: {command: x, args: [y]}}", "credentials: {a: {value: x, hosts: [b]}}", "http: {redirects: any}",
		"mcpServers: &x {a: *x}", "path: [", "- a",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		_, violations := machineconfig.Parse(text)
		for _, v := range violations {
			if v.Message == "" {
				t.Errorf("%q is refused without a word at %q", text, v.Path)
			}
		}
	})
}
