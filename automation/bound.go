package automation

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/errandhq/errand/internal/strictjson"
)

// Limits of what a step leaves in the journal.
const (
	// MaxResultBytes is how large a step result may be as JSON.
	MaxResultBytes = 1 << 20
	// MaxMessageBytes is how long the message of a step error may be.
	MaxMessageBytes = 8 << 10

	// A result is carried in a document one level up, which may nest as deep as any other.
	maxResultDepth     = MaxDepth - 1
	maxPreviewBytes    = 256 << 10
	maxPreviewText     = 16 << 10
	previewPlaceholder = `"…"`
)

// BoundResult returns the result of a step within the journal bound: valid JSON of at most [MaxResultBytes]
// in the form of [strictjson.Compact]. A result that fits comes back as it is. A larger result of a process
// keeps its scalars and has its streams shortened; see [BoundProcessResult]. Anything else that is too large,
// nested too deeply for a report, or not well-formed JSON becomes
//
//	{"truncated": true, "originalBytes": N, "preview": …}
//
// with the exact length of the given result and a value that shows its beginning. No result stays none.
func BoundResult(kind StepKind, result json.RawMessage) json.RawMessage {
	if len(result) == 0 {
		return nil
	}
	compact, violations := strictjson.Compact(result)
	if len(violations) == 0 {
		if len(compact) <= MaxResultBytes && depth(compact) <= maxResultDepth {
			return compact
		}
		var process ProcessResult
		if kind != KindAction && len(strictjson.Unmarshal(compact, &process)) == 0 {
			return BoundProcessResult(process)
		}
	}
	return preview(result)
}

// depth returns how deep a valid JSON value nests.
func depth(value []byte) int {
	dec := jsontext.NewDecoder(bytes.NewBuffer(value), previewOptions...)
	deepest := 0
	for {
		if _, err := dec.ReadToken(); err != nil {
			return deepest
		}
		deepest = max(deepest, dec.StackDepth())
	}
}

// BoundProcessResult returns the JSON of a process result within the journal bound. When it is too large, its
// streams are shortened in the middle until it fits: both to half of the room, or the longer one to what the
// other leaves. All scalars stay what they are; the streams that were cut are marked as truncated.
func BoundProcessResult(r ProcessResult) json.RawMessage {
	r.Stdout, r.Stderr = validText(r.Stdout), validText(r.Stderr)
	encoded := encodeProcessResult(r)
	if len(encoded) <= MaxResultBytes {
		return encoded
	}
	stdout, stderr := quotedLen(r.Stdout), quotedLen(r.Stderr)
	// false is the longer spelling of the flags, so the room does not shrink when they are set.
	room := MaxResultBytes - (len(encoded) - stdout - stderr)
	half := room / 2
	stdoutRoom, stderrRoom := half, half
	switch {
	case stdout <= half:
		stdoutRoom, stderrRoom = stdout, room-stdout
	case stderr <= half:
		stdoutRoom, stderrRoom = room-stderr, stderr
	}
	if stdout > stdoutRoom {
		r.Stdout, r.StdoutTruncated = shortenStream(r.Stdout, r.StdoutBytes, stdoutRoom), true
	}
	if stderr > stderrRoom {
		r.Stderr, r.StderrTruncated = shortenStream(r.Stderr, r.StderrBytes, stderrRoom), true
	}
	if encoded = encodeProcessResult(r); len(encoded) > MaxResultBytes {
		// Only a scalar that no process has, such as a signal's name of a mebibyte, leads here.
		return preview(encoded)
	}
	return encoded
}

func encodeProcessResult(r ProcessResult) json.RawMessage {
	encoded, err := strictjson.Marshal(r)
	if err != nil {
		panic("automation: a process result cannot be encoded: " + err.Error())
	}
	return encoded
}

// omission is the line that stands for what was cut out of a stream.
var omission = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\n…\[([0-9]{1,19}) bytes omitted\]…\n`)
})

// longestOmission is the quoted length of the longest such line.
var longestOmission = quotedLen(omissionOf(1<<63 - 1))

func omissionOf(n int64) string { return fmt.Sprintf("\n…[%d bytes omitted]…\n", n) }

// shortenStream cuts the middle out of a stream of total raw bytes, so that it takes at most room bytes
// inside a JSON string. A stream that was cut before is cut at the same place, and says the sum.
func shortenStream(stream string, total int64, room int) string {
	head, tail := cutBefore(stream, total)
	half := (room - longestOmission) / 2
	head, tail = quotedPrefix(head, half), quotedSuffix(tail, half)
	return head + omissionOf(max(0, total-rawLen(head)-rawLen(tail))) + tail
}

// cutBefore returns what stands before and after the omission that a stream already has, else the stream twice.
func cutBefore(stream string, total int64) (head, tail string) {
	for _, at := range omission().FindAllStringSubmatchIndex(stream, -1) {
		head, tail = stream[:at[0]], stream[at[1]:]
		// A program may print such a line itself; the real one gives the right sum.
		if n, err := strconv.ParseInt(stream[at[2]:at[3]], 10, 64); err == nil && n == total-rawLen(head)-rawLen(tail) {
			return head, tail
		}
	}
	return stream, stream
}

// rawLen returns how many bytes of the raw stream a text shows: a replacement stands for one.
func rawLen(text string) int64 {
	replaced := strings.Count(text, "\uFFFD") + strings.Count(text, "\u2400")
	return int64(len(text) - 2*replaced)
}

// quotedRuneLen returns how many bytes a rune takes inside a JSON string in its shortest form.
func quotedRuneLen(r rune) int {
	switch {
	case r == '"', r == '\\', r == '\b', r == '\f', r == '\n', r == '\r', r == '\t':
		return len(`\n`)
	case r < ' ':
		return len(`\u0000`)
	}
	return utf8.RuneLen(r)
}

// quotedLen returns how many bytes a valid text takes inside a JSON string in its shortest form.
func quotedLen(s string) int {
	n := 0
	for _, r := range s {
		n += quotedRuneLen(r)
	}
	return n
}

// quotedPrefix returns the longest beginning of s that takes at most room bytes inside a JSON string.
func quotedPrefix(s string, room int) string {
	for i, r := range s {
		if room -= quotedRuneLen(r); room < 0 {
			return s[:i]
		}
	}
	return s
}

// quotedSuffix returns the longest end of s that takes at most room bytes inside a JSON string.
func quotedSuffix(s string, room int) string {
	at := len(s)
	for at > 0 {
		r, size := utf8.DecodeLastRuneInString(s[:at])
		if room -= quotedRuneLen(r); room < 0 {
			break
		}
		at -= size
	}
	return s[at:]
}

// validText returns s with U+FFFD in place of each byte that is not UTF-8.
func validText(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return string([]rune(s))
}

// Bounded returns the error with a message that every journal can hold: valid UTF-8, U+2400 in place of NUL,
// at most [MaxMessageBytes].
func (e *StepError) Bounded() *StepError {
	if e == nil {
		return nil
	}
	message := strings.ReplaceAll(validText(e.Message), "\x00", "\u2400")
	return &StepError{Code: e.Code, Message: cutText(message, MaxMessageBytes)}
}

// cutText returns the beginning of a text that takes at most limit bytes, and says what is missing.
func cutText(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	cut := limit - len(omissionSuffix(len(s)))
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + omissionSuffix(len(s)-cut)
}

func omissionSuffix(n int) string { return fmt.Sprintf("…[%d bytes omitted]", n) }
