package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/client"
)

// transport answers requests without a network.
type transport func(r *http.Request) (*http.Response, error)

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

func newClient(t transport) *client.Client {
	return &client.Client{
		Endpoint: client.Endpoint{URL: "http://errand.test", Token: "token", Source: "a test"}, HTTP: &http.Client{Transport: t},
	}
}

func reply(status int, body string, header http.Header) transport {
	return func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: status, Status: http.StatusText(status), Header: header, Body: io.NopCloser(strings.NewReader(body))}, nil
	}
}

// TestAServiceThatStandsStill is as good as none, but may have begun with what was asked.
func TestAServiceThatStandsStill(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newClient(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		_, err := c.Call(t.Context(), client.Route{Method: http.MethodGet, Path: "/runs", InQuery: true}, json.RawMessage(`{}`))
		if automation.CodeOf(err) != automation.CodeRuntimeUnavailable || !errors.Is(err, context.DeadlineExceeded) ||
			!strings.Contains(err.Error(), "may be under way") {
			t.Errorf("%v", err)
		}
	})
}

func TestRefusalsPassUnchanged(t *testing.T) {
	t.Parallel()
	c := newClient(reply(429, `{"error":{"code":"rate_limited","message":"slow down"}}`, http.Header{"Retry-After": {"7"}}))
	_, err := c.Call(t.Context(), client.Route{Method: http.MethodPost, Path: "/automations"}, json.RawMessage(`{}`))
	var remote *client.RemoteError
	if !errors.As(err, &remote) || remote.Code != automation.CodeRateLimited || remote.Status != 429 || remote.RetryAfter.Seconds() != 7 {
		t.Errorf("%+v", err)
	}
}

// TestNumbersKeepTheirDigits: what is sent is what was written.
func TestNumbersKeepTheirDigits(t *testing.T) {
	t.Parallel()
	var sent string
	c := newClient(func(r *http.Request) (*http.Response, error) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		sent = r.URL.Path + " " + string(body)
		return reply(200, `{}`, nil)(r)
	})
	_, err := c.Call(t.Context(), client.Route{Method: http.MethodPost, Path: "/automations/{automation_id}/runs"},
		json.RawMessage(`{"automation_id":"a/b","input":12345678901234567890.50}`))
	if err != nil || sent != `/v1/automations/a/b/runs {"input":12345678901234567890.50}` {
		t.Errorf("%s, %v", sent, err)
	}
}
