package store_test

import (
	"testing"
)

// BenchmarkCensus measures what /metrics asks of the database every ten seconds at most, with 10,000 unfinished runs.
func BenchmarkCensus(b *testing.B) {
	const waiting = 10_000
	for _, k := range kinds {
		b.Run(k.name, func(b *testing.B) {
			s, a := benchmarkAutomation(b, k, 1)
			for range waiting {
				benchmarkAdmit(b, s, a)
			}
			for b.Loop() {
				census, err := s.Census(b.Context(), true)
				if err != nil {
					b.Fatal(err)
				}
				total := 0
				for _, n := range census.Unfinished {
					total += n
				}
				if total != waiting {
					b.Fatalf("%d runs are counted", total)
				}
			}
		})
	}
}
