// Package embedded runs a Temporal server inside the process, for an installation that has no Temporal cluster.
//
// The server keeps its data in one SQLite file and listens on loopback only, behind mutual TLS with certificates that
// live as long as one start. It is an engine and not the truth: the ledger can fill an empty server again. That is why a
// file that cannot be used is set aside instead of stopping the product, and why the file trades the last commits before
// a power cut for speed.
//
// The package is the only one that imports go.temporal.io/server. What the server is used for (workflows, task queues,
// search attributes) is left to its clients, which connect with HostPort, TLS and Namespace.
package embedded

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	namespacepb "go.temporal.io/api/namespace/v1"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/durationpb"
)

const (
	// DefaultNamespace is the namespace of Options without one.
	DefaultNamespace = "errand"
	// DefaultRetention is how long closed workflows stay visible when Options name nothing else.
	DefaultRetention = 30 * 24 * time.Hour

	minRetention  = time.Hour // Temporal refuses less
	maxLaunches   = 5         // another process may take a port between choosing it and listening on it
	readyInterval = 5 * time.Millisecond
)

// Options says where the server keeps its data and what it is called. Only Dir is required.
type Options struct {
	// Dir is the folder of Temporal's file. It is created with mode 0700 and belongs to this package alone.
	Dir string
	// Namespace is the one namespace for clients. Default: DefaultNamespace.
	Namespace string
	// Retention is how long closed workflows stay, at least one hour. Default: DefaultRetention. An existing namespace
	// follows when this value changes between two starts; otherwise it keeps what an operator set in Temporal.
	Retention time.Duration
	// SearchAttributes are Keyword search attributes that the namespace of a fresh file starts with. Those added later
	// through the operator API take effect after up to two seconds; these work from the first workflow on.
	SearchAttributes []string
	// Logger receives the server's log: its info as debug, warnings and errors as they are. Default: slog.Default().
	Logger *slog.Logger
	// Now is the clock for the names of files that are set aside. Default: time.Now.
	Now func() time.Time
}

func (o Options) withDefaults() (Options, error) {
	if o.Dir == "" {
		return o, errors.New("embedded Temporal needs a directory")
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return o, fmt.Errorf("resolving Temporal's directory: %w", err)
	}
	o.Dir = dir
	if o.Namespace == "" {
		o.Namespace = DefaultNamespace
	}
	if o.Retention == 0 {
		o.Retention = DefaultRetention
	}
	if o.Retention < minRetention {
		return o, fmt.Errorf("embedded Temporal cannot keep closed workflows for %s: the minimum is %s", o.Retention, minRetention)
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o, nil
}

// Server is a running Temporal server.
type Server struct {
	namespace string
	client    *tls.Config
	lock      *dirLock
	file      *dataFile
	run       *launch
	stop      sync.Once

	uiMutex sync.Mutex
	uiConn  *grpc.ClientConn // nil until the web interface is asked for
}

// Start starts a server on the data in o.Dir and returns when its frontend answers for the namespace. When ctx ends first
// it fails, after it has cleaned up; once it has returned, ctx means nothing to the server and only Stop ends it. Schedules
// fire once the server's own worker is up, half a second later.
//
// The error is ErrInUse when another server has the directory. A file that is damaged or has the tables of another
// version is no error: see Server.SetAside.
func Start(ctx context.Context, o Options) (*Server, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	lock, err := lockDir(o.Dir)
	if err != nil {
		return nil, err
	}
	s := &Server{namespace: o.Namespace, lock: lock}
	if err := s.start(ctx, o); err != nil {
		lock.release()
		return nil, fmt.Errorf("starting embedded Temporal on %s: %w", o.Dir, err)
	}
	return s, nil
}

func (s *Server) start(ctx context.Context, o Options) error {
	certs, err := newCertificates()
	if err != nil {
		return fmt.Errorf("making certificates: %w", err)
	}
	s.client = certs.client
	if s.file, err = openDataFile(ctx, o); err != nil {
		return err
	}
	for range maxLaunches {
		chosen, err := freePorts(ctx)
		if err != nil {
			return err
		}
		s.run = newLaunch(o, chosen, s.file, certs)
		if err = s.becomeReady(ctx, o); err == nil {
			return nil
		}
		s.run.stop()
		if !errors.Is(err, errPortTaken) {
			return err
		}
	}
	return errPortTaken
}

// becomeReady waits until the frontend knows the namespace, and makes the namespace follow a changed retention.
func (s *Server) becomeReady(ctx context.Context, o Options) error {
	conn, err := grpc.NewClient(s.HostPort(),
		grpc.WithTransportCredentials(credentials.NewTLS(s.TLS())),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: readyInterval, Multiplier: 1, MaxDelay: readyInterval},
			MinConnectTimeout: time.Second,
		}))
	if err != nil {
		return fmt.Errorf("connecting to the frontend: %w", err)
	}
	defer func() { _ = conn.Close() }()
	frontend := workflowservice.NewWorkflowServiceClient(conn)

	var namespace *workflowservice.DescribeNamespaceResponse
	for {
		request := &workflowservice.DescribeNamespaceRequest{Namespace: o.Namespace}
		if namespace, err = frontend.DescribeNamespace(ctx, request); err == nil {
			break
		}
		if err := s.run.pause(ctx, readyInterval); err != nil {
			return err
		}
	}
	stored := namespace.GetConfig().GetWorkflowExecutionRetentionTtl().AsDuration()
	if o.Retention != s.file.record.retention() && o.Retention != stored {
		_, err := frontend.UpdateNamespace(ctx, &workflowservice.UpdateNamespaceRequest{
			Namespace: o.Namespace,
			Config:    &namespacepb.NamespaceConfig{WorkflowExecutionRetentionTtl: durationpb.New(o.Retention)},
		})
		if err != nil {
			return fmt.Errorf("setting the namespace's retention: %w", err)
		}
	}
	return s.file.markReady(o.Retention)
}

// HostPort is the address of the frontend, on loopback. It differs from start to start.
func (s *Server) HostPort() string { return s.run.ports.frontend }

// TLS is a new copy of the configuration a client needs: it trusts this start's server and holds the client certificate
// without which every listener of the server refuses a connection.
func (s *Server) TLS() *tls.Config { return s.client.Clone() }

// Namespace is the namespace for clients.
func (s *Server) Namespace() string { return s.namespace }

// SetAside is the path that the file found at this start was moved to because it could not be used, or "" when there was
// no such file. All that Temporal knew is then missing from the running server.
func (s *Server) SetAside() string { return s.file.setAside }

// Failed delivers one error when the server ends by itself, for example because a listener broke. The product is then
// without its engine until Stop and a new Start.
func (s *Server) Failed() <-chan error { return s.run.failed }

// Stop ends the server: open calls get a second to finish, the rest are cut off. Clients and workers should be closed
// before. Stop may be called more than once, and returns when the server is gone.
func (s *Server) Stop() {
	s.stop.Do(func() {
		s.closeUI()
		s.run.stop()
		s.file.markClosed(!s.run.log.damaged.Load())
		s.lock.release()
	})
}
