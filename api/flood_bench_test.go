package api_test

import (
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"
)

// BenchmarkGoodTrafficInAFlood measures the 99th percentile of a good key's calls while 1,000 calls a second with
// wrong credentials come from the same address, half of them keys of the right form, as a multiple of the same
// without them. Quiet and flooded seconds alternate, so that both see the same computer.
func BenchmarkGoodTrafficInAFlood(b *testing.B) {
	w := newWorldWith(b, func(o *worldOptions) { o.rate = 10_000 })
	good, _ := w.key("read", "")
	wrong := make([]string, 0, 1000)
	for range cap(wrong) / 2 {
		secret, _, err := newKey()
		if err != nil {
			b.Fatal(err)
		}
		wrong = append(wrong, secret, secret[:len(secret)-1]+"-")
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	b.Cleanup(client.CloseIdleConnections)
	call := func(token string) (int, time.Duration) {
		request, err := http.NewRequestWithContext(b.Context(), http.MethodGet, w.server.URL+"/v1/automations", nil)
		if err != nil {
			b.Error(err)
			return 0, 0
		}
		request.Header.Set("Authorization", "Bearer "+token)
		began := time.Now()
		response, err := client.Do(request)
		if err != nil {
			b.Error(err)
			return 0, 0
		}
		_, _ = io.Copy(io.Discard, response.Body) // what counts is that it came
		_ = response.Body.Close()
		return response.StatusCode, time.Since(began)
	}
	var quiet, flooded []time.Duration
	sent := 0
	for b.Loop() {
		quiet = append(quiet, paced(b, good, call)...)
		stop, stopped := make(chan struct{}), make(chan int)
		go func() { stopped <- flood(wrong, call, stop) }()
		flooded = append(flooded, paced(b, good, call)...)
		close(stop)
		sent += <-stopped
	}
	before, during := p99(quiet), p99(flooded)
	b.ReportMetric(float64(before.Microseconds()), "µs-p99-quiet")
	b.ReportMetric(float64(during.Microseconds()), "µs-p99-flood")
	b.ReportMetric(float64(during)/float64(before), "ratio")
	b.ReportMetric(float64(sent)/float64(b.N)/second.Seconds(), "wrong/s")
	b.ReportMetric(0, "ns/op")
}

const second = time.Second

// paced makes 200 good calls in a second.
func paced(b *testing.B, token string, call func(string) (int, time.Duration)) []time.Duration {
	const n = 200
	took := make([]time.Duration, 0, n)
	ticker := time.NewTicker(second / n)
	defer ticker.Stop()
	for range n {
		<-ticker.C
		status, d := call(token)
		if status != http.StatusOK {
			b.Errorf("a good call was answered %d", status)
		}
		took = append(took, d)
	}
	return took
}

// flood makes 1,000 calls a second with wrong tokens, 10 every 10 ms, until it is stopped; it returns how many.
func flood(tokens []string, call func(string) (int, time.Duration), stop <-chan struct{}) int {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	var calls sync.WaitGroup
	defer calls.Wait()
	for sent := 0; ; sent += 10 {
		select {
		case <-stop:
			return sent
		case <-ticker.C:
		}
		for i := range 10 {
			calls.Go(func() { call(tokens[(sent+i)%len(tokens)]) })
		}
	}
}

func p99(took []time.Duration) time.Duration {
	slices.Sort(took)
	return took[len(took)*99/100]
}
