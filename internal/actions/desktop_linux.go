package actions

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/godbus/dbus/v5"
)

// sessionDesktop is the desktop session of the user that this process runs as, found in an environment.
type sessionDesktop struct {
	getenv func(string) string
}

// NewDesktop returns the desktop of this machine, if any: it is looked for at each notification, because a
// user may log in and out while a worker runs. getenv reads the worker's environment, as [os.Getenv] does.
func NewDesktop(getenv func(string) string) Desktop { return sessionDesktop{getenv: getenv} }

// Notify calls org.freedesktop.Notifications on the session bus. It never starts a bus: on a machine without
// a desktop nobody would look at it.
func (d sessionDesktop) Notify(ctx context.Context, title, message string) error {
	if d.getenv("DISPLAY") == "" && d.getenv("WAYLAND_DISPLAY") == "" {
		return errors.New("there is no desktop session (neither DISPLAY nor WAYLAND_DISPLAY is set for the worker)")
	}
	address, ok := d.busAddress()
	if !ok {
		return errors.New("there is no desktop session bus (DBUS_SESSION_BUS_ADDRESS is not set for the worker)")
	}
	conn, err := dbus.Connect(address, dbus.WithContext(ctx))
	if err != nil {
		return fmt.Errorf("the desktop session bus cannot be reached: %w", err)
	}
	defer func() { _ = conn.Close() }()
	return notify(ctx, conn, title, message)
}

// markup escapes a text for a notification body that is read as markup.
var markup = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

func notify(ctx context.Context, conn *dbus.Conn, title, message string) error {
	const service = "org.freedesktop.Notifications"
	server := conn.Object(service, "/org/freedesktop/Notifications")
	var capabilities []string
	if err := server.CallWithContext(ctx, service+".GetCapabilities", 0).Store(&capabilities); err != nil {
		return fmt.Errorf("the desktop takes no notifications: %w", err)
	}
	if slices.Contains(capabilities, "body-markup") {
		message = markup.Replace(message)
	}
	const (
		replacesNone  = uint32(0)
		serverDecides = int32(-1) // how long it stays
	)
	call := server.CallWithContext(ctx, service+".Notify", 0,
		"Errand", replacesNone, "", title, message, []string{}, map[string]dbus.Variant{}, serverDecides)
	if call.Err != nil {
		return fmt.Errorf("the desktop did not take the notification: %w", call.Err)
	}
	return nil
}

// busAddress returns where the session bus listens: as the environment says, else at the place where systemd
// puts it for a user who is logged in.
func (d sessionDesktop) busAddress() (string, bool) {
	if address := d.getenv("DBUS_SESSION_BUS_ADDRESS"); address != "" && !strings.HasPrefix(address, "autolaunch:") {
		return address, true
	}
	dir := d.getenv("XDG_RUNTIME_DIR")
	if dir == "" {
		dir = fmt.Sprintf("/run/user/%d", os.Getuid())
	}
	socket := filepath.Join(dir, "bus")
	info, err := os.Stat(socket)
	if err != nil || info.Mode()&os.ModeSocket == 0 {
		return "", false
	}
	return "unix:path=" + dbus.EscapeBusAddressValue(socket), true
}
