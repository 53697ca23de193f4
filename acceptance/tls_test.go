//go:build unix

package acceptance_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/apptest"
)

// certificate makes a certificate for 127.0.0.1 that signs itself, and returns it with the files of both halves.
func certificate(t *testing.T) (pair tls.Certificate, certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "errand test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	write(t, certFile, string(certPEM))
	write(t, keyFile, string(keyPEM))
	pair, err = tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	return pair, certFile, keyFile
}

// errandWith runs errand with more variables and returns what it printed.
func errandWith(t *testing.T, env []string, args ...string) (stdout, stderr string, exit int) {
	t.Helper()
	command := exec.CommandContext(t.Context(), filepath.Join(apptest.Binaries(t), "errand"), args...)
	command.Env = append(os.Environ(), env...)
	var out, complaint bytes.Buffer
	command.Stdout, command.Stderr = &out, &complaint
	if err := command.Run(); command.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), complaint.String(), command.ProcessState.ExitCode()
}

// TestMachineBehindAProxy enrols a machine at a control plane behind a proxy that ends TLS, and runs a step on it: the
// machine knows the public address alone.
func TestMachineBehindAProxy(t *testing.T) {
	t.Parallel()
	pair, certFile, _ := certificate(t)
	proxy := httptest.NewUnstartedServer(nil)
	public := "https://" + proxy.Listener.Addr().String()
	s := apptest.New(t, apptest.Options{NoLocalWorker: true, Env: map[string]string{"ERRAND_PUBLIC_URL": public, "ERRAND_BEHIND_PROXY": "1"}})
	s.Restart()
	target, err := url.Parse(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	forward := func(h2 bool) http.Handler {
		transport := &http.Transport{Protocols: new(http.Protocols)}
		transport.Protocols.SetHTTP1(!h2)
		transport.Protocols.SetUnencryptedHTTP2(h2)
		return &httputil.ReverseProxy{Transport: transport, FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host
		}}
	}
	calls, rest := forward(true), forward(false)
	proxy.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
			calls.ServeHTTP(w, r)
			return
		}
		rest.ServeHTTP(w, r)
	})
	proxy.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	proxy.EnableHTTP2 = true
	proxy.StartTLS()
	t.Cleanup(proxy.CloseClientConnections) // those of the worker, which is ended before

	ann := person{t, s, s.Token()}
	var made struct{ Code, Server string }
	ann.call(http.MethodPost, "/v1/machines/enrollment-codes", map[string]any{}, http.StatusCreated, &made)
	if made.Server != public {
		t.Errorf("the code is for %s, want %s", made.Server, public)
	}
	dir := "ERRAND_DATA_DIR=" + t.TempDir()
	enroll := []string{"machine", "enroll", "--server", made.Server, "--code", made.Code}
	if _, complaint, exit := errandWith(t, []string{dir}, enroll...); exit != 3 || !strings.Contains(complaint, "TLS: the control plane's certificate is signed by nobody") {
		t.Errorf("without the authority: %d %s", exit, complaint)
	}
	env := []string{dir, "SSL_CERT_FILE=" + certFile}
	answer, complaint, exit := errandWith(t, env, enroll...)
	var enrolled struct{ Result struct{ MachineID string } }
	if err := json.Unmarshal([]byte(answer), &enrolled); exit != 0 || err != nil {
		t.Fatalf("enrolling: %d %s %v", exit, complaint, err)
	}
	work := exec.CommandContext(t.Context(), filepath.Join(apptest.Binaries(t), "errand"), "worker")
	work.Env = append(os.Environ(), env...)
	var log bytes.Buffer
	work.Stderr = &log
	if err := work.Start(); err != nil {
		t.Fatal(err)
	}
	run := admitOn(ann, &device{t: t, id: enrolled.Result.MachineID})
	s.WaitRun(run.ID, automation.RunCompleted)
	if err := work.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := work.Wait(); err != nil {
		t.Errorf("the worker: %v\n%s", err, &log)
	}
}

// TestTLSByFiles runs a step through an errandd that serves TLS itself; its worker trusts what its environment says.
func TestTLSByFiles(t *testing.T) {
	t.Parallel()
	_, certFile, keyFile := certificate(t)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	_ = free.Close()
	dir := t.TempDir()
	env := []string{"ERRAND_DATA_DIR=" + dir, "SSL_CERT_FILE=" + certFile}
	// It outlives the context of the test, to be stopped in order.
	daemon := exec.CommandContext(context.WithoutCancel(t.Context()), filepath.Join(apptest.Binaries(t), "errandd"))
	daemon.Env = append(os.Environ(), append(env, "ERRAND_LISTEN="+address, "ERRAND_TLS_CERT_FILE="+certFile, "ERRAND_TLS_KEY_FILE="+keyFile)...)
	var log bytes.Buffer
	daemon.Stderr = &log
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = daemon.Process.Signal(os.Interrupt) // which drains the worker too
		if err := daemon.Wait(); err != nil {
			t.Errorf("errandd: %v\n%s", err, &log)
		}
	})
	apptest.Eventually(t, patience, "errandd serves", func() (string, bool) {
		_, complaint, exit := errandWith(t, env, "list")
		return complaint, exit == 0
	})
	answer, complaint, exit := errandWith(t, env, "create", "--input", `{"name":"Hello","workflow":{"compiled":{"version":2,"steps":[{"id":"a","kind":"command","command":"true"}]}}}`)
	var created struct{ Result struct{ ID string } }
	if err := json.Unmarshal([]byte(answer), &created); exit != 0 || err != nil {
		t.Fatalf("create: %d %s %v", exit, complaint, err)
	}
	answer, complaint, exit = errandWith(t, env, "run-now", "--input", `{"automation_id":"`+created.Result.ID+`","wait_ms":50000}`)
	if exit != 0 || !strings.Contains(answer, `"status":"completed"`) {
		t.Errorf("run-now: %d %s %s", exit, answer, complaint)
	}
	content, err := os.ReadFile(filepath.Join(dir, "server.json"))
	if err != nil || !strings.Contains(string(content), "https://"+address) {
		t.Errorf("server.json says %s, %v", content, err)
	}
}
