package embedded

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.temporal.io/server/common/authorization"
	"go.temporal.io/server/common/cluster"
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/dynamicconfig"
	"go.temporal.io/server/common/membership/static"
	sqliteplugin "go.temporal.io/server/common/persistence/sql/sqlplugin/sqlite"
	"go.temporal.io/server/common/primitives"
	"go.temporal.io/server/temporal"
)

const (
	loopback    = "127.0.0.1"
	clusterName = "active"
	// historyShards is fixed when a file is made. More shards were not faster; four let transfer queues be read in parallel.
	historyShards = 4
)

var errPortTaken = errors.New("a chosen port was taken by another process")

// dynamicSettings differ from Temporal's defaults because those are made for clusters. Raised poll rates take a run of
// short steps from 77 to 12 ms a step, one partition per task queue makes an idle machine's queue nearly free, the small
// time shift makes timers below a second mean what they say, and the short long poll bounds a lost wake-up.
func dynamicSettings() dynamicconfig.StaticClient {
	return dynamicconfig.StaticClient{
		dynamicconfig.TransferProcessorMaxPollRPS.Key():         1000,
		dynamicconfig.TimerProcessorMaxPollRPS.Key():            1000,
		dynamicconfig.TimerProcessorMaxTimeShift.Key():          50 * time.Millisecond,
		dynamicconfig.HistoryLongPollExpirationInterval.Key():   2 * time.Second,
		dynamicconfig.MatchingNumTaskqueueReadPartitions.Key():  1,
		dynamicconfig.MatchingNumTaskqueueWritePartitions.Key(): 1,
		dynamicconfig.EnableCancelWorkerPollsOnShutdown.Key():   true,
		dynamicconfig.SchedulerNamespaceStartWorkflowRPS.Key():  500.0,
	}
}

// ports are the loopback addresses of one launch.
type ports struct {
	frontend string
	services map[primitives.ServiceName]int
}

// freePorts finds one free port per service. All are held until the last is found, so that they differ.
func freePorts(ctx context.Context) (ports, error) {
	var listen net.ListenConfig
	p := ports{services: make(map[primitives.ServiceName]int)}
	for _, name := range temporal.DefaultServices {
		listener, err := listen.Listen(ctx, "tcp", net.JoinHostPort(loopback, "0"))
		if err != nil {
			return ports{}, fmt.Errorf("finding a free port: %w", err)
		}
		defer func() { _ = listener.Close() }()
		p.services[primitives.ServiceName(name)] = listener.Addr().(*net.TCPAddr).Port
	}
	p.frontend = p.address(primitives.FrontendService)
	return p, nil
}

func (p ports) address(service primitives.ServiceName) string {
	return net.JoinHostPort(loopback, strconv.Itoa(p.services[service]))
}

// hosts names every service's one host. Static hosts replace the gossip ring, whose listeners know no client certificates.
func (p ports) hosts() map[primitives.ServiceName]static.Hosts {
	hosts := make(map[primitives.ServiceName]static.Hosts, len(p.services))
	for service := range p.services {
		hosts[service] = static.SingleLocalHost(p.address(service))
	}
	return hosts
}

// serverConfig leaves out what would open a further port: metrics, pprof, the HTTP API and membership.
func serverConfig(p ports, store *config.SQL) *config.Config {
	services := make(map[string]config.Service, len(p.services))
	for service, port := range p.services {
		services[string(service)] = config.Service{RPC: config.RPC{GRPCPort: port, BindOnIP: loopback}}
	}
	return &config.Config{
		Persistence: config.Persistence{
			DefaultStore:     sqliteplugin.PluginName,
			VisibilityStore:  sqliteplugin.PluginName,
			NumHistoryShards: historyShards,
			DataStores:       map[string]config.DataStore{sqliteplugin.PluginName: {SQL: store}},
		},
		ClusterMetadata: &cluster.Config{
			FailoverVersionIncrement: 10,
			MasterClusterName:        clusterName,
			CurrentClusterName:       clusterName,
			ClusterInformation: map[string]cluster.ClusterInformation{
				clusterName: {Enabled: true, InitialFailoverVersion: 1, RPCAddress: p.frontend},
			},
		},
		DCRedirectionPolicy: config.DCRedirectionPolicy{Policy: "noop"},
		Services:            services,
		Archival: config.Archival{
			History:    config.HistoryArchival{State: "disabled"},
			Visibility: config.VisibilityArchival{State: "disabled"},
		},
		PublicClient: config.PublicClient{HostPort: p.frontend},
		NamespaceDefaults: config.NamespaceDefaults{Archival: config.ArchivalNamespaceDefaults{
			History:    config.HistoryArchivalNamespaceDefaults{State: "disabled"},
			Visibility: config.VisibilityArchivalNamespaceDefaults{State: "disabled"},
		}},
	}
}

// launch is one attempt to run the server. Building and starting happen in a goroutine of their own, because Temporal
// calls Logger.Fatal where it cannot go on, and expects not to come back from it.
type launch struct {
	ports  ports
	log    *serverLog
	server temporal.Server // nil until built
	done   chan struct{}   // closed when the start has come to its end, good or bad
	failed chan error
	once   sync.Once
	ended  atomic.Bool // set by fatal
}

func newLaunch(o Options, p ports, file *dataFile, certs *certificates) *launch {
	l := &launch{ports: p, done: make(chan struct{}), failed: make(chan error, 1)}
	l.log = newServerLog(o.Logger, l.fatal)
	go func() {
		defer close(l.done)
		defer l.endQuietly()
		if err := l.start(file, certs); err != nil {
			l.fail(err)
		}
	}()
	return l
}

func (l *launch) start(file *dataFile, certs *certificates) error {
	server, err := temporal.NewServer(
		temporal.WithConfig(serverConfig(l.ports, file.store)),
		temporal.ForServices(temporal.DefaultServices),
		temporal.WithStaticHosts(l.ports.hosts()),
		temporal.WithTLSConfigFactory(certs),
		temporal.WithDynamicConfigClient(dynamicSettings()),
		temporal.WithAuthorizer(authorization.NewNoopAuthorizer()),
		temporal.WithClaimMapper(func(*config.Config) authorization.ClaimMapper { return authorization.NewNoopClaimMapper() }),
		temporal.WithLogger(l.log),
	)
	if err != nil {
		return err
	}
	l.server = server
	return server.Start()
}

// fail notes why the server is of no use. The first reason is the one that tells something.
func (l *launch) fail(reason error) {
	l.once.Do(func() { l.failed <- reason })
}

// fatal takes the place of the process exit behind Temporal's Logger.Fatal and ends the calling goroutine.
func (l *launch) fatal(message string, err error) {
	reason := errors.New(message)
	var op *net.OpError
	switch {
	case errors.As(err, &op) && op.Op == "listen":
		reason = fmt.Errorf("%w: %w", errPortTaken, err)
	case err != nil:
		reason = fmt.Errorf("%s: %w", message, err)
	}
	l.fail(reason)
	l.ended.Store(true)
	runtime.Goexit()
}

// endQuietly is deferred by the goroutine that starts the server. The server makes its listeners in a sync.OnceValue,
// which turns the end of its goroutine into a panic.
func (l *launch) endQuietly() {
	if p := recover(); p != nil && !l.ended.Load() {
		panic(p)
	}
}

// pause waits for d, or less when ctx ends or the server has failed, and then says so.
func (l *launch) pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case err := <-l.failed:
		return err
	case <-timer.C:
		return nil
	}
}

// stop waits for the start to come to its end and then ends the server.
func (l *launch) stop() {
	<-l.done
	l.log.stopping.Store(true)
	if l.server == nil {
		return
	}
	if err := l.server.Stop(); err != nil {
		l.log.logger.Warn("The embedded Temporal server did not stop in order.", "error", err)
	}
}
