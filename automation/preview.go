package automation

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

var previewOptions = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}

// preview returns the form of a result that the journal cannot hold as it is.
func preview(result []byte) json.RawMessage {
	return fmt.Appendf(nil, `{"truncated":true,"originalBytes":%d,"preview":%s}`, len(result), previewOf(result))
}

// previewOf returns a valid JSON value of at most maxPreviewBytes that shows the beginning of a result: its
// structure and members in order, with long strings cut, up to the first thing that has no room. What is
// nested too deeply is a placeholder, repeated members come once, and what is not JSON is shown as text.
func previewOf(result []byte) []byte {
	p := previewer{dec: jsontext.NewDecoder(bytes.NewBuffer(result), previewOptions...)}
	for more := true; more; {
		var err error
		if more, err = p.next(); err != nil {
			return quoted(string(result[:min(len(result), maxPreviewText)]))
		}
	}
	for _, f := range slices.Backward(p.frames) {
		p.out = append(p.out, f.close)
	}
	return p.out
}

// previewer copies a JSON value while there is room. Every open object or array has its closing byte reserved.
type previewer struct {
	dec    *jsontext.Decoder
	out    []byte
	frames []previewFrame
}

type previewFrame struct {
	close   byte
	members int
	seen    map[string]bool // nil for an array
}

// next copies one element, member or bracket; it returns false when the value is complete or the room is used up.
func (p *previewer) next() (more bool, err error) {
	if kind := p.dec.PeekKind(); kind == '}' || kind == ']' {
		if _, err := p.dec.ReadToken(); err != nil {
			return false, err
		}
		last := len(p.frames) - 1
		p.out = append(p.out, p.frames[last].close)
		p.frames = p.frames[:last]
		return p.more()
	}
	prefix, repeated, err := p.prefix()
	if err != nil {
		return false, err
	}
	if repeated {
		return true, p.dec.SkipValue()
	}
	value, closing, err := p.value()
	if err != nil {
		return false, err
	}
	reserved := len(p.frames)
	if closing != 0 {
		reserved++
	}
	if len(p.out)+len(prefix)+len(value)+reserved > maxPreviewBytes {
		return false, nil
	}
	p.out = append(append(p.out, prefix...), value...)
	if n := len(p.frames); n > 0 {
		p.frames[n-1].members++
	}
	if closing != 0 {
		f := previewFrame{close: closing}
		if closing == '}' {
			f.seen = map[string]bool{}
		}
		p.frames = append(p.frames, f)
	}
	return p.more()
}

// more reports whether the value goes on; data after its end is an error.
func (p *previewer) more() (bool, error) {
	if len(p.frames) > 0 {
		return true, nil
	}
	if _, err := p.dec.ReadToken(); !errors.Is(err, io.EOF) {
		return false, errors.New("data after the value")
	}
	return false, nil
}

// prefix returns what stands before the next value: a comma, and in an object the name of the member.
func (p *previewer) prefix() (prefix []byte, repeated bool, err error) {
	if len(p.frames) == 0 {
		return nil, false, nil
	}
	f := &p.frames[len(p.frames)-1]
	if f.members > 0 {
		prefix = append(prefix, ',')
	}
	if f.seen == nil {
		return prefix, false, nil
	}
	tok, err := p.dec.ReadToken()
	if err != nil {
		return nil, false, err
	}
	name := cutText(validText(tok.String()), maxPreviewText)
	repeated = f.seen[name]
	f.seen[name] = true
	return append(append(prefix, quoted(name)...), ':'), repeated, nil
}

// value returns the next scalar, or an opening bracket with the closing byte that it will need.
func (p *previewer) value() (value []byte, closing byte, err error) {
	switch kind := p.dec.PeekKind(); kind {
	case '{', '[':
		// The preview itself is in an object.
		if len(p.frames)+1 == maxResultDepth {
			return []byte(previewPlaceholder), 0, p.dec.SkipValue()
		}
		if _, err := p.dec.ReadToken(); err != nil {
			return nil, 0, err
		}
		if kind == '{' {
			return []byte{'{'}, '}', nil
		}
		return []byte{'['}, ']', nil
	case '"':
		tok, err := p.dec.ReadToken()
		if err != nil {
			return nil, 0, err
		}
		return quoted(cutText(validText(tok.String()), maxPreviewText)), 0, nil
	default:
		raw, err := p.dec.ReadValue()
		return raw.Clone(), 0, err
	}
}

// quoted returns the JSON string of a text; what is not UTF-8 is replaced.
func quoted(text string) []byte {
	q, _ := jsontext.AppendQuote(nil, validText(text))
	return q
}
