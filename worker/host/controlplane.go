package host

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/errandhq/errand/automation"
)

// Limits of the control plane's answers, and of its silence.
const (
	// maxAnswerBytes leaves room for a concrete step with the largest input, in base64.
	maxAnswerBytes = 16 << 20
	maxEventBytes  = 64 << 10
	// DefaultStreamSilence is how long an event stream may bring nothing before it counts as dead; the
	// control plane pings every 10 s.
	DefaultStreamSilence = 30 * time.Second
)

// RefusalError is an answer of the control plane that says no.
type RefusalError struct {
	Status  int // HTTP
	Code    automation.Code
	Message string
}

// Error returns the code and the sentence.
func (e *RefusalError) Error() string { return fmt.Sprintf("%s (%d): %s", e.Code, e.Status, e.Message) }

// Final reports whether trying again cannot change the answer. Authentication may: a clock is put right, a
// key is enrolled again.
func (e *RefusalError) Final() bool {
	switch e.Status {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return false
	}
	return e.Status >= 400 && e.Status < 500
}

// HTTPControlPlane is the [ControlPlane] over the machine API.
type HTTPControlPlane struct {
	base    *url.URL
	client  *http.Client
	silence time.Duration
}

// NewControlPlane returns the machine API below the base URL. The client proves the machine's identity with
// each request and has no timeout of its own, which would cut the event stream. silence is how long that
// stream may bring nothing; 0 means [DefaultStreamSilence].
func NewControlPlane(base string, client *http.Client, silence time.Duration) (*HTTPControlPlane, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, fmt.Errorf("reading the control plane's URL: %w", err)
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, fmt.Errorf("the control plane's URL %q is not an http or https URL", base)
	}
	if silence <= 0 {
		silence = DefaultStreamSilence
	}
	return &HTTPControlPlane{base: u, client: client, silence: silence}, nil
}

// Hello implements [ControlPlane].
func (c *HTTPControlPlane) Hello(ctx context.Context, h automation.Hello) (answer automation.HelloAnswer, err error) {
	return answer, c.call(ctx, "/v1/machine/hello", h, &answer)
}

// Begin implements [ControlPlane].
func (c *HTTPControlPlane) Begin(ctx context.Context, r automation.BeginRequest) (answer automation.BeginAnswer, err error) {
	return answer, c.call(ctx, "/v1/machine/steps/begin", r, &answer)
}

// Finish implements [ControlPlane].
func (c *HTTPControlPlane) Finish(ctx context.Context, r automation.FinishRequest) (answer automation.FinishAnswer, err error) {
	return answer, c.call(ctx, "/v1/machine/steps/finish", r, &answer)
}

// Alive implements [ControlPlane].
func (c *HTTPControlPlane) Alive(ctx context.Context) error {
	var answer struct{}
	return c.call(ctx, "/v1/machine/alive", struct{}{}, &answer)
}

// call posts a request and reads its answer.
func (c *HTTPControlPlane) call(ctx context.Context, path string, request, answer any) error {
	body, err := encode(request)
	if err != nil {
		// Nobody can take it, now or later: that is a refusal, not trouble on the way.
		return &RefusalError{
			Status: http.StatusBadRequest, Code: automation.CodeValidationFailed,
			Message: "the request cannot be encoded: " + err.Error(),
		}
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base.JoinPath(path).String(), bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("making the request %s: %w", path, err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json")
	response, err := c.client.Do(r)
	if err != nil {
		return fmt.Errorf("calling the control plane: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes+1))
	if err != nil {
		return fmt.Errorf("reading the control plane's answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return refusalOf(response.StatusCode, text)
	}
	if len(text) > maxAnswerBytes {
		return fmt.Errorf("the control plane's answer to %s has more than %d bytes", path, maxAnswerBytes)
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("reading the control plane's answer to %s: %w", path, err)
	}
	return nil
}

// refusalOf reads the error envelope. An answer without one did not come from the control plane but from
// something between, and is trouble that passes.
func refusalOf(status int, text []byte) error {
	var envelope struct {
		Error *struct {
			Code    automation.Code `json:"code"`
			Message string          `json:"message"`
		} `json:"error"`
	}
	if err := json.Unmarshal(text, &envelope); err != nil || envelope.Error == nil || envelope.Error.Code == "" {
		return fmt.Errorf("%w (status %d)", ErrNoControlPlane, status)
	}
	return &RefusalError{Status: status, Code: envelope.Error.Code, Message: envelope.Error.Message}
}

// encode returns a value as JSON. Characters that matter to HTML alone stay as they are: escaping them would
// make a result longer than its bound.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// errSilent is why a stream that brought nothing was given up.
var errSilent = errors.New("the event stream was silent for too long")

// Events implements [ControlPlane].
func (c *HTTPControlPlane) Events(ctx context.Context, handle func(automation.Event)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(c.silence, func() { cancel(errSilent) })
	defer silence.Stop()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base.JoinPath("/v1/machine/events").String(), nil)
	if err != nil {
		return fmt.Errorf("making the request for events: %w", err)
	}
	r.Header.Set("Accept", "text/event-stream")
	response, err := c.client.Do(r)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return fmt.Errorf("opening the event stream: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		text, err := io.ReadAll(io.LimitReader(response.Body, maxEventBytes))
		if err != nil {
			return fmt.Errorf("reading the answer to the request for events: %w", err)
		}
		return refusalOf(response.StatusCode, text)
	}
	err = readEvents(heardReader{r: response.Body, heard: func() { silence.Reset(c.silence) }}, handle)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return err
}

// heardReader tells of every read that brought something.
type heardReader struct {
	r     io.Reader
	heard func()
}

func (h heardReader) Read(p []byte) (int, error) {
	n, err := h.r.Read(p)
	if n > 0 {
		h.heard()
	}
	return n, err
}

// readEvents reads server-sent events. An event that this version cannot read is passed over.
func readEvents(r io.Reader, handle func(automation.Event)) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxEventBytes)
	var data strings.Builder
	kind := ""
	for lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case lines.Text() == "":
			event := automation.Event{Kind: automation.EventKind(kind)}
			if kind != "" && (data.Len() == 0 || json.Unmarshal([]byte(data.String()), &event) == nil) {
				event.Kind = automation.EventKind(kind)
				handle(event)
			}
			kind = ""
			data.Reset()
		case field == "event":
			kind = value
		case field == "data":
			if data.Len()+len(value) > maxEventBytes {
				return errors.New("an event is larger than " + strconv.Itoa(maxEventBytes) + " bytes")
			}
			data.WriteString(value)
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return io.EOF
}
