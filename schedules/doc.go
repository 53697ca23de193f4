// Package schedules makes schedules fire, and shows them to Temporal.
//
// Who decides is the ledger: [Ticker] finds the schedules that are due, lets the ledger settle each, and starts what
// was admitted. It needs no Temporal. It looks again when the next schedule is due, and every few seconds at least.
//
// Each schedule is a Temporal Schedule too, where operators see it: explicit calendars in its zone, an interval, or one
// instant. Its firing starts the workflow ScheduleTrigger, which asks for the same decision; wake-ups from both sides
// are one. Temporal is never given the text of a cron expression, which it reads differently, nor jitter or limits,
// which are the ledger's. Where clocks change it may fire at another time than the core, or not at all, and a schedule
// that fires more often than once a minute it wakes up once a minute; the ticker does not depend on it.
//
//   - [Syncer] makes Temporal follow the ledger: what was created, changed, paused or removed there, at once for a
//     change made on this server, within seconds for any other.
//   - [Reconciler] looks the other way, once a minute: a schedule that was deleted in Temporal is created again, one
//     that was changed there is put right, a pause made there is recorded in the ledger, and schedules of this
//     installation that the ledger does not know are removed. It never touches those of another installation.
//
// Every call of Temporal is made outside transactions and may be repeated, lost or made by two servers at once: what
// is written there is compared with what was read before, and what is recorded here with its generation. Leases only
// save the servers from doing the same work.
package schedules
