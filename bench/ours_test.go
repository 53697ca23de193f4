//go:build unix

package bench_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/apptest"
)

// waitMs is how long a call waits for its run: more than any run here takes.
const waitMs = 50_000

// ours is one installation with its worker, and a client that keeps as many connections as it has callers.
type ours struct {
	server *apptest.Server
	worker int
	token  string
	http   *http.Client
}

func startOurs(b *testing.B) *ours {
	b.Helper()
	s := apptest.Start(b, apptest.Options{})
	transport := &http.Transport{MaxIdleConnsPerHost: crowd}
	b.Cleanup(transport.CloseIdleConnections)
	return &ours{server: s, worker: s.AwaitWorker(), token: s.Token(), http: &http.Client{Transport: transport}}
}

// create makes an automation of so many steps that all run `true`.
func (o *ours) create(steps int) string {
	list := make([]any, steps)
	for i := range list {
		list[i] = map[string]any{"id": fmt.Sprintf("s%d", i), "kind": "command", "command": "true"}
	}
	return o.server.Create(map[string]any{
		"name": fmt.Sprintf("%d steps", steps), "workflow": map[string]any{"compiled": map[string]any{"version": 2, "steps": list}},
	})
}

// run measures runs of an automation that are asked for at once, from the first call to the last answer. Each answer
// comes when its run has ended.
func (o *ours) run(b *testing.B, count int, automationID string) time.Duration {
	b.Helper()
	began := time.Now()
	together(b, count, func(int) error { return o.runNow(b.Context(), automationID) })
	return time.Since(began)
}

func (o *ours) runNow(ctx context.Context, automationID string) error {
	var run automation.Run
	status, err := o.call(ctx, http.MethodPost, "/v1/automations/"+automationID+"/runs", fmt.Sprintf(`{"wait_ms":%d}`, waitMs), &run)
	if err != nil || run.Status != automation.RunCompleted {
		return fmt.Errorf("the run is not completed: %d %s: %w", status, run.Status, err)
	}
	return nil
}

// call calls the API over connections that are kept, and decodes its answer.
func (o *ours) call(ctx context.Context, method, path, body string, answer any) (status int, err error) {
	request, err := http.NewRequestWithContext(ctx, method, o.server.URL()+path, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	request.Header.Set("Authorization", "Bearer "+o.token)
	response, err := o.http.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		return response.StatusCode, err
	}
	if err := json.Unmarshal(content, answer); err != nil {
		return response.StatusCode, fmt.Errorf("decoding %s: %w", content, err)
	}
	return response.StatusCode, nil
}
