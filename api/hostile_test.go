package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/errandhq/errand/api"
	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/catalog"
)

var (
	hostileSeed = flag.Uint64("hostile-seed", 1, "what TestHostileRequests draws its requests from")
	hostileEach = flag.Int("hostile-each", 40, "how many requests of each kind TestHostileRequests sends to each route")
)

// answerWithin is how long a request may take before it counts as hanging; computers that run tests are busy.
const answerWithin = 30 * time.Second

// TestHostileRequests sends to each route of the catalog requests that are drawn from its schema: valid ones, valid
// ones that were damaged, and ones that somebody means badly. Whatever comes is answered, within a time, with a
// success or a refusal of the closed set that tells nothing of the inside. The same seed draws the same requests.
func TestHostileRequests(t *testing.T) {
	t.Parallel()
	for i, command := range catalog.Commands() {
		t.Run(command.Name, func(t *testing.T) {
			t.Parallel()
			h := &hostility{world: newWorld(t), t: t, command: command, rand: rand.New(rand.NewPCG(*hostileSeed, uint64(i)))}
			h.prepare()
			passed := false
			for range *hostileEach {
				passed = h.send(h.valid()) != http.StatusBadRequest || passed
				h.send(h.damaged())
				h.send(h.meant())
			}
			if !passed {
				t.Error("no valid request got past the rules of the input")
			}
			for _, sign := range []string{"panicked", "a request failed"} {
				if log := h.log.String(); strings.Contains(log, sign) {
					t.Errorf("seed %d: the log says %q:\n%s", *hostileSeed, sign, log)
				}
			}
		})
	}
}

// attempt is a request.
type attempt struct {
	method, target string
	body           []byte
	header         http.Header
}

// hostility draws requests to one command.
type hostility struct {
	*world
	t                *testing.T
	command          catalog.Command
	rand             *rand.Rand
	automation       string
	pending, settled string
}

// prepare makes an automation and two runs to name: one that waits and one that failed.
func (h *hostility) prepare() {
	h.automation = h.create()
	h.settled, h.pending = h.runNow(h.automation), h.runNow(h.automation)
	h.do("POST", "/v1/runs/"+h.settled+"/cancel", `{"force":true}`)
}

// insides are words that only the inside of the program has; nothing that is sent has them.
var insides = regexp.MustCompile(`(?i)sqlite|goroutine|\.go:\d|\bsql\b|insert into|runtime error|/internal/|nil pointer|reflect|strconv|jsontext`)

// send sends a request, checks the answer, and returns its status.
func (h *hostility) send(a attempt) int {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), answerWithin)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, a.method, h.server.URL, bytes.NewReader(a.body))
	if err != nil {
		h.t.Fatal(err)
	}
	request.URL.Opaque = a.target // as it is, also where it is no path that a client would send
	request.Header = a.header
	request.Header.Set("Authorization", "Bearer "+userToken)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		h.t.Fatalf("seed %d: %s %q %q: %v", *hostileSeed, a.method, a.target, a.body, err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	if problem := h.judge(response.StatusCode, content); problem != "" {
		h.t.Errorf("seed %d: %s %q %v %.2000q: %s: %d %.2000s", *hostileSeed, a.method, a.target, a.header, a.body, problem, response.StatusCode, content)
	}
	return response.StatusCode
}

// judge returns what is wrong with an answer.
func (h *hostility) judge(status int, content []byte) string {
	if status/100 == 2 {
		if !json.Valid(content) {
			return "the answer is no JSON"
		}
		return ""
	}
	if status == http.StatusBadRequest && !json.Valid(content) {
		return h.judgeTransport(content)
	}
	var envelope api.ErrorEnvelope
	switch err := json.Unmarshal(content, &envelope); {
	case err != nil || envelope.Error.Message == "":
		return "the refusal is no envelope"
	case !envelope.Error.Code.Known() || envelope.Error.Code.Status() != status:
		return "its code is not of the closed set, or of another status"
	case status >= http.StatusInternalServerError:
		return "it is the fault of the server"
	case insides.Match(content):
		return fmt.Sprintf("it tells of the inside: %q", insides.Find(content))
	case !utf8.Valid(content):
		return "it is no UTF-8"
	case envelope.Error.Code == automation.CodeValidationFailed && len(envelope.Error.Details) == 0:
		return "it names no place"
	}
	return ""
}

// judgeTransport accepts what net/http answers by itself to what is no HTTP.
func (h *hostility) judgeTransport(content []byte) string {
	if strings.HasPrefix(string(content), "400 Bad Request") {
		return ""
	}
	return "the refusal is no JSON"
}

// valid draws a request of the form that the command wants: its example with other members, and ids that exist.
func (h *hostility) valid() attempt {
	h.t.Helper()
	var members map[string]json.RawMessage
	if err := json.Unmarshal([]byte(h.command.Example), &members); err != nil {
		h.t.Fatal(err)
	}
	schema := h.command.InputSchema()
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		if _, there := members[name]; there || h.rand.IntN(4) == 0 {
			if name == "wait_ms" {
				members[name] = json.RawMessage(strconv.Itoa(h.rand.IntN(2))) // no test has the time to wait
			} else if value := h.known(name); value != "" {
				members[name] = quoted(value)
			} else if !there {
				members[name] = h.value(schema.Properties[name], name, 3)
			}
		}
	}
	return h.request(members)
}

// known returns what an input names that exists; "" for other members.
func (h *hostility) known(name string) string {
	one := func(values ...string) string { return values[h.rand.IntN(len(values))] }
	switch name {
	case "automation_id":
		return one(h.automation, h.automation, newID())
	case "run_id":
		return one(h.pending, h.settled, newID())
	case "machine_id", "machineId":
		return one(h.machine.ID, newID())
	}
	return ""
}

// texts are what strings are drawn from.
var texts = []string{
	"", "x", "a b", "hello\nworld", "é", "日本語", "👩‍👩‍👧", "\u202egnirts", "%", "_", "%00", "../../etc/passwd", "' OR '1'='1", `"; --`, "{{7*7}}",
	"<script>alert(1)</script>", "$(id)", "`id`", "0193f5a0-0000-7000-8000-000000000000", "2026-12-01T09:00:00Z", "0001-01-01T00:00:00Z",
	"9999-12-31T23:59:59.999999999+14:00", "* * * * *", "null", "true", "1e309", "\x1b[2J", "\x7f", "\u0000", "\ufffd", "completed", "manual",
}

var numbers = []string{"0", "1", "20", "-1", "200", "201", "55001", "2147483648", "9223372036854775807", "9223372036854775808", "-9223372036854775809", "1.5", "1e400", "-0"}

// value draws a value of a schema, most often one that fits.
func (h *hostility) value(s *catalog.Schema, name string, depth int) json.RawMessage {
	switch {
	case h.rand.IntN(12) == 0:
		return h.anything(depth)
	case s.Nullable && h.rand.IntN(6) == 0:
		return json.RawMessage("null")
	case len(s.Enum) > 0:
		return quoted(s.Enum[h.rand.IntN(len(s.Enum))])
	}
	switch s.Type {
	case "object":
		members := map[string]json.RawMessage{}
		for _, member := range slices.Sorted(maps.Keys(s.Properties)) {
			if depth > 0 && (slices.Contains(s.Required, member) || h.rand.IntN(3) == 0) {
				members[member] = h.value(s.Properties[member], member, depth-1)
			}
		}
		return h.object(members)
	case "array":
		var elements []json.RawMessage
		for range h.rand.IntN(4) {
			if s.Items != nil && depth > 0 {
				elements = append(elements, h.value(s.Items, name, depth-1))
			}
		}
		return list(elements)
	case "string":
		if value := h.known(name); value != "" {
			return quoted(value)
		}
		return quoted(texts[h.rand.IntN(len(texts))])
	case "boolean":
		return json.RawMessage(strconv.FormatBool(h.rand.IntN(2) == 0))
	case "integer", "number":
		return json.RawMessage(numbers[h.rand.IntN(len(numbers))])
	}
	return h.anything(depth)
}

// anything draws a value of no schema.
func (h *hostility) anything(depth int) json.RawMessage {
	switch kind := h.rand.IntN(9); {
	case kind == 0 && depth > 0:
		return list([]json.RawMessage{h.anything(depth - 1), h.anything(depth - 1)})
	case kind == 1 && depth > 0:
		return h.object(map[string]json.RawMessage{"a": h.anything(depth - 1), "$runInput": json.RawMessage("true")})
	case kind == 2:
		return json.RawMessage("null")
	case kind == 3:
		return json.RawMessage(numbers[h.rand.IntN(len(numbers))])
	case kind == 4:
		return json.RawMessage(`{"$runInput":true}`)
	case kind == 5:
		return json.RawMessage(strings.Repeat("[", 70) + strings.Repeat("]", 70))
	case kind == 6:
		return quoted(strings.Repeat("x", 1<<h.rand.IntN(18)))
	case kind == 7:
		return json.RawMessage("true")
	}
	return quoted(texts[h.rand.IntN(len(texts))])
}

// object writes members in their order; now and then one of them twice.
func (h *hostility) object(members map[string]json.RawMessage) json.RawMessage {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(members)) {
		part := string(quoted(name)) + ":" + string(members[name])
		parts = append(parts, part)
		if h.rand.IntN(60) == 0 {
			parts = append(parts, part)
		}
	}
	return json.RawMessage("{" + strings.Join(parts, ",") + "}")
}

func quoted(text string) json.RawMessage {
	encoded, err := json.Marshal(text)
	if err != nil {
		return json.RawMessage(`""`)
	}
	return encoded
}

func list(elements []json.RawMessage) json.RawMessage {
	var parts []string
	for _, element := range elements {
		parts = append(parts, string(element))
	}
	return json.RawMessage("[" + strings.Join(parts, ",") + "]")
}

var inPath = regexp.MustCompile(`\{([a-z_]+)\}`)

// request puts members where the route wants them.
func (h *hostility) request(members map[string]json.RawMessage) attempt {
	route := h.command.Route
	plain := func(value json.RawMessage) string {
		var text string
		if json.Unmarshal(value, &text) == nil {
			return text
		}
		return string(value)
	}
	target := "/v1" + inPath.ReplaceAllStringFunc(route.Path, func(match string) string {
		name := strings.Trim(match, "{}")
		value := plain(members[name])
		delete(members, name)
		return url.PathEscape(value)
	})
	a := attempt{method: route.Method, header: http.Header{"Content-Type": {"application/json"}}}
	if route.InQuery() {
		query := url.Values{}
		for name, value := range members {
			query.Set(name, plain(value))
		}
		a.target = target + "?" + query.Encode()
		return a
	}
	a.target, a.body = target, h.object(members)
	return a
}

// damaged draws a valid request and breaks its bytes.
func (h *hostility) damaged() attempt {
	a := h.valid()
	if len(a.body) == 0 {
		a.target = string(h.damage([]byte(a.target), "abc%&=?/._~-0123456789"))
		if !strings.HasPrefix(a.target, "/v1/") { // another route, or none, is not meant
			a.target = "/v1/" + strings.TrimLeft(a.target, "/v1")
		}
		return a
	}
	a.body = h.damage(a.body, "{}[]\",:\\\x00\xff\xc3 0e-ntf")
	return a
}

// damage cuts, repeats and replaces pieces of a text, with characters of an alphabet.
func (h *hostility) damage(text []byte, alphabet string) []byte {
	for range 1 + h.rand.IntN(3) {
		at := h.rand.IntN(len(text))
		end := min(len(text), at+1+h.rand.IntN(8))
		switch h.rand.IntN(4) {
		case 0:
			text = slices.Concat(text[:at], text[end:])
		case 1:
			text = slices.Concat(text[:end], text[at:])
		case 2:
			text = bytes.Clone(text)
			text[at] = alphabet[h.rand.IntN(len(alphabet))]
		case 3:
			text = slices.Concat(text[:at], []byte{alphabet[h.rand.IntN(len(alphabet))]}, text[at:])
		}
		if len(text) == 0 {
			return []byte("/")
		}
	}
	return text
}

// meant draws a request that somebody means badly: every member from the schema, headers and a body that do not belong.
func (h *hostility) meant() attempt {
	schema := h.command.InputSchema()
	var members map[string]json.RawMessage
	if json.Unmarshal(h.value(schema, "", 4), &members) != nil || members == nil {
		members = map[string]json.RawMessage{texts[h.rand.IntN(len(texts))]: h.anything(3)}
	}
	for _, match := range inPath.FindAllStringSubmatch(h.command.Route.Path, -1) {
		if _, there := members[match[1]]; !there || string(members[match[1]]) == `""` {
			members[match[1]] = quoted("x")
		}
	}
	a := h.request(members)
	for _, name := range []string{"Idempotency-Key", "If-Match", "Content-Type", "X-Forwarded-For", "X-HTTP-Method-Override", "Content-Encoding", "Accept"} {
		if h.rand.IntN(5) == 0 {
			a.header.Set(name, headerText(texts[h.rand.IntN(len(texts))]))
		}
	}
	switch h.rand.IntN(8) {
	case 0:
		a.body = []byte(h.anything(2))
	case 1:
		a.body = bytes.Repeat([]byte(`{"a":`), 100_000)
	case 2:
		a.target += map[bool]string{true: "&", false: "?"}[strings.Contains(a.target, "?")] + "x=%zz"
	}
	return a
}

// headerText leaves out what no client can send in a header.
func headerText(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, text)
}
