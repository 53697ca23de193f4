package process

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// Output is what was kept of one stream.
type Output struct {
	// Text is valid UTF-8 without NUL: bytes that are not UTF-8 are shown as U+FFFD each, NUL as U+2400.
	// When the stream was longer than the limit it holds the first and the last part, cut on character
	// boundaries, with "\n…[N bytes omitted]…\n" between.
	Text string
	// Bytes is the exact length of the raw stream.
	Bytes int64
	// Truncated reports whether the stream was longer than the limit.
	Truncated bool
}

// Capture keeps the head and the tail of a stream. Its memory stays within twice the limit, whatever the
// stream's length, and grows only as data arrives. It is safe for concurrent use.
type Capture struct {
	mu        sync.Mutex
	headLimit int
	tailLimit int
	head      []byte
	tail      []byte // a ring once it has reached tailLimit
	next      int    // where the ring's oldest byte is and the next one goes
	total     int64
}

// NewCapture makes a capture that keeps at most limit bytes (at least 1) of a stream: the first half and the
// last half, the odd byte in the head.
func NewCapture(limit int) *Capture {
	limit = max(limit, 1)
	return &Capture{headLimit: limit - limit/2, tailLimit: limit / 2}
}

// Write takes the next bytes of the stream. It never fails.
func (c *Capture) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(p)
	c.total += int64(n)
	if room := c.headLimit - len(c.head); room > 0 {
		take := min(room, len(p))
		c.head = append(c.head, p[:take]...)
		p = p[take:]
	}
	c.writeTail(p)
	return n, nil
}

// writeTail puts p behind what the ring holds; only the last tailLimit bytes of the stream survive.
func (c *Capture) writeTail(p []byte) {
	if c.tailLimit == 0 {
		return
	}
	if len(p) >= c.tailLimit {
		c.tail = append(c.tail[:0], p[len(p)-c.tailLimit:]...)
		c.next = 0
		return
	}
	if room := c.tailLimit - len(c.tail); room > 0 {
		take := min(room, len(p))
		c.tail = append(c.tail, p[:take]...)
		p = p[take:]
	}
	for len(p) > 0 {
		n := copy(c.tail[c.next:], p)
		c.next = (c.next + n) % c.tailLimit
		p = p[n:]
	}
}

// Output returns what was kept so far.
func (c *Capture) Output() Output {
	c.mu.Lock()
	defer c.mu.Unlock()
	tail := make([]byte, 0, len(c.tail))
	tail = append(tail, c.tail[c.next:]...)
	tail = append(tail, c.tail[:c.next]...)
	out := Output{Bytes: c.total}
	var text strings.Builder
	if c.total == int64(len(c.head)+len(tail)) {
		text.Grow(len(c.head) + len(tail))
		// One character may lie across head and tail, so both are shown as one piece.
		appendShown(&text, append(slices.Clip(c.head), tail...))
		out.Text = text.String()
		return out
	}
	head := trimPartialEnd(c.head)
	tail = trimPartialStart(tail)
	omitted := c.total - int64(len(head)) - int64(len(tail))
	appendShown(&text, head)
	fmt.Fprintf(&text, "\n…[%d bytes omitted]…\n", omitted)
	appendShown(&text, tail)
	out.Text, out.Truncated = text.String(), true
	return out
}

// appendShown writes b as valid UTF-8 without NUL, which some databases cannot store.
func appendShown(w *strings.Builder, b []byte) {
	for len(b) > 0 {
		plain := 0
		for plain < len(b) && b[plain] != 0 && b[plain] < utf8.RuneSelf {
			plain++
		}
		w.Write(b[:plain])
		b = b[plain:]
		if len(b) == 0 {
			return
		}
		if b[0] == 0 {
			w.WriteRune('␀')
			b = b[1:]
			continue
		}
		r, size := utf8.DecodeRune(b)
		w.WriteRune(r)
		b = b[size:]
	}
}

// trimPartialEnd drops the start of a character whose rest was cut off. Bytes that could not become a
// character stay: they were not cut by us.
func trimPartialEnd(b []byte) []byte {
	for i := len(b) - 1; i >= 0 && i >= len(b)-utf8.UTFMax+1; i-- {
		if !utf8.RuneStart(b[i]) {
			continue
		}
		if !utf8.FullRune(b[i:]) {
			return b[:i]
		}
		break
	}
	return b
}

// trimPartialStart drops the rest of a character whose start was cut off.
func trimPartialStart(b []byte) []byte {
	for i := 0; i < len(b) && i < utf8.UTFMax-1; i++ {
		if utf8.RuneStart(b[i]) {
			return b[i:]
		}
	}
	return b[min(len(b), utf8.UTFMax-1):]
}
