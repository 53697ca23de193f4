// Package identity says who a machine is and proves it.
//
// A machine makes a device key that never leaves it ([LoadOrCreateKey]). It is enrolled with a one-time code
// and a signature that proves that it holds the key ([Enroller]). For a proof by the key it gets an access token
// of ten minutes that is bound to it ([TokenSource], [Tokens]), and every call carries the token and a proof of
// its own: a signed statement of method, address, time and token in the form of RFC 9449 (DPoP), made by a
// [Signer] for each attempt, below any retry, and checked by a [Verifier] that accepts it once. So nothing
// that can be read from one call opens another, and a machine holds no secret of the control plane.
//
// The package also keeps the installation's master key, derives keys from it by purpose, and makes the tokens
// that local programs find in server.json and worker.json.
//
// Key files are readable by their user alone; a file that others may read is refused. A program of the same
// user can read them: that is outside what the package defends. What a verified machine may do is decided by
// others. Verification remembers proofs in this process only: a proof that was caught could be used once more
// with another server, or after a restart, within the minute for which it is valid.
package identity
