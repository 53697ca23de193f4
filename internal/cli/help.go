package cli

import (
	"fmt"
	"strings"

	"github.com/errandhq/errand/internal/catalog"
)

const overview = `errand controls automations: named plans of steps that run on people's own machines.

Usage: errand [automations] <command> [--input JSON | --file PATH | --stdin] [--pretty | --text]

Commands
%s
Other
%s
errand <command> --help prints the whole contract of a command. errand help <topic> prints a page about
%s

Input is one JSON object, given at most once; without any it is {}. --file and --stdin also take YAML; --file - is
standard input. The answer is one JSON line: {"result": …} on standard output, or {"error": {"code", "message", …}}
on standard error. --pretty indents it. --text prints plain text for people; its form may change. hint in a result
names a command that is often given next.
Exit codes: 0 done, 1 refused by the service, 2 usage or invalid input before any call, 3 no service reached.

Steps execute with all rights of the machine's user, so a token of this service is as good as that user's account.
Definitions, inputs and outputs are kept and shown as they are: no place for secrets.

The service is found in this order: ERRAND_MCP_URL with ERRAND_RUNTIME_TOKEN; ERRAND_API_URL with
ERRAND_API_KEY; worker.json, then server.json, in the data directory (ERRAND_DATA_DIR), and in the opposite order
for commands that hand out access, which a machine may not. Nothing is found where
errandd does not run: start it, it needs no setting.

From nothing to a run and back:
  errand create --input '%s'
  errand run-now --input '{"automation_id":"<id of the result>","wait_ms":10000}' --pretty
  errand runs --input '{"status":"failed"}'
  errand run --input '{"run_id":"<id of a run>"}' --pretty
  errand update --file changed.yaml
  errand delete --input '{"automation_id":"<id>"}'
`

// otherCommands are the commands of the command line that are no projection of the catalog.
func otherCommands() []word {
	return []word{
		{"worker", "Run this machine's worker"},
		{enrollWords, "Enrol this machine at a control plane"},
		{"mcp", "Serve the commands as MCP tools, for agents"},
		{"completion", "Print a completion script for bash, zsh or fish"},
		{"help", "Print this, the contract of a command, or a topic"},
		{"version", "Print the version"},
	}
}

func isTopic(name string) bool {
	_, found := topic(name)
	return found
}

func topic(name string) (catalog.Topic, bool) {
	for _, t := range catalog.Topics() {
		if t.Name == name {
			return t, true
		}
	}
	return catalog.Topic{}, false
}

// help prints the contract of a command or a topic, or the overview for any other name.
func (p *Program) help(name string) int {
	if _, err := fmt.Fprint(p.Stdout, p.helpText(name)); err != nil {
		return p.fail(fmt.Errorf("writing the help: %w", err))
	}
	return exitOK
}

func (p *Program) helpText(name string) string {
	command, isCommand := catalog.Find(name)
	page, isTopic := topic(name)
	switch {
	case isCommand:
		return contract(command)
	case isTopic:
		return fmt.Sprintf("# %s\n\n%s", page.Summary, page.Text)
	case name == "worker":
		return workerHelp
	case name == "mcp":
		return mcpHelp
	case name == enrollCommand:
		return enrollHelp
	case name == "completion":
		return completionHelp
	}
	return p.overview()
}

func (p *Program) overview() string {
	list := func(words []word) string {
		var lines strings.Builder
		for _, w := range words {
			fmt.Fprintf(&lines, "  %-16s %s\n", w.name, w.meaning)
		}
		return lines.String()
	}
	var commands, topics []word
	for _, command := range catalog.Commands() {
		commands = append(commands, word{command.Name, command.Summary})
	}
	for _, t := range catalog.Topics() {
		topics = append(topics, word{t.Name, t.Summary})
	}
	example, _ := catalog.Find("create")
	return fmt.Sprintf(overview, list(commands), list(otherCommands()), strings.TrimRight(list(topics), "\n"), example.Example)
}

// usageLine is how a command is given.
func usageLine(command catalog.Command) string {
	options := "[--pretty | --text]"
	if command.Bundle != "" {
		options = "[--dry-run] " + options
	}
	return "errand " + command.Name + " [--input JSON | --file PATH | --stdin] " + options
}

// contract is everything about a command, for a reader with no other context.
func contract(command catalog.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, "errand %s: %s\n\nUsage: %s\n\n%s\n\nInput\n", command.Name, command.Summary, usageLine(command), command.Contract)
	for _, member := range catalog.Members(command.Input) {
		required := ""
		if member.Required {
			required = " (required)"
		}
		fmt.Fprintf(&b, "  %-16s %s%s: %s\n", member.Name, member.TypeName(), required, member.Doc)
	}
	fmt.Fprintf(&b, "\nResult\n")
	for _, member := range catalog.Members(command.Result) {
		about := ""
		if member.Doc != "" {
			about = ": " + member.Doc
		}
		fmt.Fprintf(&b, "  %-18s %s%s\n", member.Name, member.TypeName(), about)
	}
	fmt.Fprintf(&b, "\nErrors (errand help errors says what to do)\n  %s\n", strings.Join(command.Codes(), ", "))
	fmt.Fprintf(&b, "\nExample\n  errand %s --input '%s'\n", command.Name, command.Example)
	place := "body"
	if command.Route.InQuery() {
		place = "query"
	}
	fmt.Fprintf(&b, "\nREST\n  %s /v1%s, other members in the %s\n", command.Route.Method, command.Route.Path, place)
	return b.String()
}

const completionHelp = `errand completion: Print a completion script for a shell

Usage: errand completion bash | zsh | fish

  bash   source <(errand completion bash), for example in ~/.bashrc
  zsh    errand completion zsh > a file named _errand in a folder of $fpath
  fish   errand completion fish > ~/.config/fish/completions/errand.fish
`

const workerHelp = `errand worker: Run this machine's worker

Polls the task queue of this machine and executes its steps until it is told to stop. The embedded errandd
starts one by itself; on every other machine give errand machine enroll once, then start your own. SIGTERM and Ctrl-C drain it: no new step begins,
running ones may go on for --drain, then they are ended and executed again later.

Options
  --server URL                Address of the control plane, where it has changed or the worker enrols (ERRAND_SERVER_URL)
  --code-file FILE            File that holds a one-time code: enrol before the start, and remove the file
  --name NAME                 Name of this machine when it enrols (default: its host name)
  --concurrency N             How many steps execute at the same time (default 4)
  --drain DURATION            How long steps may go on when the worker is asked to stop (default 30s)
  --exit-when-orphaned DUR    Leave after this long without a control plane and without a program (default never)
  --log-format, --log-level   auto, text or json; debug, info, warn or error

Its state (device key, records of steps) is in the directory machine of the data directory (ERRAND_DATA_DIR).
`

const mcpHelp = `errand mcp: Serve the commands as MCP tools on standard input and output

Usage: errand mcp [--log-format auto|text|json] [--log-level debug|info|warn|error]

For agents that start their tool servers themselves. Each command is a tool of the same name, with the same
input, result and errors; errand <command> --help is its contract. Agents are told of it in their own way:
  claude mcp add errand -- errand mcp
  codex mcp add errand -- errand mcp

The service is looked for at each call, in the order that errand --help names. While none runs, a call is
refused with runtime_unavailable and the server goes on: start errandd and call again.
Standard output carries the protocol and nothing else, one JSON-RPC message a line; the options are about what
standard error tells. It ends when its input ends, and on SIGINT and SIGTERM.

A service that is always there serves the same tools over HTTP, at /mcp of errandd.
`
