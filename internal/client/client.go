// Package client calls the control plane's REST API for programs on the same or another machine, and finds
// out where it is. It preserves the error code and the status of whatever it calls; only its own failure to
// reach a service is runtime_unavailable.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/errandhq/errand/automation"
)

// answerWithin bounds one call: the longest wait that a command knows, 55 s, and time for the answer. A service
// that stands still is as good as none.
const answerWithin = 75 * time.Second

// maxAnswerBytes bounds an answer: a run of 100 steps with outputs of 1 MiB each, escaped.
const maxAnswerBytes = 512 << 20

// Endpoint is a service and the token for it.
type Endpoint struct {
	// URL is the address, with no trailing slash and without /v1.
	URL   string
	Token string
	// Source says where it was found, for messages.
	Source string
}

// Client calls one endpoint. The zero value of HTTP means http.DefaultClient.
type Client struct {
	Endpoint Endpoint
	HTTP     *http.Client
}

// RemoteError is a refusal as the service said it.
type RemoteError struct {
	Status     int
	Code       automation.Code
	Message    string
	Details    json.RawMessage
	RetryAfter time.Duration
	// RequestID names the request in the service's log; "" where the service did not say.
	RequestID string
}

// Error returns the code and the sentence.
func (e *RemoteError) Error() string { return string(e.Code) + ": " + e.Message }

// Route is where a command is: its method, its path below /v1 with input members in braces, and whether the
// other members go into the query instead of the body.
type Route struct {
	Method, Path string
	InQuery      bool
}

var placeholder = regexp.MustCompile(`\{([a-z_]+)\}`)

// Call sends a command's input, a JSON object, along its route and returns the result. Errors are
// [*RemoteError], or [*automation.Error] with runtime_unavailable when no service answered.
func (c *Client) Call(ctx context.Context, route Route, input json.RawMessage) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	request, err := c.request(ctx, route, input)
	if err != nil {
		return nil, err
	}
	httpClient := c.HTTP
	if httpClient == nil {
		httpClient = http.DefaultClient
	}
	response, err := httpClient.Do(request)
	if err != nil {
		return nil, c.unavailable(err)
	}
	defer response.Body.Close() // the body was read or given up
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes))
	if err != nil {
		return nil, c.unavailable(err)
	}
	if response.StatusCode/100 != 2 {
		return nil, c.remoteError(response, body)
	}
	if !json.Valid(body) {
		return nil, c.unavailable(errors.New("its answer is not JSON"))
	}
	return bytes.TrimSpace(body), nil
}

func (c *Client) unavailable(cause error) error {
	if errors.Is(cause, context.DeadlineExceeded) {
		return &automation.Error{
			Code: automation.CodeRuntimeUnavailable, Cause: cause,
			Message: fmt.Sprintf("the service at %s (from %s) has not answered in time; what was asked may be under way there: "+
				"look at what has become of it before you ask again", c.Endpoint.URL, c.Endpoint.Source),
		}
	}
	return &automation.Error{
		Code: automation.CodeRuntimeUnavailable, Cause: cause,
		Message: fmt.Sprintf("the service at %s (from %s) does not answer; is errandd running there? (%v)",
			c.Endpoint.URL, c.Endpoint.Source, cause),
	}
}

// request moves the members of the input to where the route wants them.
func (c *Client) request(ctx context.Context, route Route, input json.RawMessage) (*http.Request, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(input, &members); err != nil {
		return nil, automation.Invalid(automation.Violation{Message: "the input must be a JSON object"})
	}
	path := placeholder.ReplaceAllStringFunc(route.Path, func(match string) string {
		name := match[1 : len(match)-1]
		value := plain(members[name])
		delete(members, name)
		return url.PathEscape(value)
	})
	target := c.Endpoint.URL + "/v1" + path
	var body io.Reader
	if route.InQuery {
		query := url.Values{}
		for name, value := range members {
			query.Set(name, plain(value))
		}
		if len(query) > 0 {
			target += "?" + query.Encode()
		}
	} else {
		document, err := json.Marshal(members)
		if err != nil {
			return nil, fmt.Errorf("encoding a request: %w", err)
		}
		body = bytes.NewReader(document)
	}
	request, err := http.NewRequestWithContext(ctx, route.Method, target, body)
	if err != nil {
		return nil, &automation.Error{
			Code: automation.CodeRuntimeUnavailable, Cause: err,
			Message: fmt.Sprintf("the address %q (from %s) is not a URL", c.Endpoint.URL, c.Endpoint.Source),
		}
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	request.Header.Set("Authorization", "Bearer "+c.Endpoint.Token)
	return request, nil
}

// plain writes a member's value as it stands in a path or query: a string without its quotes.
func plain(value json.RawMessage) string {
	var text string
	if json.Unmarshal(value, &text) == nil {
		return text
	}
	return string(value)
}

// remoteError reads the envelope of a refusal. An answer without one did not come from the service: something
// between it and us spoke.
func (c *Client) remoteError(response *http.Response, body []byte) error {
	var envelope struct {
		Error struct {
			Code    automation.Code `json:"code"`
			Message string          `json:"message"`
			Details json.RawMessage `json:"details"`
			Request string          `json:"requestId"`
		} `json:"error"`
	}
	if json.Unmarshal(body, &envelope) != nil || envelope.Error.Code == "" {
		return c.unavailable(fmt.Errorf("it answered %s without saying why", response.Status))
	}
	remote := &RemoteError{
		Status: response.StatusCode, Code: envelope.Error.Code, Message: envelope.Error.Message, Details: envelope.Error.Details,
		RequestID: envelope.Error.Request,
	}
	if seconds, err := strconv.Atoi(strings.TrimSpace(response.Header.Get("Retry-After"))); err == nil {
		remote.RetryAfter = time.Duration(seconds) * time.Second
	}
	return remote
}
