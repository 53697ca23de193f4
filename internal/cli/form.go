package cli

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// form is how answers are printed. Only the first is for programs to read.
type form int

const (
	formLine   form = iota // one line of JSON
	formPretty             // the same JSON, indented
	formText               // plain text for people; it may change
)

// formOf finds the form in arguments that may not parse: a mistake in them is answered in it too.
func formOf(args []string) form {
	switch {
	case slices.Contains(args, "--text"):
		return formText
	case slices.Contains(args, "--pretty"):
		return formPretty
	}
	return formLine
}

// format writes an envelope, {"result": …} or {"error": …}, in the form.
func (f form) format(line []byte) []byte {
	switch f {
	case formPretty:
		var indented bytes.Buffer
		if json.Indent(&indented, line, "", "  ") == nil {
			line = indented.Bytes()
		}
	case formText:
		if text, ok := plainText(line); ok {
			return text
		}
	case formLine:
	}
	return append(bytes.Clone(line), '\n')
}

// plainText writes what an envelope holds as indented names and values. Texts of several lines stand below their
// name; empty lists and objects are shown as a dash.
func plainText(envelope []byte) ([]byte, bool) {
	var members map[string]jsontext.Value
	if json.Unmarshal(envelope, &members) != nil || len(members) != 1 {
		return nil, false
	}
	var w textWriter
	for _, content := range members {
		w.value(content, 0)
	}
	return w.out.Bytes(), true
}

type textWriter struct{ out bytes.Buffer }

func (w *textWriter) line(depth int, text string) {
	w.out.WriteString(strings.Repeat("  ", depth))
	w.out.WriteString(text)
	w.out.WriteByte('\n')
}

// value writes a value that has a line, or lines, of its own.
func (w *textWriter) value(value jsontext.Value, depth int) {
	switch value.Kind() {
	case '{':
		w.members(value, depth)
	case '[':
		w.elements(value, depth)
	default:
		for line := range strings.Lines(scalar(value)) {
			w.line(depth, strings.TrimRight(line, "\n"))
		}
	}
}

// named writes a value behind its name: on the same line where it fits.
func (w *textWriter) named(name string, value jsontext.Value, depth int) {
	text := scalar(value)
	if kind := value.Kind(); (kind == '{' || kind == '[') && text == "" || strings.Contains(text, "\n") {
		w.line(depth, name+":")
		w.value(value, depth+1)
		return
	}
	w.line(depth, strings.TrimRight(name+": "+text, " "))
}

func (w *textWriter) members(object jsontext.Value, depth int) {
	decoder := jsontext.NewDecoder(bytes.NewReader(object))
	if _, err := decoder.ReadToken(); err != nil {
		return
	}
	for decoder.PeekKind() == '"' {
		name, err := decoder.ReadToken()
		if err != nil {
			return
		}
		label := name.String()
		value, err := decoder.ReadValue()
		if err != nil {
			return
		}
		w.named(label, value, depth)
	}
}

func (w *textWriter) elements(array jsontext.Value, depth int) {
	var elements []json.RawMessage
	if json.Unmarshal(array, &elements) != nil {
		return
	}
	for _, element := range elements {
		var inner textWriter
		inner.value(jsontext.Value(element), 0)
		for i, line := range slices.Collect(strings.Lines(inner.out.String())) {
			mark := "  "
			if i == 0 {
				mark = "- "
			}
			w.line(depth, mark+strings.TrimRight(line, "\n"))
		}
	}
}

// scalar returns what a text, number, truth value, null, or an empty list or object is shown as; "" for others.
func scalar(value jsontext.Value) string {
	switch value.Kind() {
	case '"':
		text, err := jsontext.AppendUnquote(nil, value)
		if err != nil {
			return string(value)
		}
		return harmless(string(text))
	case '{', '[':
		if len(bytes.TrimSpace(value[1:len(value)-1])) == 0 {
			return "-"
		}
		return ""
	default:
		return string(value)
	}
}

// harmless replaces control characters: the output of somebody's program must not steer the terminal that shows it.
func harmless(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '\ufffd'
		}
		return r
	}, text)
}
