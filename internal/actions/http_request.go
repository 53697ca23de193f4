package actions

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/strictjson"
)

// HTTPRequestID is the id of the action that sends one HTTP request.
const HTTPRequestID = "http.request"

const (
	// maxResponseBytes is how much of a response's body is kept.
	maxResponseBytes = 256 << 10
	// maxRedirects is how many redirects are followed, where the policy follows any.
	maxRedirects = 10
	// maxQuotedBody is how many bytes of an unwanted response are shown in the error.
	maxQuotedBody = 500

	handshakePatience = 15 * time.Second
)

// Credential is something that the machine may present to a service on behalf of a plan, which knows its name
// only.
type Credential interface {
	// HeaderName is the header that carries it.
	HeaderName() string
	// Resolve returns the header's value.
	Resolve() (string, error)
	// Allows reports whether it may be sent to an address.
	Allows(u *url.URL) bool
}

// HTTPPolicy says what http.request may do on this machine.
type HTTPPolicy struct {
	// Redirects is none, same-host or any; empty means same-host.
	Redirects string
	// RefusePrivate refuses this machine and private networks.
	RefusePrivate bool
	// Credential finds a credential by its name; it may be nil.
	Credential func(name string) (Credential, bool)
	// Proxy names the proxy for a request, as [http.ProxyFromEnvironment] does; nil means none. What a proxy
	// connects to is the proxy's business: only addresses that the URL spells out are refused then.
	Proxy func(*http.Request) (*url.URL, error)
	// TLS is the TLS configuration of connections; nil means the system's.
	TLS *tls.Config
	// Now measures how long a request takes; it is required.
	Now func() time.Time
}

// httpInput is the input of the action.
type httpInput struct {
	Method  string            `json:"method"`
	URL     string            `json:"url" strict:"required"`
	Headers map[string]string `json:"headers"`
	// JSON and Body exclude each other.
	JSON json.RawMessage `json:"json"`
	Body *string         `json:"body"`
	// ExpectedStatus lists the statuses that are a success; none means 200 to 299.
	ExpectedStatus []int `json:"expectedStatus"`
}

// httpResult is the result of the action. A JSON body that was kept whole is in JSON, any other in Body.
type httpResult struct {
	Status        int               `json:"status"`
	URL           string            `json:"url"`
	Headers       map[string]string `json:"headers"`
	JSON          json.RawMessage   `json:"json,omitempty"`
	Body          *string           `json:"body,omitempty"`
	BodyBytes     int64             `json:"bodyBytes"`
	BodyTruncated bool              `json:"bodyTruncated"`
	DurationMs    int64             `json:"durationMs"`
}

// requester executes http.request.
type requester struct {
	policy    HTTPPolicy
	transport *http.Transport
	proxies   sync.Map // host:port of each proxy that was named
}

// HTTPRequest returns the action http.request: one request, whose response must have an expected status. The
// request carries the step's key in the header Idempotency-Key, unless the plan sets that header, so that a
// service which knows it executes a repeated request once. The first 256 KiB of the response are kept and all
// of it is counted.
//
// A status that is not expected is action_unauthorized for 401 and 403, else action_failed. Trouble on the way,
// also after the request was sent, is transport_unavailable, so the request may be sent again.
func HTTPRequest(policy HTTPPolicy) Action {
	r := &requester{policy: policy}
	r.transport = &http.Transport{
		Proxy:               r.proxy,
		DialContext:         r.dial,
		TLSClientConfig:     policy.TLS,
		TLSHandshakeTimeout: handshakePatience,
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: 2,
		IdleConnTimeout:     time.Minute,
		// Bytes are counted as they come, and a small response cannot unfold into a large one.
		DisableCompression: true,
	}
	return Action{ID: HTTPRequestID, Run: r.run}
}

func (r *requester) run(ctx context.Context, step automation.ConcreteStep) (json.RawMessage, error) {
	in, err := decodeHTTPInput(step.Input)
	if err != nil {
		return nil, err
	}
	credential, err := r.credential(step, in)
	if err != nil {
		return nil, err
	}
	request, err := newRequest(ctx, step, in)
	if err != nil {
		return nil, err
	}
	client := &http.Client{
		Transport:     &guardedTransport{base: r.transport, credential: credential, refusePrivate: r.policy.RefusePrivate},
		CheckRedirect: r.checkRedirect,
	}
	started := r.policy.Now()
	response, err := client.Do(request)
	if err != nil {
		return nil, explainRequest(ctx, in, err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := readBody(response.Body)
	if err != nil {
		return nil, explainRequest(ctx, in, err)
	}
	if err := in.checkStatus(response, body); err != nil {
		return nil, err
	}
	result := httpResult{
		Status: response.StatusCode, URL: response.Request.URL.Redacted(), Headers: flatten(response.Header),
		BodyBytes: body.total, BodyTruncated: body.truncated(), DurationMs: r.policy.Now().Sub(started).Milliseconds(),
	}
	body.showIn(&result, response.Header.Get("Content-Type"))
	return strictjson.Marshal(result)
}

func decodeHTTPInput(input json.RawMessage) (httpInput, error) {
	in := httpInput{Method: http.MethodGet}
	violations := strictjson.Unmarshal(input, &in)
	if len(violations) == 0 {
		violations = in.check()
	}
	if len(violations) > 0 {
		return httpInput{}, invalidInput(HTTPRequestID, violations)
	}
	in.Method = strings.ToUpper(in.Method)
	return in, nil
}

// managedHeaders belong to the connection or are derived from the request.
var managedHeaders = []string{
	"Host", "Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive", "Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Upgrade",
}

func (in httpInput) check() []strictjson.Violation {
	var found []strictjson.Violation
	report := func(path, message string) {
		found = append(found, strictjson.Violation{Path: path, Message: message})
	}
	if !isToken(in.Method) || strings.EqualFold(in.Method, http.MethodConnect) {
		report("method", "must be a method such as GET or POST")
	}
	u, err := url.Parse(in.URL)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		report("url", "must be an address that begins with http:// or https://")
	case u.User != nil:
		report("url", "must not hold a name or password: name a credential of machine.yaml in the step")
	}
	for name, value := range in.Headers {
		path := strictjson.PathMember("headers", name)
		switch {
		case !isToken(name) || strings.ContainsFunc(value, isControl):
			report(path, "is no header: a name and one line of text")
		case slices.Contains(managedHeaders, http.CanonicalHeaderKey(name)):
			report(path, "cannot be set: it follows from the request")
		}
	}
	if in.JSON != nil && in.Body != nil {
		report("body", "cannot stand beside json: a request has one body")
	}
	for i, status := range in.ExpectedStatus {
		if status < 200 || status > 599 {
			report(strictjson.PathElement("expectedStatus", i), "must be from 200 to 599")
		}
	}
	return found
}

func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune("\"(),/:;<=>?@[\\]{}", r)
	})
}

func isControl(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

// credential returns the one that the step names, or nil.
func (r *requester) credential(step automation.ConcreteStep, in httpInput) (Credential, error) {
	if step.Credential == "" {
		return nil, nil //nolint:nilnil // no credential was asked for
	}
	var found Credential
	ok := false
	if r.policy.Credential != nil {
		found, ok = r.policy.Credential(step.Credential)
	}
	if !ok {
		return nil, failed("this machine has no credential %q: it is named in machine.yaml", step.Credential)
	}
	if u, err := url.Parse(in.URL); err != nil || !found.Allows(u) {
		return nil, failed("the credential %q may not be sent to %s: machine.yaml says to which hosts it may", step.Credential, in.URL)
	}
	return found, nil
}

func newRequest(ctx context.Context, step automation.ConcreteStep, in httpInput) (*http.Request, error) {
	var body io.Reader
	contentType := ""
	switch {
	case in.JSON != nil:
		body, contentType = bytes.NewReader(in.JSON), "application/json"
	case in.Body != nil:
		body, contentType = strings.NewReader(*in.Body), "text/plain; charset=utf-8"
	}
	request, err := http.NewRequestWithContext(ctx, in.Method, in.URL, body)
	if err != nil {
		return nil, failed("the request cannot be made: %v", err)
	}
	request.Header.Set("User-Agent", "errand")
	request.Header.Set("Idempotency-Key", step.IdempotencyKey())
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	for name, value := range in.Headers {
		request.Header.Set(name, value)
	}
	return request, nil
}

// guardedTransport refuses addresses that may not be reached, and adds a credential to each request to a host that it may be sent to, and so never to
// where a redirect leads.
type guardedTransport struct {
	base          http.RoundTripper
	credential    Credential
	refusePrivate bool
}

// credentialError tells that a credential cannot be used.
type credentialError struct{ err error }

func (e *credentialError) Error() string { return e.err.Error() }

// RoundTrip sends one request, which may be the first one or come from a redirect.
func (t *guardedTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	if addr, err := netip.ParseAddr(request.URL.Hostname()); err == nil {
		// A proxy would not be asked about it by the check of connections.
		if err := checkAddress(addr, t.refusePrivate); err != nil {
			return nil, err
		}
	}
	if t.credential == nil || !t.credential.Allows(request.URL) {
		return t.base.RoundTrip(request)
	}
	value, err := t.credential.Resolve()
	if err != nil {
		return nil, &credentialError{err}
	}
	request = request.Clone(request.Context())
	request.Header.Set(t.credential.HeaderName(), value)
	return t.base.RoundTrip(request)
}

// checkRedirect decides whether a redirect is followed; one that is not becomes the response.
func (r *requester) checkRedirect(request *http.Request, via []*http.Request) error {
	follow := false
	switch r.policy.Redirects {
	case "", "same-host":
		follow = sameHost(via[0].URL, request.URL)
	case "any":
		follow = true
	}
	switch {
	case !follow:
		return http.ErrUseLastResponse
	case len(via) > maxRedirects:
		return &policyError{fmt.Sprintf("more than %d redirects", maxRedirects)}
	}
	return nil
}

// sameHost reports whether b is at the host and port of a, or is its encrypted form.
func sameHost(a, b *url.URL) bool {
	if !strings.EqualFold(a.Hostname(), b.Hostname()) {
		return false
	}
	if a.Scheme == b.Scheme {
		return portOf(a) == portOf(b)
	}
	return a.Scheme == "http" && b.Scheme == "https" && portOf(a) == "80" && portOf(b) == "443"
}

func portOf(u *url.URL) string {
	if port := u.Port(); port != "" {
		return port
	}
	if u.Scheme == "https" {
		return "443"
	}
	return "80"
}

// checkStatus returns the error of a response whose status is not expected.
func (in httpInput) checkStatus(response *http.Response, body *responseBody) error {
	status := response.StatusCode
	expected := status >= 200 && status <= 299
	if len(in.ExpectedStatus) > 0 {
		expected = slices.Contains(in.ExpectedStatus, status)
	}
	if expected {
		return nil
	}
	message := fmt.Sprintf("%s %s answered %s", in.Method, response.Request.URL.Redacted(), response.Status)
	if location := response.Header.Get("Location"); location != "" && status/100 == 3 {
		message += fmt.Sprintf(", a redirect to %.300s that this machine's policy does not follow", location)
	}
	if quoted := strings.TrimSpace(shown(body.kept[:min(len(body.kept), maxQuotedBody)])); quoted != "" {
		message += ": " + quoted
	}
	code := automation.StepErrActionFailed
	if status == http.StatusUnauthorized || status == http.StatusForbidden {
		code = automation.StepErrActionUnauthorized
	}
	return &automation.StepError{Code: code, Message: message}
}

// explainRequest says what the failure of a request means.
func explainRequest(ctx context.Context, in httpInput, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if urlErr, ok := errors.AsType[*url.Error](err); ok {
		err = urlErr.Err // the request is named below
	}
	message := fmt.Sprintf("%s %s: %v", in.Method, in.URL, err)
	final := false
	if refused, ok := errors.AsType[*policyError](err); ok {
		message, final = fmt.Sprintf("%s %s is refused: %s", in.Method, in.URL, refused.reason), true
	}
	if _, ok := errors.AsType[*credentialError](err); ok {
		final = true
	}
	// A certificate that is not trusted stays so.
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		final = true
	}
	code := automation.StepErrTransportUnavailable
	if final {
		code = automation.StepErrActionFailed
	}
	return &automation.StepError{Code: code, Message: message}
}

// responseBody is what was kept of a body, and how long it was.
type responseBody struct {
	kept  []byte
	total int64
}

func readBody(r io.Reader) (*responseBody, error) {
	kept, err := io.ReadAll(io.LimitReader(r, maxResponseBytes))
	if err != nil {
		return nil, fmt.Errorf("reading the response: %w", err)
	}
	rest, err := io.Copy(io.Discard, r)
	if err != nil {
		return nil, fmt.Errorf("reading the response: %w", err)
	}
	return &responseBody{kept: kept, total: int64(len(kept)) + rest}, nil
}

func (b *responseBody) truncated() bool { return b.total > int64(len(b.kept)) }

// showIn puts the body into a result: as JSON if it is that, else as text.
func (b *responseBody) showIn(result *httpResult, contentType string) {
	kind, _, _ := mime.ParseMediaType(contentType)
	isJSON := kind == "application/json" || strings.HasSuffix(kind, "+json")
	// A NUL in a string cannot be stored everywhere.
	if isJSON && !b.truncated() && !bytes.Contains(b.kept, []byte(`\u0000`)) {
		if compact, violations := strictjson.Compact(b.kept); len(violations) == 0 {
			result.JSON = compact
			return
		}
	}
	kept := b.kept
	if b.truncated() {
		kept = trimPartialRune(kept)
	}
	text := shown(kept)
	result.Body = &text
}

// trimPartialRune drops the start of a character whose rest was cut off.
func trimPartialRune(b []byte) []byte {
	for i := len(b) - 1; i >= 0 && i >= len(b)-utf8.UTFMax+1; i-- {
		if utf8.RuneStart(b[i]) {
			if !utf8.FullRune(b[i:]) {
				return b[:i]
			}
			break
		}
	}
	return b
}

// shown returns text as valid UTF-8 without NUL.
func shown(b []byte) string {
	return strings.ReplaceAll(string(bytes.ToValidUTF8(b, []byte("\uFFFD"))), "\x00", "␀")
}

func flatten(h http.Header) map[string]string {
	flat := make(map[string]string, len(h))
	for name, values := range h {
		flat[strings.ToLower(name)] = shown([]byte(strings.Join(values, ", ")))
	}
	return flat
}
