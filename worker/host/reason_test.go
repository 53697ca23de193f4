package host_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/worker/host"
)

// TestReason makes real trouble and looks at what a person is told of it.
func TestReason(t *testing.T) {
	t.Parallel()
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = nil
	secure.StartTLS()
	t.Cleanup(secure.Close)
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	trusting := x509.NewCertPool()
	trusting.AddCert(secure.Certificate())
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()

	hello := func(address string, config *tls.Config, timeout time.Duration) error {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: config}}
		control, err := host.NewControlPlane(address, client, 0)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		_, err = control.Hello(ctx, automation.Hello{})
		return err
	}
	late := func() time.Time { return time.Now().Add(200 * 365 * 24 * time.Hour) }
	tests := map[string]struct {
		err  error
		want string
	}{
		"unknown authority": {hello(secure.URL, nil, patience), "signed by nobody whom this machine trusts"},
		"another name":      {hello(secure.URL, &tls.Config{RootCAs: trusting, ServerName: "errand.test"}, patience), "for another name"},
		"expired":           {hello(secure.URL, &tls.Config{RootCAs: trusting, Time: late}, patience), "has expired"},
		"https to http":     {hello(strings.Replace(plain.URL, "http:", "https:", 1), nil, patience), "speaks plain HTTP"},
		"http to https":     {hello(strings.Replace(secure.URL, "https:", "http:", 1), nil, patience), "not a control plane"},
		"another server":    {hello(plain.URL, nil, patience), "not a control plane"},
		"nobody":            {hello("http://"+closed.Addr().String(), nil, patience), "nothing listens"},
		"no answer":         {hello("http://"+silent.Addr().String(), nil, 50*time.Millisecond), "does not answer in time"},
		"no such name":      {hello("http://errand.invalid", nil, patience), `the name "errand.invalid" cannot be resolved`},
		"revoked": {
			&host.RefusalError{Status: 409, Code: automation.CodeMachineRevoked, Message: "x"}, "was revoked: enrol it again",
		},
		"clock": {
			&host.RefusalError{Status: 401, Code: automation.CodeUnauthorized, Message: "the machine's clock is 5m0s behind the server's"}, "clock is 5m0s behind",
		},
		"second instance": {
			&host.RefusalError{Status: 403, Code: automation.CodeForbidden, Message: "worked by another worker, on host attic"}, "refuses this machine: worked by another worker, on host attic",
		},
		"anything else": {errors.New("EOF"), "broke: EOF"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := host.Reason(test.err); !strings.Contains(got, test.want) {
				t.Errorf("%q, want %q (of %v)", got, test.want, test.err)
			}
		})
	}
}
