package actions_test

import (
	"bufio"
	"encoding/binary"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/godbus/dbus/v5"
	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/internal/actions"
)

// sessionBus is a session bus on a real socket with a notification server behind it, as far as a client that
// shows a notification needs them.
type sessionBus struct {
	address      string
	capabilities []string
	refuse       string // name of a D-Bus error; empty to accept

	mu    sync.Mutex
	calls [][]any // the arguments of each Notify
}

func startBus(t *testing.T, path string, bus *sessionBus) *sessionBus {
	t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	bus.address = "unix:path=" + path
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go bus.serve(conn)
		}
	}()
	return bus
}

func (b *sessionBus) serve(conn net.Conn) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	if _, err := in.ReadByte(); err != nil { // the credentials byte
		return
	}
	for {
		line, err := in.ReadString('\n')
		switch {
		case err != nil:
			return
		case strings.HasPrefix(line, "AUTH EXTERNAL"):
			_, _ = conn.Write([]byte("OK 0123456789abcdef0123456789abcdef\r\n"))
		case strings.HasPrefix(line, "AUTH"):
			_, _ = conn.Write([]byte("REJECTED EXTERNAL\r\n"))
		case strings.HasPrefix(line, "NEGOTIATE_UNIX_FD"):
			_, _ = conn.Write([]byte("ERROR\r\n"))
		case strings.HasPrefix(line, "BEGIN"):
			b.serveMessages(conn, in)
			return
		}
	}
}

func (b *sessionBus) serveMessages(conn net.Conn, in *bufio.Reader) {
	for serial := uint32(1); ; serial++ {
		msg, err := dbus.DecodeMessage(in)
		if err != nil {
			return
		}
		if _, err := conn.Write(b.answer(msg, serial)); err != nil {
			return
		}
	}
}

func (b *sessionBus) answer(msg *dbus.Message, serial uint32) []byte {
	reply := &dbus.Message{Type: dbus.TypeMethodReply, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldReplySerial: dbus.MakeVariant(msg.Serial()),
	}}
	switch method := msg.Headers[dbus.FieldMember].Value(); {
	case method == "Hello":
		reply.Body = []any{":1.1"}
	case b.refuse != "":
		reply.Type = dbus.TypeError
		reply.Headers[dbus.FieldErrorName] = dbus.MakeVariant(b.refuse)
		reply.Body = []any{"no such service"}
	case method == "GetCapabilities":
		reply.Body = []any{b.capabilities}
	case method == "Notify":
		b.mu.Lock()
		b.calls = append(b.calls, msg.Body)
		b.mu.Unlock()
		reply.Body = []any{uint32(7)}
	}
	if len(reply.Body) > 0 {
		reply.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(reply.Body...))
	}
	return encode(reply, serial)
}

// encode serializes a message under a serial of the server's own; the library sets serials of sent messages
// only, so it is put where the protocol has it.
func encode(msg *dbus.Message, serial uint32) []byte {
	var out strings.Builder
	if err := msg.EncodeTo(&out, binary.LittleEndian); err != nil {
		panic(err)
	}
	raw := []byte(out.String())
	binary.LittleEndian.PutUint32(raw[8:], serial)
	return raw
}

func environment(vars map[string]string) func(string) string {
	return func(name string) string { return vars[name] }
}

// socketDir returns a directory with a path that is short enough for a socket in it.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "bus")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestDesktopNotificationReachesTheServer(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name         string
		capabilities []string
		body         string
		env          func(bus *sessionBus, dir string) map[string]string
	}{
		{"plain text, bus from the environment", []string{"body"}, "a <b> & c", func(bus *sessionBus, _ string) map[string]string {
			return map[string]string{"DISPLAY": ":0", "DBUS_SESSION_BUS_ADDRESS": bus.address}
		}},
		{"markup, bus of the user", []string{"body", "body-markup"}, "a &lt;b&gt; &amp; c", func(_ *sessionBus, dir string) map[string]string {
			return map[string]string{"WAYLAND_DISPLAY": "wayland-0", "XDG_RUNTIME_DIR": dir}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := socketDir(t)
			bus := startBus(t, filepath.Join(dir, "bus"), &sessionBus{capabilities: tt.capabilities})
			desktop := actions.NewDesktop(environment(tt.env(bus, dir)))
			if err := desktop.Notify(t.Context(), "T <1>", "a <b> & c"); err != nil {
				t.Fatal(err)
			}
			bus.mu.Lock()
			defer bus.mu.Unlock()
			want := [][]any{{"Errand", uint32(0), "", "T <1>", tt.body, []string{}, map[string]dbus.Variant{}, int32(-1)}}
			if diff := cmp.Diff(want, bus.calls); diff != "" {
				t.Errorf("Notify calls (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDesktopSaysWhyNobodySawIt(t *testing.T) {
	t.Parallel()
	dir := socketDir(t)
	bus := startBus(t, filepath.Join(dir, "refusing"), &sessionBus{refuse: "org.freedesktop.DBus.Error.ServiceUnknown"})
	tests := []struct {
		name string
		env  map[string]string
		says string
	}{
		{"nothing", nil, "DISPLAY"},
		{"a bus without a screen", map[string]string{"DBUS_SESSION_BUS_ADDRESS": bus.address}, "DISPLAY"},
		{"a screen without a bus", map[string]string{"DISPLAY": ":0", "XDG_RUNTIME_DIR": dir}, "DBUS_SESSION_BUS_ADDRESS"},
		{"a bus that would have to be started", map[string]string{"DISPLAY": ":0", "XDG_RUNTIME_DIR": dir, "DBUS_SESSION_BUS_ADDRESS": "autolaunch:"}, "DBUS_SESSION_BUS_ADDRESS"},
		{"a dead bus", map[string]string{"DISPLAY": ":0", "DBUS_SESSION_BUS_ADDRESS": "unix:path=" + dir + "/dead"}, "cannot be reached"},
		{"no notification server", map[string]string{"DISPLAY": ":0", "DBUS_SESSION_BUS_ADDRESS": bus.address}, "takes no notifications"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := actions.NewDesktop(environment(tt.env)).Notify(t.Context(), "t", "m")
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error %v, want one that says %q", err, tt.says)
			}
		})
	}
}
