package machineapp

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/errandhq/errand/internal/cli"
	"github.com/errandhq/errand/internal/identity"
)

// TestEnrolAsksAgain asks again after a refusal that passes, and only then.
func TestEnrolAsksAgain(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		refusal string
		status  int
		enrols  bool
	}{
		"too often":       {`{"error":{"code":"rate_limited","message":"too many enrolments"}}`, http.StatusTooManyRequests, true},
		"database away":   {`{"error":{"code":"store_unavailable","message":"the database does not answer"}}`, http.StatusServiceUnavailable, true},
		"not a good code": {`{"error":{"code":"unauthorized","message":"the code is not valid"}}`, http.StatusUnauthorized, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if asked.Add(1) == 1 {
					w.WriteHeader(tt.status)
					_, _ = io.WriteString(w, tt.refusal)
					return
				}
				w.WriteHeader(http.StatusCreated)
				_, _ = io.WriteString(w, `{"machineId":"m","name":"laptop"}`)
			}))
			t.Cleanup(server.Close)
			dir := t.TempDir()
			key, err := identity.LoadOrCreateKey(dir)
			if err != nil {
				t.Fatal(err)
			}
			codeFile := filepath.Join(dir, "code")
			if err := os.WriteFile(codeFile, []byte("CODE"), 0o600); err != nil {
				t.Fatal(err)
			}
			enrolled, err := enrol(context.Background(), dir, key, "ABCD-EFGH-2345-WXYZ", cli.Worker{Server: server.URL, CodeFile: codeFile}, slog.New(slog.DiscardHandler))
			if (err == nil) != tt.enrols || tt.enrols && enrolled.MachineID != "m" {
				t.Errorf("enrolled %+v, %v", enrolled, err)
			}
			if !tt.enrols && !strings.Contains(err.Error(), "the code is not valid") {
				t.Errorf("the refusal: %v", err)
			}
		})
	}
}
