package mcpserver

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/errandhq/errand/automation"
)

// Handler serves the streamable HTTP transport. It keeps no session: each request stands alone, so any of several
// servers may answer it. At most concurrent requests are served at a time; a further one is refused with
// rate_limited.
//
// Whoever mounts it authenticates, bounds the body, and checks Host and Origin. What the context of a request
// carries reaches the [Caller].
func (s *Server) Handler(concurrent int) http.Handler {
	streamable := mcp.NewStreamableHTTPHandler(
		func(*http.Request) *mcp.Server { return s.server },
		&mcp.StreamableHTTPOptions{
			Stateless: true, JSONResponse: true, PropagateRequestCancellation: true, Logger: quiet(s.o.Logger),
			// Behind a proxy on the same computer the Host is that of the public address.
			DisableLocalhostProtection: true, MaxRequestBodyBytes: -1,
		})
	slots := make(chan struct{}, concurrent)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		default:
			w.Header().Set("Retry-After", "1")
			answerError(w, automation.CodeRateLimited, "too many calls are being served at the same time; try again in a second")
			return
		}
		body := bufio.NewReader(r.Body)
		if startsArray(body) {
			// A batch would be any number of calls in one place.
			answerError(w, automation.CodeValidationFailed, "a batch of JSON-RPC messages is not taken; send one message a request")
			return
		}
		r = r.WithContext(carry(r.Context()))
		r.Body = io.NopCloser(body)
		streamable.ServeHTTP(w, r)
	})
}

// startsArray reports whether the JSON that follows is an array. It takes the whitespace before it.
func startsArray(r *bufio.Reader) bool {
	for {
		b, err := r.ReadByte()
		if err != nil {
			return false // whoever reads on meets it again
		}
		switch b {
		case ' ', '\t', '\r', '\n':
			continue
		}
		_ = r.UnreadByte() // a byte was read
		return b == '['
	}
}

// answerError writes a refusal of a request as REST would.
func answerError(w http.ResponseWriter, code automation.Code, message string) {
	w.Header().Set("Content-Type", mimeJSON)
	w.WriteHeader(code.Status())
	_ = json.NewEncoder(w).Encode(map[string]any{ // the caller has gone, and nobody else is to be told
		"error": map[string]any{"code": code, "message": message},
	})
}
