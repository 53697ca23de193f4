// Package gateway lets machines poll Temporal without a credential for it.
//
// It is a gRPC service that answers for a Temporal frontend, but knows only the calls of a worker that runs
// activities and nothing else: a machine polls its own task queue, reports heartbeats and results of the tasks
// that it was given, and says when it stops. Every other call is unimplemented. Temporal cannot confine a
// worker to one queue; the gateway can: each call is authenticated, a poll must name the machine's own queue,
// and task tokens are bound to the machine that polled them, so that a token that was learnt elsewhere, or
// made up, opens nothing.
//
// Each request to Temporal is built anew from the few members that matter. Neither the machine's headers nor
// its namespace, identity, versioning or heartbeat details reach Temporal. That is why the calls are forwarded
// by hand and not by go.temporal.io/api/proxy, which passes a request on whole and implements every call.
//
// A poll is never answered with an error after which the Temporal SDK stops a worker for good: what goes wrong
// behind the gateway is Unavailable. Polls end with an empty answer after a while, so that each is
// authenticated again, and when the process drains, the machine is disconnected or its worker stops.
//
// The gateway is served through an http.Server (see [Gateway.ServeHTTP]), which must not have a WriteTimeout
// and must be shut down after [Gateway.Drain]. What a step is and may do is decided elsewhere.
package gateway
