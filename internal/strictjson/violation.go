package strictjson

import (
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"
)

// Limits of what is accepted and reported.
const (
	// MaxDepth is how deep objects and arrays may nest; a document that is an object is one level.
	MaxDepth = 64
	// MaxViolations is how many violations of one document are reported; one more says that there are others.
	MaxViolations = 50

	maxNameInPath = 100
	maxPathBytes  = 1024
)

// Violation is one thing that is wrong with a document, at the place where it is.
type Violation struct {
	// Path is a JSON path in the form `workflow.compiled.steps[2].args[0]`; empty for the document itself. A
	// name that is not made of letters, digits, `_`, `$` and `-` is quoted: `env["A B"]`.
	Path    string `json:"path"`
	Message string `json:"message"`
}

// document collects what is found in one document.
type document struct {
	violations []Violation
	warnings   []Violation
	found      int  // violations, including those that are not kept
	duplicates bool // some object repeats a member
}

func (d *document) report(at *place, message string) {
	d.found++
	switch {
	case d.found <= MaxViolations:
		d.violations = append(d.violations, Violation{Path: at.String(), Message: message})
	case d.found == MaxViolations+1:
		d.violations = append(d.violations, Violation{
			Message: fmt.Sprintf("more is wrong; only the first %d violations are listed", MaxViolations),
		})
	}
}

func (d *document) warn(path, message string) {
	if len(d.warnings) < MaxViolations {
		d.warnings = append(d.warnings, Violation{Path: path, Message: message})
	}
}

// full reports whether further violations would not be kept.
func (d *document) full() bool { return d.found > MaxViolations }

// place is where a value is in its document; nil is the document itself.
type place struct {
	parent *place
	name   string
	index  int // of an array element; -1 for an object member
}

func (p *place) member(name string) *place { return &place{parent: p, name: name, index: -1} }

func (p *place) element(i int) *place { return &place{parent: p, index: i} }

// String returns the path in the form of [Violation.Path], cut when it is long.
func (p *place) String() string {
	if p == nil {
		return ""
	}
	var chain []*place
	for at := p; at != nil; at = at.parent {
		chain = append(chain, at)
	}
	path := ""
	for _, at := range slices.Backward(chain) {
		if at.index >= 0 {
			path = PathElement(path, at.index)
		} else {
			path = PathMember(path, at.name)
		}
		if len(path) > maxPathBytes {
			return path + "…"
		}
	}
	return path
}

// PathMember returns the path of a member of the object at path.
func PathMember(path, name string) string {
	switch {
	case !plainName(name):
		return path + "[" + strconv.Quote(shorten(name)) + "]"
	case path == "":
		return name
	}
	return path + "." + name
}

// PathElement returns the path of an element of the array at path.
func PathElement(path string, index int) string {
	return path + "[" + strconv.Itoa(index) + "]"
}

func plainName(name string) bool {
	if name == "" || len(name) > maxNameInPath {
		return false
	}
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '$', c == '-':
		default:
			return false
		}
	}
	return true
}

// shorten cuts a text that is quoted in a message or a path.
func shorten(s string) string {
	if len(s) <= maxNameInPath {
		return s
	}
	cut := maxNameInPath
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}
