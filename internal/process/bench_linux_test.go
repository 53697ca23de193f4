package process_test

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/errandhq/errand/internal/process"
)

// BenchmarkSpawn runs `true` from start to end: bare, as a loop of fork and exec does, and as a step, without
// and with a control group. The share of the first in the others is the price of supervision.
func BenchmarkSpawn(b *testing.B) {
	program, err := exec.LookPath("true")
	if err != nil {
		b.Fatal(err)
	}
	environ := []string{"PATH=" + os.Getenv("PATH")}
	b.Run("bare", func(b *testing.B) {
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			b.Fatal(err)
		}
		defer null.Close()
		attr := &os.ProcAttr{Dir: "/", Env: environ, Files: []*os.File{null, null, null}}
		for b.Loop() {
			p, err := os.StartProcess(program, []string{"true"}, attr)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := p.Wait(); err != nil {
				b.Fatal(err)
			}
		}
	})
	step := func(cgroups *process.Cgroups) func(b *testing.B) {
		return func(b *testing.B) {
			marker := "PROCESS_TEST_MARK=bench"
			s := process.Spec{
				Program: "true", Dir: "/", Env: append(environ, marker), Marker: marker, Cgroups: cgroups, MaxOutputBytes: 256 << 10,
			}
			for b.Loop() {
				p, err := process.Start(s)
				if err != nil {
					b.Fatal(err)
				}
				if r := p.Wait(); r.ExitCode == nil || *r.ExitCode != 0 {
					b.Fatalf("%+v", r)
				}
			}
		}
	}
	b.Run("step", step(nil))
	if cgroups := process.FindCgroups(); cgroups != nil {
		b.Run("step in a control group", step(cgroups))
	}
}

// benchOutput is how much the programs of BenchmarkOutput write.
const benchOutput = 4 << 30

// BenchmarkOutput has a program write 4 GiB: into `cat >/dev/null`, and as a step. Beside the throughput it
// reports by how many bytes the step's capture made the memory of this process grow at its peak.
func BenchmarkOutput(b *testing.B) {
	write := "head -c " + strconv.Itoa(benchOutput) + " /dev/zero"
	environ := []string{"PATH=" + os.Getenv("PATH")}
	b.Run("cat", func(b *testing.B) {
		b.SetBytes(benchOutput)
		for b.Loop() {
			if err := exec.Command("sh", "-c", write+" | cat >/dev/null").Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("step", func(b *testing.B) {
		b.SetBytes(benchOutput)
		before := resident(b, "VmRSS")
		if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
			b.Logf("the peak is that of the whole process: %v", err)
		}
		for b.Loop() {
			p, err := process.Start(process.Spec{Program: "sh", Args: []string{"-c", write}, Dir: "/", Env: environ, MaxOutputBytes: 256 << 10})
			if err != nil {
				b.Fatal(err)
			}
			if r := p.Wait(); r.Stdout.Bytes != benchOutput {
				b.Fatalf("%d bytes", r.Stdout.Bytes)
			}
		}
		b.ReportMetric(float64(resident(b, "VmHWM")-before), "B-grown")
	})
}

// resident returns a size of this process in bytes, as the system counts it.
func resident(b *testing.B, name string) int64 {
	b.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), name+":")
	var kib int64
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		b.Fatal(err)
	}
	return kib << 10
}
