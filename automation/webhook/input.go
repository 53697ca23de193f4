package webhook

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"strings"

	"github.com/errandhq/errand/internal/strictjson"
)

// Limits of a delivery, in bytes. With them an input stays below the limit of the inputs of runs.
const (
	MaxJSONBody    = 960 << 10
	MaxOtherBody   = 700 << 10
	MaxKeptHeaders = 32 << 10
	maxContentType = 1 << 10
)

// TooLargeError says that a delivery cannot become the input of a run, and why.
type TooLargeError struct{ Reason string }

// Error returns the reason.
func (e *TooLargeError) Error() string { return e.Reason }

// MaxBody returns how large the body of a delivery with these headers may be.
func MaxBody(headers map[string][]string) int64 {
	if isJSON(Request{Headers: headers}.one("content-type")) {
		return MaxJSONBody
	}
	return MaxOtherBody
}

// isJSON reports whether a media type is JSON or built on it. Parameters that make no sense do not matter.
func isJSON(contentType string) bool {
	media, _, err := mime.ParseMediaType(contentType)
	if err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) {
		return false
	}
	return media == "application/json" || strings.HasSuffix(media, "+json")
}

// Input returns the input of the run that a delivery admits: its body as JSON when it is declared as such and is
// JSON, with its numbers and the order of its members as sent, or else its bytes in base64; what is known about
// the delivery; and the headers that the webhook keeps. The error is a [TooLargeError].
func Input(spec Spec, d Delivery, r Request) (json.RawMessage, error) {
	contentType := strings.ToValidUTF8(r.one("content-type"), "\uFFFD")
	if len(contentType) > maxContentType {
		return nil, &TooLargeError{fmt.Sprintf("the content type is larger than %d bytes", maxContentType)}
	}
	headers, err := keptHeaders(spec, r)
	if err != nil {
		return nil, err
	}
	var out object
	if body, ok := jsonBody(contentType, r.Body); ok {
		out.add("body", body)
	} else {
		if len(r.Body) > MaxOtherBody {
			return nil, &TooLargeError{fmt.Sprintf("the body is not JSON and larger than %d bytes", MaxOtherBody)}
		}
		out.add("body", json.RawMessage("null"))
		out.add("rawBody", text(base64.StdEncoding.EncodeToString(r.Body)))
	}
	out.add("contentType", text(contentType))
	if d.Event != "" {
		out.add("event", text(d.Event))
	}
	if d.ID != "" {
		out.add("deliveryId", text(d.ID))
	}
	out.add("headers", headers)
	return out.end(), nil
}

// jsonBody returns the body as JSON; false when it is not JSON or not declared as JSON. An empty one is null.
func jsonBody(contentType string, body []byte) (json.RawMessage, bool) {
	if !isJSON(contentType) {
		return nil, false
	}
	if len(bytes.TrimSpace(body)) == 0 {
		return json.RawMessage("null"), true
	}
	compact, violations := strictjson.Compact(body)
	return compact, len(violations) == 0
}

// keptHeaders returns the headers that the webhook keeps, as an object from names in lower case to values. Several
// values of one name are joined as HTTP allows it.
func keptHeaders(spec Spec, r Request) (json.RawMessage, error) {
	var kept object
	for _, name := range spec.Headers {
		if values := r.Headers[string(name)]; len(values) > 0 {
			kept.add(string(name), text(strings.Join(values, ", ")))
		}
	}
	headers := kept.end()
	if len(headers) > MaxKeptHeaders {
		return nil, &TooLargeError{fmt.Sprintf("the headers that the webhook keeps are larger than %d bytes", MaxKeptHeaders)}
	}
	return headers, nil
}

// object is a JSON object in the making. It keeps the order of its members.
type object struct{ bytes.Buffer }

func (o *object) add(name string, value json.RawMessage) {
	if o.Len() == 0 {
		o.WriteByte('{')
	} else {
		o.WriteByte(',')
	}
	o.Write(text(name))
	o.WriteByte(':')
	o.Write(value)
}

func (o *object) end() json.RawMessage {
	if o.Len() == 0 {
		return json.RawMessage("{}")
	}
	o.WriteByte('}')
	return o.Bytes()
}

// text returns a text as a JSON string; bytes that are not UTF-8 are shown as U+FFFD.
func text(s string) json.RawMessage {
	quoted, err := strictjson.Marshal(strings.ToValidUTF8(s, "\uFFFD"))
	if err != nil { // a string can always be encoded
		return json.RawMessage(`""`)
	}
	return quoted
}
