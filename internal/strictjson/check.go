package strictjson

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/go-json-experiment/json/jsontext"
)

// frame is an object or array that [checker] is in.
type frame struct {
	object bool
	named  bool   // object: the name of the next value has been read
	name   []byte // object: the decoded name of the current member
	index  int    // array: the current element
	seen   map[string]struct{}
}

// checker reads a document once, token by token, and reports what is wrong with it whatever its target:
// syntax, depth, UTF-8, duplicate members, trailing data. It keeps one frame per open object or array, and
// stops at the first one that is too deep.
type checker struct {
	doc    *document
	data   []byte
	dec    *jsontext.Decoder
	frames []frame
}

// check reports whether the document is JSON that can be decoded, duplicates and invalid UTF-8 included.
func (d *document) check(data []byte) bool {
	c := &checker{doc: d, data: data, dec: newDecoder(data)}
	for {
		done, ok := c.next()
		if !ok {
			return false
		}
		if done {
			break
		}
	}
	end := c.dec.InputOffset()
	if rest := bytes.TrimLeft(data[end:], " \t\r\n"); len(rest) > 0 {
		d.report(nil, "is followed by more data; send one JSON value"+position(data, int64(len(data)-len(rest))))
		return false
	}
	return true
}

// newDecoder returns a decoder of data that leaves duplicates and UTF-8 to us.
func newDecoder(data []byte) *jsontext.Decoder {
	return jsontext.NewDecoder(bytes.NewBuffer(data),
		jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

// next reads one token; done is true when the document is complete.
func (c *checker) next() (done, ok bool) {
	switch c.dec.PeekKind() {
	case '{', '[':
		c.begin()
		tok, err := c.dec.ReadToken()
		if err != nil {
			c.syntax(err)
			return false, false
		}
		if len(c.frames) == MaxDepth {
			c.doc.report(c.place(), fmt.Sprintf("is nested deeper than %d levels", MaxDepth))
			return false, false
		}
		c.frames = append(c.frames, frame{object: tok.Kind() == '{', index: -1})
		return false, true
	case '}', ']':
		if _, err := c.dec.ReadToken(); err != nil {
			c.syntax(err)
			return false, false
		}
		c.frames = c.frames[:len(c.frames)-1]
	default:
		raw, err := c.dec.ReadValue()
		if err != nil {
			c.syntax(err)
			return false, false
		}
		if top := c.top(); top != nil && top.object && !top.named {
			c.name(top, raw)
			return false, !c.doc.full()
		}
		c.begin()
		if raw.Kind() == '"' {
			if _, err := jsontext.AppendUnquote(nil, raw); err != nil {
				c.doc.report(c.place(), "is not valid UTF-8")
			}
		}
	}
	return len(c.frames) == 0, !c.doc.full()
}

func (c *checker) top() *frame {
	if len(c.frames) == 0 {
		return nil
	}
	return &c.frames[len(c.frames)-1]
}

// begin notes that a value begins in the innermost object or array.
func (c *checker) begin() {
	if top := c.top(); top != nil {
		top.named = false
		top.index++
	}
}

// name notes the name of the next member of an object.
func (c *checker) name(top *frame, raw jsontext.Value) {
	name, err := jsontext.AppendUnquote(nil, raw)
	top.name, top.named = name, true
	if err != nil {
		c.doc.report(c.place(), "is a member name that is not valid UTF-8")
	}
	if _, ok := top.seen[string(name)]; ok {
		c.doc.duplicates = true
		c.doc.report(c.place(), "is a duplicate member")
		return
	}
	if top.seen == nil {
		top.seen = map[string]struct{}{}
	}
	top.seen[string(name)] = struct{}{}
}

// place returns where the checker is.
func (c *checker) place() *place {
	var at *place
	for _, f := range c.frames {
		switch {
		case f.object && f.name != nil:
			at = at.member(string(f.name))
		case !f.object && f.index >= 0:
			at = at.element(f.index)
		}
	}
	return at
}

// syntax reports that the document is not JSON.
func (c *checker) syntax(err error) {
	offset, reason := c.dec.InputOffset(), err.Error()
	if syntactic, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		offset, reason = syntactic.ByteOffset, syntactic.Err.Error()
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		reason = "it ends too early"
		if len(bytes.TrimSpace(c.data)) == 0 {
			c.doc.report(nil, "is empty; send one JSON value")
			return
		}
	}
	c.doc.report(c.place(), "is not valid JSON: "+reason+position(c.data, offset))
}

// position says where an offset is, for a person with an editor.
func position(data []byte, offset int64) string {
	before := data[:min(int(offset), len(data))]
	line := 1 + bytes.Count(before, []byte("\n"))
	column := len(before) - bytes.LastIndexByte(before, '\n')
	return fmt.Sprintf(" (line %d, byte %d)", line, column)
}
