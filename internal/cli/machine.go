package cli

import (
	"context"
	"errors"
	"strings"

	"github.com/errandhq/errand/automation"
)

// MachineEnroll are the options of `errand machine enroll`.
type MachineEnroll struct {
	Server string            `required:"" env:"ERRAND_SERVER_URL" help:"Address of the control plane." placeholder:"URL"`
	Code   string            `required:"" help:"One-time code of enroll-code; - reads it from standard input." placeholder:"CODE"`
	Name   string            `help:"What people call this machine (default: its host name)."`
	Label  map[string]string `mapsep:"none" help:"A label; may be given several times." placeholder:"NAME=VALUE"`
	Pretty bool              `xor:"form" help:"Indent the answer."`
	Text   bool              `xor:"form" help:"Print plain text for people instead of JSON."`
}

// EnrolledMachine is the answer of `errand machine enroll`.
type EnrolledMachine struct {
	MachineID string `json:"machineId"`
	Name      string `json:"name"`
	Server    string `json:"server"`
	// Next is the command that makes the machine work.
	Next string `json:"next"`
}

// enrollArguments turns the two words of the command, of which the first is a command of the catalog too, into the
// one that the parser knows.
func enrollArguments(args []string) []string {
	if len(args) > 1 && args[0] == "machine" && args[1] == "enroll" {
		return append([]string{enrollCommand}, args[2:]...)
	}
	return args
}

// enrollCommand is what the parser calls the command, enrollWords what people do.
const (
	enrollCommand = "machine-enroll"
	enrollWords   = "machine enroll"
)

// maxTypedCode bounds what is read from standard input as a code.
const maxTypedCode = 1 << 10

func (p *Program) enrollMachine(ctx context.Context, options MachineEnroll) int {
	if options.Code == "-" {
		code, err := readAll(p.Stdin, "standard input")
		if err != nil || len(code) > maxTypedCode {
			return p.fail(usageError{"the code could not be read from standard input"})
		}
		options.Code = strings.TrimSpace(string(code))
	}
	dataDir, err := p.DataDir()
	if err != nil {
		return p.fail(&automation.Error{Code: automation.CodeRuntimeUnavailable, Message: err.Error()})
	}
	enrolled, err := p.EnrollMachine(ctx, dataDir, options)
	if err != nil {
		return p.fail(localRefusal(err))
	}
	return p.print(enrolled)
}

// localRefusal is an error of this machine as it is printed: with its code if it has one, else as unavailable.
func localRefusal(err error) error {
	if _, ok := errors.AsType[*automation.Error](err); ok {
		return err
	}
	return &automation.Error{Code: automation.CodeRuntimeUnavailable, Message: err.Error()}
}

const enrollHelp = `errand machine enroll: Enrol this machine at a control plane

Usage: errand machine enroll --server URL --code CODE [--name NAME] [--label NAME=VALUE]... [--pretty | --text]

Makes this computer, and this user on it, a machine of whoever made the code with enroll-code. A code is good once,
for 10 minutes. The command makes a key in the data directory that never leaves it, proves that it has it, and
keeps which machine this is. Afterwards start the worker, which finds all of it there:
  errand worker
A machine that is enrolled already gets a new key, and becomes the machine that the code is for. If the answer got
lost, give the same command again. The control plane can then run anything as this user: enrol at one that you trust.

Options
  --server URL          Address of the control plane (ERRAND_SERVER_URL)
  --code CODE           The one-time code, in any case, with or without dashes; - reads it from standard input
  --name NAME           What people call this machine (default: its host name); a machine that gets a new key keeps its name
  --label NAME=VALUE    A label; may be given several times

Result
  machineId, name, server, and next: the command that makes the machine work

Errors
  unauthorized          the code is wrong, used or expired, or a clock is wrong: the message says which
  rate_limited          too many tries from this address: wait a moment
  runtime_unavailable   the control plane was not reached, or this machine's worker is running: stop it first
`
