package automation

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/errandhq/errand/internal/strictjson"
)

// templateMember is the only member of the object `{"$runInput": true}`, which stands for the run's input.
const templateMember = "$runInput"

// span is a part of a JSON text, from start to end.
type span struct{ start, end int }

// template is what [scanTemplate] finds in a value: the places of the run's input, in their order, and the
// paths of other objects with a member of that name, which mean themselves.
type template struct {
	places   []span
	literals []string
}

// templateFrame is an object or array that the scan is in.
type templateFrame struct {
	start   int
	object  bool
	named   bool // object: the name of the next value has been read
	name    string
	members int // or elements
	marked  bool
	exact   bool
}

// scanTemplate finds the run-input templates of a valid JSON value. Paths start with path.
func scanTemplate(raw []byte, path string) template {
	var t template
	if !bytes.Contains(raw, []byte("{")) {
		return t
	}
	var frames []templateFrame
	dec := jsontext.NewDecoder(bytes.NewBuffer(raw), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	for {
		tok, err := dec.ReadToken()
		if err != nil {
			return t
		}
		end := int(dec.InputOffset())
		switch kind := tok.Kind(); kind {
		case '{', '[':
			beginValue(frames, false)
			frames = append(frames, templateFrame{start: end - 1, object: kind == '{'})
		case '}', ']':
			f := frames[len(frames)-1]
			frames = frames[:len(frames)-1]
			switch {
			case f.exact && f.members == 1:
				t.places = append(t.places, span{f.start, end})
			case f.marked:
				t.literals = append(t.literals, templatePath(path, frames))
			}
		default:
			if n := len(frames); n > 0 && frames[n-1].object && !frames[n-1].named {
				f := &frames[n-1]
				f.name, f.named = tok.String(), true
				f.marked = f.marked || f.name == templateMember
				continue
			}
			beginValue(frames, kind == 't')
		}
	}
}

// beginValue notes that a value begins in the innermost frame.
func beginValue(frames []templateFrame, isTrue bool) {
	if len(frames) == 0 {
		return
	}
	f := &frames[len(frames)-1]
	f.members++
	f.exact = f.object && f.name == templateMember && isTrue
	f.named = false
}

func templatePath(path string, frames []templateFrame) string {
	for _, f := range frames {
		if f.object {
			path = strictjson.PathMember(path, f.name)
		} else {
			path = strictjson.PathElement(path, f.members-1)
		}
	}
	return path
}

// warnOfTemplates warns of objects that look like a template of the run's input and are none.
func warnOfTemplates(v strictjson.Value) {
	for _, path := range scanTemplate(v.Raw(), v.Path()).literals {
		v.Warn(path, `is passed as it is: only the exact object {%q: true} is replaced by the run's input`, templateMember)
	}
}

// size returns the length of the expanded value in bytes.
func (t template) size(raw []byte, inputLen int) int64 {
	size := int64(len(raw))
	for _, p := range t.places {
		size += int64(inputLen) - int64(p.end-p.start)
	}
	return size
}

// expand returns the value with the input in all places. What the input holds is not expanded again.
func (t template) expand(raw, input []byte) json.RawMessage {
	if len(t.places) == 0 {
		return raw
	}
	expanded := make([]byte, 0, t.size(raw, len(input)))
	from := 0
	for _, p := range t.places {
		expanded = append(expanded, raw[from:p.start]...)
		expanded = append(expanded, input...)
		from = p.end
	}
	return append(expanded, raw[from:]...)
}

// ExpandedSize returns how many bytes of JSON the input or stdin of a step has when a run input of that many
// bytes is in the place of every template. Nothing is built.
func ExpandedSize(s Step, inputLen int) int64 {
	return scanTemplate(s.Input, "").size(s.Input, inputLen) + scanTemplate(s.Stdin, "").size(s.Stdin, inputLen)
}

// Concrete returns what a machine executes for a step: the run's input (null when it is empty) is in the
// place of every template of an action's input or a process's stdin, and defaults are applied. The step and
// the input must be valid, as from [DecodePlan] and an admission. A step whose expansion would be larger than
// [MaxExpandedBytes] is refused with invalid_template before it is built.
func Concrete(runID string, s Step, input json.RawMessage) (ConcreteStep, *StepError) {
	if len(input) == 0 {
		input = json.RawMessage("null")
	}
	inputs, stdins := scanTemplate(s.Input, ""), scanTemplate(s.Stdin, "")
	if size := inputs.size(s.Input, len(input)) + stdins.size(s.Stdin, len(input)); size > MaxExpandedBytes {
		return ConcreteStep{}, &StepError{Code: StepErrInvalidTemplate, Message: fmt.Sprintf(
			"step %q would be %d bytes with the run's input in it; at most %d (4 MiB) are possible",
			s.ID, size, MaxExpandedBytes)}
	}
	c := ConcreteStep{
		RunID: runID, StepID: s.ID, Kind: s.Lane(),
		ActionID: s.ActionID, Input: inputs.expand(s.Input, input), Credential: s.Credential,
		Command: s.Command, Runtime: s.Runtime, Source: s.Source,
		Args: s.Args, Cwd: s.Cwd, Env: s.Env,
		TimeoutMs: s.Timeout().Milliseconds(),
	}
	if c.Kind != KindAction {
		c.MaxOutputBytes = s.OutputLimit()
		c.Leftovers = LeftoversEnd
		if s.Leftovers != "" {
			c.Leftovers = s.Leftovers
		}
		c.Stdin = stdinBytes(stdins.expand(s.Stdin, input))
	}
	return c, nil
}

// stdinBytes returns what a program reads for a value: a string as it is, any other JSON compactly and with
// a newline at its end, and nothing for an absent value.
func stdinBytes(value json.RawMessage) []byte {
	if len(value) == 0 {
		return nil
	}
	if value[0] == '"' {
		// The value is valid; AppendUnquote replaces what is not UTF-8 otherwise.
		text, _ := jsontext.AppendUnquote(nil, value)
		return text
	}
	line := make([]byte, 0, len(value)+1)
	return append(append(line, value...), '\n')
}
