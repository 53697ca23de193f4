package mcpserver_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/errandhq/errand/api"
	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/catalog"
	"github.com/errandhq/errand/internal/logtest"
	"github.com/errandhq/errand/internal/mcpserver"
	"github.com/errandhq/errand/internal/notify"
	"github.com/errandhq/errand/internal/store"
	"github.com/errandhq/errand/internal/strictjson"
)

const userToken = "user-token"

// world is the server over a real ledger, mounted by the real API.
type world struct {
	principal catalog.Principal
	tools     *mcpserver.Server
	http      *httptest.Server
	log       *logtest.Buffer
}

// engine starts nothing: no machine executes here.
type engine struct{}

func (engine) Admitted(string)                  {}
func (engine) Cancelled(automation.Run, string) {}
func (engine) Up() bool                         { return true }

type users struct{ w *world }

func (u users) Local(token string) bool { return token == userToken }

func (u users) User(_ context.Context, token string) (catalog.Principal, error) {
	if token != userToken {
		return catalog.Principal{}, automation.Errorf(automation.CodeUnauthorized, "bad token")
	}
	return u.w.principal, nil
}

type machines struct{}

func (machines) AuthenticateMachine(context.Context, automation.Credential) (automation.Machine, error) {
	return automation.Machine{}, automation.Errorf(automation.CodeUnauthorized, "bad proof")
}

func (machines) IssueToken(context.Context, automation.Credential) (automation.TokenAnswer, error) {
	return automation.TokenAnswer{}, automation.Errorf(automation.CodeUnauthorized, "bad proof")
}

func (machines) Received(string, int) {}

func (machines) Enroll(context.Context, automation.EnrollRequest) (automation.Machine, error) {
	return automation.Machine{}, automation.Errorf(automation.CodeUnauthorized, "bad code")
}

func newID() string { return uuid.Must(uuid.NewV7()).String() }

// newWorld starts everything with one machine in the ledger.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{log: &logtest.Buffer{}}
	logger := slog.New(slog.NewTextHandler(w.log, nil))
	changes := notify.New()
	ledger, err := store.Open(t.Context(), store.Options{
		URL: filepath.Join(t.TempDir(), "errand.db"), Now: time.Now, NewID: newID, Logger: logger,
		OnRunChange: func(runID, _ string) { changes.Notify(runID) },
	})
	if err != nil {
		t.Fatal(err)
	}
	install, err := ledger.Installation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.principal = catalog.Principal{OwnerID: install.LocalOwnerID, Scope: automation.ScopeAdmin}
	if _, err := ledger.EnrollMachine(t.Context(), automation.NewMachine{
		OwnerID: install.LocalOwnerID, Name: "laptop", Platform: "linux/amd64", PublicKey: `{"kty":"OKP"}`,
	}); err != nil {
		t.Fatal(err)
	}
	service := &catalog.Service{Ledger: ledger, Engine: engine{}, Changes: changes, Now: time.Now}
	w.tools = mcpserver.New(mcpserver.Options{Version: "test", Logger: logger, Call: inProcess(service)})
	served, err := api.New(api.Options{
		Service: service, MCP: w.tools.Handler(16), Users: users{w}, Machines: machines{}, Ledger: ledger,
		InstallationID: install.ID, Namespace: "errand", AllowedHosts: []string{"127.0.0.1", "errand.example.com"},
		Ready: ledger.Ping, Version: "test", Now: time.Now, NewID: newID, Logger: logger,
	})
	if err != nil {
		t.Fatal(err)
	}
	w.http = httptest.NewServer(served)
	t.Cleanup(func() {
		w.http.Close()
		if err := ledger.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func inProcess(service *catalog.Service) mcpserver.Caller {
	return func(ctx context.Context, command catalog.Command, input json.RawMessage) (json.RawMessage, error) {
		result, err := command.Execute(ctx, service, catalog.PrincipalOf(ctx), input)
		if err != nil {
			return nil, err
		}
		return strictjson.Marshal(result)
	}
}

// authorized adds the token of the user to requests.
type authorized struct{}

func (authorized) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+userToken)
	return http.DefaultTransport.RoundTrip(r)
}

// overHTTP connects a client to the API's route.
func (w *world) overHTTP(t *testing.T) *mcp.ClientSession {
	t.Helper()
	return connect(t, &mcp.StreamableClientTransport{
		Endpoint: w.http.URL + "/mcp/automations", HTTPClient: &http.Client{Transport: authorized{}},
	})
}

// overStdio connects a client over a pair of pipes.
func (w *world) overStdio(t *testing.T) *mcp.ClientSession {
	t.Helper()
	toServer, fromClient := io.Pipe()
	toClient, fromServer := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- w.tools.ServeStdio(catalog.WithPrincipal(context.WithoutCancel(t.Context()), w.principal), toServer, fromServer)
	}()
	t.Cleanup(func() {
		_ = fromClient.Close()
		if err := <-ended; err != nil {
			t.Errorf("the end of the input is no error: %v", err)
		}
	})
	return connect(t, &mcp.IOTransport{Reader: toClient, Writer: fromClient})
}

func connect(t *testing.T, transport mcp.Transport) *mcp.ClientSession {
	t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "a test", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), transport, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return session
}

// failing is a server each of whose calls does what call does.
func failing(call mcpserver.Caller) (*mcpserver.Server, *logtest.Buffer) {
	log := &logtest.Buffer{}
	return mcpserver.New(mcpserver.Options{Call: call, Version: "test", Logger: slog.New(slog.NewTextHandler(log, nil))}), log
}

// inMemory connects a client to a server over pipes, without the API.
func inMemory(t *testing.T, s *mcpserver.Server) *mcp.ClientSession {
	t.Helper()
	return (&world{tools: s}).overStdio(t)
}
