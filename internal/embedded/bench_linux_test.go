package embedded_test

import (
	"bytes"
	"log/slog"
	"os"
	"strconv"
	"testing"

	"github.com/errandhq/errand/internal/embedded"
)

// BenchmarkStart measures the time until a server is ready, and the memory of the process then. The first start of a
// process is the one that counts: use -benchtime 1x and a new process for each.
func BenchmarkStart(b *testing.B) {
	for name, fresh := range map[string]bool{"fresh": true, "again": false} {
		b.Run(name, func(b *testing.B) {
			o := embedded.Options{Dir: b.TempDir(), Logger: slog.New(slog.DiscardHandler)}
			var resident float64
			for b.Loop() {
				if fresh {
					o.Dir = b.TempDir()
				}
				server, err := embedded.Start(b.Context(), o)
				b.StopTimer()
				if err != nil {
					b.Fatal(err)
				}
				resident = residentMB(b)
				server.Stop()
				b.StartTimer()
			}
			b.ReportMetric(resident, "MB")
		})
	}
}

func residentMB(b *testing.B) float64 {
	b.Helper()
	content, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		b.Fatal(err)
	}
	pages, err := strconv.Atoi(string(bytes.Fields(content)[1]))
	if err != nil {
		b.Fatal(err)
	}
	return float64(pages) * float64(os.Getpagesize()) / 1e6
}
