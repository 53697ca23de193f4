package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

const (
	// Tolerance is how far a signed timestamp may be from now, in either direction.
	Tolerance = 5 * time.Minute
	// RememberFor is how long a delivery is recognised when it comes again.
	RememberFor = 30 * 24 * time.Hour

	maxNameBytes      = 255   // delivery ids and names of events
	maxSignatureBytes = 4_000 // a header of signatures
	maxSecondsDigits  = 12
)

// Request is a delivery as it came.
type Request struct {
	// Headers are the values of each header, by its name in lower case.
	Headers map[string][]string
	Body    []byte
}

// one returns the value of a header that is there once; "" otherwise.
func (r Request) one(name HeaderName) string {
	if values := r.Headers[string(name)]; len(values) == 1 {
		return values[0]
	}
	return ""
}

// Delivery is a request that a holder of the secret has signed.
type Delivery struct {
	// ID is the name that the sender gave it, or "".
	ID string
	// Event is what the sender says has happened, or "".
	Event string
	// Keys are names of the delivery, digests of one length: another delivery that has one of them is a repeat. There
	// is none when repeats cannot be told.
	Keys []string
}

// claim is what a request says about itself before anything of it is verified.
type claim struct {
	Delivery
	signed     string // what precedes the body in the signed bytes
	signatures [][sha256.Size]byte
	// identified is set when equal signed bytes are a repeat.
	identified bool
	flaw       error // why the claim fails whatever its signature is
}

// Verify returns the delivery that a request is. keys are the valid signing keys, at most [MaxSecrets]; without any
// every request is refused. The work depends on the size of the request alone: not on the scheme, the number of keys,
// or whether and why the request is refused. The error says the reason, for whoever runs the receiver; a sender must
// not learn it.
func Verify(spec Spec, keys [][]byte, r Request, now time.Time) (Delivery, error) {
	c := spec.claim(r, now)
	matched := 0
	for i := range MaxSecrets {
		var key []byte
		if len(keys) > 0 {
			key = keys[min(i, len(keys)-1)]
		}
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(c.signed))
		mac.Write(r.Body)
		sum := mac.Sum(nil)
		for _, signature := range c.signatures {
			matched |= subtle.ConstantTimeCompare(sum, signature[:])
		}
	}
	content := digest("content", c.signed, r.Body)
	switch {
	case c.flaw != nil:
		return Delivery{}, c.flaw
	case len(keys) == 0:
		return Delivery{}, errors.New("the webhook has no secret")
	case matched != 1:
		return Delivery{}, errors.New("the signature was not made with the secret over these bytes")
	}
	if c.ID != "" {
		c.Keys = append(c.Keys, digest("id", c.ID, nil))
	}
	if c.identified {
		c.Keys = append(c.Keys, content)
	}
	return c.Delivery, nil
}

// digest names a delivery by one of its properties. The signature itself is not kept: with it, whoever reads the
// ledger could repeat the delivery after it is forgotten.
func digest(property, text string, body []byte) string {
	h := sha256.New()
	h.Write([]byte(property))
	h.Write([]byte{0})
	h.Write([]byte(text))
	h.Write(body)
	return hex.EncodeToString(h.Sum(nil))
}

// claim reads the headers of a scheme.
func (s Spec) claim(r Request, now time.Time) claim {
	switch s.Scheme {
	case Standard:
		return standardClaim(r, now)
	case GitHub:
		return gitHubClaim(r)
	case HMAC:
		if s.Options != nil {
			return hmacClaim(*s.Options, r, now)
		}
	}
	return claim{flaw: fmt.Errorf("the scheme %q is not known to this build", s.Scheme)}
}

// standardClaim reads a delivery of Standard Webhooks: the id, the timestamp and the body are signed, and there may
// be several signatures, of which those of version 1 are ours.
func standardClaim(r Request, now time.Time) claim {
	id, seconds := r.one("webhook-id"), r.one("webhook-timestamp")
	c := claim{Delivery: Delivery{ID: id}, signed: id + "." + seconds + "."}
	c.flaw = errors.Join(checkName("webhook-id", id), checkTime("webhook-timestamp", seconds, now))
	if id == "" {
		c.flaw = errors.New("the header webhook-id is not there once")
	}
	if strings.Contains(id, ".") {
		// A part of the body could be passed off as the timestamp otherwise.
		c.flaw = errors.New("the header webhook-id contains a full stop")
	}
	header := r.one("webhook-signature")
	for part := range strings.FieldsSeq(header[:min(len(header), maxSignatureBytes)]) {
		if encoded, isOurs := strings.CutPrefix(part, "v1,"); isOurs {
			c.sign(Base64, encoded)
		}
	}
	return c
}

// gitHubClaim reads a delivery of GitHub. Its id is not signed and there is no time: a repeat is told by the signed
// body too.
func gitHubClaim(r Request) claim {
	c := claim{Delivery: Delivery{ID: r.one("x-github-delivery"), Event: r.one("x-github-event")}, identified: true}
	c.flaw = errors.Join(checkName("x-github-delivery", c.ID), checkName("x-github-event", c.Event))
	if encoded, found := strings.CutPrefix(r.one("x-hub-signature-256"), "sha256="); found {
		c.sign(Hex, encoded)
	}
	return c
}

// hmacClaim reads a delivery as its options say.
func hmacClaim(o Options, r Request, now time.Time) claim {
	c := claim{identified: o.TimestampHeader != "" || o.DeliveryHeader != ""}
	if o.TimestampHeader != "" {
		seconds := r.one(o.TimestampHeader)
		c.signed = seconds + "."
		c.flaw = checkTime(o.TimestampHeader, seconds, now)
	}
	if o.DeliveryHeader != "" {
		c.ID = r.one(o.DeliveryHeader)
		c.flaw = errors.Join(c.flaw, checkName(o.DeliveryHeader, c.ID))
		if c.ID == "" {
			c.flaw = fmt.Errorf("the header %s is not there once", o.DeliveryHeader)
		}
	}
	if encoded, found := strings.CutPrefix(r.one(o.SignatureHeader), o.SignaturePrefix); found {
		c.sign(o.Encoding, encoded)
	}
	return c
}

// sign adds a signature to the claim, unless it cannot be one.
func (c *claim) sign(encoding Encoding, text string) {
	var signature [sha256.Size]byte
	var decoded []byte
	var err error
	switch encoding {
	case Hex:
		if len(text) == hex.EncodedLen(sha256.Size) {
			decoded, err = hex.DecodeString(text)
		}
	case Base64:
		if len(text) == base64.StdEncoding.EncodedLen(sha256.Size) {
			decoded, err = base64.StdEncoding.Strict().DecodeString(text)
		}
	}
	if err == nil && copy(signature[:], decoded) == sha256.Size {
		c.signatures = append(c.signatures, signature)
	}
}

// checkName refuses what the ledger could not show as a name.
func checkName(header HeaderName, name string) error {
	if len(name) > maxNameBytes || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r > '~' }) {
		return fmt.Errorf("the header %s is not at most %d printable ASCII characters", header, maxNameBytes)
	}
	return nil
}

// checkTime refuses a timestamp that is not of now.
func checkTime(header HeaderName, seconds string, now time.Time) error {
	isDigit := func(r rune) bool { return '0' <= r && r <= '9' }
	n, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil || len(seconds) > maxSecondsDigits || !isDigit(rune(seconds[0])) {
		return fmt.Errorf("the header %s is not there once with a time in Unix seconds", header)
	}
	if off := now.Sub(time.Unix(n, 0)); off.Abs() > Tolerance {
		return fmt.Errorf("the time in %s is %s from the time of this server; at most %s are tolerated",
			header, off.Abs().Round(time.Second), Tolerance)
	}
	return nil
}
