package machineapp

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/errandhq/errand/activities/machine"
	"github.com/errandhq/errand/internal/actions"
	"github.com/errandhq/errand/internal/buildinfo"
	"github.com/errandhq/errand/internal/machineconfig"
	"github.com/errandhq/errand/internal/mcphost"
	"github.com/errandhq/errand/internal/process"
)

// lanes execute steps as machine.yaml of this machine has it.
type lanes struct {
	runner  *machine.Runner
	servers *mcphost.Host
}

// openLanes reads machine.yaml and makes the lanes. No server is started before a step needs it.
func openLanes(environ []string, getenv func(string) string, logger *slog.Logger) (*lanes, error) {
	dir, err := machineconfig.Dir(getenv)
	if err != nil {
		return nil, err
	}
	config, warnings, err := machineconfig.Load(dir)
	if err != nil {
		return nil, err
	}
	for _, warning := range warnings {
		logger.Warn(warning)
	}
	path, err := machine.SearchPath(config.Path, environ)
	if err != nil {
		logger.Warn("steps use the worker's own PATH", "error", err)
	}
	home, err := machine.HomeDirectory(environ)
	if err != nil {
		return nil, err
	}
	cgroups := process.FindCgroups()
	servers, err := mcphost.New(mcpServers(config), mcphost.Options{
		Environ: process.WithVariables(environ, "PATH="+path), Home: home, Cgroups: cgroups,
		Version: buildinfo.Version(), Logger: logger,
	})
	if err != nil {
		return nil, err
	}
	registry, err := registryOf(config, servers, getenv, logger)
	if err != nil {
		return nil, err
	}
	runner, err := machine.New(machine.Options{Actions: registry, Environ: environ, Path: path, Cgroups: cgroups, Logger: logger})
	if err != nil {
		return nil, err
	}
	return &lanes{runner: runner, servers: servers}, nil
}

// registryOf makes the registry of the built-in actions and those of the MCP servers.
func registryOf(config machineconfig.Config, servers *mcphost.Host, getenv func(string) string, logger *slog.Logger) (*actions.Registry, error) {
	channels, err := channelsOf(config)
	if err != nil {
		return nil, err
	}
	builtIn, err := actions.NewRegistry(
		actions.NotifyUser(actions.NewDesktop(getenv), channels, logger),
		actions.HTTPRequest(actions.HTTPPolicy{
			Redirects:     string(config.HTTP.Redirects),
			RefusePrivate: config.HTTP.RefusePrivateAddresses,
			Proxy:         http.ProxyFromEnvironment,
			Now:           time.Now,
			Credential: func(name string) (actions.Credential, bool) {
				credential, ok := config.Credentials[name]
				return credential, ok
			},
		}),
	)
	if err != nil {
		return nil, err
	}
	var sources []actions.Source
	for _, source := range servers.Sources() {
		sources = append(sources, source)
	}
	return builtIn.AddSources(sources...)
}

// channelsOf returns the channels of machine.yaml. A URL that stands in it is checked here; what a file holds, when
// it is used.
func channelsOf(config machineconfig.Config) (map[string]*actions.Channel, error) {
	channels := make(map[string]*actions.Channel, len(config.Channels))
	var wrong []error
	for _, name := range slices.Sorted(maps.Keys(config.Channels)) {
		channel := config.Channels[name]
		if channel.File == "" {
			if err := actions.CheckChannelURL(channel.URL); err != nil {
				wrong = append(wrong, fmt.Errorf("%s: channels.%s: %w", machineconfig.FileName, name, err))
			}
		}
		channels[name] = actions.NewChannel(channel.Resolve)
	}
	return channels, errors.Join(wrong...)
}

// mcpServers returns the enabled servers of machine.yaml.
func mcpServers(config machineconfig.Config) []mcphost.Server {
	var servers []mcphost.Server
	for name, s := range config.MCPServers {
		if s.Disabled {
			continue
		}
		server := mcphost.Server{Name: name, Command: s.Command, Args: s.Args, Env: s.Env, Dir: s.Cwd, URL: s.URL, Headers: s.Headers}
		if credential, ok := config.Credentials[s.Credential]; ok {
			server.Credential = func() (string, string, error) {
				value, err := credential.Resolve()
				return credential.HeaderName(), value, err
			}
		}
		servers = append(servers, server)
	}
	return servers
}
