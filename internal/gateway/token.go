package gateway

import (
	"crypto/hmac"
	"crypto/sha256"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// tokenSealer binds task tokens to machines. A sealed token is HMAC-SHA256(key, machine id ‖ 0 ‖ token) ‖ token;
// nothing is stored, so tokens outlive a restart and are good at every server with the key.
type tokenSealer struct{ key []byte }

func (s tokenSealer) seal(machine string, token []byte) []byte {
	return append(s.sum(machine, token), token...)
}

// open returns the token that was sealed for the machine. There is one refusal, so that a caller cannot tell
// a made-up token from another machine's. It is PERMISSION_DENIED because the SDK then gives the attempt up at
// once, without a retry, and leaves the program to its host: right for a forger, and harmless for a worker
// that holds a token of an earlier installation, whose step the ledger will hand out again.
func (s tokenSealer) open(machine string, sealed []byte) ([]byte, error) {
	if len(sealed) > sha256.Size {
		sum, token := sealed[:sha256.Size], sealed[sha256.Size:]
		if hmac.Equal(sum, s.sum(machine, token)) {
			return token, nil
		}
	}
	return nil, status.Error(codes.PermissionDenied, "the task token was not given to this machine by this installation")
}

func (s tokenSealer) sum(machine string, token []byte) []byte {
	h := hmac.New(sha256.New, s.key)
	h.Write([]byte(machine))
	h.Write([]byte{0})
	h.Write(token)
	return h.Sum(nil)
}
