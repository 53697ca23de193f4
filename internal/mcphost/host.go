// Package mcphost makes the tools of MCP servers available as actions of a machine.
//
// A server is a program that speaks over its standard streams, or an address that speaks HTTP. It is started,
// or connected to, when a step first needs it, kept for later steps, started again after it has ended, and
// ended with the host, with everything that it started. The tool `t` of the server `s` is the action `s.t`; a
// tool whose name cannot stand in an action id is found by its name in lower case with `_` for what is not
// allowed there.
//
// Inputs are checked against the tool's schema before anything is sent. The step's idempotency key goes along
// in `_meta` as `errand/idempotencyKey`. When a step is cancelled the server is told. Errors are
// [automation.StepError] of the codes action_not_found, action_failed, action_unauthorized and
// transport_unavailable; the last one alone means that trying again may help. What the settings of a server
// are, and where they come from, is the caller's business.
package mcphost

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/errandhq/errand/internal/process"
)

const (
	// startPatience is how long a server may take to start and to tell its tools: some are downloaded first.
	startPatience = 2 * time.Minute
	// endPatience is how long a server has to end after its input was closed, before it is asked by a signal.
	endPatience = 2 * time.Second
	// endGrace is how long it has to end after that, before it is killed.
	endGrace = 5 * time.Second
	// keptStderr is how many bytes of a server's standard error are kept for the log and for errors.
	keptStderr = 16 << 10
)

// Server says how one server is reached: by a program (Command) or at an address (URL).
type Server struct {
	// Name is the first part of the ids of the server's actions.
	Name string

	Command string
	Args    []string
	Env     map[string]string
	Dir     string // absolute; empty means the home directory

	URL     string
	Headers map[string]string
	// Credential returns a further header for requests to URL; nil means none.
	Credential func() (name, value string, err error)
}

// Options says what a host needs beside its servers.
type Options struct {
	// Environ is the environment of server programs, before what is ours is taken out and what the server's
	// settings say is added.
	Environ []string
	// Home is the home directory of the machine's user.
	Home string
	// Cgroups is where server programs get control groups; nil means that they get none.
	Cgroups *process.Cgroups
	// HTTP sends the requests to servers with an address; nil means the default transport.
	HTTP http.RoundTripper
	// Version is what the servers are told about this client.
	Version string
	// Logger may be nil.
	Logger *slog.Logger
}

// Host holds the servers of one machine. It is safe for concurrent use.
type Host struct {
	servers []*Source
	end     context.CancelFunc
}

// New returns a host of servers, none of which is started yet.
func New(servers []Server, o Options) (*Host, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.HTTP == nil {
		o.HTTP = http.DefaultTransport
	}
	o.Environ = process.BaseEnvironment(o.Environ)
	life, end := context.WithCancel(context.Background())
	h := &Host{end: end}
	names := map[string]bool{}
	for _, server := range servers {
		if (server.Command == "") == (server.URL == "") || names[server.Name] {
			end()
			return nil, fmt.Errorf("the MCP server %q has neither or both of a command and an address, or is there twice", server.Name)
		}
		names[server.Name] = true
		h.servers = append(h.servers, &Source{server: server, options: o, life: life})
	}
	slices.SortFunc(h.servers, func(a, b *Source) int { return strings.Compare(a.server.Name, b.server.Name) })
	return h, nil
}

// Sources returns the servers as sources of actions, sorted by name.
func (h *Host) Sources() []*Source { return slices.Clone(h.servers) }

// errClosed is returned for calls after the host was closed.
var errClosed = errors.New("the worker is stopping")

// Close ends all servers and returns when they are gone. A call that is under way fails.
func (h *Host) Close() {
	h.end()
	var ending sync.WaitGroup
	for _, source := range h.servers {
		ending.Go(source.close)
	}
	ending.Wait()
}
