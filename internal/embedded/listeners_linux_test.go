package embedded_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/errandhq/errand/internal/embedded"
)

// socketInodes lists the sockets that a process has open.
func socketInodes(t *testing.T, pid int) []string {
	t.Helper()
	descriptors, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil || len(descriptors) == 0 {
		t.Fatalf("no descriptors of process %d (%v)", pid, err)
	}
	var inodes []string
	for _, descriptor := range descriptors {
		target, err := os.Readlink(descriptor)
		if inode, ok := strings.CutPrefix(target, "socket:["); err == nil && ok {
			inodes = append(inodes, strings.TrimSuffix(inode, "]"))
		}
	}
	return inodes
}

// receivers lists the sockets of a process that take in what they did not ask for: listening TCP and all UDP sockets.
func receivers(t *testing.T, pid int) (addresses []netip.AddrPort) {
	t.Helper()
	const listening = "0A"
	inodes := socketInodes(t, pid)
	for _, protocol := range []string{"tcp", "tcp6", "udp", "udp6"} {
		table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, protocol))
		if errors.Is(err, os.ErrNotExist) {
			continue // a kernel without IPv6
		}
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(table)) {
			fields := strings.Fields(line)
			if len(fields) < 10 || !slices.Contains(inodes, fields[9]) {
				continue
			}
			if strings.HasPrefix(protocol, "udp") || fields[3] == listening {
				addresses = append(addresses, parseAddress(t, fields[1]))
			}
		}
	}
	return addresses
}

// parseAddress reads the kernel's notation: the address as 32-bit words of little-endian hex, a colon and the port.
func parseAddress(t *testing.T, s string) netip.AddrPort {
	t.Helper()
	host, port, _ := strings.Cut(s, ":")
	var address []byte
	for word := range slices.Chunk([]byte(host), 8) {
		value, err := strconv.ParseUint(string(word), 16, 32)
		if err != nil {
			t.Fatal(err)
		}
		address = append(address, byte(value), byte(value>>8), byte(value>>16), byte(value>>24))
	}
	ip, ok := netip.AddrFromSlice(address)
	number, err := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil {
		t.Fatalf("unreadable address %q", s)
	}
	return netip.AddrPortFrom(ip, uint16(number))
}

func TestReceiversAreLoopbackAndClosedToStrangers(t *testing.T) {
	t.Parallel()
	child := startChild(t, t.TempDir())
	addresses := receivers(t, child.Process.Pid)
	// frontend, history, matching and worker: no metrics, no pprof, no HTTP API, no membership, no web interface
	if len(addresses) != 4 {
		t.Errorf("%d listening sockets, want 4: %v", len(addresses), addresses)
	}
	for _, address := range addresses {
		if !address.Addr().IsLoopback() {
			t.Errorf("%s is not a loopback address", address)
		}
		checkClosed(t, address.String())
	}
}

// How a server says no in a TLS handshake, in the words of crypto/tls.
const (
	unknownAuthority    = "remote error: tls: unknown certificate authority"
	certificateRequired = "remote error: tls: certificate required"
)

// checkClosed fails the test unless a listener demands a client certificate of its own authority.
func checkClosed(t *testing.T, address string) {
	t.Helper()
	if err := describe(testContext(t), address, insecure.NewCredentials()); status.Code(err) != codes.Unavailable {
		t.Errorf("%s answers without TLS: %v", address, err)
	}
	plain, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = plain.Close() }()
	_ = plain.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(plain, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if answer, _ := io.ReadAll(plain); bytes.Contains(answer, []byte("HTTP/")) {
		t.Errorf("%s answers plain HTTP: %q", address, answer)
	}
	stranger := strangersCertificate(t)
	for name, c := range map[string]struct {
		certificate *tls.Certificate
		want        string
	}{
		"without a certificate": {new(tls.Certificate), certificateRequired},
		"with a stranger's":     {&stranger, unknownAuthority},
	} {
		config := &tls.Config{
			InsecureSkipVerify:   true,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.certificate, nil },
		}
		if got := refusal(t, address, config); got != c.want {
			t.Errorf("%s %s: %q, want %q", address, name, got, c.want)
		}
	}
}

// refusal connects and returns what the server says. In TLS 1.3 a client learns that at its first read.
func refusal(t *testing.T, address string, config *tls.Config) string {
	t.Helper()
	config.NextProtos = []string{"h2"}
	dialer := &tls.Dialer{Config: config}
	conn, err := dialer.DialContext(testContext(t), "tcp", address)
	if err == nil {
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(patience))
		_, err = conn.Read(make([]byte, 1))
	}
	if err == nil {
		return "accepted"
	}
	return err.Error()
}

func strangersCertificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotBefore:    time.Unix(0, 0),
		NotAfter:     time.Now().Add(time.Hour),
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func describe(ctx context.Context, address string, creds credentials.TransportCredentials) error {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(creds))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_, err = workflowservice.NewWorkflowServiceClient(conn).GetSystemInfo(ctx, &workflowservice.GetSystemInfoRequest{})
	return err
}

// The certificates of one start are worth nothing at another, also not to its own client.
func TestCertificatesAreOfOneStart(t *testing.T) {
	t.Parallel()
	a, b := start(t, embedded.Options{Dir: t.TempDir()}), start(t, embedded.Options{Dir: t.TempDir()})
	if err := describe(testContext(t), a.HostPort(), credentials.NewTLS(a.TLS())); err != nil {
		t.Errorf("the server refuses its own client: %v", err)
	}
	if err := describe(testContext(t), a.HostPort(), credentials.NewTLS(b.TLS())); status.Code(err) != codes.Unavailable {
		t.Errorf("a client of another start got through: %v", err)
	}
	trusting := b.TLS()
	trusting.InsecureSkipVerify = true
	if got := refusal(t, a.HostPort(), trusting); got != unknownAuthority {
		t.Errorf("a client of another start that trusts everyone: %q, want %q", got, unknownAuthority)
	}
}

func TestStopClosesEverything(t *testing.T) {
	t.Parallel()
	server := start(t, embedded.Options{Dir: t.TempDir()})
	done := make(chan struct{})
	go func() {
		defer close(done)
		server.Stop()
	}()
	server.Stop()
	<-done
	if conn, err := net.Dial("tcp", server.HostPort()); err == nil {
		_ = conn.Close()
		t.Error("the frontend still listens after Stop")
	}
}
