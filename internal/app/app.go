package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/contrib/envconfig"
	"golang.org/x/sync/errgroup"

	"github.com/errandhq/errand/api"
	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/buildinfo"
	"github.com/errandhq/errand/internal/catalog"
	"github.com/errandhq/errand/internal/config"
	"github.com/errandhq/errand/internal/embedded"
	"github.com/errandhq/errand/internal/engine"
	"github.com/errandhq/errand/internal/fileutil"
	"github.com/errandhq/errand/internal/gateway"
	"github.com/errandhq/errand/internal/hooks"
	"github.com/errandhq/errand/internal/identity"
	"github.com/errandhq/errand/internal/lockfile"
	"github.com/errandhq/errand/internal/machinelimit"
	"github.com/errandhq/errand/internal/machinestate"
	"github.com/errandhq/errand/internal/metrics"
	"github.com/errandhq/errand/internal/notify"
	"github.com/errandhq/errand/internal/sealing"
	"github.com/errandhq/errand/internal/store"
)

// App is one control plane. Its parts are started by [App.Start] in the order of steps and stopped by
// [App.Stop] in the opposite one.
type App struct {
	settings config.Config
	logger   *slog.Logger
	now      func() time.Time
	newID    func() string
	began    time.Time
	metrics  *metrics.Metrics

	lock       *os.File
	serverID   string // names this server in leases
	masterKey  []byte
	vault      *sealing.Vault
	ledger     *store.Store
	install    automation.Installation
	temporal   *embedded.Server
	engine     *engine.Engine
	verifier   *identity.Verifier
	limits     *machinelimit.Limiter
	enroller   *identity.Enroller
	token      string
	tokenHash  identity.TokenHash
	changes    *notify.Hub
	starter    *engine.Starter
	firing     firing
	reconciler *engine.Reconciler
	gateway    *gateway.Gateway
	service    *catalog.Service
	api        *api.API
	listener   net.Listener
	publicURL  string
	server     *http.Server
	machine    *machineProcess

	started    atomic.Bool
	background sync.WaitGroup
	cancel     context.CancelFunc
	failed     chan error
}

// New returns a control plane of the settings, not started yet.
func New(settings config.Config, logger *slog.Logger) *App {
	return &App{
		settings: settings, logger: logger, now: time.Now, began: time.Now(),
		newID:   func() string { return uuid.Must(uuid.NewV7()).String() },
		changes: notify.New(), failed: make(chan error, 4),
		metrics: metrics.New(metrics.Options{
			Version: buildinfo.Version(), Now: time.Now, Logger: logger.With("component", "metrics"),
		}),
	}
}

// Failed delivers why the control plane cannot go on, if that happens.
func (a *App) Failed() <-chan error { return a.failed }

// step is one part of a start; its name appears in the log and in the error.
type step struct {
	name string
	run  func(ctx context.Context) error
}

// Start starts every part and returns when the control plane serves. When a part fails, those before it are
// stopped again, and the error names it.
func (a *App) Start(ctx context.Context) error {
	background, cancel := context.WithCancel(context.WithoutCancel(ctx))
	a.cancel = cancel
	steps := []step{
		{"preparing the data directory", a.prepareDataDir},
		{"listening", a.listen},
		{"opening the database and Temporal", a.openStorage},
		{"connecting to Temporal", a.connectEngine},
		{"preparing identities", a.prepareIdentity},
		{"starting the workflows", func(context.Context) error { return a.startWorkflows(background) }},
		{"preparing this machine", a.whenLocalWorker(a.prepareMachine)},
		{"serving", func(context.Context) error { return a.serve(background) }},
		{"firing schedules", func(context.Context) error {
			a.runSchedules(background)
			return nil
		}},
		{"starting this machine's worker", a.whenLocalWorker(func(context.Context) error {
			a.startMachine(background)
			return nil
		})},
		{"writing server.json", func(context.Context) error { return a.writeRuntimeFile() }},
	}
	for _, s := range steps {
		started := time.Now()
		if err := s.run(ctx); err != nil {
			a.Stop(context.WithoutCancel(ctx), false)
			return fmt.Errorf("%s: %w", s.name, err)
		}
		a.logger.Debug("started", "step", s.name, "took", time.Since(started))
	}
	a.started.Store(true)
	a.logger.Info("ready", "url", a.publicURL, "version", buildinfo.Version(), "took", time.Since(a.began).Round(time.Millisecond))
	return nil
}

// whenLocalWorker leaves a step out where this machine has no worker of ours.
func (a *App) whenLocalWorker(run func(context.Context) error) func(context.Context) error {
	if a.settings.LocalWorker {
		return run
	}
	return func(context.Context) error { return nil }
}

func (a *App) prepareDataDir(context.Context) error {
	if err := os.MkdirAll(a.settings.DataDir, 0o700); err != nil {
		return fmt.Errorf("making the data directory: %w", err)
	}
	lock, err := lockfile.Take(filepath.Join(a.settings.DataDir, "errandd.lock"))
	if held, ok := errors.AsType[*lockfile.HeldError](err); ok {
		return fmt.Errorf("another errandd (pid %d) is running on %s: stop it, or set ERRAND_DATA_DIR to another directory",
			held.PID, a.settings.DataDir)
	}
	if err != nil {
		return err
	}
	a.lock = lock
	if a.serverID, err = a.loadServerID(); err != nil {
		return err
	}
	a.masterKey, err = identity.LoadOrCreateMasterKey(a.settings.MasterKeyFile)
	return err
}

// loadServerID returns what names this server in leases. It stays the same over restarts: the lock of the data
// directory proves that an earlier process of that name is gone, so its leases need not run out first.
func (a *App) loadServerID() (string, error) {
	path := filepath.Join(a.settings.DataDir, "server.id")
	content, err := os.ReadFile(path)
	if id := strings.TrimSpace(string(content)); err == nil && uuid.Validate(id) == nil {
		return id, nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("reading the name of this server: %w", err)
	}
	id := a.newID()
	if err := fileutil.WriteFile(path, []byte(id+"\n")); err != nil {
		return "", fmt.Errorf("naming this server: %w", err)
	}
	return id, nil
}

// openStorage opens the ledger and starts Temporal side by side, since each takes a while.
func (a *App) openStorage(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.openLedger(ctx) })
	if a.settings.TemporalAddress == "" {
		group.Go(func() error { return a.startTemporal(ctx) })
	}
	return group.Wait()
}

func (a *App) openLedger(ctx context.Context) error {
	ledger, vault, err := a.openBound(ctx)
	if err != nil {
		return err
	}
	a.ledger, a.vault = ledger, vault
	if a.install, err = ledger.Installation(ctx); err != nil {
		return err
	}
	_, usedBefore, _ := machinestate.Load(machinestate.Dir(a.settings.DataDir)) // a damaged one is refused later
	if usedBefore && !a.install.CreatedAt.Before(a.began.Truncate(time.Microsecond)) {
		a.logger.Warn("the database is new, although this data directory was used before: automations and runs of " +
			"an earlier database are not in it")
	}
	return nil
}

// runReady starts a run that the ledger has let go. Before the starter is there, its first look finds the run.
func (a *App) runReady(runID string) {
	if a.starter != nil {
		a.starter.Admitted(runID)
	}
}

func (a *App) startTemporal(ctx context.Context) error {
	server, err := embedded.Start(ctx, embedded.Options{
		Dir:              filepath.Join(a.settings.DataDir, "temporal"),
		SearchAttributes: engine.SearchAttributes(),
		Logger:           a.logger,
	})
	if errors.Is(err, embedded.ErrInUse) {
		return fmt.Errorf("another process uses Temporal's file in %s: stop it: %w", a.settings.DataDir, err)
	}
	if err != nil {
		return err
	}
	a.temporal = server
	go func() {
		if err, ok := <-server.Failed(); ok && err != nil {
			a.fail(fmt.Errorf("embedded Temporal has ended: %w", err))
		}
	}()
	return nil
}

// connectEngine connects to Temporal. An external cluster that does not answer does not stop the start: what is
// admitted meanwhile is kept, and started when it answers.
func (a *App) connectEngine(ctx context.Context) error {
	options, err := a.engineOptions()
	if err != nil {
		return err
	}
	if a.engine, err = engine.New(options); err != nil {
		return err
	}
	err = a.engine.Connect(ctx)
	if err != nil && a.temporal == nil && automation.CodeOf(err) == automation.CodeEngineUnavailable {
		a.logger.Warn("Temporal cannot be used yet; runs are admitted, and start when it can",
			"address", options.Client.HostPort, "error", err)
		return nil
	}
	return err
}

// engineOptions are those of the embedded server, or of ERRAND_TEMPORAL_ADDRESS with the SDK's own TEMPORAL_*
// settings (namespace, API key, TLS, profile).
func (a *App) engineOptions() (engine.Options, error) {
	options := engine.Options{InstallationID: a.install.ID, Logger: a.logger.With("component", "engine")}
	if a.temporal != nil {
		options.Client = client.Options{
			HostPort: a.temporal.HostPort(), Namespace: a.temporal.Namespace(),
			ConnectionOptions: client.ConnectionOptions{TLS: a.temporal.TLS()},
		}
		return options, nil
	}
	var err error
	options.Client, err = envconfig.LoadDefaultClientOptions()
	if err != nil {
		return options, fmt.Errorf("reading the TEMPORAL_* settings: %w", err)
	}
	options.Client.HostPort = a.settings.TemporalAddress
	return options, nil
}

func (a *App) prepareIdentity(context.Context) error {
	var err error
	if a.token, a.tokenHash, err = identity.NewRuntimeToken(); err != nil {
		return err
	}
	a.limits = machinelimit.New(machinelimit.Options{Now: a.now, Refused: a.machineLimited})
	a.enroller = identity.NewEnroller(identity.EnrollerOptions{Ledger: a.ledger, Now: a.now})
	// Derived from the master key, so that servers with the same one accept each other's tokens.
	tokens, err := identity.NewTokens(identity.DeriveKey(a.masterKey, "machine access tokens"), a.install.ID)
	if err != nil {
		return err
	}
	a.verifier, err = identity.NewVerifier(identity.VerifierOptions{
		Machines: a.ledger, Tokens: tokens, BaseURLs: a.baseURLs(), Now: a.now,
	})
	return err
}

// startWorkflows starts what carries runs, now or, while an external Temporal does not answer, as soon as it does.
func (a *App) startWorkflows(background context.Context) error {
	a.starter = engine.NewStarter(a.engine, a.ledger, a.serverID, engine.StartEvery, a.logger.With("component", "starter"))
	a.reconciler = engine.NewReconciler(engine.ReconcilerOptions{
		Engine: a.engine, Store: a.ledger, Admitted: a.starter.Admitted, Holder: a.serverID, Now: a.now,
		Logger: a.logger.With("component", "reconciler"),
	})
	a.prepareSchedules()
	if a.engine.ID() != "" {
		return a.runWorkflows(background)
	}
	a.goBackground(func() {
		for {
			wait(background, engine.StartEvery)
			if background.Err() != nil {
				return
			}
			err := a.engine.Connect(background)
			if err == nil {
				err = a.runWorkflows(background)
			}
			if err == nil {
				a.logger.Info("connected to Temporal")
				return
			}
			a.logger.Debug("Temporal does not answer yet", "error", err)
		}
	})
	return nil
}

// serve answers on the one address.
func (a *App) serve(background context.Context) error {
	var err error
	if a.gateway, err = a.newGateway(); err != nil {
		return err
	}
	temporalUI, err := a.temporalUI()
	if err != nil {
		return err
	}
	users, err := a.users()
	if err != nil {
		return err
	}
	receiver, err := a.newReceiver()
	if err != nil {
		return err
	}
	a.service = &catalog.Service{
		Ledger: hintingLedger{a.ledger, a.firing.changed}, Engine: engineSide{a}, Changes: a.changes, Now: a.now,
		NewKey: newKey, PublicURL: a.publicURL,
		Enrolments: enrolments{a, func(run func(context.Context)) { a.goBackground(func() { run(background) }) }},
	}
	a.api, err = api.New(api.Options{
		Service: a.service, MCP: a.mcpHandler(a.service), Hooks: receiver,
		Users: users, Machines: machines{a}, Ledger: a.ledger,
		TrustedProxies: a.settings.TrustedProxies, RateLimit: a.settings.RateLimit,
		InstallationID: a.install.ID, Namespace: a.engine.Namespace(),
		AllowedHosts: a.allowedHosts(), TemporalUI: temporalUI, Ready: a.ready,
		Metrics: a.metrics.Handler(), Observer: a.metrics,
		Version: buildinfo.Version(), Now: a.now, NewID: a.newID, Logger: a.logger.With("component", "api"),
	})
	if err != nil {
		return err
	}
	a.watchMetrics()
	a.goBackground(func() { a.api.Run(background) })
	a.goBackground(func() { a.doChores(background) })
	a.goBackground(func() { a.watchAccess(background) })
	a.server = newHTTPServer(a.api, a.gateway, a.logger)
	go func() {
		if err := a.server.Serve(a.listener); !errors.Is(err, http.ErrServerClosed) {
			a.fail(fmt.Errorf("serving on %s: %w", a.settings.Listen, err))
		}
	}()
	return nil
}

// newGateway makes the gateway. Its key for task tokens is derived from the master key, so that tokens which
// machines hold stay valid across a restart.
func (a *App) newGateway() (*gateway.Gateway, error) {
	return gateway.New(gateway.Options{
		Upstream: a.engine.Client().WorkflowService(), Namespace: a.engine.Namespace(), InstallationID: a.install.ID,
		Authenticator: machines{a}, Received: a.limits.Received, TokenKey: identity.DeriveKey(a.masterKey, "gateway task tokens"),
		Seen:    func(machineID string) { a.goBackground(func() { a.machineSeen(machineID) }) },
		Refused: a.machineRefused,
		Logger:  a.logger.With("component", "gateway"),
	})
}

// newReceiver makes what takes the deliveries of webhooks.
func (a *App) newReceiver() (*hooks.Receiver, error) {
	return hooks.New(hooks.Options{
		Ledger: a.ledger, Vault: a.vault, Admitted: a.starter.Admitted, Now: a.now,
		Answered: a.metrics.DeliveryAnswered, Logger: a.logger.With("component", "hooks"),
	})
}

// machineSeen records that a machine called.
func (a *App) machineSeen(machineID string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := a.ledger.TouchMachine(ctx, machineID, a.now()); err != nil {
		a.logger.Debug("a machine's presence could not be stored", "machine", machineID, "error", err)
	}
}

// ready reports why the control plane cannot serve, or nil.
func (a *App) ready(ctx context.Context) error {
	if !a.started.Load() {
		return automation.Errorf(automation.CodeEngineUnavailable, "the control plane is starting")
	}
	if err := a.ledger.Ping(ctx); err != nil {
		return err
	}
	if !a.engine.Up() {
		return automation.Errorf(automation.CodeEngineUnavailable, "Temporal does not answer")
	}
	return nil
}

func (a *App) goBackground(run func()) { a.background.Go(run) }

func (a *App) fail(err error) {
	select {
	case a.failed <- err:
	default:
	}
}

// stopWithin bounds the wait for open requests at a stop.
const stopWithin = 10 * time.Second

// Stop stops every part that was started. With drainMachine the worker of this machine is told to stop and
// awaited first, while the control plane still serves it; ctx ends that wait early.
func (a *App) Stop(ctx context.Context, drainMachine bool) {
	if a.machine != nil {
		a.machine.stop(ctx, drainMachine)
	}
	a.removeRuntimeFile()
	if a.gateway != nil {
		a.gateway.Drain()
	}
	a.cancel()
	if a.server != nil {
		a.shutdownServer(ctx)
	} else if a.listener != nil {
		_ = a.listener.Close() // nobody was served on it
	}
	a.background.Wait()
	if a.engine != nil {
		a.engine.Close()
	}
	if a.temporal != nil {
		a.temporal.Stop()
	}
	if a.ledger != nil {
		if err := a.ledger.Close(); err != nil {
			a.logger.Warn("the database was not closed cleanly", "error", err)
		}
	}
	if a.lock != nil {
		_ = a.lock.Close() // the lock goes with the process at the latest
	}
}

func (a *App) shutdownServer(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, stopWithin)
	defer cancel()
	if err := a.server.Shutdown(ctx); err != nil {
		_ = a.server.Close() // what is still open is cut off
	}
}

// tlsConfig returns the certificate of the listener, or nil.
func (a *App) tlsConfig() (*tls.Config, error) {
	if a.settings.TLSCertFile == "" {
		return nil, nil //nolint:nilnil // no certificate is the loopback default
	}
	certificate, err := tls.LoadX509KeyPair(a.settings.TLSCertFile, a.settings.TLSKeyFile)
	if err != nil {
		return nil, fmt.Errorf("reading ERRAND_TLS_CERT_FILE and ERRAND_TLS_KEY_FILE: %w", err)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
	}, nil
}
