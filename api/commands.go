package api

import (
	"encoding/json"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/catalog"
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
		result, err := command.Execute(c.Request.Context(), a.Service, principalOf(c), input)
		if err != nil {
			a.refuse(c, err)
			return
		}
		a.answer(c, command.Route.Status, result)
	}
}

// commandInput puts a command's input together from path, query, body and the Idempotency-Key header. The
// body is spliced in as it came, so that the strict decoder sees its duplicates and its very numbers.
func commandInput(c *gin.Context, command catalog.Command) ([]byte, error) {
	members, bad := pathMembers(c, command)
	if command.Route.InQuery() {
		query, unknown := queryMembers(c, command)
		members, bad = append(members, query...), append(bad, unknown...)
	} else if len(c.Request.URL.Query()) > 0 {
		bad = append(bad, automation.Violation{Message: "this command takes its input in the body, not in the query"})
	}
	if len(bad) > 0 {
		return nil, automation.Invalid(bad...)
	}
	var body []byte
	if !command.Route.InQuery() {
		var err error
		if body, err = io.ReadAll(c.Request.Body); err != nil {
			return nil, err
		}
	}
	_, keyed := catalog.MemberOf(command.Input, "idempotency_key")
	if key := c.GetHeader("Idempotency-Key"); key != "" && keyed {
		if given, ok := stringMember(body, "idempotency_key"); !ok {
			members = append(members, member{"idempotency_key", quote(key)})
		} else if given != key {
			return nil, automation.Invalid(automation.Violation{
				Path: "idempotency_key", Message: "differs from the Idempotency-Key header; send one of them",
			})
		}
	}
	return splice(body, members), nil
}

// member is one member of the input that does not come from the body.
type member struct {
	name  string
	value []byte
}

func pathMembers(c *gin.Context, command catalog.Command) (members []member, bad []automation.Violation) {
	for _, name := range placeholders(command.Route.Path) {
		members = append(members, member{name, quote(c.Param(name))})
	}
	return members, bad
}

// queryMembers turns query parameters into members of the types that the command wants.
func queryMembers(c *gin.Context, command catalog.Command) (members []member, bad []automation.Violation) {
	query := c.Request.URL.Query()
	names := make([]string, 0, len(query))
	for name := range query {
		names = append(names, name)
	}
	slices.Sort(names)
	inPath := placeholders(command.Route.Path)
	for _, name := range names {
		values := query[name]
		switch {
		case slices.Contains(inPath, name):
			bad = append(bad, automation.Violation{Path: name, Message: "is in the path already"})
		case len(values) > 1:
			bad = append(bad, automation.Violation{Path: name, Message: "is given more than once"})
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
	var object map[string]json.RawMessage
	if json.Unmarshal(body, &object) != nil {
		return "", false
	}
	var text string
	raw, found := object[name]
	if !found || json.Unmarshal(raw, &text) != nil {
		return "", false
	}
	return text, true
}

// quote writes a text as a JSON string. It replaces what is not UTF-8, which no id, key or query may hold.
func quote(text string) []byte {
	quoted, err := strictjson.Marshal(strings.ToValidUTF8(text, "\ufffd"))
	if err != nil {
		return []byte(`""`)
	}
	return quoted
}
