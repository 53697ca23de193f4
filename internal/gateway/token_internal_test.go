package gateway

import (
	"bytes"
	"testing"
)

// FuzzOpenToken presents anything as a task token: only what was sealed for the machine opens.
func FuzzOpenToken(f *testing.F) {
	sealer := tokenSealer{key: bytes.Repeat([]byte{7}, 32)}
	f.Add([]byte(nil), []byte("token"))
	f.Add(sealer.seal("another machine", []byte("token")), []byte(""))
	f.Add(sealer.seal("machine", []byte("token")), []byte("token"))
	f.Fuzz(func(t *testing.T, presented, token []byte) {
		if got, err := sealer.open("machine", presented); err == nil && !bytes.Equal(presented, sealer.seal("machine", got)) {
			t.Errorf("%x opened as %x", presented, got)
		}
		sealed := sealer.seal("machine", token)
		if got, err := sealer.open("machine", sealed); len(token) > 0 && (err != nil || !bytes.Equal(got, token)) {
			t.Errorf("%x came back as %x, %v", token, got, err)
		}
		if _, err := sealer.open("machin", sealed); err == nil {
			t.Errorf("%x opened for another machine", sealed)
		}
	})
}
