package buildinfo_test

import (
	"runtime/debug"
	"testing"

	"github.com/errandhq/errand/internal/buildinfo"
)

func TestResolve(t *testing.T) {
	t.Parallel()

	settings := func(revision, modified string) []debug.BuildSetting {
		return []debug.BuildSetting{{Key: "vcs.revision", Value: revision}, {Key: "vcs.modified", Value: modified}}
	}
	tests := []struct {
		name   string
		linked string
		info   *debug.BuildInfo
		want   string
	}{
		{name: "the linker's word wins", linked: "v1.2.3", info: &debug.BuildInfo{Main: debug.Module{Version: "v9.9.9"}}, want: "v1.2.3"},
		{name: "installed by go install", info: &debug.BuildInfo{Main: debug.Module{Version: "v0.4.0"}}, want: "v0.4.0"},
		{name: "a commit", info: &debug.BuildInfo{
			Main:     debug.Module{Version: "(devel)"},
			Settings: settings("0123456789abcdef0123", "false"),
		}, want: "devel-0123456789ab"},
		{name: "a changed tree", info: &debug.BuildInfo{Settings: settings("0123456789abcdef0123", "true")}, want: "devel-0123456789ab+dirty"},
		{name: "a short revision", info: &debug.BuildInfo{Settings: settings("abc", "false")}, want: "devel-abc"},
		{name: "no version control", info: &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, want: "devel"},
		{name: "no build information", want: "devel"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := buildinfo.Resolve(tt.linked, tt.info); got != tt.want {
				t.Errorf("Resolve(%q, …) = %q, want %q", tt.linked, got, tt.want)
			}
		})
	}
}

func TestVersionIsNeverEmpty(t *testing.T) {
	t.Parallel()
	if buildinfo.Version() == "" {
		t.Error("Version() is empty")
	}
}
