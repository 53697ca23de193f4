// Package mcpserver projects the command catalog to the Model Context Protocol: one tool per command under the
// command's name, with schemas, effects and errors from the catalog, and resources for an automation and a run. It
// invents no operation and executes none: each call is handed to whoever made the server, so the same tools stand
// over a control plane in this process and over one that is elsewhere.
//
// A refusal is the result of a tool call with isError and the envelope {"error": {"code", "message", …}} as
// structured content, and never a failure of the protocol. What authenticates and bounds an HTTP request is the
// business of whoever serves [Server.Handler].
package mcpserver

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"runtime/debug"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/errandhq/errand/internal/catalog"
)

// Caller does what a command says with an input that is not checked yet, and returns its result, a JSON object.
// Its errors are [*automation.Error] and [*Refusal]; any other one is internal and shown to nobody. The context
// carries what the transport's does, and ends when the caller of the tool gives up.
type Caller func(ctx context.Context, command catalog.Command, input json.RawMessage) (json.RawMessage, error)

// Options are what a [Server] is made of. All are required.
type Options struct {
	Call    Caller
	Version string
	Logger  *slog.Logger
}

// Server serves the tools and resources over any number of connections.
type Server struct {
	o      Options
	server *mcp.Server
}

// instructions are what an agent with no other context needs first. Names of tools are in backticks.
const instructions = `Errand runs durable automations: named plans of ordered steps that execute on people's own machines. ` +
	`A run waits for its machine as long as it takes and survives restarts.
Usual order: ` + "`machines`" + ` (where steps can execute), ` + "`create`" + ` (stores a plan; nothing runs yet), ` +
	"`run-now`" + ` with wait_ms (runs it once), ` + "`run`" + ` (steps, outputs, and what an unfinished run waits for), ` +
	"`update`" + ` (repairs the plan; earlier runs keep theirs), ` + "`delete`" + `.
Each tool's description is its whole contract, with an example. Results are JSON objects. A refused call says a code, ` +
	`what to do, and in details each wrong member with its place; then nothing was changed.
Never put a secret into a plan: whoever may read the automation sees it.`

// New returns a server of every command of the catalog.
func New(o Options) *Server {
	s := &Server{o: o}
	s.server = mcp.NewServer(
		&mcp.Implementation{Name: "errand", Title: "Errand", Version: o.Version},
		&mcp.ServerOptions{
			Instructions: instructions, Logger: quiet(o.Logger), PageSize: pageSize,
			// The lists stay the same as long as the program runs, so there is nothing to subscribe to; and nothing is
			// logged to clients.
			Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}, Resources: &mcp.ResourceCapabilities{}},
		})
	for _, command := range catalog.Commands() {
		s.server.AddTool(tool(command), s.handler(command))
	}
	s.addResources()
	s.server.AddReceivingMiddleware(s.listResources)
	return s
}

// pageSize is larger than the catalog: some clients read the first page of tools only.
const pageSize = 1000

// quiet passes on only what is worth an operator's attention: a line per connection is a line per request.
func quiet(logger *slog.Logger) *slog.Logger { return slog.New(quietHandler{logger.Handler()}) }

type quietHandler struct{ slog.Handler }

func (h quietHandler) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return h.Handler.Handle(ctx, r)
}

func (h quietHandler) Enabled(ctx context.Context, _ slog.Level) bool {
	return h.Handler.Enabled(ctx, slog.LevelDebug)
}

// execute calls a command. A panic in it is an internal error of this call alone.
func (s *Server) execute(ctx context.Context, command catalog.Command, input json.RawMessage) (result json.RawMessage, err error) {
	ctx, stop := withCarrier(ctx)
	defer stop()
	defer func() {
		if cause := recover(); cause != nil {
			s.o.Logger.ErrorContext(ctx, "a tool panicked", "tool", command.Name, "panic", cause, "stack", string(debug.Stack()))
			result, err = nil, errors.New("a tool panicked")
		}
	}()
	if len(input) == 0 || string(input) == "null" {
		input = json.RawMessage(`{}`)
	}
	return s.o.Call(ctx, command, input)
}

// carrierKey is where the context of what carries a call is among the values of the call's own.
type carrierKey struct{}

// carry returns a context whose calls end when ctx ends, although the protocol's library shields them from it.
func carry(ctx context.Context) context.Context { return context.WithValue(ctx, carrierKey{}, ctx) }

// withCarrier returns ctx, ended also when what carries the call has ended.
func withCarrier(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	carrier, ok := ctx.Value(carrierKey{}).(context.Context)
	if !ok {
		return ctx, cancel
	}
	stop := context.AfterFunc(carrier, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// requestID returns the id of the request that a call came with, or "".
func requestID(ctx context.Context) string { return catalog.PrincipalOf(ctx).Origin.RequestID }

// internalMessage is what a caller is told of an error that is not for callers.
func internalMessage(ctx context.Context) string {
	if id := requestID(ctx); id != "" {
		return "something went wrong inside the control plane; its log says what, under request id " + id
	}
	return "something went wrong inside the server of these tools; its log says what"
}
