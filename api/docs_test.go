package api_test

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// vendored are the SHA-256 of what comes from the npm package swagger-ui-dist 5.35.0, as it is there.
var vendored = map[string]string{
	"LICENSE":                          "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30",
	"NOTICE":                           "0d20d1adef18aee3f40dd258172155521ce702ac445cb5f7b7d60ed32dad2fb2",
	"swagger-ui-bundle.js":             "e6a898692f2d768e807c3ba4626068a69a2c5dd960dd6c76f3e4d3a3de180af2",
	"swagger-ui-bundle.js.LICENSE.txt": "37eb6e7e59aed57b2c1acf076574b818ea07b74265717e0bd67b59e0baf9abbb",
	"swagger-ui.css":                   "5ed08757e53da3e026d6cbecc61fe5d43585c9560b302d534ad56692519a273d",
}

func TestVendoredFilesAreUnchanged(t *testing.T) {
	t.Parallel()
	for name, want := range vendored {
		content, err := os.ReadFile(filepath.Join("swaggerui", name))
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != want {
			t.Errorf("%s is not what the package holds", name)
		}
	}
}

// TestDocs checks what the page consists of; the acceptance tests look at it with a browser.
func TestDocs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	anonymous := func(r *http.Request) { r.Header.Del("Authorization") }
	for path, contentType := range map[string]string{
		"/docs": "text/html", "/docs/start.js": "text/javascript", "/docs/swagger-ui-bundle.js": "text/javascript",
		"/docs/swagger-ui.css": "text/css", "/openapi.json": "application/json",
	} {
		a := w.do("GET", path, "", anonymous)
		if a.status != 200 || !strings.HasPrefix(a.header.Get("Content-Type"), contentType) || len(a.body) == 0 {
			t.Errorf("%s: %d %v", path, a.status, a.header)
		}
		policy := a.header.Get("Content-Security-Policy")
		if !strings.HasPrefix(policy, "default-src 'none';") || !strings.Contains(policy, "frame-ancestors 'none'") ||
			strings.Contains(policy, "unsafe-eval") || strings.Contains(policy, "http") {
			t.Errorf("%s: %s", path, policy)
		}
		if tag := a.header.Get("ETag"); tag != "" {
			if again := w.do("GET", path, "", header("If-None-Match", tag)); again.status != http.StatusNotModified || len(again.body) > 0 {
				t.Errorf("%s: %d", path, again.status)
			}
		}
	}
	page := w.do("GET", "/docs", "", anonymous)
	if a := w.do("GET", "/", "", anonymous); a.status != 200 || a.header.Get("ETag") != page.header.Get("ETag") {
		t.Errorf("the address alone leads to %d %v", a.status, a.header)
	}
	for _, path := range []string{"/docs/", "/docs/index.html", "/docs/README.md", "/docs/..%2fdocs.go"} {
		if a := w.do("GET", path, ""); a.status != 404 {
			t.Errorf("%s: %d", path, a.status)
		}
	}
}
