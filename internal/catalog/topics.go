package catalog

import (
	"fmt"
	"strings"
)

// Topic is a page of help that is about no single command.
type Topic struct{ Name, Summary, Text string }

// Topics returns the pages, in the order in which a newcomer wants them.
func Topics() []Topic {
	return []Topic{
		{"example", "A whole automation, as a file to begin with", exampleTopic},
		{"plan", "The format of a plan, field by field", planTopic},
		{"schedule", "When a schedule fires, and what it does then", scheduleTopic},
		{"result", "What a run and its steps look like", resultTopic},
		{"errors", "Every error code: what it means and what to do", errorsTopic()},
	}
}

const exampleTopic = `# errand help example > report.yaml, change it, then: errand create --file report.yaml
name: Disk report
description: On working days at seven, say how full the disk is.
workflow:
  script: Look at the disk, decide whether it is too full, and tell me.
  compiled:
    version: 2
    steps:
      - id: measure # a command: a program and its arguments, no shell
        kind: command
        command: df
        args: ["-h", "/"]
        timeoutMs: 60000
      - id: decide # a script: the text of a program; the run's input comes in on stdin
        kind: script
        runtime: python
        source: |
          import json, shutil, sys
          limit = (json.load(sys.stdin) or {}).get("percent", 90)
          usage = shutil.disk_usage("/")
          percent = round(100 * usage.used / usage.total)
          print(f"{percent} % are used")
          sys.exit(0 if percent < limit else 3) # any other code than 0 fails the step, and with it the run
        stdin: {"$runInput": true}
      - id: tell # an action of the machine
        kind: action
        actionId: channels.notify_user
        input: {title: Disk report, message: There is room enough.}
schedules:
  - cron: 0 7 * * MON-FRI
    timezone: Europe/Berlin
    catchUp: latest # after an outage: only the most recent one that was missed
    input: {percent: 80}
`

const planTopic = `A plan is workflow.compiled of an automation: steps that one machine executes one after another. The first that
fails ends the run.

  version 1   {"version": 1, "steps": [ action, … ]}
  version 2   {"version": 2, "steps": [ action | command | script, … ]}

  action      {"id", "kind": "action", "actionId", "input", "timeoutMs"?, "credential"?}   (version 1: id, actionId, input)
  command     {"id", "kind": "command", "command", "args"?, and what is common below}
  script      {"id", "kind": "script", "runtime": "shell" | "node" | "python", "source", "args"?, and the same}

  id              1 to 64 of A-Z a-z 0-9 _ -, begins with a letter, unique in the plan
  actionId        such as channels.notify_user or http.request: parts of a-z 0-9 _ - with dots between
  credential      the name of a credential in the machine's machine.yaml
  command         a name that is looked up on the machine's PATH, or an absolute path; there is no shell, so *, $HOME and |
                  mean themselves: use a script for those
  source          the program's text, at most 96 KiB; shell is run by sh, node by Node 20 or later, python by python3
  args            texts, passed as they are, each at most 131,071 bytes
  cwd             absolute; default the home directory of the machine's user
  env             names and texts, added to the user's environment; names that begin with ERRAND_ or AMALGM_ are refused
  stdin           a text as it is, or any other JSON on one line; without it the program reads end of file
  timeoutMs       1 to 604800000 (7 days); default 1 hour; time asleep does not count
  maxOutputBytes  of each stream, 1 to 8388608; default 262144; of more the first and the last half are kept
  leftovers       end (default): what the step leaves running is ended; keep: it lives on

The exact object {"$runInput": true} inside an action's input or a stdin becomes the run's input (null without one).
A program finds its run and step in ERRAND_RUN_ID, ERRAND_STEP_ID and ERRAND_IDEMPOTENCY_KEY, which stays the same
when the step is executed again: after a crash of the machine, or after its worker was stopped or killed.
At most 100 steps; the plan 1 MiB; a run's input 1 MiB; a step with the input in its place 4 MiB.
`

const scheduleTopic = `A schedule of an automation has exactly one of cron, every and at, and admits one run for each instant.

  cron             minute, hour, day of month, month, day of week; or @hourly @daily @weekly @monthly @yearly. Names such as
                   MON and JAN, lists, ranges and steps; L is the last day of the month, MON#2 the second Monday, FRIL the
                   last Friday. If neither day field begins with *, a day matches when either of the two does
  timezone         IANA name such as Europe/Berlin; required with cron, and with an at that is a local time
  every            a duration of whole seconds: 20s, 90m, 1h30m
  anchor           RFC 3339 instant that every is counted from; default the creation of the schedule
  at               RFC 3339 instant, or a local time with timezone; fires once
  maxOccurrences   how many runs are admitted in all; then the schedule is finished. Default: no limit
  overlap          what a firing does while earlier runs of the schedule are unfinished, also those that wait for their
                   machine: queue (default: runs execute one after another), parallel, skip (the firing is dropped),
                   queue_one (at most one run waits), cancel_running (earlier runs are cancelled)
  catchUp          of instants missed by more than a minute, while the control plane was down: latest (default: the most
                   recent one, unless a later instant is due), all, none
  catchUpWindowMs  how late a missed instant may be and still be caught up; default 86400000 (24 hours)
  jitterMs         delays each admission by a stable amount below this; the instant stays what it is. Default 0
  input            the input of its runs; default null
  enabled          default true

When clocks change: a schedule whose minute and hour are both fixed, such as 30 2 * * *, fires exactly once on each
matching day, at the first instant after a gap and at the first of two equal times. Others just go on.
What is not admitted is kept as a drop with its reason: overlap, missed, outside_window, max_occurrences,
machine_revoked or not_executable. get shows the drops of an automation.
`

const resultTopic = `run shows a run with its snapshot: plan and input do not change when the automation does.

  status      pending (no step has begun), running, completed, failed, cancelled
  waitingFor  why an unfinished run does not go on: {"reason", "since", "detail"?}; reason is not_started,
              machine_offline, machine_busy, previous_run, engine_unavailable, retry, cancel_confirmation or dispatch_stalled
  steps       for each {"id", "kind", "status", "attempt", "startedAt"?, "finishedAt"?, "output"?, "error"?}; a step is
              pending, running, completed, failed, cancelled or skipped (it never began, because the run ended)
  error       why the run failed: {"code", "message", "stepId"?}

The output of a command or script, also of one that failed:

  {"exitCode": 0, "signal": null, "stdout": "…", "stderr": "…", "stdoutBytes": 12, "stderrBytes": 0,
   "stdoutTruncated": false, "stderrTruncated": false, "durationMs": 41, "leftovers": 0}

The output of an action is what the action returned. An output is at most 1 MiB; what is cut says how long it was.
`

func errorsTopic() string {
	var b strings.Builder
	b.WriteString("A command is refused with {\"error\": {\"code\", \"message\", \"status\"?, \"details\"?}}.\n\n")
	write := func(all []Explanation) {
		for _, e := range all {
			status := ""
			if e.Status != 0 {
				status = fmt.Sprintf(" (%d)", e.Status)
			}
			fmt.Fprintf(&b, "  %s%s\n      %s\n      %s\n", e.Code, status, e.Meaning, e.Remedy)
		}
	}
	write(CommandErrors())
	b.WriteString("\nA step fails with one of these in its error.\n\n")
	write(StepErrors())
	return b.String()
}
