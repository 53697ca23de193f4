package automation

// Credential is what a caller presented with one call, for whoever verifies it. It says where the call went
// by the path alone: under which addresses the service is known is the verifier's configuration and never
// taken from the call.
type Credential struct {
	// Method is the HTTP method; POST for gRPC.
	Method string
	// Path is the escaped path of the call; for gRPC the full method name with its leading slash.
	Path string
	// Authorization and Proof are all values of the headers Authorization and DPoP. A verifier refuses a
	// call that has not exactly one of each, so the adapters hand over what came.
	Authorization []string
	Proof         []string
}
