package identity

import "time"

// TokenOf returns the access token that a signer's machine would be given at a time, without asking for it.
func (t *Tokens) TokenOf(s *Signer, now time.Time) string {
	token, err := t.issue(s.machineID, s.key.thumbprint, now)
	if err != nil {
		panic(err)
	}
	return token
}

// TokenHash is the ath of a token.
func TokenHashOf(token string) string { return tokenHash(token) }
