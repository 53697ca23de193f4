package machineapp

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/buildinfo"
	"github.com/errandhq/errand/internal/catalog"
	"github.com/errandhq/errand/internal/cli"
	"github.com/errandhq/errand/internal/client"
	"github.com/errandhq/errand/internal/mcpserver"
	"github.com/errandhq/errand/internal/telemetry"
)

// runMCP serves the commands as MCP tools on standard input and output, until the input ends or a signal comes.
func runMCP(ctx context.Context, call cli.Call, o cli.MCP) error {
	logger, err := telemetry.NewLogger(os.Stderr, o.LogFormat, o.LogLevel)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	server := mcpserver.New(mcpserver.Options{
		Version: buildinfo.Version(), Logger: logger,
		Call: func(ctx context.Context, command catalog.Command, input json.RawMessage) (json.RawMessage, error) {
			result, err := call(ctx, command, input)
			return result, refusalOf(err)
		},
	})
	return server.ServeStdio(ctx, os.Stdin, os.Stdout)
}

// refusalOf puts what the service said into the words of the MCP server. Any other error stays what it is.
func refusalOf(err error) error {
	remote, ok := errors.AsType[*client.RemoteError](err)
	if !ok {
		return err
	}
	status := remote.Status
	if remote.Code == automation.CodeRuntimeUnavailable {
		status = 0 // the worker's local route says so when the control plane behind it is away
	}
	return &mcpserver.Refusal{
		Code: remote.Code, Message: remote.Message, Status: status, Details: remote.Details, RequestID: remote.RequestID,
	}
}
