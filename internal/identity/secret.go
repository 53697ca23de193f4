package identity

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
)

// KeySize is the length in bytes of the master key and of every key derived from it.
const KeySize = 32

// LoadOrCreateMasterKey returns the installation's master key, and makes a random one when the file does not
// exist. The file holds exactly 32 bytes with mode 0600; one that others may read is refused.
func LoadOrCreateMasterKey(path string) ([]byte, error) {
	key, err := loadOrCreateSecret(path, func() ([]byte, error) { return randomBytes(rand.Reader, KeySize) })
	return checkMasterKey(path, key, err)
}

// LoadMasterKey is [LoadOrCreateMasterKey] for a file that must exist; the error wraps [fs.ErrNotExist] otherwise.
func LoadMasterKey(path string) ([]byte, error) {
	key, err := readSecret(path)
	return checkMasterKey(path, key, err)
}

// checkMasterKey refuses the content of a file that is no master key.
func checkMasterKey(path string, key []byte, err error) ([]byte, error) {
	if err != nil {
		return nil, fmt.Errorf("loading the master key: %w", err)
	}
	if len(key) != KeySize {
		return nil, fmt.Errorf("loading the master key: %s has %d bytes instead of %d", path, len(key), KeySize)
	}
	return key, nil
}

// DeriveKey returns the 32-byte key for one purpose, by HKDF-SHA256 (RFC 5869) with the purpose as info. The
// same master key and purpose give the same key after a restart; keys of different purposes tell nothing
// about each other. It panics on an empty purpose, which would be a mistake in the program.
func DeriveKey(master []byte, purpose string) []byte {
	if purpose == "" {
		panic("identity: a derived key needs a purpose")
	}
	key, err := hkdf.Key(sha256.New, master, nil, "errand/"+purpose, KeySize)
	if err != nil {
		panic(fmt.Sprintf("identity: deriving a key: %v", err)) // only for lengths that SHA-256 cannot give
	}
	return key
}

// MasterKeyID returns a name of a master key that tells nothing about it: 32 hex digits that are derived from it.
func MasterKeyID(master []byte) string {
	const bytesShown = 16
	return hex.EncodeToString(DeriveKey(master, "master key id")[:bytesShown])
}

// runtimeTokenPrefix lets scanners for leaked secrets recognise a token.
const runtimeTokenPrefix = "errand_rt_"

// TokenHash is what a service keeps of a token that it accepts.
type TokenHash [sha256.Size]byte

// NewRuntimeToken returns a token of 256 random bits for server.json or worker.json, and its hash.
func NewRuntimeToken() (string, TokenHash, error) {
	secret, err := randomBytes(rand.Reader, KeySize)
	if err != nil {
		return "", TokenHash{}, err
	}
	token := runtimeTokenPrefix + base64.RawURLEncoding.EncodeToString(secret)
	return token, HashToken(token), nil
}

// HashToken returns the SHA-256 hash of a token. Tokens are random, so they need no slow hash.
func HashToken(token string) TokenHash { return sha256.Sum256([]byte(token)) }

// Matches reports whether the token is the one that was hashed, in a time that tells nothing about it.
func (h TokenHash) Matches(token string) bool {
	other := HashToken(token)
	return subtle.ConstantTimeCompare(h[:], other[:]) == 1
}

func randomBytes(source io.Reader, n int) ([]byte, error) {
	b := make([]byte, n)
	if _, err := io.ReadFull(source, b); err != nil {
		return nil, fmt.Errorf("reading random bytes: %w", err)
	}
	return b, nil
}
