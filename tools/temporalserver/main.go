// Command temporalserver runs the Temporal server of errandd as a process of its own, for tests of an installation
// that uses an external Temporal. Its address stays the same over restarts and over kills, as does what a client
// needs to reach it: certificates that are made at the first start in its directory. Without those nobody gets in.
//
//	temporalserver -dir DIR [-listen 127.0.0.1:7233] [-namespace default]
//
// When it serves it prints one JSON line: address, namespace, and the files for a client. SIGTERM or SIGINT ends it.
// It is no server for production: it is one process, and its database trades durability for speed.
package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/errandhq/errand/internal/embedded"
)

// options are the command line.
type options struct {
	dir, listen, namespace string
}

// serving is what is printed once clients can connect.
type serving struct {
	Address   string `json:"address"`
	Namespace string `json:"namespace"`
	clientFiles
}

func main() {
	var o options
	flag.StringVar(&o.dir, "dir", "", "directory of the data and the certificates")
	flag.StringVar(&o.listen, "listen", "127.0.0.1:7233", "address to serve on")
	flag.StringVar(&o.namespace, "namespace", "default", "the one namespace")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "temporalserver: %v\n", err)
		os.Exit(1) //nolint:gocritic // nothing is left for the deferred call to do
	}
}

// run serves until ctx ends or the server fails.
func run(ctx context.Context, o options, stdout io.Writer) error {
	if o.dir == "" {
		return errors.New("-dir is needed")
	}
	dir, err := filepath.Abs(o.dir)
	if err != nil {
		return fmt.Errorf("resolving the directory: %w", err)
	}
	files, err := ensureCertificates(filepath.Join(dir, "certificates"))
	if err != nil {
		return err
	}
	settings, err := files.serverConfig()
	if err != nil {
		return err
	}
	// Listening first holds the address while the server starts. Who connects meanwhile is answered then.
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", o.listen)
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	defer listener.Close()
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	server, err := embedded.Start(ctx, embedded.Options{
		Dir: filepath.Join(dir, "data"), Namespace: o.namespace, Logger: logger,
	})
	if err != nil {
		return err
	}
	defer server.Stop()
	f := &forwarder{listener: tls.NewListener(listener, settings), upstream: server.HostPort(), upstreamTLS: server.TLS(), logger: logger}
	go f.serve(ctx)
	if err := json.NewEncoder(stdout).Encode(serving{
		Address: listener.Addr().String(), Namespace: server.Namespace(), clientFiles: files.clientFiles,
	}); err != nil {
		return fmt.Errorf("saying where the server is: %w", err)
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-server.Failed():
		return fmt.Errorf("the server has ended: %w", err)
	}
}

// forwarder passes connections on to the server, whose own address and certificates change with each start.
type forwarder struct {
	listener    net.Listener
	upstream    string
	upstreamTLS *tls.Config
	logger      *slog.Logger
}

func (f *forwarder) serve(ctx context.Context) {
	f.upstreamTLS.NextProtos = []string{"h2"}
	for {
		connection, err := f.listener.Accept()
		if err != nil {
			return // the listener is closed at the end
		}
		go func() {
			if err := f.forward(ctx, connection); err != nil {
				f.logger.Debug("a connection has ended", "error", err)
			}
		}()
	}
}

// forward copies both ways until either side ends.
func (f *forwarder) forward(ctx context.Context, client net.Conn) error {
	defer client.Close()
	server, err := (&tls.Dialer{Config: f.upstreamTLS}).DialContext(ctx, "tcp", f.upstream)
	if err != nil {
		return fmt.Errorf("connecting to the server: %w", err)
	}
	defer server.Close()
	var copying sync.WaitGroup
	var first error
	var once sync.Once
	pass := func(to, from net.Conn) {
		_, err := io.Copy(to, from)
		once.Do(func() { first = err })
		_ = to.Close() // ends the other direction too
		_ = from.Close()
	}
	copying.Go(func() { pass(server, client) })
	copying.Go(func() { pass(client, server) })
	copying.Wait()
	return first
}
