package mcpserver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// maxLine bounds one message on standard input: more than the largest valid input of a command.
	maxLine = 16 << 20
	// finishWithin is how long calls may go on when the input has ended, so that what was asked before is answered.
	finishWithin = 2 * time.Second
)

// ServeStdio serves one client, one JSON-RPC message a line, until in ends or ctx does. Nothing but messages is
// written to out. A line that is no message is answered with an error and passed over. Calls that are under way
// when in ends may take two more seconds; when ctx ends they are given up at once. Its error is that of a broken
// in or out.
func (s *Server) ServeStdio(ctx context.Context, in io.Reader, out io.Writer) error {
	err := s.server.Run(carry(ctx), &stdio{in: in, out: out})
	if errors.Is(err, io.EOF) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// stdio is the transport of one client. The library's own ends at the first line that is no message, and gives up
// what was asked when the input ends.
type stdio struct {
	in  io.Reader
	out io.Writer

	lines  chan line
	closed chan struct{}
	once   sync.Once

	mu      sync.Mutex // guards out and what follows
	pending int        // calls that were read and not answered
	idle    chan struct{}
}

// line is one line of the input, or its end.
type line struct {
	text    []byte
	tooLong bool
	err     error
}

// Connect starts to read.
func (c *stdio) Connect(context.Context) (mcp.Connection, error) {
	c.lines, c.closed, c.idle = make(chan line), make(chan struct{}), make(chan struct{}, 1)
	go c.readLines()
	return c, nil
}

// readLines hands on the lines until the input or the connection ends. A read that never returns, as that of a
// terminal, goes with the process.
func (c *stdio) readLines() {
	reader := bufio.NewReaderSize(c.in, 64<<10)
	for {
		next := readLine(reader)
		select {
		case c.lines <- next:
		case <-c.closed:
			return
		}
		if next.err != nil {
			return
		}
	}
}

// readLine returns the next line without the space around it. Of one that is too long nothing is kept.
func readLine(r *bufio.Reader) line {
	var read line
	for {
		part, err := r.ReadSlice('\n')
		if len(read.text)+len(part) > maxLine {
			read.text, read.tooLong = nil, true
		}
		if !read.tooLong {
			read.text = append(read.text, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			read.text, read.err = bytes.TrimSpace(read.text), err
			return read
		}
	}
}

// Read returns the next message. The end of the input is passed on when what was asked is answered, or has had
// its time.
func (c *stdio) Read(ctx context.Context) (jsonrpc.Message, error) {
	var end error
	for end == nil {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-c.closed:
			return nil, io.EOF
		case next := <-c.lines:
			message, err := c.message(next)
			if message != nil || err != nil {
				c.lastLine(next.err)
				return message, err
			}
			end = next.err
		}
	}
	c.finish(ctx)
	return nil, end
}

// lastLine keeps the end of the input for the next read, when a message stood before it without a line's end.
func (c *stdio) lastLine(end error) {
	if end == nil {
		return
	}
	go func() {
		select {
		case c.lines <- line{err: end}:
		case <-c.closed:
		}
	}()
}

// message returns the message of a line, or nil when there is none; then it has answered what is wrong.
func (c *stdio) message(read line) (jsonrpc.Message, error) {
	message, fault := decode(read)
	if fault != nil {
		answer, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": nil, "error": fault})
		if err != nil {
			return nil, fmt.Errorf("encoding an error: %w", err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		return nil, c.write(answer)
	}
	if request, ok := message.(*jsonrpc.Request); ok && request.IsCall() {
		c.mu.Lock()
		c.pending++
		c.mu.Unlock()
	}
	return message, nil
}

// decode reads a line; both are nil for an empty one.
func decode(read line) (jsonrpc.Message, *jsonrpc.Error) {
	switch {
	case read.tooLong:
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: fmt.Sprintf("the message is larger than %d bytes", maxLine)}
	case len(read.text) == 0:
		return nil, nil
	case !json.Valid(read.text):
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeParseError, Message: "the line is not JSON; send one JSON-RPC message a line"}
	case read.text[0] == '[':
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "a batch of JSON-RPC messages is not taken; send one message a line"}
	}
	message, err := jsonrpc.DecodeMessage(read.text)
	if err != nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "the line is not a JSON-RPC message: " + err.Error()}
	}
	return message, nil
}

// Write sends a message.
func (c *stdio) Write(_ context.Context, message jsonrpc.Message) error {
	text, err := jsonrpc.EncodeMessage(message)
	if err != nil {
		return fmt.Errorf("encoding a message: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := message.(*jsonrpc.Response); ok {
		if c.pending--; c.pending == 0 {
			select {
			case c.idle <- struct{}{}:
			default:
			}
		}
	}
	return c.write(text)
}

// write writes one line; the lock is held.
func (c *stdio) write(text []byte) error {
	if _, err := c.out.Write(append(text, '\n')); err != nil {
		return fmt.Errorf("writing a message: %w", err)
	}
	return nil
}

// finish returns when every call is answered or finishWithin has passed.
func (c *stdio) finish(ctx context.Context) {
	timeout := time.NewTimer(finishWithin)
	defer timeout.Stop()
	for {
		c.mu.Lock()
		pending := c.pending
		c.mu.Unlock()
		if pending == 0 {
			return
		}
		select {
		case <-c.idle:
		case <-timeout.C:
			return
		case <-c.closed:
			return
		case <-ctx.Done():
			return
		}
	}
}

// Close ends the connection. The streams stay open: they belong to the program.
func (c *stdio) Close() error {
	c.once.Do(func() { close(c.closed) })
	return nil
}

// SessionID returns "": there is one session.
func (c *stdio) SessionID() string { return "" }
