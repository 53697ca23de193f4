package access

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
)

// An API key is a prefix that scanners for leaked secrets recognise, 178 random bits, and a checksum of both, so
// that what is no key is refused without a look into the database.
//
//	errand_[0-9A-Za-z]{30}[0-9A-Za-z]{6}
const (
	keyPrefix = "errand_"
	// digits is the alphabet of a key. It has no character at which a double click would stop.
	digits       = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	randomDigits = 30
	checkDigits  = 6
	keyLength    = len(keyPrefix) + randomDigits + checkDigits
)

// NewKey makes an API key from a source of random bytes.
func NewKey(source io.Reader) (string, error) {
	var key strings.Builder
	key.WriteString(keyPrefix)
	// A byte above the last whole round of the alphabet would make its first digits more frequent.
	const rounds = 256 / len(digits) * len(digits)
	random := make([]byte, 1)
	for key.Len() < len(keyPrefix)+randomDigits {
		if _, err := io.ReadFull(source, random); err != nil {
			return "", fmt.Errorf("reading random bytes: %w", err)
		}
		if int(random[0]) < rounds {
			key.WriteByte(digits[int(random[0])%len(digits)])
		}
	}
	return key.String() + checksum(key.String()), nil
}

// checksum is the CRC-32 (IEEE) of a text in the digits of a key.
func checksum(text string) string {
	var out [checkDigits]byte
	rest := crc32.ChecksumIEEE([]byte(text))
	for i := range out {
		out[checkDigits-1-i] = digits[rest%uint32(len(digits))]
		rest /= uint32(len(digits))
	}
	return string(out[:])
}

// isKey reports whether a token has the form of a key, its checksum included.
func isKey(token string) bool {
	if len(token) != keyLength || !strings.HasPrefix(token, keyPrefix) {
		return false
	}
	body, check := token[:keyLength-checkDigits], token[keyLength-checkDigits:]
	return strings.Trim(body[len(keyPrefix):], digits) == "" && checksum(body) == check
}

// HashKey returns what is stored of a key: its SHA-256 in hexadecimal. A key is random, so it needs no slow hash.
func HashKey(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}
