package app

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/catalog"
	"github.com/errandhq/errand/internal/client"
	"github.com/errandhq/errand/internal/identity"
	"github.com/errandhq/errand/internal/runtimefile"
)

// engineSide is what commands see of the engine.
type engineSide struct{ app *App }

func (e engineSide) Admitted(runID string) { e.app.starter.Admitted(runID) }

func (e engineSide) Cancelled(run automation.Run, begun string) {
	e.app.starter.Cancelled(run.ID, run.Generation, begun)
	if begun != "" {
		e.app.api.MachineHasEnds(run.MachineID)
	}
}

func (e engineSide) Up() bool { return e.app.engine.Up() }

// runtimeUsers knows the one user of a local installation: whoever can read server.json.
type runtimeUsers struct{ app *App }

func (u runtimeUsers) User(_ context.Context, token string) (catalog.Principal, error) {
	if !u.app.tokenHash.Matches(token) {
		return catalog.Principal{}, automation.Errorf(automation.CodeUnauthorized,
			"the token is not valid; a local one is in server.json and changes with each start of errandd")
	}
	return catalog.Principal{
		OwnerID: u.app.install.LocalOwnerID, Scope: automation.ScopeAdmin,
		Actor: automation.Actor{Kind: automation.ActorRuntime, ID: u.app.install.LocalOwnerID},
	}, nil
}

// machines authenticates and enrols machines.
type machines struct{ app *App }

func (m machines) AuthenticateMachine(ctx context.Context, call automation.Credential) (automation.Machine, error) {
	return m.app.verifier.AuthenticateMachine(ctx, call)
}

func (m machines) Enroll(ctx context.Context, request automation.EnrollRequest) (automation.Machine, error) {
	return m.app.enroller.Enroll(ctx, identity.Enrolment(request))
}

func (a *App) runtimePath() string { return filepath.Join(a.settings.DataDir, "server.json") }

// writeRuntimeFile tells programs of this user where the control plane is.
func (a *App) writeRuntimeFile() error {
	return runtimefile.Write(a.runtimePath(), runtimefile.File{
		URL: a.localURL(), MCPURL: a.localURL() + client.MCPPath, Token: a.token, PID: os.Getpid(), StartedAt: a.began,
	})
}

func (a *App) removeRuntimeFile() {
	if a.token == "" {
		return
	}
	if err := os.Remove(a.runtimePath()); err != nil && !errors.Is(err, os.ErrNotExist) {
		a.logger.Warn("server.json could not be removed", "error", err)
	}
}
