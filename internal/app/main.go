// Package app wires the control plane: it is the one package that knows every adapter. It opens the database,
// starts or reaches Temporal, serves the API, the machine API and the gateway on one address, and, in the
// embedded default, keeps this machine's worker running as a process of its own.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	sdkworker "go.temporal.io/sdk/worker"

	"github.com/errandhq/errand/internal/buildinfo"
	"github.com/errandhq/errand/internal/config"
	"github.com/errandhq/errand/internal/process"
	"github.com/errandhq/errand/internal/telemetry"
)

// Main runs errandd with its arguments, without its name, and returns the exit code.
func Main(args []string, stdout, stderr io.Writer) int {
	settings, err := config.Load(args)
	switch {
	case errors.Is(err, config.ErrHelp):
		return 0
	case err != nil:
		return complain(stderr, err)
	case settings.Version:
		if _, err := fmt.Fprintln(stdout, buildinfo.Version()); err != nil {
			return 1
		}
		return 0
	}
	// Without this every start hashes the whole program, which is large, to tell builds apart.
	sdkworker.SetBinaryChecksum(buildinfo.Version())
	logger, err := telemetry.NewLogger(stderr, settings.LogFormat, settings.LogLevel)
	if err != nil {
		return complain(stderr, err)
	}
	if err := process.ForbidInspection(); err != nil {
		logger.Warn("other programs of this user can inspect this one", "error", err)
	}
	if settings.Rekey {
		if err := rekey(context.Background(), settings, logger); err != nil {
			return complain(stderr, fmt.Errorf("replacing the master key: %w", err))
		}
		return 0
	}
	if err := serve(settings, logger); err != nil {
		logger.Error("errandd has ended with an error", "error", err)
		return 1
	}
	return 0
}

func complain(stderr io.Writer, err error) int {
	_, _ = fmt.Fprintf(stderr, "errandd: %v\n", err) // nowhere is left to say that standard error is gone
	return 2
}

// serve runs the control plane until a signal ends it. SIGINT, which is a person's Ctrl-C, drains the worker
// too; SIGTERM leaves it to the next start. A second signal ends the wait.
func serve(settings config.Config, logger *slog.Logger) error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)

	starting, cancel := context.WithCancel(context.Background())
	defer cancel()
	started := make(chan error, 1)
	a := New(settings, logger)
	go func() { started <- a.Start(starting) }()
	select {
	case err := <-started:
		if err != nil {
			return err
		}
	case <-signals:
		cancel()
		if err := <-started; err != nil {
			return nil // it was told to stop, and has stopped what it had started
		}
		a.Stop(context.Background(), false)
		return nil
	}

	var received os.Signal
	var failure error
	select {
	case received = <-signals:
		logger.Info("stopping", "signal", received.String())
	case failure = <-a.Failed():
	}
	stopping, abandon := context.WithCancel(context.Background())
	defer abandon()
	go func() {
		<-signals
		abandon()
	}()
	a.Stop(stopping, received == os.Interrupt)
	return failure
}
