package machineapp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/google/uuid"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"google.golang.org/grpc"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/buildinfo"
	"github.com/errandhq/errand/internal/cli"
	"github.com/errandhq/errand/internal/identity"
	"github.com/errandhq/errand/internal/lockfile"
	"github.com/errandhq/errand/internal/loopback"
	"github.com/errandhq/errand/internal/machinestate"
	"github.com/errandhq/errand/internal/mcphost"
	"github.com/errandhq/errand/internal/process"
	"github.com/errandhq/errand/internal/telemetry"
	"github.com/errandhq/errand/worker/host"
)

// runWorker runs this machine's worker until a signal ends it. The first SIGTERM or SIGINT drains it, a
// second one ends its programs at once.
func runWorker(ctx context.Context, dataDir string, o cli.Worker) error {
	// Without this every start hashes the whole program to tell builds apart.
	worker.SetBinaryChecksum(buildinfo.Version())
	logger, err := telemetry.NewLogger(os.Stderr, o.LogFormat, o.LogLevel)
	if err != nil {
		return err
	}
	if err := process.ForbidInspection(); err != nil {
		logger.Warn("programs of steps can inspect this one", "error", err)
	}
	if err := process.AdoptOrphans(ctx); err != nil {
		logger.Warn("what steps leave behind is left to the system", "error", err)
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)

	starting, cancel := context.WithCancel(ctx)
	defer cancel()
	type opened struct {
		w   *machineWorker
		err error
	}
	ready := make(chan opened, 1)
	go func() {
		w, err := openWorker(starting, dataDir, o, logger)
		ready <- opened{w, err}
	}()
	select {
	case <-signals:
		cancel()
		if o := <-ready; o.err != nil {
			return nil // the start was given up because it was told to
		} else {
			return o.w.run(stopped(ctx), signals)
		}
	case o := <-ready:
		if o.err != nil {
			return o.err
		}
		return o.w.run(ctx, signals)
	}
}

// stopped returns a context that has ended.
func stopped(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return ctx
}

// machineWorker is the host with the local route beside it.
type machineWorker struct {
	host    *host.Host
	route   *loopback.Server
	servers *mcphost.Host
	logger  *slog.Logger
}

// openWorker enrols this machine where needed and opens its state.
func openWorker(ctx context.Context, dataDir string, o cli.Worker, logger *slog.Logger) (*machineWorker, error) {
	dir := machinestate.Dir(dataDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the machine's state directory: %w", err)
	}
	if pid, held, err := lockfile.Probe(machinestate.LockPath(dir)); err == nil && held {
		return nil, &lockfile.HeldError{Path: machinestate.LockPath(dir), PID: pid}
	}
	key, err := identity.LoadOrCreateKey(dir)
	if err != nil {
		return nil, err
	}
	enrolled, err := enrolment(ctx, dir, key, o, logger)
	if err != nil {
		return nil, err
	}
	signer := identity.NewSigner(key, enrolled.MachineID, identity.SignerOptions{})
	tokens, err := identity.NewTokenSource(signer, enrolled.ServerURL, nil)
	if err != nil {
		return nil, err
	}
	transport := &identity.Transport{Signer: signer, Tokens: tokens}
	lanes, err := openLanes(os.Environ(), os.Getenv, logger)
	if err != nil {
		return nil, err
	}
	options, err := hostOptions(enrolled, transport, lanes.runner, logger)
	if err != nil {
		return nil, err
	}
	options.StateDir, options.Logger = dir, logger
	options.Concurrency, options.OrphanExit, options.Drain = o.Concurrency, o.ExitWhenOrphaned, o.Drain
	if o.Drain == 0 {
		options.Drain = -1 // the host takes 0 for its default
	}
	h, err := host.Open(options)
	if err != nil {
		return nil, err
	}
	// After the host has the lock, so that no second worker writes worker.json.
	route, err := startRoute(dataDir, enrolled, transport, logger)
	if err != nil {
		// What the host holds goes with the process.
		return nil, err
	}
	return &machineWorker{host: h, route: route, servers: lanes.servers, logger: logger}, nil
}

// startRoute starts the local route for command lines on this machine.
func startRoute(dataDir string, enrolled machinestate.Enrolled, transport http.RoundTripper, logger *slog.Logger) (*loopback.Server, error) {
	token, _, err := identity.NewRuntimeToken()
	if err != nil {
		return nil, err
	}
	return loopback.Start(loopback.Options{
		ServerURL: enrolled.ServerURL, Transport: transport, Token: token, Dir: dataDir, StartedAt: time.Now(), Logger: logger,
	})
}

// hostOptions makes what the host needs of the outside: the control plane, the gateway, and the lanes.
func hostOptions(
	enrolled machinestate.Enrolled, transport *identity.Transport, runner host.Runner, logger *slog.Logger,
) (host.Options, error) {
	var none host.Options
	control, err := host.NewControlPlane(enrolled.ServerURL, &http.Client{Transport: transport}, 0)
	if err != nil {
		return none, err
	}
	gateway, err := dialer(enrolled.ServerURL, transport, logger)
	if err != nil {
		return none, err
	}
	return host.Options{
		BootID: process.BootID(), Version: buildinfo.Version(),
		ControlPlane: control, Temporal: gateway, Runner: runner,
		Now: time.Now, NewID: uuid.NewString, Random: rand.Float64,
	}, nil
}

// dialer reaches the gateway, which is at the same address as the machine API.
func dialer(serverURL string, transport *identity.Transport, logger *slog.Logger) (host.Gateway, error) {
	server, err := url.Parse(serverURL)
	if err != nil {
		return host.Gateway{}, fmt.Errorf("the control plane's address %q: %w", serverURL, err)
	}
	prove, err := identity.UnaryClientInterceptor(transport.Signer, transport.Tokens, serverURL)
	if err != nil {
		return host.Gateway{}, err
	}
	connection := client.ConnectionOptions{DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(prove)}}
	if server.Scheme == "https" {
		// Without it the SDK speaks in clear text. Whom this machine trusts is the system's, as for HTTP.
		connection.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	hostPort := server.Host
	if server.Port() == "" {
		hostPort = server.Hostname() + ":443"
		if server.Scheme == "http" {
			hostPort = server.Hostname() + ":80"
		}
	}
	return host.Gateway{HostPort: hostPort, Connection: connection, Logger: logger}, nil
}

// routeStopWithin is how long requests of the local route may go on when the worker leaves.
const routeStopWithin = 2 * time.Second

// run works until ctx ends or a signal comes.
func (w *machineWorker) run(ctx context.Context, signals <-chan os.Signal) error {
	defer w.stopRoute()
	// After the drain, whose last steps may still call the servers.
	defer w.servers.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- w.host.Run(ctx) }()
	select {
	case err := <-done:
		return ended(err)
	case received := <-signals:
		w.logger.Info("draining", "signal", received.String())
	}
	patience, abandon := context.WithCancel(context.WithoutCancel(ctx))
	defer abandon()
	go func() {
		<-signals
		abandon()
	}()
	w.host.Stop(patience)
	return ended(<-done)
}

func (w *machineWorker) stopRoute() {
	ctx, cancel := context.WithTimeout(context.Background(), routeStopWithin)
	defer cancel()
	if err := w.route.Stop(ctx); err != nil {
		w.logger.Warn("the local route was not stopped cleanly", "error", err)
	}
}

// ended says whether the end of a host is an error. Leaving because the control plane is gone is not.
func ended(err error) error {
	switch {
	case errors.Is(err, host.ErrOrphaned):
		return nil
	case errors.Is(err, host.ErrRevoked):
		return automation.Errorf(automation.CodeMachineRevoked,
			"this machine was revoked, and its programs were ended; to use it again, make a code for it with enroll-code and give errand machine enroll")
	}
	return err
}
