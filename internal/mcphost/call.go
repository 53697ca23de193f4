package mcphost

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/strictjson"
)

// The members of `_meta` that a tool receives.
const (
	keyMeta  = "errand/idempotencyKey"
	runMeta  = "errand/runId"
	stepMeta = "errand/stepId"
)

// toolResult is the result of the action.
type toolResult struct {
	Content           []mcp.Content `json:"content"`
	StructuredContent any           `json:"structuredContent,omitempty"`
}

// IDs returns the ids of the server's actions, sorted. It starts the server where it does not run.
func (s *Source) IDs(ctx context.Context) ([]string, error) {
	c, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	tools := c.known()
	if tools == nil {
		if err := c.listTools(ctx); err != nil {
			return nil, s.explain(ctx, "listing its tools", err, &refusals{}, "")
		}
		tools = c.known()
	}
	ids := make([]string, 0, len(tools))
	for name := range maps.Keys(tools) {
		ids = append(ids, s.server.Name+"."+name)
	}
	slices.Sort(ids)
	return ids, nil
}

// Run calls the tool that the step names and returns its content.
func (s *Source) Run(ctx context.Context, step automation.ConcreteStep) (json.RawMessage, error) {
	if step.Credential != "" {
		return nil, failed("%s takes no credential from a step: it is named at the server %q in machine.yaml", step.ActionID, s.server.Name)
	}
	result, err := s.call(ctx, step)
	if errors.Is(err, mcp.ErrSessionMissing) {
		// The server was restarted and knows nothing of the session, so nothing of the call either.
		result, err = s.call(ctx, step)
	}
	if err != nil {
		return nil, err
	}
	if result.IsError {
		return nil, failed("%s reports: %s", step.ActionID, describe(result))
	}
	return strictjson.Marshal(toolResult{Content: result.Content, StructuredContent: result.StructuredContent})
}

func (s *Source) call(ctx context.Context, step automation.ConcreteStep) (*mcp.CallToolResult, error) {
	watch := &refusals{}
	ctx = context.WithValue(ctx, refusalsKey{}, watch)
	c, err := s.connect(ctx)
	if err != nil {
		return nil, s.explain(ctx, "reaching it", err, watch, "")
	}
	found, err := c.find(ctx, strings.TrimPrefix(step.ActionID, s.server.Name+"."))
	if err != nil {
		return nil, s.failedCall(ctx, c, "listing its tools", err, watch)
	}
	if found == nil {
		return nil, &automation.StepError{
			Code:    automation.StepErrActionNotFound,
			Message: fmt.Sprintf("the MCP server %q has no tool for the action %q", s.server.Name, step.ActionID),
		}
	}
	arguments, err := found.arguments(step.Input)
	if err != nil {
		return nil, err
	}
	result, err := c.session.CallTool(ctx, &mcp.CallToolParams{
		Meta: mcp.Meta{keyMeta: step.IdempotencyKey(), runMeta: step.RunID, stepMeta: step.StepID},
		Name: found.name, Arguments: arguments,
	})
	if err != nil {
		return nil, s.failedCall(ctx, c, "calling "+found.name, err, watch)
	}
	return result, nil
}

// failedCall explains a failed call. A session that the server does not know any more is ended first.
func (s *Source) failedCall(ctx context.Context, c *connection, doing string, err error, watch *refusals) error {
	// The client's own error is sometimes only that the connection is closed. In a session 404 has one meaning.
	status, _ := watch.get()
	if (errors.Is(err, mcp.ErrSessionMissing) || status == http.StatusNotFound) && ctx.Err() == nil {
		if dropErr := c.drop(ctx); dropErr != nil {
			return dropErr
		}
		return &missingSessionError{s.explain(ctx, doing, err, watch, "")}
	}
	return s.explain(ctx, doing, err, watch, "")
}

// missingSessionError is an explained error that still tells that the session is missing.
type missingSessionError struct{ explained error }

func (e *missingSessionError) Error() string   { return e.explained.Error() }
func (e *missingSessionError) Unwrap() []error { return []error{e.explained, mcp.ErrSessionMissing} }

// explain says what an error of a server means for a step.
func (s *Source) explain(ctx context.Context, doing string, err error, watch *refusals, report string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if stepErr, ok := errors.AsType[*automation.StepError](err); ok {
		return stepErr
	}
	if urlErr, ok := errors.AsType[*url.Error](err); ok {
		err = urlErr.Err
	}
	message := fmt.Sprintf("MCP server %q, %s: %v", s.server.Name, doing, err)
	if report != "" {
		message += "; " + report
	}
	return &automation.StepError{Code: codeOf(err, watch), Message: message}
}

// codeOf returns the step error code of an error of a server. What HTTP said goes before what became of it.
func codeOf(err error, watch *refusals) automation.StepCode {
	status, credential := watch.get()
	switch {
	case credential != nil:
		return automation.StepErrActionFailed
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return automation.StepErrActionUnauthorized
	case status == http.StatusNotFound && errors.Is(err, mcp.ErrSessionMissing),
		status == http.StatusRequestTimeout, status == http.StatusTooEarly, status == http.StatusTooManyRequests:
		return automation.StepErrTransportUnavailable
	case status >= http.StatusBadRequest && status < http.StatusInternalServerError:
		return automation.StepErrActionFailed
	}
	// The codes below -32002 that are no standard ones are made up by the client for a broken connection.
	if answer, ok := errors.AsType[*jsonrpc.Error](err); ok && !errors.Is(err, mcp.ErrConnectionClosed) && status == 0 && !isConnectionCode(answer.Code) {
		return automation.StepErrActionFailed
	}
	return automation.StepErrTransportUnavailable
}

// isConnectionCode reports whether the client gives an error this code when the connection is broken.
func isConnectionCode(code int64) bool { return code <= -32003 && code >= -32005 }

// describe returns the texts of a result, or its JSON.
func describe(result *mcp.CallToolResult) string {
	var texts []string
	for _, content := range result.Content {
		if text, ok := content.(*mcp.TextContent); ok {
			texts = append(texts, text.Text)
		}
	}
	if len(texts) > 0 {
		return strings.Join(texts, "\n")
	}
	if data, err := json.Marshal(toolResult{Content: result.Content, StructuredContent: result.StructuredContent}); err == nil {
		return string(data)
	}
	return "an error without content"
}

// failed is an action_failed with a formatted sentence.
func failed(format string, args ...any) *automation.StepError {
	return &automation.StepError{Code: automation.StepErrActionFailed, Message: fmt.Sprintf(format, args...)}
}

// refusals remembers what HTTP said to the requests of one call, since the errors of the client do not.
type refusals struct {
	mu         sync.Mutex
	status     int
	credential error
}

type refusalsKey struct{}

func (r *refusals) get() (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status, r.credential
}

// httpTransport describes how the server's address is called.
func (s *Source) httpTransport() mcp.Transport {
	return &mcp.StreamableClientTransport{
		Endpoint:   s.server.URL,
		HTTPClient: &http.Client{Transport: &addressedTransport{source: s}},
		// Nothing is wanted from the server but answers.
		DisableStandaloneSSE: true,
	}
}

// addressedTransport adds the server's headers to requests to the server, and to no other host that a redirect
// leads to, and remembers what came of them.
type addressedTransport struct{ source *Source }

// RoundTrip sends one request.
func (t *addressedTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	watch, _ := request.Context().Value(refusalsKey{}).(*refusals)
	if watch == nil {
		watch = &refusals{}
	}
	request = request.Clone(request.Context())
	server := t.source.server
	if own, err := url.Parse(server.URL); err == nil && own.Host == request.URL.Host && own.Scheme == request.URL.Scheme {
		for name, value := range server.Headers {
			request.Header.Set(name, value)
		}
		if server.Credential != nil {
			name, value, err := server.Credential()
			if err != nil {
				watch.mu.Lock()
				defer watch.mu.Unlock()
				watch.credential = err
				return nil, err
			}
			request.Header.Set(name, value)
		}
	}
	response, err := t.source.options.HTTP.RoundTrip(request)
	if err == nil {
		watch.mu.Lock()
		defer watch.mu.Unlock()
		if response.StatusCode < http.StatusBadRequest {
			watch.status = 0
		} else {
			watch.status = response.StatusCode
		}
	}
	return response, err
}
