package app

import (
	"cmp"
	"context"
	"crypto/rand"
	"net/http"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/catalog"
	"github.com/errandhq/errand/internal/temporalui"
)

// temporalUI returns Temporal's web interface behind our authentication. An external Temporal has its own.
func (a *App) temporalUI() (http.Handler, error) {
	var ui http.Handler
	if a.temporal != nil {
		var err error
		if ui, err = a.temporal.UI(temporalui.Path); err != nil {
			return nil, err
		}
	}
	return temporalui.New(temporalui.Options{
		UI: ui,
		Authenticate: func(ctx context.Context, token string) error {
			_, err := a.temporalUser(ctx, token)
			return err
		},
		SigningIn: func(ctx context.Context, token string) error {
			p, err := a.temporalUser(ctx, token)
			if p.Actor.ID == "" {
				return err
			}
			return cmp.Or(err, a.service.Note(ctx, p, "temporal-sign-in", "", "", err))
		},
		PublicURL: a.publicURL, TokenFile: a.runtimePath(), NewSecret: rand.Text, Now: a.now,
		Logger: a.logger.With("component", "temporal-ui"),
	})
}

// temporalUser returns who a token stands for, else why that is nobody who may use Temporal's interface: an
// administrator may, because everybody's runs are in it.
func (a *App) temporalUser(ctx context.Context, token string) (catalog.Principal, error) {
	p, err := a.api.User(ctx, token)
	if err != nil {
		return catalog.Principal{}, err
	}
	return p, p.Scope.Authorize(temporalui.Path, automation.ScopeAdmin)
}
