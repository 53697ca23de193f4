package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gin-gonic/gin"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/catalog"
	"github.com/errandhq/errand/internal/inflight"
	"github.com/errandhq/errand/internal/strictjson"
)

var placeholder = regexp.MustCompile(`\{([a-z_]+)\}`)

// ginPath writes the placeholders of a route as Gin wants them.
func ginPath(path string) string { return placeholder.ReplaceAllString(path, ":$1") }

// placeholders returns the input members that a route's path carries.
func placeholders(path string) []string {
	var names []string
	for _, match := range placeholder.FindAllStringSubmatch(path, -1) {
		names = append(names, match[1])
	}
	return names
}

// command serves one command of the catalog.
func (a *API) command(command catalog.Command) gin.HandlerFunc {
	return func(c *gin.Context) {
		input, err := commandInput(c, command)
		if err != nil {
			a.refuse(c, err)
			return
		}
		ctx := c.Request.Context()
		result, err := command.Execute(ctx, a.Service, catalog.PrincipalOf(ctx), input)
		if err != nil {
			a.refuse(c, err)
			return
		}
		if entity, ok := result.(interface{ Entity() int64 }); ok {
			c.Header("ETag", `"`+strconv.FormatInt(entity.Entity(), 10)+`"`)
		}
		a.answer(c, command.Route.Status, result)
	}
}

// commandInput puts a command's input together from path, query, body and the Idempotency-Key header. The
// body is spliced in as it came, so that the strict decoder sees its duplicates and its very numbers. Nothing
// that a caller sent is passed over: what is not input is refused.
func commandInput(c *gin.Context, command catalog.Command) ([]byte, error) {
	body, err := readBody(c)
	if err != nil {
		return nil, err
	}
	query, err := url.ParseQuery(c.Request.URL.RawQuery)
	if err != nil {
		return nil, automation.Invalid(automation.Violation{Message: "the query is malformed: " + err.Error()})
	}
	members, bad := pathMembers(c, command)
	switch {
	case command.Route.InQuery():
		inQuery, wrong := queryMembers(query, command)
		members, bad = append(members, inQuery...), append(bad, wrong...)
		if len(bytes.TrimSpace(body)) > 0 {
			bad = append(bad, automation.Violation{Message: "this command takes its input in the query, not in the body"})
		}
		body = nil
	case len(query) > 0:
		bad = append(bad, automation.Violation{Message: "this command takes its input in the body, not in the query"})
	}
	for _, from := range []func(*gin.Context, catalog.Command, []byte, url.Values) ([]member, []automation.Violation){keyMember, versionMember} {
		inHeader, wrong := from(c, command, body, query)
		members, bad = append(members, inHeader...), append(bad, wrong...)
	}
	if len(bad) > 0 {
		return nil, automation.Invalid(bad...)
	}
	return splice(body, members), nil
}

// readBody reads a request's body. One that is cut off or malformed is the caller's fault.
func readBody(c *gin.Context) ([]byte, error) {
	body, err := io.ReadAll(c.Request.Body)
	bodyIsRead(c)
	if errors.Is(err, inflight.ErrFull) {
		return nil, tooMuchHeld()
	}
	var tooLarge *http.MaxBytesError
	if err != nil && !errors.As(err, &tooLarge) {
		return nil, automation.Invalid(automation.Violation{Message: "the body could not be read to its end: " + err.Error()})
	}
	return body, err
}

// keyMember returns what the Idempotency-Key header adds to an input.
func keyMember(c *gin.Context, command catalog.Command, body []byte, _ url.Values) (members []member, bad []automation.Violation) {
	const name = keyName
	keys := c.Request.Header.Values("Idempotency-Key")
	if _, keyed := catalog.MemberOf(command.Input, name); !keyed || len(keys) == 0 {
		return nil, nil
	}
	refuse := func(message string) ([]member, []automation.Violation) {
		return nil, []automation.Violation{{Path: name, Message: message}}
	}
	given, inBody := stringMember(body, name)
	switch key := keys[0]; {
	case len(keys) > 1:
		return refuse("is given by more than one Idempotency-Key header; send one")
	case key == "":
		return refuse("is an empty Idempotency-Key header; leave it out instead")
	case !utf8.ValidString(key):
		return refuse("is not UTF-8 in the Idempotency-Key header")
	case inBody && given != key:
		return refuse("differs from the Idempotency-Key header; send one of them")
	case inBody:
		return nil, nil
	default:
		return []member{{name, quote(key)}}, nil
	}
}

// Members of inputs that a header may carry.
const (
	keyName     = "idempotency_key"
	versionName = "expected_version"
)

var entityTag = regexp.MustCompile(`^"([1-9][0-9]{0,17})"$`)

// versionMember returns what the If-Match header adds to an input: the version that a change is made from, as the
// ETag of an answer says it. A change must not be made because a condition was overlooked, so one that this
// command cannot check is refused.
func versionMember(c *gin.Context, command catalog.Command, body []byte, query url.Values) (members []member, bad []automation.Violation) {
	tags := c.Request.Header.Values("If-Match")
	if len(tags) == 0 {
		return nil, nil
	}
	refuse := func(message string) ([]member, []automation.Violation) {
		return nil, []automation.Violation{{Path: versionName, Message: message}}
	}
	if _, versioned := catalog.MemberOf(command.Input, versionName); !versioned {
		return refuse("this command has no version to compare with the If-Match header; leave the header out")
	}
	match := entityTag.FindStringSubmatch(strings.TrimSpace(tags[0]))
	if len(tags) > 1 || match == nil {
		return refuse(`must be one version in quotes in the If-Match header, such as "3", as the ETag of the answer has it`)
	}
	given, found := rawMember(body, versionName)
	if values := query[versionName]; len(values) > 0 {
		given, found = values[0], true
	}
	switch {
	case found && given != match[1]:
		return refuse("differs from the If-Match header; send one of them")
	case found:
		return nil, nil
	}
	return []member{{versionName, []byte(match[1])}}, nil
}

// member is one member of the input that does not come from the body.
type member struct {
	name  string
	value []byte
}

func pathMembers(c *gin.Context, command catalog.Command) (members []member, bad []automation.Violation) {
	for _, name := range placeholders(command.Route.Path) {
		value := c.Param(name)
		if !utf8.ValidString(value) {
			bad = append(bad, automation.Violation{Path: name, Message: notUTF8})
			continue
		}
		members = append(members, member{name, quote(value)})
	}
	return members, bad
}

const notUTF8 = "is not UTF-8"

// queryMembers turns query parameters into members of the types that the command wants.
func queryMembers(query url.Values, command catalog.Command) (members []member, bad []automation.Violation) {
	inPath := placeholders(command.Route.Path)
	for _, name := range slices.Sorted(maps.Keys(query)) {
		values := query[name]
		refuse := func(message string) {
			bad = append(bad, automation.Violation{Path: strings.ToValidUTF8(name, "\ufffd"), Message: message})
		}
		switch {
		case slices.Contains(inPath, name):
			refuse("is in the path already")
		case len(values) > 1:
			refuse("is given more than once")
		case !utf8.ValidString(name) || !utf8.ValidString(values[0]):
			refuse(notUTF8)
		default:
			members = append(members, member{name, queryValue(command.Input, name, values[0])})
		}
	}
	return members, bad
}

// queryValue writes the text of a query parameter as JSON: bare where the command wants a number or a truth
// value and the text is one, else as a string, which the strict decoder then accepts or refuses.
func queryValue(input reflect.Type, name, text string) []byte {
	member, found := catalog.MemberOf(input, name)
	if !found {
		return quote(text)
	}
	kind := member.Type.Kind()
	if kind == reflect.Pointer {
		kind = member.Type.Elem().Kind()
	}
	bare := kind == reflect.Bool && (text == "true" || text == "false") || (kind == reflect.Int || kind == reflect.Int64) && isInteger(text)
	if bare {
		return []byte(text)
	}
	return quote(text)
}

var integer = regexp.MustCompile(`^-?(0|[1-9][0-9]{0,17})$`)

func isInteger(text string) bool { return integer.MatchString(text) }

// splice adds members at the front of the object that a body holds. A body that is no object is left for the
// strict decoder to refuse.
func splice(body []byte, members []member) []byte {
	rest := strings.TrimLeft(string(body), " \t\r\n")
	if rest == "" {
		rest = "{}"
	}
	if !strings.HasPrefix(rest, "{") || len(members) == 0 {
		return []byte(rest)
	}
	var out strings.Builder
	out.WriteByte('{')
	for i, m := range members {
		if i > 0 {
			out.WriteByte(',')
		}
		out.Write(quote(m.name))
		out.WriteByte(':')
		out.Write(m.value)
	}
	after := rest[1:]
	if !strings.HasPrefix(strings.TrimLeft(after, " \t\r\n"), "}") {
		out.WriteByte(',')
	}
	out.WriteString(after)
	return []byte(out.String())
}

// stringMember returns a member of a body that is a string.
func stringMember(body []byte, name string) (string, bool) {
	var text string
	raw, found := rawMember(body, name)
	if !found || json.Unmarshal([]byte(raw), &text) != nil {
		return "", false
	}
	return text, true
}

// rawMember returns a member of a body as it was written.
func rawMember(body []byte, name string) (string, bool) {
	var object map[string]json.RawMessage
	if json.Unmarshal(body, &object) != nil {
		return "", false
	}
	raw, found := object[name]
	return string(raw), found
}

// quote writes a text, which is UTF-8, as a JSON string.
func quote(text string) []byte {
	quoted, err := strictjson.Marshal(text)
	if err != nil {
		return []byte(`""`)
	}
	return quoted
}
