package api

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/errandhq/errand/automation"
)

const (
	// lookEvery is how often each server looks for ends of the machines that are connected to it.
	lookEvery = time.Second
	// pingEvery is how often a stream shows that it lives, and asks the machine to do the same.
	pingEvery = 10 * time.Second
)

// events streams to a machine the ends of its steps. Every open end is sent once on each stream, so a
// reconnect repeats those that are not confirmed.
func (a *API) events(c *gin.Context) {
	machine := machineOf(c)
	bodyIsRead(c) // it has none
	stream, err := a.ends.connect(machine.ID)
	if err != nil {
		a.refuse(c, err)
		return
	}
	defer a.ends.disconnect(machine.ID, stream)
	if err := a.checkAccess(c.Request.Context(), machine); err != nil {
		a.refuse(c, err)
		return
	}

	c.Header("Content-Type", "text/event-stream")
	c.Header("X-Accel-Buffering", "no")
	c.Status(http.StatusOK)
	pings := time.NewTicker(pingEvery)
	defer pings.Stop()
	sent := map[string]int64{}
	ping := automation.Event{Kind: automation.EventPing}
	if err := a.Ledger.TouchMachine(c.Request.Context(), machine.ID, a.Now()); err != nil && c.Request.Context().Err() == nil {
		a.Logger.WarnContext(c.Request.Context(), "a machine's presence could not be stored", "machine", machine.ID, "error", err)
	}
	if send(c, ping) != nil {
		return
	}
	for {
		select {
		case <-c.Request.Context().Done():
			return
		case <-a.ends.closed:
			return
		case revoked := <-stream.ended:
			if revoked {
				_ = send(c, automation.Event{Kind: automation.EventRevoked}) // one that is gone learns it when it comes back
			}
			return
		case <-pings.C:
			if send(c, ping) != nil {
				return
			}
		case events := <-stream.events:
			for _, event := range events {
				if sent[event.Key()] >= event.Execution {
					continue
				}
				sent[event.Key()] = event.Execution
				if send(c, event) != nil {
					return
				}
			}
		}
	}
}

// checkAccess looks at a machine again after its stream is known to the broker, so that a change of its access that
// came in between is not missed.
func (a *API) checkAccess(ctx context.Context, authenticated automation.Machine) error {
	current, err := a.Ledger.Machine(ctx, authenticated.ID)
	switch {
	case err != nil:
		return err
	case current.State == automation.MachineRevoked:
		return automation.Errorf(automation.CodeMachineRevoked, "the machine %s has been revoked; enrol it again to use it", current.ID)
	case current.PublicKey != authenticated.PublicKey:
		return automation.Errorf(automation.CodeUnauthorized, "the machine %s has another key now", current.ID)
	}
	return nil
}

func send(c *gin.Context, event automation.Event) error {
	data, err := json.Marshal(event)
	if err != nil {
		return fmt.Errorf("encoding an event: %w", err)
	}
	if _, err := fmt.Fprintf(c.Writer, "event: %s\ndata: %s\n\n", event.Kind, data); err != nil {
		return fmt.Errorf("sending an event: %w", err)
	}
	if err := http.NewResponseController(c.Writer).Flush(); err != nil {
		return fmt.Errorf("sending an event: %w", err)
	}
	return nil
}

// endBroker looks for open ends of connected machines, for all of them in one query, and hands them to their
// streams.
type endBroker struct {
	ledger automation.StepLedger
	logger *slog.Logger
	kicks  chan string
	closed chan struct{}

	mu      sync.Mutex
	streams map[string]map[*eventStream]struct{}
}

// maxStreams is how many event streams a machine may have open at one server. A worker has one; others are left
// over from connections whose end nobody has noticed yet.
const maxStreams = 8

// eventStream is one open stream.
type eventStream struct {
	events chan []automation.Event
	// ended gets one word when the machine's access has changed: whether it was revoked.
	ended chan bool
}

func newEndBroker(ledger automation.StepLedger, logger *slog.Logger) *endBroker {
	return &endBroker{
		ledger: ledger, logger: logger, kicks: make(chan string, 256), closed: make(chan struct{}),
		streams: map[string]map[*eventStream]struct{}{},
	}
}

// connect registers a stream. Error: rate_limited when the machine has too many.
func (b *endBroker) connect(machineID string) (*eventStream, error) {
	stream := &eventStream{events: make(chan []automation.Event, 1), ended: make(chan bool, 1)}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.streams[machineID]) >= maxStreams {
		return nil, underWay(writeTimeout, fmt.Sprintf("the machine has %d event streams open; end one before another is opened", maxStreams))
	}
	if b.streams[machineID] == nil {
		b.streams[machineID] = map[*eventStream]struct{}{}
	}
	b.streams[machineID][stream] = struct{}{}
	return stream, nil
}

func (b *endBroker) disconnect(machineID string, stream *eventStream) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.streams[machineID], stream)
	if len(b.streams[machineID]) == 0 {
		delete(b.streams, machineID)
	}
}

// close ends the streams of a machine.
func (b *endBroker) close(machineID string, revoked bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for stream := range b.streams[machineID] {
		select {
		case stream.ended <- revoked:
		default: // it ends already
		}
	}
}

func (b *endBroker) kick(machineID string) {
	select {
	case b.kicks <- machineID:
	default:
	}
}

func (b *endBroker) run(ctx context.Context) {
	defer close(b.closed)
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			b.look(ctx, b.connected())
		case machineID := <-b.kicks:
			b.look(ctx, []string{machineID})
		}
	}
}

func (b *endBroker) connected() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	ids := make([]string, 0, len(b.streams))
	for id := range b.streams {
		ids = append(ids, id)
	}
	return ids
}

// look hands the open ends of the machines to their streams. A stream that has not taken the last ones yet
// gets the newer ones instead, which contain those that still count.
func (b *endBroker) look(ctx context.Context, machineIDs []string) {
	if len(machineIDs) == 0 {
		return
	}
	ends, err := b.ledger.OpenEnds(ctx, machineIDs)
	if err != nil {
		if ctx.Err() == nil {
			b.logger.WarnContext(ctx, "ends of steps could not be read; they are looked for again", "error", err)
		}
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for machineID, events := range ends {
		for stream := range b.streams[machineID] {
			select {
			case <-stream.events:
			default:
			}
			stream.events <- events
		}
	}
}
