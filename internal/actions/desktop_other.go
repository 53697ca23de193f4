//go:build !linux

package actions

import (
	"context"
	"fmt"

	"github.com/gen2brain/beeep"
)

// platformDesktop is the notification centre of macOS or Windows.
type platformDesktop struct{}

// NewDesktop returns the desktop of this machine. getenv is not asked on this platform.
func NewDesktop(func(string) string) Desktop {
	beeep.AppName = "Errand"
	return platformDesktop{}
}

// Notify shows a notification. The platform's call cannot be interrupted, so when ctx ends first it is left
// to itself.
func (platformDesktop) Notify(ctx context.Context, title, message string) error {
	done := make(chan error, 1)
	go func() { done <- beeep.Notify(title, message, "") }()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("the desktop did not take the notification: %w", err)
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
