package telemetry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/errandhq/errand/internal/telemetry"
)

// The secrets of these tests; none of them may come out.
const (
	key     = "errand_0123456789ABCDEFGHIJabcdefghij012345"
	runtime = "errand_rt_Zm9vYmFyYmF6cXV4-_Zm9vYmFyYmF6cXV4"
	whsec   = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	jwt     = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhZGEifQ.c2lnbmF0dXJlLXNpZ25hdHVyZQ"
	word    = "hunter2-correct-horse"
)

// TestRedact shows what is left of texts.
func TestRedact(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"the key " + key + " is bad":                                         "the key errand_[redacted] is bad",
		"token=" + runtime + "&x=1":                                          "token=[redacted]&x=1",
		"(" + runtime + ")":                                                  "(errand_rt_[redacted])",
		"signed with " + whsec + ", wrongly":                                 "signed with whsec_[redacted], wrongly",
		"Authorization: Bearer " + jwt:                                       "Authorization: [redacted]",
		`"Authorization":["Basic ` + word + `"]`:                             `"Authorization":["[redacted]"]`,
		"map[Authorization:[DPoP abc] Accept:[*/*]]":                         "map[Authorization:[[redacted]] Accept:[*/*]]",
		"dpop: " + jwt:                                                       "dpop: [redacted]",
		"a bearer " + word + " came":                                         "a bearer [redacted] came",
		"proof " + jwt + " replayed":                                         "proof [redacted] replayed",
		"postgres://errand:" + word + "@db:5432/errand":                      "postgres://errand:[redacted]@db:5432/errand",
		"postgres://errand:a:b@db/errand":                                    "postgres://errand:[redacted]@db/errand",
		"host=db user=errand password=" + word + " port=1":                   "host=db user=errand password=[redacted] port=1",
		`{"secret":"` + word + `","name":"x"}`:                               `{"secret":"[redacted]","name":"x"}`,
		"GET /hooks?api_key=" + word + "&a=b":                                "GET /hooks?api_key=[redacted]&a=b",
		"-----BEGIN EC PRIVATE KEY-----\nabc\n-----END EC PRIVATE KEY-----!": "[redacted]!",

		// What is no secret stays.
		"the token is not valid; make a new one":          "the token is not valid; make a new one",
		"run 0193f5a0-0000-7000-8000-000000000000 failed": "run 0193f5a0-0000-7000-8000-000000000000 failed",
		"http://127.0.0.1:7717/temporal":                  "http://127.0.0.1:7717/temporal",
		"errand_test and errandd":                         "errand_test and errandd",
		"a bearer token":                                  "a bearer token",
		"postgres://db:5432/errand":                       "postgres://db:5432/errand",
	} {
		if got := telemetry.Redact(text); got != want {
			t.Errorf("%q\nbecame %q\nwant   %q", text, got, want)
		}
	}
}

type valuer struct{}

func (valuer) LogValue() slog.Value { return slog.GroupValue(slog.String("inside", key)) }

type deep struct {
	Name string
	Next *struct{ Token string }
	Map  map[string][]string
}

// TestNoSecretLeavesTheLogger hands secrets to the logger in every way that there is.
func TestNoSecretLeavesTheLogger(t *testing.T) {
	t.Parallel()
	all := []string{key, runtime, whsec, jwt, word}
	address := &url.URL{Scheme: "postgres", Host: "db", User: url.UserPassword("errand", word)}
	for _, format := range []string{"json", "text"} {
		var out bytes.Buffer
		logger, err := telemetry.NewLogger(&out, format, "debug")
		if err != nil {
			t.Fatal(err)
		}
		logger.Info("the message has " + key)
		logger.Info("attributes", "a", key, "b", whsec, slog.Group("g", "c", runtime, slog.Group("h", "d", jwt)))
		logger.Info("errors", "error", fmt.Errorf("opening postgres://errand:%s@db/errand: %w", word, errors.New(jwt)))
		logger.Info("values", "v", valuer{}, "s", address, "bytes", []byte(key), "raw", json.RawMessage(`"`+key+`"`), "nil", nil)
		logger.Info("structures", "deep", deep{Name: key, Map: map[string][]string{"a": {whsec}}}, "pointer", deep{Next: &struct{ Token string }{word}}, "slice", []string{runtime})
		logger.Info("headers", "header", http.Header{"Authorization": {"Machine " + word}, "Dpop": {word}, "X": {jwt}, "Accept": {"*/*"}})
		logger.Info("names", "Authorization", word, "token", word, "password", []string{word}, "secret", 7)
		logger.With("with", key).WithGroup("group").With("more", jwt).Info("contexts", "last", whsec)
		logger.LogAttrs(context.Background(), slog.LevelWarn, "many", slog.Any("any", any(key)), slog.Int("n", 7), slog.Duration("d", time.Second), slog.Bool("b", true))
		for _, secret := range all {
			if strings.Contains(out.String(), secret) {
				t.Errorf("%s: %q is in the log:\n%s", format, secret, out.String())
			}
		}
		for _, kept := range []string{"the message has", "opening postgres://errand:", "*/*", "Accept", "contexts", "[redacted]"} {
			if !strings.Contains(out.String(), kept) {
				t.Errorf("%s: %q is missing from the log:\n%s", format, kept, out.String())
			}
		}
		if n := strings.Count(out.String(), "\n"); n != 9 {
			t.Errorf("%s: %d lines", format, n)
		}
	}
}

// TestTheLogIsAsBefore shows that what holds no secret is written as ever: numbers as numbers, groups as groups.
func TestTheLogIsAsBefore(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	logger, err := telemetry.NewLogger(&out, "json", "info")
	if err != nil {
		t.Fatal(err)
	}
	logger.Debug("not this")
	logger.With("component", "api").Info("ready", "n", 7, "took", time.Second, "ids", []string{"a"}, slog.Group("g", "ok", true), "p", (*deep)(nil))
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	delete(line, "time")
	want := `{"component":"api","g":{"ok":true},"ids":["a"],"level":"INFO","msg":"ready","n":7,"p":null,"took":1000000000}`
	if got, err := json.Marshal(line); err != nil || string(got) != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func BenchmarkLog(b *testing.B) {
	logger, err := telemetry.NewLogger(new(bytes.Buffer), "json", "info")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		logger.Info("a request was refused", "request_id", "0193f5a0-0000-7000-8000-000000000000", "path", "/v1/automations/:automation_id", "n", 7)
	}
}
