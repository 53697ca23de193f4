package app

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"os"
	"path/filepath"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/access"
	"github.com/errandhq/errand/internal/client"
	"github.com/errandhq/errand/internal/identity"
	"github.com/errandhq/errand/internal/runtimefile"
)

// engineSide is what commands see of the engine.
type engineSide struct{ app *App }

func (e engineSide) Admitted(runID string) { e.app.starter.Admitted(runID) }

func (e engineSide) Cancelled(run automation.Run, begun string) {
	e.app.starter.Cancelled(run.ID, run.Generation, begun)
	if begun != "" && e.app.started.Load() { // before, the machine's connection finds it
		e.app.api.MachineHasEnds(run.MachineID)
	}
}

func (e engineSide) Up() bool { return e.app.engine.Up() }

// users returns who may use the API: whoever can read server.json, the holders of keys and, where an issuer is
// set, those whom it vouches for.
func (a *App) users() (*access.Users, error) {
	o := access.Options{
		Store: a.ledger, Runtime: a.tokenHash.Matches, LocalOwnerID: a.install.LocalOwnerID, Now: a.now,
		Logger: a.logger.With("component", "access"),
	}
	if a.settings.OIDCIssuer == "" {
		return access.New(o), nil
	}
	issuer, err := access.NewOIDC(access.OIDCOptions{
		Issuer: a.settings.OIDCIssuer, Audience: a.settings.OIDCAudience, AdminClaim: a.settings.OIDCAdminClaim,
		HTTP: &http.Client{}, Now: a.now, Logger: o.Logger,
	})
	if err != nil {
		return nil, err
	}
	o.Issuer = issuer
	return access.New(o), nil
}

// newKey makes an API key and what is stored of it.
func newKey() (secret, hash string, err error) {
	secret, err = access.NewKey(rand.Reader)
	return secret, access.HashKey(secret), err
}

// machines authenticates and enrols machines, and counts what they ask.
type machines struct{ app *App }

func (m machines) AuthenticateMachine(ctx context.Context, call automation.Credential) (automation.Machine, error) {
	machine, err := m.app.verifier.AuthenticateMachine(ctx, call)
	if err != nil {
		return automation.Machine{}, err
	}
	return machine, m.app.limits.Call(machine.ID)
}

func (m machines) IssueToken(ctx context.Context, call automation.Credential) (automation.TokenAnswer, error) {
	return m.app.verifier.IssueToken(ctx, call)
}

func (m machines) Received(machineID string, bytes int) { m.app.limits.Received(machineID, bytes) }

func (m machines) Enroll(ctx context.Context, request automation.EnrollRequest) (automation.Machine, error) {
	machine, err := m.app.enroller.Enroll(ctx, identity.Enrolment(request))
	if err == nil {
		// A machine that had another key before is known under that one here.
		m.app.accessChanged(machine.ID, false)
	}
	return machine, err
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
