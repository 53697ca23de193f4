//go:build unix

package bench_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

const hookSecret = "the secret of every webhook here"

// BenchmarkWebhooks measures deliveries from the request to the 202, as many at once as there are callers, while the
// worker executes the runs that they admit. Each of them is one durable commit.
func BenchmarkWebhooks(b *testing.B) {
	o := startOurs(b)
	o.measureDeliveries(b, o.createHooks(b), "deliveries of webhooks, 50 at once, to the 202")
}

// measureDeliveries sends each delivery once.
func (o *ours) measureDeliveries(b *testing.B, urls []string, what string) {
	b.Helper()
	waits := make(sample, deliveries)
	var next atomic.Int64
	began := time.Now()
	together(b, crowd, func(int) error {
		for {
			i := int(next.Add(1)) - 1
			if i >= deliveries {
				return nil
			}
			sent := time.Now()
			if err := o.deliver(b.Context(), urls[i%len(urls)], fmt.Sprintf(`{"delivery":%d}`, i)); err != nil {
				return err
			}
			waits[i] = float64(time.Since(sent).Microseconds()) / 1000
		}
	})
	took := time.Since(began)
	record(b, &measurement{What: what, Unit: "ms"}, []string{"errand"}, []sample{waits})
	b.ReportMetric(slices.Sorted(slices.Values(waits))[deliveries*99/100], "ms-p99")
	b.ReportMetric(deliveries/took.Seconds(), "deliveries/s")
}

// createHooks makes an automation with webhooks and returns their addresses.
func (o *ours) createHooks(b *testing.B) []string {
	b.Helper()
	list := make([]any, hooks)
	for i := range list {
		list[i] = map[string]any{"name": fmt.Sprint("hook ", i), "scheme": "github", "secret": hookSecret}
	}
	id := o.server.Create(map[string]any{
		"name": "hooked", "webhooks": list,
		"workflow": map[string]any{"compiled": map[string]any{"version": 2, "steps": []any{
			map[string]any{"id": "s", "kind": "command", "command": "true"},
		}}},
	})
	var shown struct {
		Webhooks []struct{ URL string }
	}
	if status, body := o.server.Get("/v1/automations/" + id); status != http.StatusOK || json.Unmarshal(body, &shown) != nil {
		b.Fatalf("the automation: %d %s", status, body)
	}
	urls := make([]string, 0, hooks)
	for _, w := range shown.Webhooks {
		urls = append(urls, w.URL)
	}
	return urls
}

// deliver sends a delivery as GitHub does.
func (o *ours) deliver(ctx context.Context, url, body string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader([]byte(body)))
	if err != nil {
		return err
	}
	mac := hmac.New(sha256.New, []byte(hookSecret))
	mac.Write([]byte(body))
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	response, err := o.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusAccepted || !json.Valid(answer) {
		return fmt.Errorf("the delivery was not taken: %s %s", response.Status, answer)
	}
	return nil
}
