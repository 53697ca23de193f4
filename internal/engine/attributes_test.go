package engine_test

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	namespacepb "go.temporal.io/api/namespace/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/engine"
)

// cluster is a Temporal on a real socket that knows search attributes and takes workflows.
type cluster struct {
	workflowservice.UnimplementedWorkflowServiceServer
	operatorservice.UnimplementedOperatorServiceServer
	// readOnly callers may look at search attributes, and not create any. namespaceOnly ones may do neither, nor ask
	// for anything that is the whole cluster's.
	readOnly, namespaceOnly bool

	mu          sync.Mutex
	noNamespace bool // whether the namespace is missing
	attributes  map[string]enumspb.IndexedValueType
	added       []string
	started     *commonpb.SearchAttributes
}

var errUnauthorized = status.Error(codes.PermissionDenied, "Request unauthorized.")

func (c *cluster) GetSystemInfo(context.Context, *workflowservice.GetSystemInfoRequest) (*workflowservice.GetSystemInfoResponse, error) {
	return &workflowservice.GetSystemInfoResponse{Capabilities: &workflowservice.GetSystemInfoResponse_Capabilities{}}, nil
}

func (c *cluster) GetClusterInfo(context.Context, *workflowservice.GetClusterInfoRequest) (*workflowservice.GetClusterInfoResponse, error) {
	if c.namespaceOnly {
		return nil, errUnauthorized
	}
	return &workflowservice.GetClusterInfoResponse{ClusterId: "cluster"}, nil
}

func (c *cluster) DescribeNamespace(
	_ context.Context, request *workflowservice.DescribeNamespaceRequest,
) (*workflowservice.DescribeNamespaceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.noNamespace {
		return nil, serviceerror.ToStatus(serviceerror.NewNamespaceNotFound(request.GetNamespace())).Err()
	}
	aliases := map[string]string{}
	for name := range c.attributes {
		aliases["Keyword"+name] = name
	}
	return &workflowservice.DescribeNamespaceResponse{
		NamespaceInfo: &namespacepb.NamespaceInfo{Name: request.GetNamespace(), Id: "namespace"},
		Config:        &namespacepb.NamespaceConfig{CustomSearchAttributeAliases: aliases},
	}, nil
}

func (c *cluster) ListSearchAttributes(
	_ context.Context, _ *operatorservice.ListSearchAttributesRequest,
) (*operatorservice.ListSearchAttributesResponse, error) {
	if c.namespaceOnly {
		return nil, errUnauthorized
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return &operatorservice.ListSearchAttributesResponse{CustomAttributes: maps.Clone(c.attributes)}, nil
}

func (c *cluster) AddSearchAttributes(
	_ context.Context, request *operatorservice.AddSearchAttributesRequest,
) (*operatorservice.AddSearchAttributesResponse, error) {
	if c.readOnly || c.namespaceOnly {
		return nil, errUnauthorized
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, kind := range request.GetSearchAttributes() {
		c.attributes[name] = kind
		c.added = append(c.added, name)
	}
	return &operatorservice.AddSearchAttributesResponse{}, nil
}

func (c *cluster) StartWorkflowExecution(
	_ context.Context, request *workflowservice.StartWorkflowExecutionRequest,
) (*workflowservice.StartWorkflowExecutionResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.started = request.GetSearchAttributes()
	return &workflowservice.StartWorkflowExecutionResponse{RunId: "run"}, nil
}

// serve serves the cluster and returns an engine that is to connect to it.
func (c *cluster) serve(t *testing.T, log *bytes.Buffer) *engine.Engine {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	workflowservice.RegisterWorkflowServiceServer(server, c)
	operatorservice.RegisterOperatorServiceServer(server, c)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	e, err := engine.New(engine.Options{
		Client:         client.Options{HostPort: listener.Addr().String(), Namespace: "prod"},
		InstallationID: "installation", Logger: slog.New(slog.NewTextHandler(log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

func TestMissingNamespace(t *testing.T) {
	t.Parallel()
	c := &cluster{noNamespace: true}
	e := c.serve(t, &bytes.Buffer{})
	err := e.Connect(t.Context())
	if automation.CodeOf(err) != automation.CodeEngineUnavailable || e.Up() || e.ID() != "" ||
		!strings.Contains(err.Error(), "temporal operator namespace create --namespace prod --retention 720h") {
		t.Errorf("up %t as %q: %v", e.Up(), e.ID(), err)
	}

	// An operator creates it, and the next try succeeds.
	c.mu.Lock()
	c.noNamespace, c.attributes = false, map[string]enumspb.IndexedValueType{}
	c.mu.Unlock()
	if err := e.Connect(t.Context()); err != nil || !e.Up() || e.ID() != "cluster/namespace" {
		t.Errorf("up %t as %q: %v", e.Up(), e.ID(), err)
	}
}

func TestSearchAttributes(t *testing.T) {
	t.Parallel()
	const keyword = enumspb.INDEXED_VALUE_TYPE_KEYWORD
	const all = 3
	tests := map[string]struct {
		have          []string
		readOnly      bool
		namespaceOnly bool
		added         []string // those that are created
		command       string   // what an operator is told to do
		used          int      // with how many a workflow is started
	}{
		"none is there": {
			added: []string{"ErrandAutomationId", "ErrandMachineId", "ErrandTrigger"}, used: all,
		},
		"one is missing": {
			have: []string{"ErrandAutomationId", "ErrandTrigger", "Other"}, added: []string{"ErrandMachineId"}, used: all,
		},
		"all are there, and none may be created": {
			have: []string{"ErrandAutomationId", "ErrandMachineId", "ErrandTrigger"}, readOnly: true, used: all,
		},
		"none may be created": {
			readOnly: true,
			command: "temporal operator search-attribute create --namespace prod --name ErrandAutomationId --type Keyword " +
				"--name ErrandMachineId --type Keyword --name ErrandTrigger --type Keyword",
		},
		"one is missing and may not be created": {
			have: []string{"ErrandAutomationId", "ErrandMachineId"}, readOnly: true,
			command: "temporal operator search-attribute create --namespace prod --name ErrandTrigger --type Keyword",
		},
		"all are there, for a caller who may not list them": {
			have: []string{"ErrandAutomationId", "ErrandMachineId", "ErrandTrigger"}, namespaceOnly: true, used: all,
		},
		"none is there, for a caller who may nothing": {
			namespaceOnly: true,
			command: "temporal operator search-attribute create --namespace prod --name ErrandAutomationId --type Keyword " +
				"--name ErrandMachineId --type Keyword --name ErrandTrigger --type Keyword",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := &cluster{readOnly: test.readOnly, namespaceOnly: test.namespaceOnly, attributes: map[string]enumspb.IndexedValueType{}}
			for _, name := range test.have {
				c.attributes[name] = keyword
			}
			var log bytes.Buffer
			e := c.serve(t, &log)
			if err := e.Connect(t.Context()); err != nil {
				t.Fatal(err)
			}
			err := e.StartRun(t.Context(), automation.Startable{RunID: "r", Generation: 1, AutomationID: "a", MachineID: "m"})
			if err != nil {
				t.Fatal(err)
			}
			slices.Sort(c.added)
			if diff := cmp.Diff(test.added, c.added); diff != "" {
				t.Errorf("created (-want +got):\n%s", diff)
			}
			if used := len(c.started.GetIndexedFields()); used != test.used {
				t.Errorf("a workflow is started with %d search attributes, not %d", used, test.used)
			}
			shown := log.String()
			if test.command == "" && strings.Contains(shown, "search attributes") ||
				!strings.Contains(shown, test.command) {
				t.Errorf("the log does not show %q:\n%s", test.command, shown)
			}
			if want := map[bool]string{false: "cluster/namespace", true: "/namespace"}[test.namespaceOnly]; e.ID() != want {
				t.Errorf("the engine is %q, not %q", e.ID(), want)
			}
			if !e.Up() {
				t.Error("a Temporal that answers counts as down")
			}
		})
	}
}
