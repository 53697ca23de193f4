package api

import (
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/errandhq/errand/automation"
)

const (
	// maxHeld is how many bytes of one caller may be in memory at the same time: what has come of the bodies of
	// requests, and answers that are not taken yet.
	maxHeld = 64 << 20
	// maxHeldByStrangers bounds the same for the requests from one network whose sender is known by what is in the
	// body: deliveries of webhooks and enrolments.
	maxHeldByStrangers = 16 << 20
	// maxMCPCalls is how many calls of one caller are served over MCP at the same time, most of which wait for runs.
	maxMCPCalls = 64

	// writeTimeout is how long a client may take to read the next piece of an answer before it is given up.
	writeTimeout = 15 * time.Second
	// pieceBytes is how much of an answer is written at once.
	pieceBytes = 64 << 10
)

// underWayError refuses a caller who has too much under way at the same time.
type underWayError struct{ refusal *automation.Error }

func (e underWayError) Error() string { return e.refusal.Error() }

// Unwrap returns what the caller is told.
func (e underWayError) Unwrap() error { return e.refusal }

// underWay refuses a caller with a sentence that says what there is too much of, and when to try again.
func underWay(retryAfter time.Duration, message string) error {
	return underWayError{automation.RateLimited(retryAfter, "%s", message)}
}

// tooMuchHeld refuses a request for which its caller has no room left.
func tooMuchHeld() error {
	return underWay(time.Second,
		"too many large requests and answers of yours are under way at the same time; try again when some have ended")
}

// boundHeld counts what a known caller has in memory, and refuses a request when that is too much already.
func (a *API) boundHeld(c *gin.Context) {
	caller := c.GetString(keyCaller)
	if !a.held.Take(caller, 0) {
		a.refuse(c, tooMuchHeld())
		return
	}
	body := a.held.Body(caller, c.Request.Body)
	defer body.Release()
	c.Request.Body = body
	c.Next()
}

// holdStranger counts the body of a request from a network until the function that it returns is called.
func (a *API) holdStranger(c *gin.Context, network string) (release func()) {
	body := a.heldByStrangers.Body(network, c.Request.Body)
	c.Request.Body = body
	return body.Release
}

// timedWriter gives up a client that does not take its answer: a handler that writes would wait for it without end,
// and so would everything that the handler holds.
type timedWriter struct{ http.ResponseWriter }

// newTimedWriter returns the writer of a request. The deadline of an earlier request of the connection is lifted.
func newTimedWriter(w http.ResponseWriter, r *http.Request) timedWriter {
	if r.ProtoMajor == 1 {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
	}
	return timedWriter{w}
}

// Unwrap returns the writer below, for [http.ResponseController].
func (w timedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements [http.ResponseWriter].
func (w timedWriter) WriteHeader(status int) {
	w.extend()
	w.ResponseWriter.WriteHeader(status)
}

// Write implements [http.ResponseWriter]. An answer is written in pieces, so that what counts is whether the client
// reads and not how long the answer is.
func (w timedWriter) Write(p []byte) (written int, err error) {
	for {
		w.extend()
		n, err := w.ResponseWriter.Write(p[:min(len(p), pieceBytes)])
		written += n
		if p = p[n:]; err != nil || len(p) == 0 {
			return written, err //nolint:wrapcheck // this is the writer below, no more
		}
	}
}

// Flush implements [http.Flusher].
func (w timedWriter) Flush() {
	w.extend()
	_ = http.NewResponseController(w.ResponseWriter).Flush() // whoever writes next meets the error
}

// extend gives the client time anew. A transport without deadlines still serves; its peer is then noticed by the
// connection's own pings.
func (w timedWriter) extend() {
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(writeTimeout))
}
