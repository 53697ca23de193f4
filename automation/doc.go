// Package automation is the language of the product: automations, plans and their rules, the run-input
// template, runs and steps with their state machines, the journal bound, error codes, the protocol between
// ledger and machine, and the small interfaces that the rest of the program implements.
//
// It is pure: no network, database, process, clock or randomness. Callers hand in the time and the ids.
// Everything that decides what happens to a run is here, so that the ledger, the workflow and the machine
// apply one set of rules; how it is stored, transported or executed is left to other packages.
package automation
