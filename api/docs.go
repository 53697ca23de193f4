package api

import (
	"crypto/sha256"
	"embed"
	"fmt"
	"net/http"

	"github.com/gin-gonic/gin"
)

//go:embed swaggerui/index.html swaggerui/start.js swaggerui/swagger-ui-bundle.js swaggerui/swagger-ui.css
var docsFiles embed.FS

// docsPolicy lets the page load what is served here and nothing else. Swagger UI writes styles into its elements
// and has its pictures in the style sheet; it executes no text as code.
const docsPolicy = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; " +
	"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// docsTypes are the content types of what the page consists of, by file.
var docsTypes = map[string]string{
	"index.html":           "text/html; charset=utf-8",
	"start.js":             "text/javascript; charset=utf-8",
	"swagger-ui-bundle.js": "text/javascript; charset=utf-8",
	"swagger-ui.css":       "text/css; charset=utf-8",
}

// docs serves one file of the page that shows the OpenAPI document. Like the document it tells what the product is,
// and nothing of this installation, so neither needs a token.
func (a *API) docs(name string) gin.HandlerFunc {
	content, err := docsFiles.ReadFile("swaggerui/" + name)
	if err != nil {
		panic(err) // it is embedded: a test would not come so far
	}
	tag := fmt.Sprintf(`"%x"`, sha256.Sum256(content))
	return func(c *gin.Context) {
		c.Header("Content-Security-Policy", docsPolicy)
		// What an upgrade replaces is asked for again; until then it is not sent twice.
		c.Header("Cache-Control", "no-cache")
		c.Header("ETag", tag)
		if c.GetHeader("If-None-Match") == tag {
			c.Status(http.StatusNotModified)
			return
		}
		c.Data(http.StatusOK, docsTypes[name], content)
	}
}

// docsRoutes adds the page at /docs and its files below it.
func (a *API) docsRoutes(router gin.IRoutes) {
	router.GET("/docs", a.docs("index.html"))
	// Who opens the address that errandd prints finds something.
	router.GET("/", func(c *gin.Context) { c.Redirect(http.StatusFound, "/docs") })
	for name := range docsTypes {
		if name != "index.html" {
			router.GET("/docs/"+name, a.docs(name))
		}
	}
}
