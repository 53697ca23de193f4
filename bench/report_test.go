//go:build unix

package bench_test

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"
)

// resultsFile is where the results are written as JSON.
var resultsFile = flag.String("results", "", "file for the results as JSON")

// sample is one value of a contender per round, in the unit of its measurement.
type sample []float64

// contender is one of those that are measured side by side.
type contender struct {
	Name    string  `json:"name"`
	Samples sample  `json:"samples"`
	Min     float64 `json:"min"`
	Median  float64 `json:"median"`
	P90     float64 `json:"p90"`
	P99     float64 `json:"p99"`
	Max     float64 `json:"max"`
}

// comparison holds one contender against another: the median of the ratios of their rounds, which a computer that is
// busy with other things disturbs less than it does the ratio of their medians.
type comparison struct {
	Against string  `json:"against"`
	Ratio   float64 `json:"ratio"`
	target
}

// target is a bound: of a ratio, or of a median. Limit 0 is none.
type target struct {
	Limit   float64 `json:"target,omitempty"`
	AtLeast bool    `json:"atLeast,omitempty"`
	Met     *bool   `json:"met,omitempty"`
}

func (t *target) judge(value float64) {
	if t.Limit == 0 {
		return
	}
	met := value <= t.Limit
	if t.AtLeast {
		met = value >= t.Limit
	}
	t.Met = &met
}

func (t *target) String() string {
	if t.Met == nil {
		return ""
	}
	sign, verdict := "≤", "missed"
	if t.AtLeast {
		sign = "≥"
	}
	if *t.Met {
		verdict = "met"
	}
	return fmt.Sprintf("%s %g: %s", sign, t.Limit, verdict)
}

// measurement is what one benchmark found out: its contenders, ours last, and how ours compares with the others.
type measurement struct {
	What        string       `json:"what"`
	Unit        string       `json:"unit"`
	Contenders  []contender  `json:"contenders"`
	Comparisons []comparison `json:"comparisons,omitempty"`
	target                   // of the median of ours
}

// host is the computer, and how busy it was.
type host struct {
	Processor  string    `json:"processor"`
	Processors int       `json:"processors"`
	MemoryMiB  int64     `json:"memoryMiB,omitempty"`
	System     string    `json:"system"`
	Go         string    `json:"go"`
	Build      string    `json:"build"`
	Began      time.Time `json:"began"`
	Ended      time.Time `json:"ended"`
	// LoadBefore and LoadAfter are the load averages of 1, 5 and 15 minutes. Those after the run contain the run.
	LoadBefore string `json:"loadBefore,omitempty"`
	LoadAfter  string `json:"loadAfter,omitempty"`
}

// results is everything, as it is written.
type results struct {
	Host         host           `json:"host"`
	Measurements []*measurement `json:"measurements"`
}

var all results

func TestMain(m *testing.M) {
	flag.Parse()
	began, load := time.Now().UTC(), loadAverages()
	code := m.Run()
	if len(all.Measurements) > 0 {
		all.Host = describeHost()
		all.Host.Began, all.Host.Ended = began, time.Now().UTC()
		all.Host.LoadBefore, all.Host.LoadAfter = load, loadAverages()
		if err := publish(os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// record adds a measurement, and puts the median of ours and the ratios on the benchmark's own line. samples are in the order of names;
// bounds are the targets of ours against each of the others.
func record(b *testing.B, m *measurement, names []string, samples []sample, bounds ...target) {
	b.Helper()
	for i, name := range names {
		m.Contenders = append(m.Contenders, summarize(name, samples[i]))
	}
	ours := len(names) - 1
	m.judge(m.Contenders[ours].Median)
	for i, bound := range bounds {
		c := comparison{Against: names[i], Ratio: ratio(samples[ours], samples[i]), target: bound}
		c.judge(c.Ratio)
		m.Comparisons = append(m.Comparisons, c)
		b.ReportMetric(c.Ratio, "of-"+strings.ReplaceAll(c.Against, " ", "-"))
	}
	all.Measurements = append(all.Measurements, m)
	b.ReportMetric(m.Contenders[ours].Median, strings.ReplaceAll(m.Unit, " ", "-"))
	b.ReportMetric(0, "ns/op") // the benchmark's own loop is of no interest
}

func summarize(name string, samples sample) contender {
	sorted := slices.Sorted(slices.Values(samples))
	at := func(percent int) float64 { return sorted[(len(sorted)-1)*percent/100] }
	return contender{Name: name, Samples: samples, Min: at(0), Median: at(50), P90: at(90), P99: at(99), Max: at(100)}
}

// ratio is the median of the ratios of two contenders' rounds.
func ratio(ours, other sample) float64 {
	ratios := make([]float64, len(ours))
	for i := range ours {
		ratios[i] = ours[i] / other[i]
	}
	slices.Sort(ratios)
	return ratios[(len(ratios)-1)/2]
}

// publish prints the table and writes the file.
func publish(w io.Writer) error {
	h := all.Host
	fmt.Fprintf(w, "\n%s, %d processors, %d MiB, %s, %s, build %s\n", h.Processor, h.Processors, h.MemoryMiB, h.System, h.Go, h.Build)
	fmt.Fprintf(w, "began %s; load %s before, %s after\n\n", h.Began.Format(time.DateTime), h.LoadBefore, h.LoadAfter)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "measured\tof\tn\tmin\tmedian\tp90\tp99\tmax\tours / it\ttarget")
	for _, m := range all.Measurements {
		for i, c := range m.Contenders {
			quotient, bound := "", ""
			switch {
			case i < len(m.Comparisons):
				quotient, bound = fmt.Sprintf("%.2f", m.Comparisons[i].Ratio), m.Comparisons[i].target.String()
			case i == len(m.Contenders)-1:
				bound = m.target.String()
			}
			fmt.Fprintf(table, "%s, %s\t%s\t%d\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%s\t%s\n",
				m.What, m.Unit, c.Name, len(c.Samples), c.Min, c.Median, c.P90, c.P99, c.Max, quotient, bound)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if *resultsFile == "" {
		return nil
	}
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the results: %w", err)
	}
	if err := os.WriteFile(*resultsFile, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("writing the results: %w", err)
	}
	fmt.Fprintf(w, "\nThe same as JSON, with all samples: %s\n", *resultsFile)
	return nil
}

func describeHost() host {
	h := host{Processors: runtime.NumCPU(), Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH}
	h.Processor = cmp.Or(fieldOf("/proc/cpuinfo", "model name"), "unknown processor")
	var kibibytes int64
	if _, err := fmt.Sscan(fieldOf("/proc/meminfo", "MemTotal"), &kibibytes); err == nil {
		h.MemoryMiB = kibibytes >> 10
	}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		h.System += " " + strings.TrimSpace(string(release))
	}
	h.Build = "unknown"
	if output, err := exec.Command("git", "describe", "--tags", "--always", "--dirty").Output(); err == nil {
		h.Build = strings.TrimSpace(string(output))
	}
	return h
}

// fieldOf returns the first value of a key in a file of lines `key: value`, or "".
func fieldOf(path, key string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(content)) {
		if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == key {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// loadAverages returns the load averages, or "" where the system does not tell them in this way.
func loadAverages() string {
	content, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	fields := strings.Fields(string(content))
	return strings.Join(fields[:min(3, len(fields))], " ")
}
