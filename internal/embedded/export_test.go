package embedded

import (
	"context"

	"go.temporal.io/server/common/primitives"
)

// DynamicSettings are the settings of every server that this package starts, by name.
func DynamicSettings() map[string]any {
	settings := make(map[string]any)
	for key, value := range dynamicSettings() {
		settings[key.String()] = value
	}
	return settings
}

// ErrPortTaken is how a launch fails when one of its ports is in use.
var ErrPortTaken = errPortTaken

// LaunchFrontendOn launches a server whose frontend gets the given port, and returns how it fails.
func LaunchFrontendOn(ctx context.Context, o Options, port int) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	file, err := openDataFile(ctx, o)
	if err != nil {
		return err
	}
	certs, err := newCertificates()
	if err != nil {
		return err
	}
	p, err := freePorts(ctx)
	if err != nil {
		return err
	}
	p.services[primitives.FrontendService] = port
	l := newLaunch(o, p, file, certs)
	defer l.stop()
	select {
	case err := <-l.failed:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
