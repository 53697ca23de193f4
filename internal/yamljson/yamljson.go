// Package yamljson turns a YAML document into the JSON document of the same value, for files that people write.
// Member order, the digits of numbers and duplicate members are kept, so that the strict decoder behind it
// judges what was written. Bounds on size and depth hold before anything is built: a small file whose aliases
// or brackets multiply is refused.
package yamljson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"

	"go.yaml.in/yaml/v3"
)

const (
	// MaxBytes bounds the JSON that a document becomes.
	MaxBytes = 16 << 20
	// MaxDepth bounds nesting; the strict decoder allows less.
	MaxDepth = 100
)

// ErrEmpty says that there is no document, apart from comments.
var ErrEmpty = errors.New("it is empty")

// jsonNumber is a number that JSON writes as YAML does.
var jsonNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)

// Convert returns the JSON of the one document that data holds. Its errors name the line.
func Convert(data []byte) ([]byte, error) {
	documents, err := convert(data, 1)
	if err != nil {
		return nil, err
	}
	return documents[0], nil
}

// ConvertAll returns the JSON of each document that data holds, at most limit; empty ones, as behind a last ---,
// are left out. Together they obey the bounds of one. Its errors name the line.
func ConvertAll(data []byte, limit int) ([][]byte, error) { return convert(data, limit) }

func convert(data []byte, limit int) ([][]byte, error) {
	data = bytes.TrimPrefix(data, []byte("\ufeff")) // editors of some platforms write it
	if err := checkBrackets(data); err != nil {
		return nil, err
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var documents [][]byte
	for total := 0; ; {
		var document yaml.Node
		switch err := decoder.Decode(&document); {
		case errors.Is(err, io.EOF) && len(documents) == 0:
			return nil, ErrEmpty
		case errors.Is(err, io.EOF):
			return documents, nil
		case err != nil:
			return nil, fmt.Errorf("reading YAML: %w", err)
		case limit > 1 && isEmpty(document):
			continue
		case len(documents) == limit && limit == 1:
			return nil, fmt.Errorf("line %d begins a second document; give one", document.Line)
		case len(documents) == limit:
			return nil, fmt.Errorf("line %d begins a document too many; at most %d are possible", document.Line, limit)
		}
		w := writer{before: total}
		if err := w.write(&document, 0); err != nil {
			return nil, err
		}
		total += w.out.Len()
		documents = append(documents, w.out.Bytes())
	}
}

// isEmpty reports whether a document holds nothing but comments.
func isEmpty(document yaml.Node) bool {
	return len(document.Content) == 1 && document.Content[0].Tag == "!!null" && document.Content[0].Value == ""
}

// checkBrackets refuses a run of opening brackets that no document needs. The parser's cost grows with the
// square of their depth, before it can be asked for the tree.
func checkBrackets(data []byte) error {
	run := 0
	for _, b := range data {
		switch b {
		case '[', '{':
			if run++; run > MaxDepth {
				return fmt.Errorf("it is nested deeper than %d levels", MaxDepth)
			}
		case ' ', '\t', '\r', '\n', '-', '?', ':':
		default:
			run = 0
		}
	}
	return nil
}

type writer struct {
	out    bytes.Buffer
	before int // bytes of earlier documents of the same data
}

func (w *writer) write(node *yaml.Node, depth int) error {
	if depth > MaxDepth {
		return fmt.Errorf("line %d is nested deeper than %d levels", node.Line, MaxDepth)
	}
	if w.before+w.out.Len() > MaxBytes {
		return fmt.Errorf("it stands for more than %d bytes", MaxBytes)
	}
	switch node.Kind {
	case yaml.DocumentNode:
		return w.write(node.Content[0], depth)
	case yaml.AliasNode:
		return w.write(node.Alias, depth+1)
	case yaml.SequenceNode:
		return w.sequence(node, depth)
	case yaml.MappingNode:
		return w.mapping(node, depth)
	case yaml.ScalarNode:
		return w.scalar(node)
	}
	return fmt.Errorf("line %d holds something that JSON cannot say", node.Line)
}

func (w *writer) sequence(node *yaml.Node, depth int) error {
	w.out.WriteByte('[')
	for i, element := range node.Content {
		if i > 0 {
			w.out.WriteByte(',')
		}
		if err := w.write(element, depth+1); err != nil {
			return err
		}
	}
	w.out.WriteByte(']')
	return nil
}

func (w *writer) mapping(node *yaml.Node, depth int) error {
	w.out.WriteByte('{')
	for i := 0; i < len(node.Content); i += 2 {
		key := node.Content[i]
		if key.Kind != yaml.ScalarNode || key.Tag == "!!merge" {
			return fmt.Errorf("line %d has a key that is no plain text", key.Line)
		}
		if i > 0 {
			w.out.WriteByte(',')
		}
		if err := w.text(key.Value); err != nil {
			return err
		}
		w.out.WriteByte(':')
		if err := w.write(node.Content[i+1], depth+1); err != nil {
			return err
		}
	}
	w.out.WriteByte('}')
	return nil
}

// scalar writes a scalar by the type that YAML gives it. Dates stay the text that they are.
func (w *writer) scalar(node *yaml.Node) error {
	switch node.Tag {
	case "!!null":
		w.out.WriteString("null")
		return nil
	case "!!bool":
		var value bool
		if err := node.Decode(&value); err != nil {
			return fmt.Errorf("line %d: %w", node.Line, err)
		}
		w.out.WriteString(strconv.FormatBool(value))
		return nil
	case "!!int", "!!float":
		return w.number(node)
	case "!!str", "!!timestamp":
		return w.text(node.Value)
	}
	return fmt.Errorf("line %d has a value of the type %s, which JSON does not have", node.Line, node.Tag)
}

func (w *writer) number(node *yaml.Node) error {
	if jsonNumber.MatchString(node.Value) {
		w.out.WriteString(node.Value)
		return nil
	}
	var value any
	if err := node.Decode(&value); err != nil {
		return fmt.Errorf("line %d: %w", node.Line, err)
	}
	encoded, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("line %d: %s is no number that JSON has", node.Line, node.Value)
	}
	w.out.Write(encoded)
	return nil
}

func (w *writer) text(text string) error {
	encoder := json.NewEncoder(&w.out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(text); err != nil {
		return fmt.Errorf("writing a text: %w", err)
	}
	w.out.Truncate(w.out.Len() - 1) // the newline that the encoder adds
	return nil
}
