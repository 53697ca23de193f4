package app

import (
	"context"
	"crypto/rand"
	"net/http"

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
			_, err := runtimeUsers{a}.User(ctx, token)
			return err
		},
		PublicURL: a.publicURL, TokenFile: a.runtimePath(), NewSecret: rand.Text, Now: a.now,
		Logger: a.logger.With("component", "temporal-ui"),
	})
}
