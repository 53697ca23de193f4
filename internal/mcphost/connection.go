package mcphost

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/errandhq/errand/internal/process"
)

// Source is one server as a source of actions. It is safe for concurrent use.
type Source struct {
	server  Server
	options Options
	life    context.Context // ends with the host

	mu      sync.Mutex
	current *connection // nil before the first use
	closed  bool
}

// Name returns the first part of the ids of the server's actions.
func (s *Source) Name() string { return s.server.Name }

// connection is one life of a server: from its start to its end.
type connection struct {
	// ready is closed when either session or err is set.
	ready   chan struct{}
	session *mcp.ClientSession
	err     error
	// gone is closed when nothing is left of it.
	gone chan struct{}

	program *process.Process // nil for an address

	mu    sync.Mutex
	tools map[string]*tool // by the rest of the action id
}

// connect returns the server's session, which it starts where there is none, and waits for it as long as ctx.
// The start itself goes on without the one who waited.
func (s *Source) connect(ctx context.Context) (*connection, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, errClosed
	}
	c := s.current
	if c == nil || c.isOver() {
		c = &connection{ready: make(chan struct{}), gone: make(chan struct{})}
		s.current = c
		go s.live(c)
	}
	s.mu.Unlock()
	select {
	case <-c.ready:
		return c, c.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// isOver reports whether nothing more is to be expected of this life: it has ended, or never began.
func (c *connection) isOver() bool {
	select {
	case <-c.gone:
		return true
	default:
	}
	select {
	case <-c.ready:
		return c.err != nil
	default:
		return false
	}
}

// live sees one life of the server from its start to its end.
func (s *Source) live(c *connection) {
	defer close(c.gone)
	session, err := s.open(c)
	if err != nil {
		s.options.Logger.Warn("An MCP server could not be started.", "server", s.server.Name, "error", err)
		c.err = err
		close(c.ready)
		return
	}
	c.session = session
	s.options.Logger.Info("An MCP server is ready.", "server", s.server.Name, "tools", len(c.tools))
	close(c.ready)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = session.Wait() // why it ended shows in the calls that failed
	}()
	var died <-chan struct{}
	if c.program != nil {
		died = c.program.Done()
	}
	select {
	case <-ended:
	case <-died:
	case <-s.life.Done():
	}
	report := c.end()
	s.options.Logger.Info("An MCP server has ended.", "server", s.server.Name, "report", report)
}

// open starts the server and asks it for its tools. On an error nothing is left.
func (s *Source) open(c *connection) (*mcp.ClientSession, error) {
	ctx, cancel := context.WithTimeout(s.life, startPatience)
	defer cancel()
	watch := &refusals{}
	ctx = context.WithValue(ctx, refusalsKey{}, watch)
	transport, err := s.transport(c)
	if err != nil {
		return nil, err
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "errand", Version: s.options.Version}, &mcp.ClientOptions{
		Logger:                 s.options.Logger,
		Capabilities:           &mcp.ClientCapabilities{},
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { c.forgetTools() },
	})
	session, err := client.Connect(ctx, transport, nil)
	if err == nil {
		c.session = session
		err = c.listTools(ctx)
	}
	if err != nil {
		report := c.end()
		switch {
		case s.life.Err() != nil:
			err = errClosed
		case ctx.Err() != nil:
			err = fmt.Errorf("it was not ready within %s", startPatience)
		}
		return nil, s.explain(context.Background(), "starting it", err, watch, report)
	}
	return session, nil
}

// transport starts the server's program, or describes how its address is called.
func (s *Source) transport(c *connection) (mcp.Transport, error) {
	if s.server.URL != "" {
		return s.httpTransport(), nil
	}
	dir := s.server.Dir
	if dir == "" {
		dir = s.options.Home
	}
	vars := make([]string, 0, len(s.server.Env))
	for _, name := range slices.Sorted(maps.Keys(s.server.Env)) {
		vars = append(vars, name+"="+s.server.Env[name])
	}
	program, err := process.Start(process.Spec{
		Program: s.server.Command, Args: s.server.Args, Dir: dir,
		Env:      process.WithVariables(s.options.Environ, append([]string{"PWD=" + dir}, vars...)...),
		Dialogue: true, DieWithUs: true, Grace: endGrace, MaxOutputBytes: keptStderr, Cgroups: s.options.Cgroups,
	})
	if err != nil {
		// It is a mistake in the settings; another try changes nothing.
		return nil, failed("the MCP server %q cannot be started: %v", s.server.Name, err)
	}
	c.program = program
	stdin, stdout := program.Dialogue()
	return &mcp.IOTransport{Reader: stdout, Writer: stdin}, nil
}

// end ends the session and the program, in the order that MCP wants: input closed, then a signal, then a
// stronger one. It returns the program's last words.
func (c *connection) end() string {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		if c.session != nil {
			_ = c.session.Close()
		}
	}()
	if c.program == nil {
		<-closed
		return ""
	}
	stdin, stdout := c.program.Dialogue()
	_ = stdin.Close()
	patience := time.NewTimer(endPatience)
	defer patience.Stop()
	select {
	case <-c.program.Done():
	case <-patience.C:
		c.program.Stop(process.StopInterrupted)
	}
	result := c.program.Wait()
	_ = stdout.Close()
	<-closed
	return lastWords(result)
}

// lastWords says how a program ended and what it wrote to its standard error.
func lastWords(r process.Result) string {
	how := "it ended by " + r.Signal
	if r.ExitCode != nil {
		how = fmt.Sprintf("it ended with exit code %d", *r.ExitCode)
	}
	const most = 1000
	text := strings.TrimSpace(r.Stderr.Text)
	if len(text) > most {
		text = "…" + strings.ToValidUTF8(text[len(text)-most:], "")
	}
	if text == "" {
		return how
	}
	return how + ": " + text
}

// close ends the server for good.
func (s *Source) close() {
	s.mu.Lock()
	s.closed = true
	c := s.current
	s.mu.Unlock()
	if c != nil {
		<-c.gone
	}
}

// drop ends a life of the server that is of no more use, and waits for that.
func (c *connection) drop(ctx context.Context) error {
	go func() { _ = c.session.Close() }()
	select {
	case <-c.gone:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

var errNoTools = errors.New("its list of tools has no end")

// maxToolPages bounds how many pages of tools are read.
const maxToolPages = 100

// listTools asks the server for its tools.
func (c *connection) listTools(ctx context.Context) error {
	tools := map[string]*tool{}
	params := &mcp.ListToolsParams{}
	for range maxToolPages {
		page, err := c.session.ListTools(ctx, params)
		if err != nil {
			return fmt.Errorf("listing its tools: %w", err)
		}
		for _, offered := range page.Tools {
			addTool(tools, offered)
		}
		if page.NextCursor == "" {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.tools = tools
			return nil
		}
		params.Cursor = page.NextCursor
	}
	return errNoTools
}

// forgetTools has the tools asked for again when one is needed next.
func (c *connection) forgetTools() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tools = nil
}

// known returns the tools that were listed last.
func (c *connection) known() map[string]*tool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tools
}

// find returns a tool, and asks the server again when it is not among those that were listed before.
func (c *connection) find(ctx context.Context, name string) (*tool, error) {
	if found := c.known()[name]; found != nil {
		return found, nil
	}
	if err := c.listTools(ctx); err != nil {
		return nil, err
	}
	return c.known()[name], nil
}
