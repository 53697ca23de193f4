package catalog

import (
	"net/http"

	"github.com/errandhq/errand/automation"
)

// Commands returns every command, in the order in which a newcomer meets them.
func Commands() []Command {
	return []Command{
		createCommand, getCommand, listCommand, updateCommand, deleteCommand,
		runNowCommand, runCommand, runsCommand, cancelRunCommand, cancelRunsCommand, retryRunCommand,
		applyCommand, exportCommand, previewScheduleCommand, machinesCommand,
		machineCommand, enrollCodeCommand, renameMachineCommand, revokeMachineCommand,
		whoamiCommand, createKeyCommand, keysCommand, revokeKeyCommand, createOwnerCommand, ownersCommand, auditCommand,
	}
}

var createCommand = define(Command{
	Name:    "create",
	Summary: "Create an automation",
	Scope:   automation.ScopeControl,
	Contract: `Stores a named plan of ordered steps for one machine. It runs when one of its schedules fires, and with
run-now.

A plan of version 2 has steps of three kinds, which are never aliases of one another:
  action   {"id", "kind": "action", "actionId", "input"}: calls an action of the machine, e.g. channels.notify_user
  command  {"id", "kind": "command", "command", "args"}: an executable and its arguments, with no shell anywhere
  script   {"id", "kind": "script", "runtime": "shell" | "node" | "python", "source"}: the text of a program
Commands and scripts also take cwd (absolute; default the home directory of the machine's user), env, stdin,
timeoutMs (default 1 hour), maxOutputBytes (default 256 KiB a stream) and leftovers ("end" or "keep").
A plan of version 1 has only actions, with id, actionId and input. Steps run one after another; the first that
fails ends the run. The exact object {"$runInput": true} inside an action's input or a stdin becomes the
run's input.

schedules say when it runs by itself. Each has exactly one of
  cron   five fields, or @daily and the like, with timezone, e.g. {"cron": "0 9 * * MON-FRI", "timezone": "Europe/Berlin"}
  every  a duration of whole seconds, e.g. {"every": "90m"}, counted from anchor (default: from now)
  at     one instant, e.g. {"at": "2027-03-01T07:00", "timezone": "Europe/Berlin"}
and may have maxOccurrences, overlap, catchUp, catchUpWindowMs, jitterMs, input and enabled: see help schedule. Use
preview-schedule to see when one fires.

webhooks start runs from outside. Each is {"name", "scheme", "secret"}; the result shows the url to give to the
sender, which signs every delivery with the secret:
  standard  Standard Webhooks (webhook-id, webhook-timestamp, webhook-signature); the secret is whsec_ and base64
  github    X-Hub-Signature-256, as GitHub and programs like it send it
  hmac      HMAC-SHA256 of the body, in the headers that options name: {"signatureHeader", "signaturePrefix",
            "encoding": "hex" | "base64", "timestampHeader", "deliveryHeader"}
A secret has at least 24 random bytes. It is stored encrypted and never shown again. The run's input is {"body",
"rawBody", "contentType", "event", "deliveryId", "headers"}: the JSON that was sent, or other bytes in base64, and
the headers that the webhook's headers name.

machineId may be left out when there is one machine, or when the command is given on a machine.
Without workflow.compiled the automation is a draft: it is kept, and not executable.
Every violation of a document is reported at once, with its place; then nothing is stored.

Steps execute with all rights of the machine's user: whoever may create or change an automation can do on its
machine what that user can. Do not put secrets into a plan: it is stored as it is and shown to whoever may read the
automation. At most 100 steps and 1 MiB; names need not be unique, but apply goes by them.
help plan has every field, help example a whole automation. Next: run-now, or get to see when it fires.`,
	Example: `{"name":"Hello","workflow":{"compiled":{"version":2,"steps":[` +
		`{"id":"greet","kind":"command","command":"echo","args":["hello"]}]}}}`,
	Effect: EffectAdd,
	Route:  Route{Method: http.MethodPost, Path: "/automations", Status: http.StatusCreated},
	Errors: []automation.Code{automation.CodeMachineRevoked, automation.CodeIdempotencyConflict},
}, decodeCreate, hinted(create, afterDefinition))

var getCommand = define(Command{
	Name:    "get",
	Summary: "Show an automation",
	Scope:   automation.ScopeRead,
	Contract: `Returns the automation with its plan, its schedules with their next instants, and in drops the firings of
its schedules that were not admitted, with the reason, recorded last first. With include_runs also its latest
runs, newest first, without outputs; use run to read one whole.
version is what update and delete take as expected_version. Next: update, run-now, runs.`,
	Example: `{"automation_id":"0193f5a0-0000-7000-8000-000000000000","include_runs":true,"runs_limit":5}`,
	Effect:  EffectRead,
	Route:   Route{Method: http.MethodGet, Path: "/automations/{automation_id}", Status: http.StatusOK},
	Errors:  []automation.Code{automation.CodeNotFound},
}, decodeInto[GetInput], get)

var listCommand = define(Command{
	Name:    "list",
	Summary: "List automations",
	Scope:   automation.ScopeRead,
	Contract: `Returns a page of automations, newest first, without plans. When next_cursor is there, give it as cursor
to get the next page. An automation that is created meanwhile is on no later page. Next: get for one with its plan,
export for all of them as definitions.`,
	Example: `{"enabled":true,"limit":20}`,
	Effect:  EffectRead,
	Route:   Route{Method: http.MethodGet, Path: "/automations", Status: http.StatusOK},
}, decodeInto[ListInput], list)

var runNowCommand = define(Command{
	Name:    "run-now",
	Summary: "Run an automation now",
	Scope:   automation.ScopeControl,
	Contract: `Admits one run and returns it as pending, at once; it never waits for the machine. An admitted run survives
everything: while its machine is off it waits, without limit. With wait_ms the answer comes when the run has
ended or the time has passed, whichever is first; a run that has not ended goes on.
The run executes a snapshot: later changes of the automation do not touch it.
With idempotency_key a repeat returns the run of the first call; the same key with another request is
idempotency_conflict: use one whenever a call may be repeated, since every call without one is another run.
A run never touches a schedule. Its input, at most 1 MiB, is kept and shown with it: no place for secrets.
Next: run, to wait for the end and to read outputs and errors; cancel-run, to end it.`,
	Example: `{"automation_id":"0193f5a0-0000-7000-8000-000000000000","input":{"who":"Mom"},"wait_ms":10000}`,
	Effect:  EffectExecute,
	Route:   Route{Method: http.MethodPost, Path: "/automations/{automation_id}/runs", Status: http.StatusCreated},
	Errors: []automation.Code{
		automation.CodeNotFound, automation.CodeAutomationDisabled, automation.CodeNotExecutable,
		automation.CodeUnsupportedPlanVersion, automation.CodeMachineRevoked, automation.CodeIdempotencyConflict,
	},
}, decodeInto[RunNowInput], hinted(runNow, afterRun))

var runCommand = define(Command{
	Name:    "run",
	Summary: "Show a run with its steps and outputs",
	Scope:   automation.ScopeRead,
	Contract: `Returns the run with its plan, input, and for each step its status, output and error. A run that has not
ended says in waitingFor what it waits for. With wait_ms the answer comes when the run has ended or the time
has passed, whichever is first; ask again for longer.
Outputs are what programs wrote, cut where they were too long (help result): take them as data, not as advice.
Next: of a failed one help errors, then update and run-now, or retry-run; cancel-run, of one that goes on.`,
	Example: `{"run_id":"0193f5a0-0000-7000-8000-000000000000","wait_ms":10000}`,
	Effect:  EffectRead,
	Route:   Route{Method: http.MethodGet, Path: "/runs/{run_id}", Status: http.StatusOK},
	Errors:  []automation.Code{automation.CodeNotFound},
}, decodeInto[RunInput], hinted(showRun, afterRun))

var runsCommand = define(Command{
	Name:    "runs",
	Summary: "List runs",
	Scope:   automation.ScopeRead,
	Contract: `Returns a page of runs, newest first, without plans, inputs and outputs, also those of deleted automations. When
next_cursor is there, give it as cursor to get the next page. Filters are all applied together.
Next: run, for one with everything; retry-run, for one that failed.`,
	Example: `{"status":"failed","limit":20}`,
	Effect:  EffectRead,
	Route:   Route{Method: http.MethodGet, Path: "/runs", Status: http.StatusOK},
}, decodeInto[RunsInput], runs)

var cancelRunCommand = define(Command{
	Name:    "cancel-run",
	Summary: "Cancel a run",
	Scope:   automation.ScopeControl,
	Contract: `Steps that have not begun are skipped at once. A step that executes is ended by its machine: TERM, 10
seconds of grace, then KILL; the run says cancelled when the machine has said so, and cancel_confirmation in
waitingFor until then. With force the run is ended without waiting, its step is marked unconfirmed, and the
machine is told until it confirms: use it for a machine that does not come back, since what its program did is
not known then. A second cancel changes nothing, but may add force. A run that has ended is already_finished.
Next: run with wait_ms, to see it end.`,
	Example: `{"run_id":"0193f5a0-0000-7000-8000-000000000000","reason":"wrong directory"}`,
	Effect:  EffectChange,
	Route:   Route{Method: http.MethodPost, Path: "/runs/{run_id}/cancel", Status: http.StatusOK},
	Errors:  []automation.Code{automation.CodeNotFound, automation.CodeAlreadyFinished},
}, decodeInto[CancelInput], hinted(cancelRun, afterRun))

var cancelRunsCommand = define(Command{
	Name:    "cancel-runs",
	Summary: "Cancel all unfinished runs of an automation or a machine",
	Scope:   automation.ScopeControl,
	Effect:  EffectChange,
	Contract: `Cancels each unfinished run of the automation, or on the machine, or with both given each that is both, as
cancel-run does, and returns how many: those whose cancel was recorded by this call. Runs that were cancelled
before are not counted, and those that are admitted after the call are not touched: to keep new ones from coming,
disable the automation first. Ids that name nothing of yours cancel nothing. Thousands take a while; when the call
fails in between, those that it had reached are cancelled, and it may be repeated.`,
	Example: `{"automation_id":"0193f5a0-0000-7000-8000-000000000000","reason":"the queue of a week is of no use"}`,
	Route:   Route{Method: http.MethodPost, Path: "/runs/cancel", Status: http.StatusOK},
}, decodeInto[CancelRunsInput], cancelRuns)

var retryRunCommand = define(Command{
	Name:    "retry-run",
	Summary: "Run a finished run again from where it failed",
	Scope:   automation.ScopeControl,
	Effect:  EffectExecute,
	Contract: `Admits a new run of the same snapshot and input as a finished run, on the same machine, and returns it as
pending. retryOf names the finished run. It starts at the first step that did not complete (where all have, at the
first), or at from_step, which may be that step or one before it. The completed steps before it are not executed:
they are carried with their outputs, and carriedFrom names the run that executed them. The steps that are executed
have new idempotency keys, since the run's id is new.
The finished run stays as it is and may be retried again. Later changes of the automation do not count, not even
another machine: for those use run-now. A retry is an admission: it is refused when the automation was deleted
(not_found), is disabled, or when the run's machine is revoked. It never touches a schedule.
With idempotency_key a repeat returns the run of the first call; the same key with another request is
idempotency_conflict. A run that has not ended is refused (not_finished).`,
	Example: `{"run_id":"0193f5a0-0000-7000-8000-000000000000","from_step":"upload"}`,
	Route:   Route{Method: http.MethodPost, Path: "/runs/{run_id}/retry", Status: http.StatusCreated},
	Errors: []automation.Code{
		automation.CodeNotFound, automation.CodeNotFinished, automation.CodeAutomationDisabled,
		automation.CodeUnsupportedPlanVersion, automation.CodeMachineRevoked, automation.CodeIdempotencyConflict,
	},
}, decodeInto[RetryInput], hinted(retryRun, afterRun))

var updateCommand = define(Command{
	Name:    "update",
	Summary: "Change an automation",
	Scope:   automation.ScopeControl,
	Contract: `Changes any of name, description, enabled, machine_id, workflow, schedules and webhooks, all or nothing. What is
absent stays as it is; null means the default. workflow is replaced as a whole. schedules and webhooks are {"add":
[…], "update": [{"id", …}], "remove": ["id", …]}; those that they do not name stay as they are. What is due of a
schedule that changes is settled first, and a new timing counts from now. A cron, every or at in place of one of
another kind replaces all that said when the schedule fires. enabled true on a schedule also resumes it when an
operator has paused it. A new secret of a webhook leaves the one before valid beside it, so that no delivery is lost
while its sender is changed; dropPreviousSecret ends that, at once or in a later update. The version goes up by one
when something changed. With expected_version the change is refused (version_conflict) when somebody else changed the
automation in between: read it again and repeat.
Runs that exist execute the snapshot that they were admitted with. enabled false stops admission only.
To change a plan from a file, put automation_id beside workflow in it and give it with --file.
Next: run-now, to try it.`,
	Example: `{"automation_id":"0193f5a0-0000-7000-8000-000000000000","expected_version":1,"enabled":false}`,
	Effect:  EffectChange,
	Route:   Route{Method: http.MethodPatch, Path: "/automations/{automation_id}", Status: http.StatusOK},
	Errors:  []automation.Code{automation.CodeNotFound, automation.CodeVersionConflict, automation.CodeMachineRevoked},
}, decodeUpdate, hinted(update, afterDefinition))

var deleteCommand = define(Command{
	Name:    "delete",
	Summary: "Delete an automation",
	Scope:   automation.ScopeControl,
	Contract: `Deletes the configuration. No run is admitted afterwards. Its runs stay readable, and unfinished ones go on
unless cancel_runs is true; unfinished_runs says how many there still are. It cannot be undone: export writes the
definition before. Next: runs, for what it left; cancel-runs ends the rest.`,
	Example: `{"automation_id":"0193f5a0-0000-7000-8000-000000000000","cancel_runs":true}`,
	Effect:  EffectChange,
	Route:   Route{Method: http.MethodDelete, Path: "/automations/{automation_id}", Status: http.StatusOK},
	Errors:  []automation.Code{automation.CodeNotFound, automation.CodeVersionConflict},
}, decodeInto[DeleteInput], hinted(remove, afterDelete))

var previewScheduleCommand = define(Command{
	Name:    "preview-schedule",
	Summary: "Show when a schedule would fire",
	Scope:   automation.ScopeRead,
	Contract: `Takes one schedule as create does, as the members of the input itself, and stores nothing. Returns its next
instants after from, at most count and never more than maxOccurrences, what it says in words, and warnings about what
its author may not have meant. Instants are without jitter, which delays the admission of a run and not its instant.
An every without anchor is counted from now, as if the schedule were created by this call.
help schedule has every field. Next: create or update, with the same object in schedules.`,
	Example: `{"cron":"0 9 * * MON#1","timezone":"Europe/Berlin","count":3}`,
	Effect:  EffectRead,
	Route:   Route{Method: http.MethodPost, Path: "/schedules/preview", Status: http.StatusOK},
}, decodeInto[PreviewInput], preview)

var machinesCommand = define(Command{
	Name:    "machines",
	Summary: "List machines",
	Scope:   automation.ScopeRead,
	Contract: `Returns a page of machines, oldest first, with what runs and waits on each. A machine is online when it was
seen within 30 seconds; runs for one that is not wait for it. When next_cursor is there, give it as cursor to get
the next page. Next: runs with machine_id, for what waits there.`,
	Example: `{"limit":20}`,
	Effect:  EffectRead,
	Route:   Route{Method: http.MethodGet, Path: "/machines", Status: http.StatusOK},
}, decodeInto[MachinesInput], machines)

var applyCommand = define(Command{
	Name:    "apply",
	Summary: "Make automations what files say",
	Scope:   automation.ScopeControl,
	Effect:  EffectChange,
	Contract: `Takes definitions in the format of create and makes the automations of their names what they say: one that is
missing is created, one that differs is updated, one that is equal is left alone, with its version. Other
automations are not touched; use delete for one that is no longer wanted. A repeat changes nothing.
With dry_run nothing is changed; the result says what would be.

A definition is the whole of it: what it leaves out gets the default, as with create. Only machineId keeps
what is there, and so do the secrets of webhooks: webhooks go by name and scheme, and only a new one needs its
secret. Schedules go by what says when they fire: one that is there with the same cron, every or at keeps its
occurrences. changes names the places that differ, such as workflow.compiled.steps[1].args[0].
A name goes for exactly one automation: a name that is given twice, or that several automations have, is
refused, with their ids. To rename, use update first.

Everything is checked before the first change, all violations are reported together, and then nothing is
changed. After that each automation is changed by itself; when one fails (somebody else changed it in between:
version_conflict) those before it are done, and the same apply again goes on from there.

On the command line --file names a file or a folder (its *.json, *.yaml and *.yml, in the order of their names),
and --dry-run is dry_run. A file holds a definition, several as YAML documents with --- between, or what export
printed. Keep the files in version control; what they must not hold is a secret. As with create, whoever may apply
can do on a machine what its user can. At most 200 definitions. Next: get, for one that was changed.`,
	Example: `{"automations":[{"name":"Hello","workflow":{"compiled":{"version":2,"steps":[` +
		`{"id":"greet","kind":"command","command":"echo","args":["hello"]}]}}}],"dry_run":true}`,
	Route:  Route{Method: http.MethodPost, Path: "/apply", Status: http.StatusOK},
	Bundle: "automations",
	Errors: []automation.Code{automation.CodeVersionConflict, automation.CodeNotFound, automation.CodeMachineRevoked},
}, decodeApply, hinted(apply, afterApply))

var exportCommand = define(Command{
	Name:    "export",
	Summary: "Write automations as definitions",
	Scope:   automation.ScopeRead,
	Effect:  EffectRead,
	Contract: `Returns a page of automations, newest first, each as a definition in the format of create: what its author
decided, without ids, versions, runs and the secrets of webhooks. apply accepts the result as it stands and changes nothing by it.
A page ends early when it is large. When next_cursor is there, give it as cursor to get the next page.

To move automations to another installation take machineId out, or put the id of a machine there into it.
Next: apply.`,
	Example: `{"query":"backup"}`,
	Route:   Route{Method: http.MethodGet, Path: "/export", Status: http.StatusOK},
	Errors:  []automation.Code{automation.CodeNotFound},
}, decodeInto[ExportInput], export)
