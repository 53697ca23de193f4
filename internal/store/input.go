package store

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/errandhq/errand/automation"
)

// Limits of texts that the ledger keeps in an index or that come from outside without a limit of their own.
const (
	maxKeyBytes       = 255   // idempotency keys, operations, delivery ids, names of instances
	maxPublicKeyBytes = 2_000 // a PostgreSQL index row holds 2,704 bytes
	maxLabelsBytes    = 16 << 10
	maxReasonBytes    = 4_000
	maxSummaryBytes   = 200
	maxQueryBytes     = 4_000 // SQLite compares patterns of up to 50,000 bytes
)

// canonicalID returns an id in the form in which it is stored, and whether it is an id at all. What is not one
// names nothing: PostgreSQL would refuse it with an error.
func canonicalID(id string) (string, bool) {
	const length = 36
	if len(id) != length {
		return "", false
	}
	parsed, err := uuid.Parse(id)
	if err != nil {
		return "", false
	}
	return parsed.String(), true
}

// canonicalIDs leaves out what is not an id.
func canonicalIDs(ids []string) []string {
	known := make([]string, 0, len(ids))
	for _, id := range ids {
		if c, ok := canonicalID(id); ok {
			known = append(known, c)
		}
	}
	return known
}

// violations collects what is wrong with the texts of one request.
type violations []automation.Violation

// text refuses what PostgreSQL cannot store, and more bytes than limit.
func (v *violations) text(path, s string, limit int) {
	switch {
	case !utf8.ValidString(s):
		v.add(path, "is not valid UTF-8")
	case strings.ContainsRune(s, 0):
		v.add(path, "must not contain the character NUL")
	case len(s) > limit:
		v.add(path, fmt.Sprintf("is %d bytes long, more than the %d allowed", len(s), limit))
	}
}

// name is a text that must not be empty either.
func (v *violations) name(path, s string, limit int) {
	if s == "" {
		v.add(path, "is required")
		return
	}
	v.text(path, s, limit)
}

// json refuses a value that is given but cannot be stored.
func (v *violations) json(path string, value json.RawMessage, limit int) {
	switch {
	case len(value) == 0:
	case !utf8.Valid(value):
		v.add(path, "is not valid UTF-8")
	case !json.Valid(value):
		v.add(path, "is not a JSON value")
	case len(value) > limit:
		v.add(path, fmt.Sprintf("is %d bytes long, more than the %d allowed", len(value), limit))
	}
}

func (v *violations) add(path, message string) {
	*v = append(*v, automation.Violation{Path: path, Message: message})
}

// err returns the refusal that reports all violations, or nil.
func (v *violations) err() error {
	if len(*v) == 0 {
		return nil
	}
	return automation.Invalid(*v...)
}

// clean makes a text storable that must not be refused, because it reports something that has happened: it
// shows invalid bytes as U+FFFD and NUL as U+2400, and cuts it to limit bytes.
func clean(s string, limit int) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\u2400")
	if len(s) <= limit {
		return s
	}
	cut := limit - len("…")
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// cleanCode makes a code of the closed sets storable; what has no code gets the given one.
func cleanCode(code, otherwise string) string {
	if code = clean(code, maxKeyBytes); code == "" {
		return otherwise
	}
	return code
}
