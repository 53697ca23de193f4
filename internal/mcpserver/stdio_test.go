package mcpserver_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/errandhq/errand/internal/catalog"
)

const list = `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"list","arguments":{}}}`

func echo(context.Context, catalog.Command, json.RawMessage) (json.RawMessage, error) {
	return json.RawMessage(`{"automations":[]}`), nil
}

// TestLinesThatAreNoMessages are answered and passed over; what was asked is answered after the input has ended;
// and nothing but messages is written.
func TestLinesThatAreNoMessages(t *testing.T) {
	t.Parallel()
	s, _ := failing(echo)
	hostile := []string{
		`nonsense`, `{"jsonrpc":`, `{}`, `[]`, `[` + list + `]`, `7`, "\xff\xfe", `{"jsonrpc":"1.0","id":3,"method":"ping"}`,
		strings.Repeat("x", 17<<20), strings.Repeat("[", 1<<20),
	}
	input := initialize + "\n\n   \r\n" + strings.Join(hostile, "\n") + "\n" + list // no newline at the end
	var out bytes.Buffer
	if err := s.ServeStdio(t.Context(), strings.NewReader(input), &out); err != nil {
		t.Fatal(err)
	}
	answered, faults := map[string]bool{}, 0
	for line := range strings.Lines(out.String()) {
		var message struct {
			JSONRPC string          `json:"jsonrpc"`
			ID      json.RawMessage `json:"id"`
			Error   *struct{ Code int64 }
		}
		if err := json.Unmarshal([]byte(line), &message); err != nil || message.JSONRPC != "2.0" {
			t.Errorf("%v: %.200s", err, line)
		}
		if message.Error != nil && string(message.ID) == "null" {
			faults++
			continue
		}
		answered[string(message.ID)] = message.Error == nil
	}
	if faults != len(hostile) || !answered["1"] || !answered["2"] {
		t.Errorf("%d of %d faults; answered %v\n%.3000s", faults, len(hostile), answered, out.String())
	}
}

// waiting calls a tool that waits, and returns when it does.
func waiting(t *testing.T, ctx context.Context) (in *io.PipeWriter, ended chan error, gaveUp chan struct{}) {
	t.Helper()
	began := make(chan struct{})
	gaveUp = make(chan struct{})
	s, _ := failing(func(ctx context.Context, _ catalog.Command, _ json.RawMessage) (json.RawMessage, error) {
		close(began)
		<-ctx.Done()
		close(gaveUp)
		return nil, ctx.Err()
	})
	read, in := io.Pipe()
	ended = make(chan error, 1)
	go func() { ended <- s.ServeStdio(ctx, read, io.Discard) }()
	if _, err := io.WriteString(in, initialize+"\n"+list+"\n"); err != nil {
		t.Fatal(err)
	}
	<-began
	return in, ended, gaveUp
}

// TestTheEndOfTheInputEndsWaits after a while, and the program with them.
func TestTheEndOfTheInputEndsWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		in, ended, gaveUp := waiting(t, t.Context())
		before := time.Now()
		if err := in.Close(); err != nil {
			t.Fatal(err)
		}
		<-gaveUp
		if err := <-ended; err != nil || time.Since(before) != 2*time.Second {
			t.Errorf("ended after %s: %v", time.Since(before), err)
		}
	})
}

func TestASignalEndsWaitsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		in, ended, gaveUp := waiting(t, ctx)
		before := time.Now()
		stop()
		<-gaveUp
		if err := <-ended; err != nil || time.Since(before) != 0 {
			t.Errorf("ended after %s: %v", time.Since(before), err)
		}
		_ = in.Close()
	})
}

// TestACancelledCallEndsItsWait: the client's notification reaches the call, and the connection goes on.
func TestACancelledCallEndsItsWait(t *testing.T) {
	t.Parallel()
	in, ended, gaveUp := waiting(t, t.Context())
	if _, err := io.WriteString(in, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`+"\n"); err != nil {
		t.Fatal(err)
	}
	<-gaveUp
	_ = in.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestAnOutputThatIsGoneEndsTheProgram, as when the client has died.
func TestAnOutputThatIsGoneEndsTheProgram(t *testing.T) {
	t.Parallel()
	s, _ := failing(echo)
	read, in := io.Pipe()
	out, write := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- s.ServeStdio(t.Context(), read, write) }()
	if _, err := io.WriteString(in, initialize+"\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	_ = out.Close()
	_, _ = io.WriteString(in, list+"\n")
	<-ended
}
