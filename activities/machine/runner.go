// Package machine executes one concrete step on the machine where it runs, in the lane that the step names,
// and says how it ended.
//
// A command is an executable with its arguments, and no shell. A script is source for sh, node or python3. An
// action is a function of the machine's registry. Commands and scripts become one child process each, in
// package process; here it is decided what the process is given (environment, directory, arguments) and what
// its end means: the outcome, the step error with a code of the closed set, and the result within the journal
// bound. The package starts and ends programs when it is told to, and keeps no record: which step may run,
// and which one runs already, is the host's business.
package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/process"
)

// Options says what steps are executed with. Actions and Environ are required.
type Options struct {
	// Actions runs the steps of the action lane.
	Actions Actions
	// Environ is the environment of the worker, as [os.Environ] returns it. Programs inherit it without what
	// is ours and without what describes the worker as a service.
	Environ []string
	// Path replaces the PATH of Environ; empty keeps it. See [SearchPath].
	Path string
	// Cgroups is where each program gets a control group of its own; nil means that it gets none.
	Cgroups *process.Cgroups
	// Home returns the home directory of the machine's user, where a step without cwd runs; nil means the
	// directory in the operating system's user database.
	Home func() (string, error)
	// Grace is how long a program that is ended may take before it is killed; 0 means 10 s.
	Grace time.Duration
	// Logger takes what is no part of a result; it may be nil.
	Logger *slog.Logger
}

// Runner executes steps. It is safe for concurrent use.
type Runner struct {
	actions Actions
	environ []string
	home    func() (string, error)
	grace   time.Duration
	cgroups *process.Cgroups
	log     *slog.Logger
}

// New returns a runner.
func New(o Options) (*Runner, error) {
	if o.Actions == nil || o.Environ == nil {
		return nil, errors.New("a required option of the step runner is missing")
	}
	r := &Runner{
		actions: o.Actions, environ: process.BaseEnvironment(o.Environ), home: o.Home, grace: o.Grace, log: o.Logger,
		cgroups: o.Cgroups,
	}
	if o.Path != "" {
		r.environ = process.WithVariables(r.environ, "PATH="+o.Path)
	}
	if r.home == nil {
		r.home = func() (string, error) { return HomeDirectory(o.Environ) }
	}
	if r.grace <= 0 {
		r.grace = process.DefaultGrace
	}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	return r, nil
}

// EndReason says why a program is ended from outside.
type EndReason string

// The reasons. A cancelled step has ended for good; an interrupted one is executed again.
const (
	EndCancelled   EndReason = "cancelled"
	EndInterrupted EndReason = "interrupted"
)

// Result is how the execution of a step ended.
type Result struct {
	Outcome automation.Outcome
	// Data is the step's result within the journal bound. It stands beside Err when a program ran and failed,
	// and is nil when none ran.
	Data json.RawMessage
	// Err is nil unless the outcome is failed, cancelled or transient.
	Err *automation.StepError
}

// Execution is one execution of a step. Its methods are safe for concurrent use.
type Execution interface {
	// Process identifies the process that executes the step; false when there is none: an action, or a program
	// that could not be started.
	Process() (process.Info, bool)
	// End begins to end the program and returns at once. The first reason wins.
	End(reason EndReason)
	// Wait blocks until nothing of the program is left, and returns how it ended.
	Wait() Result
}

// Start starts a step and returns without waiting for its end. A step that cannot start is one that has ended.
func (r *Runner) Start(step automation.ConcreteStep) Execution {
	switch step.Kind {
	case automation.KindAction:
		return r.startAction(step)
	case automation.KindCommand, automation.KindScript:
		return r.startProcess(step)
	}
	return ended(failure(automation.StepErrSpawnFailed, "this worker does not know steps of kind %q; a newer one may", step.Kind))
}

// EndLeftover ends what is left of an execution of a step whose worker died: the tree of its process, when
// that is known, and every other process that was started with the step's key in its environment. It blocks
// until nothing is left, for as long as the grace period and some more, and returns how many processes it
// found. After an error some of them may be alive.
func (r *Runner) EndLeftover(ref automation.StepRef, known *process.Info) (int, error) {
	return process.KillLeftover(known, KeyVariable+"="+ref.Key(), r.grace)
}

// endedExecution is an execution that has ended before it had a program.
type endedExecution Result

func ended(r Result) Execution { return endedExecution(r) }

// Process returns none.
func (endedExecution) Process() (process.Info, bool) { return process.Info{}, false }

// End does nothing: there is nothing to end.
func (endedExecution) End(EndReason) {}

// Wait returns the result at once.
func (e endedExecution) Wait() Result { return Result(e) }

// failure is the result of a step that failed without a program's result beside it.
func failure(code automation.StepCode, format string, args ...any) Result {
	return Result{
		Outcome: automation.OutcomeFailed,
		Err:     (&automation.StepError{Code: code, Message: fmt.Sprintf(format, args...)}).Bounded(),
	}
}

// timeoutOf returns how long a step may run.
func timeoutOf(step automation.ConcreteStep) time.Duration {
	if step.TimeoutMs <= 0 {
		return automation.DefaultTimeout
	}
	return time.Duration(step.TimeoutMs) * time.Millisecond
}
