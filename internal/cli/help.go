package cli

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/errandhq/errand/internal/catalog"
)

const overview = `errand controls automations: named plans of steps that run on people's own machines.

Usage: errand [automations] <command> [--input JSON | --file PATH | --stdin] [--pretty]

Commands
%s
Other
  worker      Run this machine's worker
  version     Print the version

errand <command> --help prints the whole contract of a command.

Input is one JSON object, given at most once; without any it is {}. --file and --stdin also take YAML.
The answer is one JSON line: {"result": …} on standard output, or {"error": {"code", "message", …}} on
standard error. Exit codes: 0 done, 1 refused by the service, 2 usage or invalid input before any call,
3 no service reached.

The service is found in this order: ERRAND_MCP_URL with ERRAND_RUNTIME_TOKEN; ERRAND_API_URL with
ERRAND_API_KEY; worker.json, then server.json, in the data directory (ERRAND_DATA_DIR).

A first automation, run and read:
  errand create --input '%s'
  errand run-now --input '{"automation_id":"<id>","wait_ms":10000}' --pretty
`

// help prints the contract of a command, or the overview for any other name.
func (p *Program) help(name string) int {
	text := p.overview()
	if command, found := catalog.Find(name); found {
		text = contract(command)
	} else if name == "worker" {
		text = workerHelp
	}
	if _, err := fmt.Fprint(p.Stdout, text); err != nil {
		return p.fail(fmt.Errorf("writing the help: %w", err))
	}
	return exitOK
}

func (p *Program) overview() string {
	var lines strings.Builder
	for _, command := range catalog.Commands() {
		fmt.Fprintf(&lines, "  %-11s %s\n", command.Name, command.Summary)
	}
	example, _ := catalog.Find("create")
	return fmt.Sprintf(overview, lines.String(), example.Example)
}

// contract is everything about a command, for a reader with no other context.
func contract(command catalog.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, "errand %s: %s\n\n%s\n\nInput\n", command.Name, command.Summary, command.Contract)
	for _, line := range inputLines(command) {
		b.WriteString(line)
	}
	codes := slices.Clone(command.Errors)
	codes = append(codes, catalog.CommonErrors...)
	texts := make([]string, 0, len(codes))
	for _, code := range codes {
		texts = append(texts, string(code))
	}
	fmt.Fprintf(&b, "\nErrors\n  %s\n", strings.Join(texts, ", "))
	fmt.Fprintf(&b, "\nExample\n  errand %s --input '%s'\n", command.Name, command.Example)
	place := "body"
	if command.Route.InQuery() {
		place = "query"
	}
	fmt.Fprintf(&b, "\nREST\n  %s /v1%s, other members in the %s\n", command.Route.Method, command.Route.Path, place)
	return b.String()
}

// inputLines describes the members of a command's input from its type.
func inputLines(command catalog.Command) []string {
	var lines []string
	for _, member := range catalog.Members(command.Input) {
		required := ""
		if member.Required {
			required = " (required)"
		}
		lines = append(lines, fmt.Sprintf("  %-16s %s%s: %s\n", member.Name, typeName(member.Type), required, member.Doc))
	}
	return lines
}

func typeName(t reflect.Type) string {
	switch t.Kind() { // every other kind is some JSON value
	case reflect.Pointer:
		return typeName(t.Elem())
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "integer"
	case reflect.Struct, reflect.Map:
		if strings.HasPrefix(t.Name(), "Optional[") {
			value, _ := t.FieldByName("Value")
			return typeName(value.Type) + " or null"
		}
		return "object"
	case reflect.Slice:
		if t.Elem().Kind() != reflect.Uint8 {
			return "list"
		}
	}
	return "value"
}

const workerHelp = `errand worker: Run this machine's worker

Polls the task queue of this machine and executes its steps until it is told to stop. The embedded errandd
starts one by itself; start your own on every other machine. SIGTERM and Ctrl-C drain it: no new step begins,
running ones may go on for --drain, then they are ended and executed again later.

Options
  --server URL                Address of the control plane; needed once, to enrol (ERRAND_SERVER_URL)
  --code-file FILE            File that holds a one-time enrolment code
  --name NAME                 Name of this machine when it enrols (default: its host name)
  --concurrency N             How many steps execute at the same time (default 4)
  --drain DURATION            How long steps may go on when the worker is asked to stop (default 30s)
  --exit-when-orphaned DUR    Leave after this long without a control plane and without a program (default never)
  --log-format, --log-level   auto, text or json; debug, info, warn or error

Its state (device key, records of steps) is in the directory machine of the data directory (ERRAND_DATA_DIR).
`
