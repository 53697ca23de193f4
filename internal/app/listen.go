package app

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/errandhq/errand/internal/gateway"
)

// listen opens the one address, so that a port that is taken stops the start before anything else runs.
func (a *App) listen(ctx context.Context) error {
	certificates, err := a.tlsConfig()
	if err != nil {
		return err
	}
	var listening net.ListenConfig
	listener, err := listening.Listen(ctx, "tcp", a.settings.Listen)
	if err != nil {
		return fmt.Errorf("ERRAND_LISTEN=%s cannot be used; stop what uses it, or set another address: %w", a.settings.Listen, err)
	}
	scheme := "http"
	if certificates != nil {
		scheme = "https"
		listener = tls.NewListener(listener, certificates)
	}
	a.listener = listener
	a.publicURL = a.settings.PublicURL
	if a.publicURL == "" {
		a.publicURL = scheme + "://" + listener.Addr().String()
	}
	return nil
}

// localURL is the address under which programs of this machine reach the listener. With TLS it is the public
// one, which is the one that the certificate names.
func (a *App) localURL() string {
	if a.settings.TLSCertFile != "" {
		return a.publicURL
	}
	address := a.listener.Addr().String()
	if host, port, err := net.SplitHostPort(address); err == nil {
		if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
			address = net.JoinHostPort("127.0.0.1", port)
		}
	}
	return "http://" + address
}

// baseURLs are the addresses that callers may have been told, and therefore sign.
func (a *App) baseURLs() []string {
	if a.localURL() == a.publicURL {
		return []string{a.publicURL}
	}
	return []string{a.publicURL, a.localURL()}
}

// allowedHosts are the values of the Host header that are served.
func (a *App) allowedHosts() []string {
	hosts := append([]string{a.listener.Addr().String()}, a.settings.AllowedHosts...)
	if a.settings.Loopback() {
		hosts = append(hosts, "localhost", "127.0.0.1", "[::1]", "::1")
	}
	for _, base := range a.baseURLs() {
		if address, err := url.Parse(base); err == nil {
			hosts = append(hosts, address.Host)
		}
	}
	return hosts
}

const (
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 64 << 10
	// pingAfter and pingTimeout find a dead peer of a long poll before a task is sent into it.
	pingAfter   = 5 * time.Second
	pingTimeout = 5 * time.Second
)

// newHTTPServer serves the API and, by content type, the gateway. It has no write timeout, which would cut
// long polls and event streams.
func newHTTPServer(api http.Handler, machines *gateway.Gateway, logger *slog.Logger) *http.Server {
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if gateway.IsGRPC(r) {
				machines.ServeHTTP(w, r)
				return
			}
			api.ServeHTTP(w, r)
		}),
		Protocols:         protocols,
		HTTP2:             &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
}
