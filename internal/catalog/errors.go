package catalog

import (
	"github.com/errandhq/errand/automation"
)

// Explanation says what a code means and what to do about it.
type Explanation struct {
	Code string
	// Status is the HTTP status; 0 for a code that no answer over HTTP carries.
	Status int
	// Meaning and Remedy are sentences.
	Meaning, Remedy string
}

// CommandErrors explains every code that a command may answer with.
func CommandErrors() []Explanation {
	explain := func(code automation.Code, meaning, remedy string) Explanation {
		status := code.Status()
		if code == automation.CodeRuntimeUnavailable {
			status = 0
		}
		return Explanation{string(code), status, meaning, remedy}
	}
	return []Explanation{
		explain(automation.CodeValidationFailed, "The input, or an option, breaks a rule. Nothing was changed.",
			"Read details: each entry names a place (path) and says what is wrong there. The help of the command shows what it takes."),
		explain(automation.CodeUnauthorized, "The call carries no valid token, API key or proof of a machine; or the key is expired or revoked.",
			"Check ERRAND_API_KEY, and make a new key with create-key. The token of server.json changes with each start of errandd."),
		explain(automation.CodeForbidden, "Who calls is known, and the scope of the credential does not allow this; or the Host header is not served here.",
			"The message names the scope: whoami shows yours. Use a key that has it, or add a host of yours to ERRAND_ALLOWED_HOSTS."),
		explain(automation.CodeNotFound, "There is no such thing, or it is not yours.",
			"Take the id from list, runs or machines. A deleted automation is gone; its runs stay."),
		explain(automation.CodeVersionConflict, "Somebody else changed the automation since it was read.",
			"Read it again with get, make the change to what is there now, and repeat with that version."),
		explain(automation.CodeIdempotencyConflict, "The idempotency key belongs to another request.",
			"Use a new key for a new request; a repeat must be equal in every member."),
		explain(automation.CodeAutomationDisabled, "The automation admits no run.",
			"Enable it with update and \"enabled\": true."),
		explain(automation.CodeNotExecutable, "The automation is a draft: it has no plan.",
			"Give it one with update, in workflow.compiled."),
		explain(automation.CodeUnsupportedPlanVersion, "The stored plan is of a version that this build does not execute.",
			"Upgrade errandd, or replace the plan with update."),
		explain(automation.CodeMachineRevoked, "The machine is revoked and executes nothing any more.",
			"Choose another machine with update and machine_id; machines lists them. Or give it a new key: enroll-code with machine_id."),
		explain(automation.CodeAlreadyFinished, "The run has ended, so it cannot be cancelled.",
			"Nothing is left to do; run shows how it ended."),
		explain(automation.CodeNotFinished, "The run has not ended, and the command needs one that has.",
			"Wait with run and wait_ms, or cancel it first."),
		explain(automation.CodePayloadTooLarge, "The body is larger than what is accepted.",
			"Pass a path or a URL instead of the data."),
		explain(automation.CodeRateLimited, "This caller asks for too much, or for too much at the same time; or its address sends too many wrong credentials, codes or signatures.",
			"Wait for as many seconds as the header Retry-After says."),
		explain(automation.CodeEngineUnavailable, "Temporal does not answer.",
			"Nothing is lost: admitted runs start when it does. The log of errandd says what it tries to reach."),
		explain(automation.CodeStoreUnavailable, "The database does not answer.",
			"Check the database, the disk and ERRAND_DATABASE_URL; then repeat, with an idempotency key if it was a run."),
		explain(automation.CodeRuntimeUnavailable, "The command line reached no service.",
			"Start errandd, or set ERRAND_API_URL and ERRAND_API_KEY; the message says where it looked."),
		explain(automation.CodeInternal, "Something went wrong inside the control plane.",
			"The log of errandd says what, under the request id in the message. Please report it."),
	}
}

// StepErrors explains every code with which a step may fail.
func StepErrors() []Explanation {
	explain := func(code automation.StepCode, meaning, remedy string) Explanation {
		return Explanation{Code: string(code), Meaning: meaning, Remedy: remedy}
	}
	return []Explanation{
		explain(automation.StepErrCommandNotFound, "There is no such program on the machine; the message shows the PATH that was searched.",
			"Install it, give an absolute path, or set path in machine.yaml."),
		explain(automation.StepErrCommandNotExecutable, "The file is there and may not be executed.",
			"chmod +x it, or name its interpreter as the command and the file as an argument."),
		explain(automation.StepErrInterpreterNotFound, "The program of the #! line, or of the script's runtime, is missing.",
			"Install sh, node (20 or later) or python3 on the machine."),
		explain(automation.StepErrCwdMissing, "The directory in cwd is not there, or is no directory.",
			"Create it on the machine, or correct the plan."),
		explain(automation.StepErrArgumentTooLong, "The arguments and the environment are more than the system passes to a program.",
			"Pass the data in stdin."),
		explain(automation.StepErrSpawnFailed, "The system could not start the program.",
			"The message has its reason, such as too many processes or no memory."),
		explain(automation.StepErrNonzeroExit, "The program ended with another exit code than 0.",
			"Read stderr and stdout in the step's output."),
		explain(automation.StepErrKilledBySignal, "A signal that Errand did not send ended the program.",
			"Look for the out-of-memory killer in the machine's log, or for who else ended it."),
		explain(automation.StepErrTimedOut, "The step ran longer than timeoutMs; it and all that it started were ended.",
			"Raise timeoutMs, or split the step."),
		explain(automation.StepErrCancelled, "The run was cancelled.",
			"cancelReason of the run says why."),
		explain(automation.StepErrActionNotFound, "The machine has no such action; the message names near ones.",
			"Correct actionId, or add the MCP server to machine.yaml and start the worker again."),
		explain(automation.StepErrActionFailed, "The action was called and failed.",
			"The message says why, in the words of the action."),
		explain(automation.StepErrActionUnauthorized, "The action's service refused the credential.",
			"Check the credential that the step names, in machine.yaml."),
		explain(automation.StepErrInvalidTemplate, "With the run's input in place the step is larger than 4 MiB.",
			"Pass a path or a URL instead of the data."),
		explain(automation.StepErrTransportUnavailable, "The action's service could not be reached for a day; it was tried again until then.",
			"Check the service and the machine's network, then run again."),
		explain(automation.StepErrMachineLost, "The machine was revoked, or given up by force, while the step ran.",
			"What the step did is not known. Look at the machine before it runs again."),
	}
}
