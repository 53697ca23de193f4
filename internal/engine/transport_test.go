package engine_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"go.temporal.io/sdk/client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/engine"
)

// selfSigned is a certificate of 127.0.0.1 that no authority vouches for.
func selfSigned(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// TestWhatTransportNeeds makes each mistake with TLS that an operator can make, and reads what to do about it.
func TestWhatTransportNeeds(t *testing.T) {
	t.Parallel()
	certificate := selfSigned(t)
	tests := map[string]struct {
		server, client *tls.Config
		want           string
	}{
		"TLS is missing here": {
			server: &tls.Config{Certificates: []tls.Certificate{certificate}}, want: "set TEMPORAL_TLS=true",
		},
		"TLS is missing there": {client: &tls.Config{}, want: "unset TEMPORAL_TLS"},
		"unknown authority": {
			server: &tls.Config{Certificates: []tls.Certificate{certificate}}, client: &tls.Config{},
			want: "TEMPORAL_TLS_SERVER_CA_CERT_PATH",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var options []grpc.ServerOption
			if tt.server != nil {
				options = append(options, grpc.Creds(credentials.NewTLS(tt.server)))
			}
			server := grpc.NewServer(options...)
			go server.Serve(listener)
			t.Cleanup(server.Stop)
			e, err := engine.New(engine.Options{
				Client: client.Options{
					HostPort: listener.Addr().String(), ConnectionOptions: client.ConnectionOptions{TLS: tt.client},
				},
				InstallationID: "installation", Logger: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(e.Close)
			err = e.Connect(t.Context())
			if automation.CodeOf(err) != automation.CodeEngineUnavailable || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want advice with %q", err, tt.want)
			}
		})
	}
}
