package machine

import (
	"errors"
	"fmt"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/process"
)

// startProcess starts a step of the command or script lane.
func (r *Runner) startProcess(step automation.ConcreteStep) Execution {
	program, args, err := programOf(step)
	if err != nil {
		return ended(Result{Outcome: automation.OutcomeFailed, Err: err})
	}
	cwd := step.Cwd
	if cwd == "" {
		home, err := r.home()
		if err != nil {
			return ended(failure(automation.StepErrCwdMissing, "the step names no cwd and runs in the home directory: %v", err))
		}
		cwd = home
	}
	limit := step.MaxOutputBytes
	if limit <= 0 {
		limit = automation.DefaultMaxOutputBytes
	}
	p, startErr := process.Start(process.Spec{
		Program:        program,
		Args:           args,
		Dir:            cwd,
		Env:            r.environment(step, cwd),
		Stdin:          step.Stdin,
		Timeout:        timeoutOf(step),
		Grace:          r.grace,
		MaxOutputBytes: int(limit),
		Marker:         KeyVariable + "=" + step.IdempotencyKey(),
		Cgroups:        r.cgroups,
		KeepLeftovers:  step.Leftovers == automation.LeftoversKeep,
	})
	if startErr != nil {
		return ended(neverStarted(step, startErr))
	}
	return &childProgram{step: step, process: p}
}

// programOf returns the executable of a step and its arguments.
func programOf(step automation.ConcreteStep) (program string, args []string, err *automation.StepError) {
	if step.Kind == automation.KindCommand {
		return step.Command, step.Args, nil
	}
	return interpreter(step)
}

// startCodes are the step errors of programs that never started.
var startCodes = map[process.StartErrorKind]automation.StepCode{
	process.CommandNotFound:      automation.StepErrCommandNotFound,
	process.CommandNotExecutable: automation.StepErrCommandNotExecutable,
	process.InterpreterNotFound:  automation.StepErrInterpreterNotFound,
	process.CwdMissing:           automation.StepErrCwdMissing,
	process.ArgumentTooLong:      automation.StepErrArgumentTooLong,
	process.SpawnFailed:          automation.StepErrSpawnFailed,
}

// neverStarted is the result of a step whose program never started. What a script lacks is its interpreter.
func neverStarted(step automation.ConcreteStep, err error) Result {
	var startErr *process.StartError
	if !errors.As(err, &startErr) {
		return failure(automation.StepErrSpawnFailed, "%v", err)
	}
	code, known := startCodes[startErr.Kind]
	if !known {
		code = automation.StepErrSpawnFailed
	}
	commandLacks := code == automation.StepErrCommandNotFound || code == automation.StepErrCommandNotExecutable
	if step.Kind == automation.KindScript && commandLacks {
		return failure(automation.StepErrInterpreterNotFound, "a %s script cannot run here: %s", step.Runtime, startErr.Message)
	}
	return failure(code, "%s", startErr.Message)
}

// childProgram is a running or ended process of a step.
type childProgram struct {
	step    automation.ConcreteStep
	process *process.Process
}

// Process identifies the process.
func (p *childProgram) Process() (process.Info, bool) { return p.process.Info(), true }

// End begins to end the process and everything it started.
func (p *childProgram) End(reason EndReason) {
	if reason == EndInterrupted {
		p.process.Stop(process.StopInterrupted)
		return
	}
	p.process.Stop(process.StopCancelled)
}

// Wait returns how the process ended.
func (p *childProgram) Wait() Result {
	ended := p.process.Wait()
	outcome, stepErr := verdict(p.step, ended)
	return Result{Outcome: outcome, Data: automation.BoundProcessResult(resultOf(ended)), Err: stepErr.Bounded()}
}

// verdict says what the end of a process means for its step.
func verdict(step automation.ConcreteStep, ended process.Result) (automation.Outcome, *automation.StepError) {
	failed := func(code automation.StepCode, format string, args ...any) (automation.Outcome, *automation.StepError) {
		return automation.OutcomeFailed, &automation.StepError{Code: code, Message: fmt.Sprintf(format, args...)}
	}
	name := step.Command
	if step.Kind == automation.KindScript {
		name = fmt.Sprintf("the %s script", step.Runtime)
	}
	switch ended.Stopped {
	case process.StopCancelled:
		return automation.OutcomeCancelled, &automation.StepError{
			Code: automation.StepErrCancelled, Message: name + " was ended because the step was cancelled",
		}
	case process.StopInterrupted:
		return automation.OutcomeInterrupted, nil
	case process.StopTimedOut:
		return failed(automation.StepErrTimedOut, "%s was still running after %s, the step's timeout, and was ended", name, timeoutOf(step))
	case process.NotStopped:
	}
	switch {
	case ended.ExitCode == nil:
		return failed(automation.StepErrKilledBySignal, "%s was ended by the signal %s", name, ended.Signal)
	case *ended.ExitCode != 0:
		return failed(automation.StepErrNonzeroExit, "%s ended with exit code %d", name, *ended.ExitCode)
	}
	return automation.OutcomeCompleted, nil
}

// resultOf returns the journal's form of a process's end.
func resultOf(ended process.Result) automation.ProcessResult {
	r := automation.ProcessResult{
		ExitCode:        ended.ExitCode,
		Stdout:          ended.Stdout.Text,
		Stderr:          ended.Stderr.Text,
		StdoutBytes:     ended.Stdout.Bytes,
		StderrBytes:     ended.Stderr.Bytes,
		StdoutTruncated: ended.Stdout.Truncated,
		StderrTruncated: ended.Stderr.Truncated,
		DurationMs:      ended.Duration.Milliseconds(),
		Leftovers:       ended.Leftovers,
	}
	if ended.Signal != "" {
		r.Signal = &ended.Signal
	}
	return r
}
