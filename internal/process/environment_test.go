package process_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/internal/process"
)

func TestBaseEnvironmentDropsWhatIsOurs(t *testing.T) {
	t.Parallel()
	kept := []string{"PATH=/usr/bin:/bin", "HOME=/home/a", "EMPTY=", "A=x=y", "MY_ERRAND_NOTE=1", "LISTENER=1", "SSH_AUTH_SOCK=/run/agent"}
	dropped := []string{
		"ERRAND_RUNTIME_TOKEN=secret", "ERRAND_=1", "AMALGM_API_KEY=secret", "TEMPORAL_API_KEY=secret", "TEMPORAL_ADDRESS=localhost:7233",
		"TMOUT=60", "NOTIFY_SOCKET=/run/systemd/notify", "LISTEN_PID=1", "LISTEN_FDS=1", "LISTEN_FDNAMES=a", "CREDENTIALS_DIRECTORY=/run/credentials",
		"WATCHDOG_PID=1", "WATCHDOG_USEC=1", "JOURNAL_STREAM=8:1", "INVOCATION_ID=abc", "STATE_DIRECTORY=/var/lib/errand", "MANAGERPID=1",
		"SYSTEMD_EXEC_PID=1", "OLDPWD=/", "no equals sign", "=nameless",
	}
	var environ []string
	for i := range max(len(kept), len(dropped)) {
		if i < len(dropped) {
			environ = append(environ, dropped[i])
		}
		if i < len(kept) {
			environ = append(environ, kept[i])
		}
	}
	if diff := cmp.Diff(kept, process.BaseEnvironment(environ)); diff != "" {
		t.Errorf("BaseEnvironment (-want +got):\n%s", diff)
	}
}

func TestWithVariablesReplaces(t *testing.T) {
	t.Parallel()
	base := []string{"A=1", "B=2", "A=3"}
	got := process.WithVariables(base, "C=4", "B=5", "C=6")
	if diff := cmp.Diff([]string{"A=3", "B=5", "C=6"}, got); diff != "" {
		t.Errorf("WithVariables (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"A=1", "B=2", "A=3"}, base); diff != "" {
		t.Errorf("WithVariables changed its argument (-want +got):\n%s", diff)
	}
}

func TestProcessSeesExactlyItsEnvironment(t *testing.T) {
	t.Setenv("PROCESS_TEST_INHERITED", "must not arrive")
	s := helperSpec(t, "env")
	s.Env = append(s.Env, "A=x\ny\nz=1", "EMPTY=", "QUOTE='\"$HOME`")
	var got []string
	if err := json.Unmarshal([]byte(run(t, s).Stdout.Text), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s.Env, got); diff != "" {
		t.Errorf("environment of the program (-want +got):\n%s", diff)
	}
}
