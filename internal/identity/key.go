package identity

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-jose/go-jose/v4"
)

// DeviceKeyFile is the name of the device key in a worker's state directory.
const DeviceKeyFile = "device.key"

// nextKeyFile is the key that a machine which has one is being enrolled with. It stays under this name until the
// control plane has accepted it, so that an enrolment whose answer was lost can be repeated with the same key.
const nextKeyFile = DeviceKeyFile + ".next"

// algorithms are all that a machine may sign with: Ed25519, which this package makes, and ECDSA on P-256,
// which hardware keys offer. What is not here (none, HMAC, RSA) does not even parse.
var algorithms = []jose.SignatureAlgorithm{jose.EdDSA, jose.ES256}

// DeviceKey is the private key of one machine. It prints as its thumbprint.
type DeviceKey struct {
	private    jose.JSONWebKey
	public     json.RawMessage
	thumbprint string
	// signers are made once, since making one costs as much as a signature.
	signers map[jose.ContentType]jose.Signer
	// headers are the protected headers of these signers, encoded and with the dot that ends them: they are the
	// same in every statement, and writing one anew costs as much as a signature too. ECDSA keys have none.
	headers map[jose.ContentType]string
}

// LoadOrCreateKey returns the device key in dir, and makes an Ed25519 key when there is none. The file is a
// JSON Web Key (RFC 8037) with mode 0600; one that others may read is refused.
func LoadOrCreateKey(dir string) (*DeviceKey, error) { return loadOrCreateKey(dir, DeviceKeyFile) }

// LoadOrCreateNextKey returns the key that is to take the place of the device key in dir, and makes it when there
// is none.
func LoadOrCreateNextKey(dir string) (*DeviceKey, error) { return loadOrCreateKey(dir, nextKeyFile) }

// AdoptNextKey puts the next key in the place of the device key.
func AdoptNextKey(dir string) error {
	if err := os.Rename(filepath.Join(dir, nextKeyFile), filepath.Join(dir, DeviceKeyFile)); err != nil {
		return fmt.Errorf("keeping the new device key: %w", err)
	}
	return nil
}

func loadOrCreateKey(dir, name string) (*DeviceKey, error) {
	path := filepath.Join(dir, name)
	data, err := loadOrCreateSecret(path, newDeviceKey)
	if err != nil {
		return nil, fmt.Errorf("loading the device key: %w", err)
	}
	key, err := parseDeviceKey(data)
	if err != nil {
		return nil, fmt.Errorf("loading the device key from %s: %w", path, err)
	}
	return key, nil
}

func newDeviceKey() ([]byte, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generating a device key: %w", err)
	}
	data, err := json.Marshal(jose.JSONWebKey{Key: private})
	if err != nil {
		return nil, fmt.Errorf("encoding a device key: %w", err)
	}
	return append(data, '\n'), nil
}

func parseDeviceKey(data []byte) (*DeviceKey, error) {
	var private jose.JSONWebKey
	if err := json.Unmarshal(data, &private); err != nil {
		return nil, errors.New("the file is not a JSON Web Key")
	}
	if !private.Valid() || private.IsPublic() {
		return nil, errors.New("the file holds no private key")
	}
	public := jose.JSONWebKey{Key: private.Public().Key}
	if err := checkKeyType(public); err != nil {
		return nil, err
	}
	encoded, err := json.Marshal(public)
	if err != nil {
		return nil, fmt.Errorf("encoding the public key: %w", err)
	}
	print, err := thumbprint(public)
	if err != nil {
		return nil, err
	}
	key := &DeviceKey{
		private: jose.JSONWebKey{Key: private.Key}, public: encoded, thumbprint: print, signers: map[jose.ContentType]jose.Signer{},
		headers: map[jose.ContentType]string{},
	}
	for _, typ := range []jose.ContentType{typeProof, typeEnrolment} {
		if key.signers[typ], err = key.newSigner(typ); err != nil {
			return nil, err
		}
		if _, simple := private.Key.(ed25519.PrivateKey); !simple {
			continue
		}
		statement, err := key.sign(typ, nil)
		if err != nil {
			return nil, err
		}
		key.headers[typ] = statement[:strings.IndexByte(statement, '.')+1]
	}
	return key, nil
}

// newSigner returns what makes statements of a type that name the public key.
func (k *DeviceKey) newSigner(typ jose.ContentType) (jose.Signer, error) {
	algorithm := jose.EdDSA
	if _, ok := k.private.Key.(*ecdsa.PrivateKey); ok {
		algorithm = jose.ES256
	}
	options := (&jose.SignerOptions{EmbedJWK: true}).WithType(typ)
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: k.private.Key}, options)
	if err != nil {
		return nil, fmt.Errorf("preparing a signature: %w", err)
	}
	return signer, nil
}

// Public returns the public key as a JSON Web Key with its required members only.
func (k *DeviceKey) Public() json.RawMessage { return bytes.Clone(k.public) }

// Thumbprint returns the SHA-256 thumbprint of the public key (RFC 7638) in base64url.
func (k *DeviceKey) Thumbprint() string { return k.thumbprint }

// String returns the thumbprint, so that a printed key gives nothing away.
func (k *DeviceKey) String() string { return "device key " + k.thumbprint }

// GoString returns the thumbprint, as String does.
func (k *DeviceKey) GoString() string { return k.String() }

// sign returns the payload as a compact JWS of the given type that names its public key.
func (k *DeviceKey) sign(typ jose.ContentType, payload []byte) (string, error) {
	if header, ok := k.headers[typ]; ok {
		if private, ok := k.private.Key.(ed25519.PrivateKey); ok {
			return signCompact(private, header, payload), nil
		}
	}
	signed, err := k.signers[typ].Sign(payload)
	if err != nil {
		return "", fmt.Errorf("signing: %w", err)
	}
	return signed.CompactSerialize()
}

// signCompact returns the compact JWS (RFC 7515, section 3.1) of a payload under an encoded protected header.
func signCompact(private ed25519.PrivateKey, header string, payload []byte) string {
	text := base64.RawURLEncoding.AppendEncode([]byte(header), payload)
	signature := ed25519.Sign(private, text)
	return string(base64.RawURLEncoding.AppendEncode(append(text, '.'), signature))
}

// publicKey is a public key that a proof is checked with.
type publicKey struct {
	jwk        jose.JSONWebKey
	thumbprint string
}

// parsePublicKey reads a public JSON Web Key of a type in use and returns it with its canonical form: the
// required members alone, so that equal keys have equal texts.
func parsePublicKey(data []byte) (publicKey, json.RawMessage, error) {
	var jwk jose.JSONWebKey
	if err := json.Unmarshal(data, &jwk); err != nil {
		return publicKey{}, nil, errors.New("the public key is not a JSON Web Key")
	}
	if !jwk.IsPublic() {
		return publicKey{}, nil, errors.New("the public key must be given without its private part")
	}
	bare := jose.JSONWebKey{Key: jwk.Key}
	if err := checkKeyType(bare); err != nil {
		return publicKey{}, nil, err
	}
	canonical, err := json.Marshal(bare)
	if err != nil {
		return publicKey{}, nil, fmt.Errorf("encoding the public key: %w", err)
	}
	print, err := thumbprint(bare)
	if err != nil {
		return publicKey{}, nil, err
	}
	return publicKey{jwk: bare, thumbprint: print}, canonical, nil
}

func checkKeyType(public jose.JSONWebKey) error {
	if public.Valid() {
		switch key := public.Key.(type) {
		case ed25519.PublicKey:
			return nil
		case *ecdsa.PublicKey:
			if key.Curve == elliptic.P256() {
				return nil
			}
		}
	}
	return errors.New("the key must be Ed25519 or ECDSA on P-256")
}

func thumbprint(public jose.JSONWebKey) (string, error) {
	sum, err := public.Thumbprint(crypto.SHA256)
	if err != nil {
		return "", fmt.Errorf("computing a thumbprint: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(sum), nil
}
