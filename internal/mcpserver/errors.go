package mcpserver

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/strictjson"
)

// Refusal is an error of a service that is elsewhere, as it said it.
type Refusal struct {
	Code    automation.Code
	Message string
	// Status is the HTTP status that the service answered with; 0 for none.
	Status int
	// Details and RequestID are there when the service gave them.
	Details   json.RawMessage
	RequestID string
}

// Error returns the code and the sentence.
func (r *Refusal) Error() string { return string(r.Code) + ": " + r.Message }

// envelope is the structured content of a refused call.
type envelope struct {
	Error refusal `json:"error" doc:"why the call was refused"`
}

// refusal is the body of an [envelope].
type refusal struct {
	Code      automation.Code `json:"code" doc:"what kind of refusal it is; see the page of errors"`
	Message   string          `json:"message" doc:"what to do, for a person"`
	Status    int             `json:"status,omitempty" doc:"the HTTP status of the code; absent when no service answered"`
	Details   any             `json:"details,omitempty" doc:"of validation_failed: a list of {path, message}, one for each wrong member"`
	RequestID string          `json:"requestId,omitempty" doc:"of internal: what the service's log names"`
}

// refuse puts an error into the words of the closed set. The text of one that has no place in it goes to the log.
func (s *Server) refuse(ctx context.Context, tool string, err error) envelope {
	if remote, ok := errors.AsType[*Refusal](err); ok {
		body := refusal{Code: remote.Code, Message: remote.Message, Status: remote.Status, RequestID: remote.RequestID}
		if len(remote.Details) > 0 {
			body.Details = remote.Details
		}
		return envelope{body}
	}
	local, ok := errors.AsType[*automation.Error](err)
	if !ok || !local.Code.Known() || local.Code == automation.CodeInternal {
		if !errors.Is(err, context.Canceled) {
			s.o.Logger.ErrorContext(ctx, "a tool failed", "tool", tool, "request_id", requestID(ctx), "error", err)
		}
		return envelope{refusal{
			Code: automation.CodeInternal, Message: internalMessage(ctx),
			Status: automation.CodeInternal.Status(), RequestID: requestID(ctx),
		}}
	}
	if local.Cause != nil && local.Code != automation.CodeRuntimeUnavailable {
		s.o.Logger.WarnContext(ctx, "a tool was refused", "tool", tool, "request_id", requestID(ctx), "error", err)
	}
	body := refusal{Code: local.Code, Message: local.Message, Status: local.Code.Status()}
	if local.Code == automation.CodeRuntimeUnavailable {
		body.Status = 0 // no service has spoken
	}
	if len(local.Details) > 0 {
		body.Details = local.Details
	}
	return envelope{body}
}

// refused is the result of a call that was refused.
func (s *Server) refused(ctx context.Context, tool string, err error) *mcp.CallToolResult {
	document, marshalErr := strictjson.Marshal(s.refuse(ctx, tool, err))
	if marshalErr != nil {
		document = []byte(`{"error":{"code":"internal","message":"the error could not be encoded"}}`)
	}
	return &mcp.CallToolResult{
		IsError: true, StructuredContent: document, Content: []mcp.Content{&mcp.TextContent{Text: string(document)}},
	}
}

// resourceError is a failed read of a resource, for which the protocol knows no result with isError. Its data is
// the envelope.
func (s *Server) resourceError(ctx context.Context, uri, tool string, err error) error {
	refused := s.refuse(ctx, tool, err)
	failure := &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: refused.Error.Message}
	switch refused.Error.Code { //nolint:exhaustive // every other code is a server error of the protocol
	case automation.CodeNotFound:
		return mcp.ResourceNotFoundError(uri)
	case automation.CodeValidationFailed:
		failure.Code = jsonrpc.CodeInvalidParams
	}
	if data, err := strictjson.Marshal(refused); err == nil {
		failure.Data = data
	}
	return failure
}
