package webhook

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/errandhq/errand/internal/strictjson"
)

// Limits of a webhook.
const (
	// MinSecretBytes and MaxSecretBytes bound a secret; of the scheme standard, the bytes that its base64 stands for.
	MinSecretBytes = 24
	MaxSecretBytes = 512
	// MaxSecrets is how many secrets may be valid at once.
	MaxSecrets = 2
	// MaxHeaders is how many headers of its deliveries a webhook may keep.
	MaxHeaders = 50
	// maxHeaderName bounds the name of a header, maxPrefix what precedes a signature, both in bytes.
	maxHeaderName = 100
	maxPrefix     = 64
)

// Scheme is how a sender signs its deliveries.
type Scheme string

// The schemes.
const (
	Standard Scheme = "standard"
	GitHub   Scheme = "github"
	HMAC     Scheme = "hmac"
)

// UnmarshalStrict implements [strictjson.Unmarshaler].
func (s *Scheme) UnmarshalStrict(v strictjson.Value) {
	if v.Decode((*string)(s)) && *s != Standard && *s != GitHub && *s != HMAC {
		v.Report("must be standard, github or hmac")
	}
}

// Encoding is how a signature is written.
type Encoding string

// The encodings. Hex digits may be of either case; base64 is the standard one, padded.
const (
	Hex    Encoding = "hex"
	Base64 Encoding = "base64"
)

// UnmarshalStrict implements [strictjson.Unmarshaler].
func (e *Encoding) UnmarshalStrict(v strictjson.Value) {
	if v.Decode((*string)(e)) && *e != Hex && *e != Base64 {
		v.Report("must be hex or base64")
	}
}

// HeaderName is the name of a header, kept in lower case.
type HeaderName string

// UnmarshalStrict implements [strictjson.Unmarshaler].
func (h *HeaderName) UnmarshalStrict(v strictjson.Value) {
	if !v.Decode((*string)(h)) {
		return
	}
	*h = HeaderName(strings.ToLower(string(*h)))
	if len(*h) == 0 || len(*h) > maxHeaderName || strings.ContainsFunc(string(*h), func(r rune) bool { return !inHeaderName(r) }) {
		v.Report("must be the name of a header: 1 to %d letters, digits and any of !#$%%&'*+-.^_`|~", maxHeaderName)
	}
}

// inHeaderName reports whether RFC 9110 allows a character in the name of a header.
func inHeaderName(r rune) bool {
	return 'a' <= r && r <= 'z' || '0' <= r && r <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", r)
}

// credentials are headers that carry secrets of a sender, which no run may keep.
var credentials = []HeaderName{"authorization", "proxy-authorization", "cookie", "set-cookie"}

// KeptHeaders are the names of headers that the inputs of runs keep, sorted, each once.
type KeptHeaders []HeaderName

// UnmarshalStrict implements [strictjson.Unmarshaler].
func (k *KeptHeaders) UnmarshalStrict(v strictjson.Value) {
	if !v.Array() {
		return
	}
	*k = KeptHeaders{}
	for _, element := range v.Elements() {
		var name HeaderName
		if !element.Decode(&name) {
			continue
		}
		if slices.Contains(credentials, name) {
			element.Report("carries a credential of the sender, which must not become a part of a run")
		}
		*k = append(*k, name)
	}
	slices.Sort(*k)
	*k = slices.Compact(*k)
	if len(*k) > MaxHeaders {
		v.Report("names %d headers; at most %d are possible", len(*k), MaxHeaders)
	}
}

// Options say how a sender of the scheme hmac signs. With a TimestampHeader, Unix seconds, it signs the timestamp,
// a full stop and the body; without, the body alone.
type Options struct {
	SignatureHeader HeaderName `json:"signatureHeader" strict:"required" doc:"the header that carries the signature"`
	SignaturePrefix string     `json:"signaturePrefix,omitempty" doc:"what precedes the signature in it, such as sha256=; default nothing"`
	Encoding        Encoding   `json:"encoding,omitempty" enum:"hex,base64" doc:"hex or base64; default hex"`
	TimestampHeader HeaderName `json:"timestampHeader,omitempty" doc:"the header with the signed time, in Unix seconds; default none"`
	DeliveryHeader  HeaderName `json:"deliveryHeader,omitempty" doc:"the header that names the delivery; default none"`
}

// UnmarshalStrict implements [strictjson.Unmarshaler].
func (o *Options) UnmarshalStrict(v strictjson.Value) {
	type members Options
	if !v.Decode((*members)(o)) {
		return
	}
	if o.Encoding == "" {
		o.Encoding = Hex
	}
	unprintable := func(r rune) bool { return r <= ' ' || r > '~' }
	if len(o.SignaturePrefix) > maxPrefix || strings.ContainsFunc(o.SignaturePrefix, unprintable) {
		v.Member("signaturePrefix").Report("must be at most %d printable ASCII characters, none of them blank", maxPrefix)
	}
	if o.TimestampHeader == o.SignatureHeader {
		v.Member("timestampHeader").Report("must be another header than signatureHeader")
	}
	if o.DeliveryHeader != "" && (o.DeliveryHeader == o.SignatureHeader || o.DeliveryHeader == o.TimestampHeader) {
		v.Member("deliveryHeader").Report("must be another header than signatureHeader and timestampHeader")
	}
}

// Spec is what decides how the deliveries of a webhook are read. Options are those of the scheme hmac and nil
// otherwise.
type Spec struct {
	Scheme  Scheme
	Options *Options
	Headers KeptHeaders
}

// standardPrefix begins a secret of Standard Webhooks in its usual form.
const standardPrefix = "whsec_"

// Key returns the signing key that a secret stands for. An error says what is wrong with the secret and never
// quotes it.
func (s Scheme) Key(secret string) ([]byte, error) {
	key := []byte(secret)
	if s == Standard {
		var err error
		key, err = base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, standardPrefix))
		if err != nil || strings.ContainsAny(secret, "\r\n") {
			return nil, errors.New("must be whsec_ followed by base64, as the scheme standard wants it")
		}
	}
	if len(key) < MinSecretBytes || len(key) > MaxSecretBytes {
		return nil, fmt.Errorf("has %d bytes; a secret of the scheme %s has %d to %d, made at random, such as by: %s",
			len(key), s, MinSecretBytes, MaxSecretBytes, s.suggestion())
	}
	return key, nil
}

// suggestion is a command that makes a secret.
func (s Scheme) suggestion() string {
	if s == Standard {
		return `printf 'whsec_%s' "$(openssl rand -base64 32)"`
	}
	return "openssl rand -hex 32"
}
