package process_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/errandhq/errand/internal/process"
)

func TestRunsAsService(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		environ []string
		want    bool
	}{
		{"a systemd service", []string{"PATH=/bin", "INVOCATION_ID=x", "JOURNAL_STREAM=1:2"}, true},
		{"a shell in a terminal that is a service", []string{"INVOCATION_ID=x", "SHLVL=1"}, false},
		{"a terminal", []string{"SHLVL=2", "PATH=/bin"}, false},
		{"a container", []string{"PATH=/bin"}, false},
		{"a launchd service", []string{"XPC_SERVICE_NAME=com.example.errand"}, true},
		{"a program of a macOS desktop", []string{"XPC_SERVICE_NAME=0"}, false},
	}
	for _, tt := range tests {
		if got := process.RunsAsService(tt.environ); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestLoginPath(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	shell := func(name, script string) string {
		return writeFile(t, filepath.Join(dir, name), "#!/bin/sh\n"+script, 0o755)
	}
	home := filepath.Dir(writeFile(t, filepath.Join(dir, "home/.profile"), "echo welcome\nPATH=/from/profile:$PATH\n", 0o644))
	tests := []struct{ name, shell, want, says string }{
		{"a login shell reads its profile", "/bin/sh", "/from/profile:", ""},
		{"it is asked as a login shell", shell("args", `[ "$1" = -l ] && [ "$2" = -c ] && PATH=/asked:$PATH && eval "$3"`), "/asked:", ""},
		{"it fails after the answer", shell("late", `PATH=/late:$PATH; eval "$3"; exit 3`), "/late:", ""},
		{"it says nothing", shell("nologin", "echo This account is not available. >&2; exit 1"), "", "not available"},
		{"it is not there", filepath.Join(dir, "nosuch"), "", "nosuch"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			environ := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "ERRAND_DATA_DIR=x"}
			got, err := process.LoginPath(tt.shell, home, environ)
			if (err != nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Fatalf("error %v, want one that says %q", err, tt.says)
			}
			if !strings.HasPrefix(got, tt.want) || strings.Contains(got, "welcome") {
				t.Errorf("PATH %q, want %q first", got, tt.want)
			}
		})
	}
	if got := process.LoginShell(nil); !filepath.IsAbs(got) {
		t.Errorf("login shell %q", got)
	}
}
