package lockfile_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/errandhq/errand/internal/lockfile"
)

// TestMain lets the test binary be the other process: it takes the lock, says so, and waits for its end.
func TestMain(m *testing.M) {
	if path := os.Getenv("LOCKFILE_TEST_HOLD"); path != "" {
		if _, err := lockfile.Take(path); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("held")
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		return
	}
	os.Exit(m.Run())
}

func TestLockGoesWithItsProcess(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	if _, held, err := lockfile.Probe(path); err != nil || held {
		t.Fatalf("a lock that was never taken: held %v, %v", held, err)
	}
	other := exec.Command(os.Args[0])
	other.Env = append(os.Environ(), "LOCKFILE_TEST_HOLD="+path)
	stdin, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "held\n" {
		t.Fatalf("%q, %v", line, err)
	}
	pid, held, err := lockfile.Probe(path)
	if err != nil || !held || pid != other.Process.Pid {
		t.Errorf("probe: pid %d, held %v, %v; want pid %d", pid, held, err, other.Process.Pid)
	}
	var taken *lockfile.HeldError
	if _, err := lockfile.Take(path); !errors.As(err, &taken) || taken.PID != other.Process.Pid {
		t.Errorf("take: %v, want a HeldError of pid %d", err, other.Process.Pid)
	}
	if err := other.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = other.Wait()
	lock, err := lockfile.Take(path)
	if err != nil {
		t.Fatalf("the lock of a killed process: %v", err)
	}
	if pid, held, err := lockfile.Probe(path); err != nil || !held || pid != os.Getpid() {
		t.Errorf("probe of an own lock: pid %d, held %v, %v", pid, held, err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if _, held, err := lockfile.Probe(path); err != nil || held {
		t.Errorf("a lock that was given back: held %v, %v", held, err)
	}
}
