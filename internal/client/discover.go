package client

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/runtimefile"
)

// MCPPath is the path at the end of the address that a worker gives to programs on its machine.
const MCPPath = "/mcp/automations"

// Discovery is where a service is looked for.
type Discovery struct {
	// Getenv reads a variable of the environment.
	Getenv func(string) string
	// DataDir holds worker.json and server.json.
	DataDir string
	// Alive reports whether a process of that id exists.
	Alive func(pid int) bool
	// Person says that the call needs the authority of a person: a machine's, which worker.json lends, is not enough.
	Person bool
}

// Find returns the first service of: ERRAND_MCP_URL with ERRAND_RUNTIME_TOKEN; ERRAND_API_URL with
// ERRAND_API_KEY; worker.json; server.json, and those two in the opposite order for a call of a person. Half a pair, and no service at all, are runtime_unavailable.
func (d Discovery) Find() (Endpoint, error) {
	pairs := []struct{ address, token string }{
		{"ERRAND_MCP_URL", "ERRAND_RUNTIME_TOKEN"},
		{"ERRAND_API_URL", "ERRAND_API_KEY"},
	}
	for _, pair := range pairs {
		address, token := d.Getenv(pair.address), d.Getenv(pair.token)
		switch {
		case address != "" && token != "":
			return Endpoint{URL: base(address), Token: token, Source: pair.address}, nil
		case address != "":
			return Endpoint{}, unavailable("%s is set and %s is not; set both, or neither", pair.address, pair.token)
		case token != "":
			return Endpoint{}, unavailable("%s is set and %s is not; set both, or neither", pair.token, pair.address)
		}
	}
	var damaged string
	files := []string{"worker.json", "server.json"}
	if d.Person {
		slices.Reverse(files)
	}
	for _, name := range files {
		path := filepath.Join(d.DataDir, name)
		file, err := runtimefile.Read(path)
		switch {
		case errors.Is(err, os.ErrNotExist):
		case errors.Is(err, os.ErrPermission):
			damaged = fmt.Sprintf(" (%s may not be read by this user)", path)
		case err != nil || file.URL == "" || file.Token == "":
			damaged = fmt.Sprintf(" (%s is damaged)", path)
		case d.Alive(file.PID):
			return Endpoint{URL: base(file.URL), Token: file.Token, Source: path}, nil
		default: // its process is gone: a crash left it behind
		}
	}
	return Endpoint{}, unavailable(
		"no running service was found in %s%s; start errandd, set ERRAND_DATA_DIR if it runs with another directory, or set ERRAND_API_URL and ERRAND_API_KEY",
		d.DataDir, damaged)
}

// base returns the address without what belongs to one face of the service.
func base(address string) string {
	return strings.TrimRight(strings.TrimSuffix(strings.TrimRight(address, "/"), MCPPath), "/")
}

func unavailable(format string, args ...any) error {
	return &automation.Error{Code: automation.CodeRuntimeUnavailable, Message: fmt.Sprintf(format, args...)}
}
