// Package cli is the command line of errand: the commands of the catalog, read from arguments, checked before
// any call, sent to the service and printed as one JSON line. stdout is the answer and stderr the story; both
// are for programs first. Help needs no configuration and no network.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/alecthomas/kong"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/catalog"
	"github.com/errandhq/errand/internal/client"
	"github.com/errandhq/errand/internal/strictjson"
)

// Exit codes of the program.
const (
	exitOK          = 0
	exitRefused     = 1 // by the service
	exitUsage       = 2 // usage or invalid input, before any call
	exitUnavailable = 3 // no service or runtime
)

// Worker are the options of `errand worker`.
type Worker struct {
	Server           string        `env:"ERRAND_SERVER_URL" help:"Address of the control plane; needed once, to enrol." placeholder:"URL"`
	CodeFile         string        `name:"code-file" help:"File that holds a one-time enrolment code." placeholder:"FILE"`
	Name             string        `help:"Name of this machine when it enrols (default: its host name)."`
	Concurrency      int           `default:"4" help:"How many steps execute at the same time."`
	Drain            time.Duration `default:"30s" help:"How long steps may go on when the worker is asked to stop."`
	ExitWhenOrphaned time.Duration `name:"exit-when-orphaned" default:"0s" help:"Leave after this long without a control plane and without a program; 0 never."`
	Logging
}

// Logging are the options of what a program that goes on running writes to standard error.
type Logging struct {
	LogFormat string `name:"log-format" env:"ERRAND_LOG_FORMAT" enum:"auto,text,json" default:"auto" help:"text, json, or auto: text on a terminal."`
	LogLevel  string `name:"log-level" env:"ERRAND_LOG_LEVEL" enum:"debug,info,warn,error" default:"info" help:"debug, info, warn or error."`
}

// MCP are the options of `errand mcp`.
type MCP struct {
	Logging
}

// Call does what a command says at the service that is running by then. Its errors are [*client.RemoteError] and
// [*automation.Error]; an invalid input is refused before any call.
type Call func(ctx context.Context, command catalog.Command, input json.RawMessage) (json.RawMessage, error)

// Program is what the command line is wired to.
type Program struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	// DataDir returns the directory of worker.json and server.json.
	DataDir func() (string, error)
	// Alive reports whether a process of that id exists.
	Alive func(pid int) bool
	// Version is the build of this program.
	Version string
	// RunWorker runs the machine's worker until it is told to stop.
	RunWorker func(ctx context.Context, dataDir string, options Worker) error
	// RunMCP serves the commands as MCP tools on standard input and output until its input ends.
	RunMCP func(ctx context.Context, call Call, options MCP) error

	// EnrollMachine enrols this machine.
	EnrollMachine func(ctx context.Context, dataDir string, options MachineEnroll) (EnrolledMachine, error)

	// form is how answers and errors are printed.
	form form
}

// flags are the options of every command of the catalog.
type flags struct {
	Input  []string `xor:"input" sep:"none" help:"The input, a JSON object." placeholder:"JSON"`
	File   []string `xor:"input" sep:"none" help:"A file that holds the input, JSON or YAML; - is standard input." placeholder:"PATH"`
	Stdin  bool     `xor:"input" help:"Read the input, JSON or YAML, from standard input."`
	Pretty bool     `xor:"form" help:"Indent the answer."`
	Text   bool     `xor:"form" help:"Print plain text for people instead of JSON."`
}

// bundleFlags are the options of a command whose input may be several documents.
type bundleFlags struct {
	Common flags `embed:""`
	DryRun bool  `name:"dry-run" help:"Only say what would change."`
}

// usageError is a mistake in the arguments.
type usageError struct{ message string }

func (e usageError) Error() string { return e.message }

// Main runs the program with its arguments, without its name, and returns the exit code.
func (p *Program) Main(ctx context.Context, args []string) int {
	args = commandFirst(args)
	p.form = formOf(args)
	if name, asked := helpAsked(args); asked {
		return p.help(name)
	}
	for _, arg := range args {
		if !utf8.ValidString(arg) {
			// Parsing would replace what is not UTF-8, and change an input without a word.
			return p.fail(usageError{fmt.Sprintf("the argument %q is not UTF-8", arg)})
		}
	}
	root := struct {
		Worker  Worker        `cmd:"" help:"Run this machine's worker."`
		MCP     MCP           `cmd:"" name:"mcp" help:"Serve the commands as MCP tools on standard input and output."`
		Enroll  MachineEnroll `cmd:"" name:"machine-enroll" help:"Enrol this machine."`
		Version struct{}      `cmd:"" help:"Print the version."`

		Completion struct {
			Shell string `arg:"" help:"bash, zsh or fish."`
		} `cmd:"" help:"Print a completion script for a shell."`
	}{}
	options := []kong.Option{kong.Name("errand"), kong.NoDefaultHelp(), kong.Exit(func(int) {})}
	commandFlags := map[string]*bundleFlags{}
	for _, command := range catalog.Commands() {
		given := &bundleFlags{}
		commandFlags[command.Name] = given
		var grammar any = &given.Common
		if command.Bundle != "" {
			grammar = given
		}
		options = append(options, kong.DynamicCommand(command.Name, command.Summary, "", grammar))
	}
	parser, err := kong.New(&root, options...)
	if err != nil {
		return p.fail(fmt.Errorf("describing the commands: %w", err))
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		return p.fail(usageError{usageMistake(args, err)})
	}
	switch name := parsed.Command(); name {
	case "worker":
		return p.worker(ctx, root.Worker)
	case "mcp":
		if err := p.RunMCP(ctx, p.call, root.MCP); err != nil {
			return p.fail(err)
		}
		return exitOK
	case enrollCommand:
		return p.enrollMachine(ctx, root.Enroll)
	case "version":
		return p.print(map[string]string{"version": p.Version})
	case "completion <shell>":
		return p.completion(root.Completion.Shell)
	default:
		return p.command(ctx, name, *commandFlags[name])
	}
}

// commandFirst writes the arguments in the one way that is parsed.
func commandFirst(args []string) []string {
	if len(args) > 0 && args[0] == "automations" {
		args = args[1:]
	}
	if len(args) == 1 && (args[0] == "--version" || args[0] == "-V") {
		return []string{"version"}
	}
	return enrollArguments(args)
}

// usageMistake says what is wrong with the arguments, and where to read on.
func usageMistake(args []string, err error) string {
	if len(args) == 0 {
		return "no command was given; see errand --help"
	}
	name := args[0]
	if command, found := catalog.Find(name); found {
		return err.Error() + "; usage: " + usageLine(command) + "; see errand " + name + " --help"
	}
	if name == enrollCommand {
		name = enrollWords
	}
	if slices.ContainsFunc(otherCommands(), func(other word) bool { return other.name == name }) {
		return err.Error() + "; see errand " + name + " --help"
	}
	return err.Error() + "; see errand --help"
}

// command runs one command of the catalog.
func (p *Program) command(ctx context.Context, name string, f bundleFlags) int {
	command, _ := catalog.Find(name)
	input, err := p.commandInput(command, f)
	if err != nil {
		return p.fail(err)
	}
	result, err := p.call(ctx, command, input)
	if err != nil {
		return p.fail(err)
	}
	return p.print(result)
}

// call checks an input, finds the service and calls it.
func (p *Program) call(ctx context.Context, command catalog.Command, input json.RawMessage) (json.RawMessage, error) {
	if err := command.Check(input); err != nil {
		return nil, err
	}
	dataDir, err := p.DataDir()
	if err != nil {
		return nil, &automation.Error{Code: automation.CodeRuntimeUnavailable, Message: err.Error()}
	}
	endpoint, err := client.Discovery{
		Getenv: p.Getenv, DataDir: dataDir, Alive: p.Alive, Person: !automation.ScopeControl.Allows(command.Scope),
	}.Find()
	if err != nil {
		return nil, err
	}
	return (&client.Client{Endpoint: endpoint}).Call(ctx, client.Route{
		Method: command.Route.Method, Path: command.Route.Path, InQuery: command.Route.InQuery(),
	}, input)
}

// invalidInput is an input that was refused before any call.
type invalidInput struct{ refusal *automation.Error }

func (e invalidInput) Error() string { return e.refusal.Error() }

func usageOf(err error) error {
	if refusal, ok := errors.AsType[*automation.Error](err); ok {
		return invalidInput{refusal}
	}
	return err
}

func (p *Program) worker(ctx context.Context, options Worker) int {
	switch {
	case options.Concurrency < 1:
		return p.fail(usageError{"--concurrency must be 1 or more"})
	case options.Drain < 0 || options.ExitWhenOrphaned < 0:
		return p.fail(usageError{"--drain and --exit-when-orphaned must not be negative"})
	}
	dataDir, err := p.DataDir()
	if err == nil {
		err = p.RunWorker(ctx, dataDir, options)
	}
	if err != nil {
		return p.fail(localRefusal(err))
	}
	return exitOK
}

// print writes the answer on standard output: one JSON line, unless another form was asked for.
func (p *Program) print(result any) int {
	line, err := strictjson.Marshal(map[string]any{"result": result})
	if err != nil {
		return p.fail(fmt.Errorf("encoding the answer: %w", err))
	}
	if _, err := p.Stdout.Write(p.form.format(line)); err != nil {
		return p.fail(fmt.Errorf("writing the answer: %w", err))
	}
	return exitOK
}

// failure is the body of an error line.
type failure struct {
	Code    automation.Code `json:"code"`
	Message string          `json:"message"`
	Status  int             `json:"status,omitempty"`
	Details any             `json:"details,omitempty"`
}

// fail writes an error as one JSON line on standard error and returns the exit code that fits it.
func (p *Program) fail(err error) int {
	body, exit := failure{Code: automation.CodeInternal, Message: err.Error()}, exitRefused
	var (
		usage   usageError
		invalid invalidInput
		remote  *client.RemoteError
		local   *automation.Error
	)
	switch {
	case errors.As(err, &usage):
		body, exit = failure{Code: automation.CodeValidationFailed, Message: usage.message}, exitUsage
	case errors.As(err, &invalid):
		body = failure{Code: invalid.refusal.Code, Message: invalid.refusal.Message}
		if len(invalid.refusal.Details) > 0 {
			body.Details = invalid.refusal.Details
		}
		exit = exitUsage
	case errors.As(err, &remote):
		body = failure{Code: remote.Code, Message: remote.Message, Status: remote.Status}
		if len(remote.Details) > 0 {
			body.Details = remote.Details
		}
		if remote.Code == automation.CodeRuntimeUnavailable {
			// The worker's local route says so when the control plane behind it is away.
			body.Status, exit = 0, exitUnavailable
		}
	case errors.As(err, &local):
		body = failure{Code: local.Code, Message: local.Message}
		if local.Code == automation.CodeRuntimeUnavailable {
			exit = exitUnavailable
		}
	}
	line, encodeErr := strictjson.Marshal(map[string]any{"error": body})
	if encodeErr != nil {
		line = []byte(`{"error":{"code":"internal","message":"the error could not be encoded"}}`)
	}
	_, _ = p.Stderr.Write(p.form.format(line)) // nowhere is left to say that standard error is gone
	return exit
}

// helpAsked reports whether help is wanted, and of which command.
func helpAsked(args []string) (name string, asked bool) {
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	for i, arg := range args {
		_, isCommand := catalog.Find(arg)
		switch {
		case arg == "--help" || arg == "-h" || arg == "help" && i == 0:
			asked = true
		case name == "" && (isCommand || arg == "worker" || arg == "mcp" || arg == enrollCommand || arg == "completion" || i == 1 && asked && isTopic(arg)):
			name = arg
		}
	}
	return name, asked
}
