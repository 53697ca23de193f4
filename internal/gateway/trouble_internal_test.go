package gateway

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
)

func TestTroubleIsSaidOnce(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	tr := newTrouble(slog.New(slog.NewTextHandler(&log, nil)))
	lines := func(want int, part string) {
		t.Helper()
		said := strings.TrimSpace(log.String())
		log.Reset()
		if got := strings.Count(said, "level="); got != want || !strings.Contains(said, part) {
			t.Errorf("%d lines, want %d with %q:\n%s", got, want, part, said)
		}
	}
	refused := errors.New("the API key is not valid")
	for range 100 {
		tr.met(t.Context(), "poll", codes.PermissionDenied, refused)
		tr.met(t.Context(), "poll", codes.Unavailable, refused)
	}
	lines(1, "the API key is not valid")
	tr.over(t.Context(), "call")
	lines(0, "")
	tr.met(t.Context(), "call", codes.PermissionDenied, refused)
	tr.met(t.Context(), "poll", codes.Unauthenticated, refused)
	lines(2, "Unauthenticated")
	tr.over(t.Context(), "poll")
	tr.over(t.Context(), "poll")
	lines(1, "again")
	tr.met(t.Context(), "poll", codes.Unauthenticated, refused)
	lines(1, "Unauthenticated")
}
