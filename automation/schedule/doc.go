// Package schedule decides when a schedule fires, and what becomes of each firing. It is the one implementation
// of both in the product: what is previewed, what is admitted and what other engines are told comes from here.
//
// It is pure: no clock, network, database or randomness; callers hand in the time. The zone database is the one
// that [time.LoadLocation] finds. Programs that use the package embed one by importing time/tzdata, so that a
// host without one fires the same.
//
// # Timing
//
// A [Spec] has exactly one of cron (with a timezone), every (with an optional anchor) and at. [Parse] turns it
// into a [Timing], which lists the instants: whole seconds from year 1 to year 9999, each strictly after its base.
//
//   - cron is five fields: minute, hour, day of month, month, day of week; or one of @hourly, @daily, @midnight,
//     @weekly, @monthly, @yearly, @annually. An item of a field is *, a value, a range a-b, each with an optional
//     step; a/n is a to the greatest value by n. JAN to DEC and SUN to SAT count in any case. 7 is Sunday, as the
//     greatest day of the week: 5-7 is Friday to Sunday, and 1/2 is Monday, Wednesday, Friday and Sunday. In the
//     day of month L is the last day. In the day of week MON#2 is the second Monday of the month, and FRIL or 5L
//     is the last Friday.
//   - every is a duration of whole seconds. Its instants are all those that are a multiple of it away from the
//     anchor, before it as well as after it. Without an anchor the schedule's creation is the anchor. Both are cut
//     to the second.
//   - at is one instant in RFC 3339, cut to the second; or a local time with a timezone.
//
// Day rule, that of crontab(5): when neither the day of month nor the day of week begins with *, a day matches if
// either matches; otherwise both must match. So */2 in one of them makes it AND, and 1-31 is not a star.
//
// A cron schedule is fixed-time when neither its minute nor its hour begins with *. It fires when the clock on the
// wall shows one of its times that it has not shown before. So, where clocks go forward, one or more matches among
// the skipped times make one firing at the first instant after the gap; where clocks go back, the first of two
// equal times fires and the second does not. Any other cron schedule fires whenever the clock shows a match:
// nothing for skipped times, twice for repeated ones. A local time of at means the first instant at which the clock
// shows that time or a later one.
//
// An expression without a firing in 400 years, after which the calendar repeats, is refused.
//
// # Decisions
//
// [Decide] settles every instant after the schedule's cursor that is due: each is admitted or dropped, once, and
// the cursor moves to the last of them. When it is called carries no meaning: early, late, twice, in any order.
//
//   - An instant is due at its jittered time: the instant plus a delay that depends on the schedule's id and the
//     instant alone, below the policy's jitter and below the gap to the next instant. The instant stays what it is.
//   - Lateness counts from the jittered time. More than [OnTime] late is missed. Missed instants beyond the
//     catch-up window are dropped as outside_window, under [CatchUpNone] all of them as missed. Under
//     [CatchUpLatest] the most recent is admitted, unless a later instant is due; the others are dropped as missed.
//     [CatchUpAll] admits them in order.
//   - Overlap: [OverlapQueue] and [OverlapParallel] admit. [OverlapSkip] drops while any run of the schedule is
//     unfinished, [OverlapQueueOne] while one has not begun; runs admitted by the same decision count.
//     [OverlapCancelRunning] admits, and the earlier runs are to be cancelled.
//   - The run that reaches maxOccurrences finishes the schedule; what else is due is dropped as max_occurrences.
//   - A schedule whose machine is revoked, or whose automation is not executable, drops what it would have admitted.
//   - Drops are ranges. A backlog of any length is counted, not listed, and one decision admits at most
//     [MaxAdmissions] instants; it then says that there is more.
//   - A cursor that is more than [MaxCursorAhead] ahead of the time is set back to it: a clock that was wrong must
//     not silence a schedule. Instants after the cursor that have a run already ([State.Taken]) are passed over.
//
// Pausing, disabling, another timing and removal come after a decision that settles what is due until then.
// Resuming, enabling, another timing and reactivation set the cursor to the time: what was due meanwhile is not
// caught up. No other edit touches the cursor. See [State.Pause] and its neighbours.
package schedule
