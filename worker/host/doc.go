// Package host is the machine's side of the protocol between ledger and machine: it runs inside `errand
// worker`, takes steps from the machine's task queue, asks the ledger whether each may execute, has it
// executed, and reports how it ended until the ledger has acknowledged that.
//
// It promises that a step's program starts once as long as neither the machine nor the worker goes down. A
// program outlives the attempt that started it: a lost connection, a late heartbeat or a restarted control
// plane detaches it, and the next attempt of the same step is attached to it or handed its result. Only a
// real cancellation, the ledger's word, the step's own timeout, a revoked machine or the drain of the worker
// ends a program. Every execution has a record on disk, so that a worker that was killed ends what its
// predecessor left running before that step starts again, and sends the results that nobody acknowledged.
//
// How a step is executed, how calls are authenticated and how Temporal is reached are left to the
// [Runner], the HTTP client of [NewControlPlane] and the [TemporalDialer].
package host
