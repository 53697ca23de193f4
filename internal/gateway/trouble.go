package gateway

import (
	"context"
	"log/slog"
	"sync"

	"google.golang.org/grpc/codes"
)

// trouble says what goes wrong behind the gateway, once: while Temporal refuses calls, every machine meets it at
// every poll.
type trouble struct {
	log *slog.Logger

	mu sync.Mutex
	// codes are what Temporal answered when it was last logged, for polls and for other calls.
	codes map[string]codes.Code
}

func newTrouble(log *slog.Logger) *trouble { return &trouble{log: log, codes: map[string]codes.Code{}} }

// met logs a refusal, as a warning when it is not of the kind that was logged last. That Temporal does not answer
// is reported by others, so that it is for debugging.
func (t *trouble) met(ctx context.Context, what string, code codes.Code, err error) {
	level := slog.LevelDebug
	switch code {
	case codes.Unavailable, codes.Canceled, codes.DeadlineExceeded:
	default:
		t.mu.Lock()
		if t.codes[what] != code {
			t.codes[what], level = code, slog.LevelWarn
		}
		t.mu.Unlock()
	}
	t.log.Log(ctx, level, "Temporal refuses calls that are forwarded for machines; no step is handed out until that is put right",
		"what", what, "machine", machineID(ctx), "code", code.String(), "error", err)
}

// over notices that Temporal has accepted one.
func (t *trouble) over(ctx context.Context, what string) {
	t.mu.Lock()
	_, was := t.codes[what]
	delete(t.codes, what)
	t.mu.Unlock()
	if was {
		t.log.InfoContext(ctx, "Temporal accepts the calls that are forwarded for machines again", "what", what)
	}
}
