package process_test

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/errandhq/errand/internal/process"
)

func TestProcessEndsByItself(t *testing.T) {
	t.Parallel()
	code := func(n int) *int { return &n }
	tests := []struct {
		name     string
		script   string
		kind     process.Kind
		exitCode *int
		signal   string
	}{
		{"success", "exit 0", process.Exited, code(0), ""},
		{"failure", "exit 3", process.Exited, code(3), ""},
		{"highest code", "exit 255", process.Exited, code(255), ""},
		{"killed", "kill -9 $$", process.Signalled, nil, "SIGKILL"},
		{"terminated", "kill -TERM $$", process.Signalled, nil, "SIGTERM"},
		{"aborted", "kill -ABRT $$", process.Signalled, nil, "SIGABRT"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := run(t, spec(t, "sh", "-c", "echo out; echo err >&2; "+tt.script))
			if r.Kind != tt.kind || r.Signal != tt.signal || r.Stopped != process.NotStopped {
				t.Errorf("kind %q signal %q stopped %q, want %q %q", r.Kind, r.Signal, r.Stopped, tt.kind, tt.signal)
			}
			if (r.ExitCode == nil) != (tt.exitCode == nil) || r.ExitCode != nil && *r.ExitCode != *tt.exitCode {
				t.Errorf("exit code %v, want %v", r.ExitCode, tt.exitCode)
			}
			if r.Stdout.Text != "out\n" || r.Stderr.Text != "err\n" || r.Leftovers != 0 {
				t.Errorf("stdout %q stderr %q leftovers %d", r.Stdout.Text, r.Stderr.Text, r.Leftovers)
			}
			if r.Duration <= 0 {
				t.Errorf("duration %v", r.Duration)
			}
		})
	}
}

// pids reads the process numbers that a script printed, one a line.
func pids(t *testing.T, text string) []int {
	t.Helper()
	var found []int
	for word := range strings.FieldsSeq(text) {
		if n, err := strconv.Atoi(word); err == nil {
			found = append(found, n)
		}
	}
	return found
}

func TestStepEndsWithItsMainProcess(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, shell, script string
		leftovers           int
		stdout              string
	}{
		{"a background child holds the output", "sh", "sleep 600 & echo $! >pids; echo ok", 1, "ok\n"},
		{"two children, one in a group of its own", "bash", "set -m; sleep 600 & echo $! >pids; set +m; sleep 600 & echo $! >>pids; echo ok", 2, "ok\n"},
		{"a child that ignores TERM", "sh", "(trap '' TERM; touch ready; sleep 600) & echo $! >pids; while [ ! -e ready ]; do :; done; echo ok", 1, "ok\n"},
		{"a suspended child", "sh", "sleep 600 & echo $! >pids; kill -STOP $!; echo ok", 1, "ok\n"},
		{"a child that forks in a loop", "sh", "(trap '' TERM; while :; do sleep 0.01 & wait; done) & echo $! >pids; echo ok", 0, "ok\n"},
		{"nothing left, and a large last output", "sh", "yes x | head -c 65536", 0, strings.Repeat("x\n", 32768)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := spec(t, tt.shell, "-c", tt.script)
			r := run(t, s)
			if r.Kind != process.Exited || *r.ExitCode != 0 || r.Stdout.Text != tt.stdout || r.Survivors != 0 {
				t.Errorf("kind %s, stdout %.100q, survivors %d", r.Kind, r.Stdout.Text, r.Survivors)
			}
			if r.Leftovers < tt.leftovers {
				t.Errorf("leftovers %d, want %d", r.Leftovers, tt.leftovers)
			}
			if list, err := os.ReadFile(filepath.Join(s.Dir, "pids")); err == nil {
				for _, pid := range pids(t, string(list)) {
					eventually(t, "the leftover is gone", gone(pid))
				}
			}
		})
	}
}

// A process that keeps writing must not keep the step open, and what the main process wrote must be there.
func TestBackgroundWriterDoesNotHoldTheStep(t *testing.T) {
	t.Parallel()
	s := spec(t, "sh", "-c", "echo first; (trap '' TERM; exec yes) & echo $!")
	s.KeepLeftovers = true
	p := start(t, s)
	r := p.Wait()
	if !strings.HasPrefix(r.Stdout.Text, "first\n") || r.Leftovers != 1 {
		t.Errorf("stdout %.40q, leftovers %d", r.Stdout.Text, r.Leftovers)
	}
	if n, err := killLeftover(p, 0); n != 1 || err != nil {
		t.Errorf("KillLeftover = %d, %v", n, err)
	}
}

// The end of the main process may be seen before its last words are read, so this is tried often.
func TestLastWordsAreReadBeforeTheStepEnds(t *testing.T) {
	t.Parallel()
	for range 50 {
		s := spec(t, "sh", "-c", "sleep 600 & printf %060000d 7; printf err >&2")
		s.KeepLeftovers = true
		p := start(t, s)
		r := p.Wait()
		if r.Stdout.Bytes != 60_000 || r.Stderr.Text != "err" || r.Leftovers != 1 {
			t.Errorf("%d bytes of 60,000; stderr %q; leftovers %d", r.Stdout.Bytes, r.Stderr.Text, r.Leftovers)
		}
		if _, err := killLeftover(p, time.Minute); err != nil {
			t.Error(err)
		}
	}
}

func TestKeptLeftoverLivesAndMayWriteOn(t *testing.T) {
	t.Parallel()
	s := spec(t, "sh", "-c", "(while [ ! -e go ]; do sleep 0.01; done; echo more; echo more; touch wrote; exec sleep 600) & echo ok")
	s.KeepLeftovers = true
	p := start(t, s)
	r := p.Wait()
	if r.Leftovers == 0 || r.Survivors != 0 || r.Stdout.Text != "ok\n" {
		t.Fatalf("leftovers %d, survivors %d, stdout %q", r.Leftovers, r.Survivors, r.Stdout.Text)
	}
	writeFile(t, filepath.Join(s.Dir, "go"), "", 0o644)
	eventually(t, "the kept process survives writing to its output", exists(filepath.Join(s.Dir, "wrote")))
	if n, err := killLeftover(p, time.Minute); n == 0 || err != nil {
		t.Errorf("KillLeftover = %d, %v", n, err)
	}
}

func TestStop(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, shell, script string
		grace               time.Duration
		exitCode            int // -1: ended by the signal
		signal              string
		stdout              string
		leftovers           int
	}{
		{
			name: "a program that obeys", shell: "sh", script: "touch ready; exec sleep 600",
			grace: time.Minute, exitCode: -1, signal: "SIGTERM",
		},
		{
			name: "a program that ignores TERM", shell: "sh", script: `trap "" TERM; sleep 600 & touch ready; while :; do wait; done`,
			grace: 100 * time.Millisecond, exitCode: -1, signal: "SIGKILL", leftovers: 1,
		},
		{
			name: "a program that cleans up", shell: "sh",
			script: `trap 'sleep 0.2; echo cleaned; exit 5' TERM; touch ready; while :; do sleep 0.01; done`,
			grace:  time.Minute, exitCode: 5, stdout: "cleaned\n",
		},
		{
			name: "a child that cleans up after its parent has gone", shell: "sh",
			script: `(trap 'sleep 0.2; echo child cleaned; exit' TERM; touch ready; while :; do sleep 0.01; done); exit 1`,
			grace:  time.Minute, exitCode: -1, signal: "SIGTERM", stdout: "child cleaned\n",
		},
		{
			name: "a grandchild that ignores TERM", shell: "sh",
			script: `(trap "" TERM; sh -c 'sleep 600 & touch ready; wait'; :) & wait`,
			grace:  200 * time.Millisecond, exitCode: -1, signal: "SIGTERM", leftovers: 3,
		},
		{
			name: "a suspended program", shell: "sh", script: `touch ready; kill -STOP $$`,
			grace: time.Minute, exitCode: -1, signal: "SIGTERM",
		},
		{
			name: "children in groups of their own", shell: "bash",
			script: `set -m; sleep 600 & sleep 600 & (trap "" TERM; sleep 600 & touch ready; wait) & wait`,
			grace:  200 * time.Millisecond, exitCode: -1, signal: "SIGTERM", leftovers: 2,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := spec(t, tt.shell, "-c", tt.script)
			s.Grace = tt.grace
			p := start(t, s)
			eventually(t, "the program is ready", exists(filepath.Join(s.Dir, "ready")))
			if strings.Contains(tt.script, "STOP") {
				eventually(t, "the program is suspended", suspended(p.Info().PID))
			}
			p.Stop(process.StopCancelled)
			p.Stop(process.StopInterrupted)
			r := p.Wait()
			if r.Kind != process.Stopped || r.Stopped != process.StopCancelled || r.Signal != tt.signal {
				t.Errorf("kind %s, stopped %s, signal %q, want signal %q", r.Kind, r.Stopped, r.Signal, tt.signal)
			}
			if (r.ExitCode == nil) != (tt.exitCode < 0) || r.ExitCode != nil && *r.ExitCode != tt.exitCode {
				t.Errorf("exit code %v, want %d", r.ExitCode, tt.exitCode)
			}
			if r.Stdout.Text != tt.stdout || r.Leftovers != tt.leftovers || r.Survivors != 0 {
				t.Errorf("stdout %q, leftovers %d, survivors %d, want %q, %d, 0", r.Stdout.Text, r.Leftovers, r.Survivors, tt.stdout, tt.leftovers)
			}
			if n, err := killLeftover(p, 0); n != 0 || err != nil {
				t.Errorf("after the stop %d processes were alive, %v", n, err)
			}
		})
	}
}

func TestTimeoutEndsJobControlGroups(t *testing.T) {
	t.Parallel()
	s := spec(t, "bash", "-c", "set -m; sleep 300 & echo $!; sleep 300 & echo $!; sleep 300")
	s.Timeout = time.Second
	p := start(t, s)
	r := p.Wait()
	if r.Kind != process.Stopped || r.Stopped != process.StopTimedOut || r.Duration < s.Timeout {
		t.Errorf("kind %s, stopped %q after %v", r.Kind, r.Stopped, r.Duration)
	}
	children := pids(t, r.Stdout.Text)
	if len(children) != 2 {
		t.Fatalf("stdout %q", r.Stdout.Text)
	}
	for _, pid := range append(children, p.Info().PID) {
		eventually(t, "no sleep survives", gone(pid))
	}
}

func TestStopAfterTheEndChangesNothing(t *testing.T) {
	t.Parallel()
	p := start(t, spec(t, "sh", "-c", "exit 4"))
	want := p.Wait()
	p.Stop(process.StopCancelled)
	if got := p.Wait(); got.Kind != process.Exited || *got.ExitCode != 4 || got.Duration != want.Duration {
		t.Errorf("result %+v, want %+v", got, want)
	}
	select {
	case <-p.Done():
	default:
		t.Error("Done is open after Wait")
	}
}

func TestStdin(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("0123456789abcde\n", 1<<16) // 1 MiB
	tests := []struct {
		name, script, stdin string
		exitCode            int
		stdout              string
	}{
		{"absent means end of file at once", "cat; echo end", "", 0, "end\n"},
		{"verbatim", "cat", "a\x01\nb", 0, "a\x01\nb"},
		{"closed at once: the program's status decides", "exec 0<&-; exit 7", big, 7, ""},
		{"closed at once, success", "exec 0<&-; echo ok", big, 0, "ok\n"},
		{"never read", "exit 0", big, 0, ""},
		{"one line read", "read line; echo $line", big, 0, "0123456789abcde\n"},
		{"echoed back while it is fed", "cat", big, 0, big},
		{"a leftover holds it unread", "sleep 600 & echo ok", big, 0, "ok\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := spec(t, "sh", "-c", tt.script)
			s.Stdin, s.MaxOutputBytes = []byte(tt.stdin), 2<<20
			r := run(t, s)
			if r.Kind != process.Exited || *r.ExitCode != tt.exitCode || r.Stdout.Text != tt.stdout {
				t.Errorf("kind %s, exit code %v, stdout %.60q (%d bytes), stderr %q", r.Kind, *r.ExitCode, r.Stdout.Text, r.Stdout.Bytes, r.Stderr.Text)
			}
		})
	}
}

func TestDialogue(t *testing.T) {
	t.Parallel()
	s := spec(t, "sh", "-c", "while read line; do echo \"<$line>\"; done; echo bye; echo err >&2")
	s.Dialogue = true
	p := start(t, s)
	in, out := p.Dialogue()
	defer out.Close()
	answers := bufio.NewScanner(out)
	for _, line := range []string{"one", "two"} {
		if _, err := io.WriteString(in, line+"\n"); err != nil {
			t.Fatal(err)
		}
		if !answers.Scan() || answers.Text() != "<"+line+">" {
			t.Fatalf("answer %q to %q", answers.Text(), line)
		}
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	r := p.Wait()
	if !answers.Scan() || answers.Text() != "bye" || answers.Scan() {
		t.Errorf("last words %q", answers.Text())
	}
	if r.Kind != process.Exited || *r.ExitCode != 0 || r.Stderr.Text != "err\n" || r.Stdout.Bytes != 0 {
		t.Errorf("result %+v", r)
	}
	if in, out := start(t, spec(t, "true")).Dialogue(); in != nil || out != nil {
		t.Error("there is a dialogue that nobody asked for")
	}
}

func TestOutputIsCaptured(t *testing.T) {
	t.Parallel()
	bar := strings.Repeat("50%\r", 75_000)
	tests := []struct {
		name, script string
		limit        int
		stdout       process.Output
	}{
		{"a progress bar without a newline", `yes '50%' | head -n 75000 | tr '\n' '\r'`, 300_000, process.Output{Text: bar, Bytes: 300_000}},
		{"NUL", `printf 'a\0b'`, 100, process.Output{Text: "a␀b", Bytes: 3}},
		{"one byte over the limit", `head -c 204801 /dev/zero | tr '\0' x`, 204_800, capture(204_800, strings.Repeat("x", 204_801))},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := spec(t, "sh", "-c", tt.script)
			s.MaxOutputBytes = tt.limit
			if got := run(t, s).Stdout; got != tt.stdout {
				t.Errorf("got %.60q… %d %v, want %.60q… %d %v", got.Text, got.Bytes, got.Truncated, tt.stdout.Text, tt.stdout.Bytes, tt.stdout.Truncated)
			}
		})
	}
}

//nolint:paralleltest // It measures what this process allocates, so nothing else may run.
func TestMemoryStaysFlatUnderOneHugeLine(t *testing.T) {
	const size = 350_000_000
	s := helperSpec(t, "flood", strconv.Itoa(size))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r := run(t, s)
	runtime.ReadMemStats(&after)
	if r.Stdout.Bytes != size || !r.Stdout.Truncated {
		t.Errorf("%d bytes, truncated %v, stderr %q", r.Stdout.Bytes, r.Stdout.Truncated, r.Stderr.Text)
	}
	half := strings.Repeat("x", s.MaxOutputBytes/2)
	if want := half + "\n…[349737856 bytes omitted]…\n" + half; r.Stdout.Text != want {
		t.Errorf("head and tail are not there: %.40q…", r.Stdout.Text)
	}
	// Everything ever allocated during the run, garbage included.
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 4<<20 {
		t.Errorf("allocated %d bytes for %d bytes of output", grown, size)
	}
}
