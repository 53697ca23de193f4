package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/catalog"
	"github.com/errandhq/errand/internal/strictjson"
	"github.com/errandhq/errand/internal/yamljson"
)

// maxInputBytes bounds what is read from a file or from standard input: more than any valid input.
const maxInputBytes = 16 << 20

// maxDocuments bounds how many documents one command takes from files; the command itself takes fewer.
const maxDocuments = 1000

// document is one document of the input and where it comes from.
type document struct {
	json   json.RawMessage
	source string
}

// commandInput reads a command's input from the one place that was named, and checks it.
func (p *Program) commandInput(command catalog.Command, f bundleFlags) (json.RawMessage, error) {
	if len(f.Common.Input)+len(f.Common.File) > 1 {
		return nil, usageError{"the input is given more than once; give --input, --file or --stdin, one time"}
	}
	if command.Bundle != "" {
		return p.bundledInput(command, f)
	}
	documents, err := p.documents(f.Common, 1)
	if err != nil {
		return nil, usageError{err.Error()}
	}
	input := documents[0].json
	if err := command.Check(input); err != nil {
		return nil, usageOf(err)
	}
	return input, nil
}

// documents reads the input as at most limit documents; without any input there is one, {}.
func (p *Program) documents(f flags, limit int) ([]document, error) {
	switch {
	case len(f.Input) == 1:
		return []document{{json.RawMessage(f.Input[0]), "--input"}}, nil
	case len(f.File) == 1 && f.File[0] != "-":
		return readPath(f.File[0], limit)
	case f.Stdin || len(f.File) == 1:
		content, err := readAll(p.Stdin, "standard input")
		if err != nil {
			return nil, err
		}
		return parse(content, "standard input", limit)
	default:
		return []document{{json.RawMessage("{}"), "no input"}}, nil
	}
}

// readPath reads a file or, where several documents are possible, the files of a folder in the order of their names.
func readPath(path string, limit int) ([]document, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("the input could not be read: %w", err)
	case !info.IsDir():
		return readFile(path, limit)
	case limit == 1:
		return nil, fmt.Errorf("%s is a folder; name a file", path)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("the input could not be read: %w", err)
	}
	var documents []document
	for _, entry := range entries {
		if !isDefinitionFile(entry) {
			continue
		}
		found, err := readFile(filepath.Join(path, entry.Name()), limit-len(documents))
		if err != nil {
			return nil, err
		}
		documents = append(documents, found...)
	}
	if len(documents) == 0 {
		return nil, fmt.Errorf("the folder %s holds no file *.json, *.yaml or *.yml", path)
	}
	return documents, nil
}

// isDefinitionFile tells the files of a folder that hold input: neither hidden ones, which editors leave, nor those
// of folders below it.
func isDefinitionFile(entry fs.DirEntry) bool {
	extension := strings.ToLower(filepath.Ext(entry.Name()))
	return !entry.IsDir() && !strings.HasPrefix(entry.Name(), ".") && slices.Contains([]string{".json", ".yaml", ".yml"}, extension)
}

func readFile(path string, limit int) ([]document, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("the input could not be read: %w", err)
	}
	defer file.Close() // it was only read
	content, err := readAll(file, path)
	if err != nil {
		return nil, err
	}
	return parse(content, path, limit)
}

func readAll(r io.Reader, name string) ([]byte, error) {
	content, err := io.ReadAll(io.LimitReader(r, maxInputBytes+1))
	if err != nil {
		return nil, fmt.Errorf("the input could not be read from %s: %w", name, err)
	}
	if len(content) > maxInputBytes {
		return nil, fmt.Errorf("the input in %s is larger than %d bytes", name, maxInputBytes)
	}
	return content, nil
}

// parse returns the documents of a file: one of JSON, or as many of YAML as are allowed.
func parse(content []byte, source string, limit int) ([]document, error) {
	extension := strings.ToLower(filepath.Ext(source))
	isYAML := extension == ".yaml" || extension == ".yml"
	if !isYAML && json.Valid(content) {
		return []document{{content, source}}, nil
	}
	var converted [][]byte
	var err error
	if limit == 1 {
		var one []byte
		one, err = yamljson.Convert(content)
		converted = [][]byte{one}
	} else {
		converted, err = yamljson.ConvertAll(content, limit)
	}
	looksLikeJSON := bytes.HasPrefix(bytes.TrimLeft(content, " \t\r\n"), []byte("{"))
	switch {
	case err != nil && looksLikeJSON && !isYAML:
		return []document{{content, source}}, nil // the strict decoder says what is wrong with it, and where
	case err != nil:
		return nil, fmt.Errorf("the input in %s is neither JSON nor YAML: %w", source, err)
	}
	documents := make([]document, 0, len(converted))
	for _, one := range converted {
		documents = append(documents, document{one, source})
	}
	return documents, nil
}

// bundledInput puts the input of a command together that takes a list of documents. Each document is an element of
// the list, or an object with the list, as the command's own input and the results of other commands are.
func (p *Program) bundledInput(command catalog.Command, f bundleFlags) (json.RawMessage, error) {
	documents, err := p.documents(f.Common, maxDocuments)
	if err != nil {
		return nil, usageError{err.Error()}
	}
	var elements []json.RawMessage
	var sources []string
	dryRun := f.DryRun
	for _, d := range documents {
		list, dry, err := unbundle(command.Bundle, d)
		if err != nil {
			return nil, err
		}
		dryRun = dryRun || dry
		for _, element := range list {
			elements, sources = append(elements, element), append(sources, d.source)
		}
	}
	input := bundle(command.Bundle, elements, dryRun)
	if err := command.Check(input); err != nil {
		return nil, usageOf(inFiles(err, command.Bundle, sources))
	}
	return input, nil
}

// bundle writes the input that the elements make. They are put in as they came: the strict decoder behind it
// judges what was written.
func bundle(member string, elements []json.RawMessage, dryRun bool) json.RawMessage {
	out := append([]byte(`{"`), member...)
	out = append(out, `":[`...)
	out = append(out, bytes.Join(rawBytes(elements), []byte{','})...)
	out = append(out, ']')
	if dryRun {
		out = append(out, `,"dry_run":true`...)
	}
	return append(out, '}')
}

func rawBytes(elements []json.RawMessage) [][]byte {
	all := make([][]byte, 0, len(elements))
	for _, element := range elements {
		all = append(all, element)
	}
	return all
}

// unbundle returns the elements that a document holds. What is no list of them is one element.
func unbundle(member string, d document) (elements []json.RawMessage, dryRun bool, err error) {
	if _, violations := strictjson.Compact(d.json); len(violations) > 0 {
		// Spliced into a list, what is no JSON could change what stands around it.
		return nil, false, invalidInput{automation.Invalid(within(violations, d.source)...)}
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(d.json, &members) != nil {
		return []json.RawMessage{d.json}, false, nil //nolint:nilerr // it is JSON, and no list of elements
	}
	if result, found := members["result"]; found && len(members) == 1 {
		return unbundle(member, document{result, d.source})
	}
	list, found := members[member]
	if !found && len(members) > 0 {
		return []json.RawMessage{d.json}, false, nil
	}
	var v []automation.Violation
	for _, name := range slices.Sorted(maps.Keys(members)) {
		switch name {
		case member:
			v = append(v, decodeMember(name, list, &elements)...)
		case "dry_run":
			v = append(v, decodeMember(name, members[name], &dryRun)...)
		case "next_cursor": // of a page that was exported
		default:
			v = append(v, automation.Violation{Path: name, Message: "is not a known member beside " + member})
		}
	}
	if len(v) > 0 {
		return nil, false, invalidInput{automation.Invalid(within(v, d.source)...)}
	}
	return elements, dryRun, nil
}

// decodeMember decodes one member of an object, and names it in what is wrong with it.
func decodeMember(name string, value json.RawMessage, target any) []automation.Violation {
	violations := strictjson.Unmarshal(value, target)
	for i := range violations {
		violations[i].Path = name + violations[i].Path
	}
	return violations
}

// within adds to violations the file that they are in.
func within(violations []automation.Violation, source string) []automation.Violation {
	for i := range violations {
		violations[i].Message += " (in " + source + ")"
	}
	return violations
}

var elementPath = regexp.MustCompile(`^([a-z_]+)\[(\d+)\]`)

// inFiles adds to each violation the file that its element came from.
func inFiles(err error, member string, sources []string) error {
	refusal, ok := errors.AsType[*automation.Error](err)
	if !ok {
		return err
	}
	placed := slices.Clone(refusal.Details)
	for i, violation := range placed {
		match := elementPath.FindStringSubmatch(violation.Path)
		if match == nil || match[1] != member {
			continue
		}
		if n, err := strconv.Atoi(match[2]); err == nil && n < len(sources) {
			placed[i].Message += " (in " + sources[n] + ")"
		}
	}
	return automation.Invalid(placed...)
}
