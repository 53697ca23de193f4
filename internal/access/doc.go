// Package access says who a bearer token stands for: the user of this computer by the token of server.json, the
// holder of an API key, or a person for whom an OpenID Connect issuer vouches. What each of them may do is in the
// principal's scope; that it is kept to is the catalog's business. Machines prove who they are in another way,
// which is in another package.
//
// An API key is stored as a hash alone and is looked up at each call, so that its revocation counts at once on
// every server. A token of the issuer is checked without asking the issuer: its keys are fetched at the first
// use and when a token names a key that is not known yet, and an issuer that is away stops neither the start
// nor those whose keys are known.
package access
