package embedded_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"

	"github.com/errandhq/errand/internal/embedded"
)

// patience bounds every wait of these tests. It is long because it only ends those that have failed.
const patience = 60 * time.Second

// childDir names the directory of a server to run, in place of the tests, until the end of standard input.
const childDir = "ERRAND_TEST_EMBEDDED_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		if err := runChild(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// runChild runs a server with one open workflow and its web interface, and says so on standard output.
func runChild(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	server, err := embedded.Start(ctx, embedded.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	c, err := client.Dial(clientOptions(server))
	if err != nil {
		return err
	}
	if _, err := c.ExecuteWorkflow(ctx, openWorkflow("of-child"), "Nothing"); err != nil {
		return err
	}
	c.Close()
	ui, err := server.UI("/temporal")
	if err != nil {
		return err
	}
	answer := httptest.NewRecorder()
	ui.ServeHTTP(answer, httptest.NewRequestWithContext(ctx, http.MethodGet, "/temporal/api/v1/namespaces", http.NoBody))
	if answer.Code != http.StatusOK {
		return fmt.Errorf("the web interface answers with %d: %s", answer.Code, answer.Body)
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// startChild runs a server in another process, which has an open workflow "of-child" when this returns.
func startChild(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childDir+"="+dir)
	child.Stderr = os.Stderr
	input, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = input.Close()
		_ = child.Process.Kill()
		_ = child.Wait()
	})
	if line, err := bufio.NewReader(output).ReadString('\n'); err != nil || strings.TrimSpace(line) != "ready" {
		t.Fatalf("the child process said %q (%v) instead of ready", line, err)
	}
	return child
}

// crash ends a child as a crash of the machine would, without a word to its server.
func crash(t *testing.T, child *exec.Cmd) {
	t.Helper()
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// start runs a server until the end of the test.
func start(t *testing.T, o embedded.Options) *embedded.Server {
	t.Helper()
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	server, err := embedded.Start(testContext(t), o)
	if err != nil {
		t.Fatalf("starting: %v", err)
	}
	t.Cleanup(server.Stop)
	return server
}

func clientOptions(server *embedded.Server) client.Options {
	return client.Options{
		HostPort:          server.HostPort(),
		Namespace:         server.Namespace(),
		ConnectionOptions: client.ConnectionOptions{TLS: server.TLS()},
		Logger:            sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)),
	}
}

func dial(t *testing.T, server *embedded.Server) client.Client {
	t.Helper()
	c, err := client.DialContext(testContext(t), clientOptions(server))
	if err != nil {
		t.Fatalf("dialling: %v", err)
	}
	t.Cleanup(c.Close)
	return c
}

// openWorkflow describes a workflow that no worker will ever take up.
func openWorkflow(id string) client.StartWorkflowOptions {
	return client.StartWorkflowOptions{ID: id, TaskQueue: "nobody"}
}

// eventually waits for a condition and fails the test when it does not come.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline.C:
			t.Fatalf("did not happen in %s: %s", patience, what)
		case <-tick.C:
		}
	}
}
