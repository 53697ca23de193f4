package telemetry

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// hidden stands in the log where a secret was.
const hidden = "[redacted]"

// secrets are what is hidden wherever it appears in a text, each with what is left of it. A text without any of the
// triggers, in lower case, cannot match; looking for those costs a fraction of the pattern.
var secrets = []struct {
	triggers []string
	pattern  *regexp.Regexp
	left     string
}{
	{
		[]string{"private key-----"},
		regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(-----END [A-Z ]*PRIVATE KEY-----|$)`), hidden,
	},
	// Headers, whatever their scheme is; then what follows a scheme elsewhere.
	{
		[]string{"authorization", "dpop", "cookie"},
		regexp.MustCompile(`(?i)\b((?:proxy-)?authorization|dpop|cookie|set-cookie)("?\s*[:=]\s*)((?:map\[|\[)?"?)[^\r\n"\]]+`),
		"${1}${2}${3}" + hidden,
	},
	{
		[]string{"bearer", "dpop", "basic"},
		regexp.MustCompile(`(?i)\b(bearer|dpop|basic)\s+[0-9A-Za-z._~+/=-]{8,}`), "${1} " + hidden,
	},
	// The password of an address, and of the settings of a database or a form.
	{
		[]string{"://"},
		regexp.MustCompile(`([A-Za-z][0-9A-Za-z+.-]*://[^\s/:@"']*):[^\s/"']*@`), "${1}:" + hidden + "@",
	},
	{
		[]string{"passw", "pwd", "secret", "token", "api_key", "apikey"},
		regexp.MustCompile(`(?i)\b(password|passwd|pwd|secret|client_secret|token|access_token|api_?key)("?\s*[=:]\s*"?)[^\s&"',;}\]]+`),
		"${1}${2}" + hidden,
	},
	// Our own tokens and keys, and signing secrets of webhooks, keep the prefix by which they are recognised.
	{
		[]string{"errand_", "whsec_"},
		regexp.MustCompile(`\b(errand_rt_|errand_|whsec_)[0-9A-Za-z_+/=-]{12,}`), "${1}" + hidden,
	},
	// Signed tokens (JWS), also those of machines and their proofs.
	{
		[]string{"eyj"},
		regexp.MustCompile(`\beyJ[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_-]+(\.[0-9A-Za-z_-]*)?`), hidden,
	},
}

// Redact hides what looks like a secret in a text. It is the last defence: whoever logs must not hand over secrets
// in the first place.
func Redact(text string) string {
	lower := strings.ToLower(text)
	for _, s := range secrets {
		if slices.ContainsFunc(s.triggers, func(trigger string) bool { return strings.Contains(lower, trigger) }) {
			text = s.pattern.ReplaceAllString(text, s.left)
		}
	}
	return text
}

// secretNames are the names of attributes whose whole value is a secret.
var secretNames = map[string]bool{
	"authorization": true, "proxy-authorization": true, "dpop": true, "cookie": true, "set-cookie": true,
	"token": true, "secret": true, "password": true, "api_key": true, "apikey": true, "credential": true,
}

// redactor hides secrets in what it hands on: in the message, and in every attribute however deep.
type redactor struct{ next slog.Handler }

// Enabled implements [slog.Handler].
func (r redactor) Enabled(ctx context.Context, level slog.Level) bool {
	return r.next.Enabled(ctx, level)
}

// Handle implements [slog.Handler].
func (r redactor) Handle(ctx context.Context, record slog.Record) error {
	clean := slog.NewRecord(record.Time, record.Level, Redact(record.Message), record.PC)
	record.Attrs(func(a slog.Attr) bool {
		clean.AddAttrs(redacted(a))
		return true
	})
	return r.next.Handle(ctx, clean) //nolint:wrapcheck // a handler adds nothing to the error of the next
}

// WithAttrs implements [slog.Handler].
func (r redactor) WithAttrs(attrs []slog.Attr) slog.Handler {
	clean := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		clean[i] = redacted(a)
	}
	return redactor{r.next.WithAttrs(clean)}
}

// WithGroup implements [slog.Handler].
func (r redactor) WithGroup(name string) slog.Handler { return redactor{r.next.WithGroup(name)} }

// redacted returns an attribute without secrets. A value of a type that is not known here is written as a text
// when there is something to hide in it.
func redacted(a slog.Attr) slog.Attr {
	value := a.Value.Resolve()
	if secretNames[strings.ToLower(a.Key)] && value.Kind() != slog.KindGroup {
		return slog.String(a.Key, hidden)
	}
	switch value.Kind() {
	case slog.KindString:
		return slog.String(a.Key, Redact(value.String()))
	case slog.KindGroup:
		members := value.Group()
		clean := make([]any, len(members))
		for i, member := range members {
			clean[i] = redacted(member)
		}
		return slog.Group(a.Key, clean...)
	case slog.KindAny:
		return slog.Attr{Key: a.Key, Value: redactedAny(value.Any())}
	case slog.KindBool, slog.KindDuration, slog.KindFloat64, slog.KindInt64, slog.KindTime, slog.KindUint64, slog.KindLogValuer:
	}
	return slog.Attr{Key: a.Key, Value: value}
}

func redactedAny(value any) slog.Value {
	switch v := value.(type) {
	case nil:
		return slog.AnyValue(nil)
	case error:
		return slog.StringValue(Redact(v.Error()))
	case []byte:
		return slog.StringValue(Redact(string(v)))
	case http.Header:
		return redactedHeader(v)
	}
	if v := reflect.ValueOf(value); v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8 {
		return slog.StringValue(Redact(string(v.Bytes())))
	}
	// The handlers write a value in one of these two forms, of which only JSON follows pointers.
	texts := []string{fmt.Sprintf("%+v", value)}
	if encoded, err := json.Marshal(value); err == nil {
		texts = append(texts, string(encoded))
	}
	for _, text := range texts {
		if clean := Redact(text); clean != text {
			return slog.StringValue(clean)
		}
	}
	return slog.AnyValue(value)
}

// redactedHeader hides whole headers that carry credentials, and what looks like one in the others.
func redactedHeader(header http.Header) slog.Value {
	clean := make(http.Header, len(header))
	for name, values := range header {
		for _, value := range values {
			if secretNames[strings.ToLower(name)] {
				value = hidden
			}
			clean[name] = append(clean[name], Redact(value))
		}
	}
	return slog.AnyValue(clean)
}
