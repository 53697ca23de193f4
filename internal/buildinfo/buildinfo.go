// Package buildinfo tells which build of Errand is running. Both binaries of one
// build report the same version, which is how errandd recognises the errand
// that belongs to it. It holds the version alone and imports nothing of ours,
// so that every package may ask.
package buildinfo

import (
	"runtime/debug"
	"sync"
)

// version is set by the linker (see Makefile). It is empty in a build that was
// not made by make.
var version string

// Version returns the version of this build, never empty: the value set by the
// linker (`git describe`), else the module version of a `go install`, else
// `devel-` and the first 12 digits of the commit (`+dirty` when the tree was
// changed), else `devel`.
func Version() string {
	return resolved()
}

var resolved = sync.OnceValue(func() string {
	info, _ := debug.ReadBuildInfo()

	return resolve(version, info)
})

// resolve prefers what the builder said over what the toolchain recorded.
func resolve(linked string, info *debug.BuildInfo) string {
	if linked != "" {
		return linked
	}
	if info == nil {
		return "devel"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}

	return fromRevision(info.Settings)
}

func fromRevision(settings []debug.BuildSetting) string {
	const shown = 12
	revision, dirty := "", false
	for _, s := range settings {
		switch s.Key {
		case "vcs.revision":
			revision = s.Value
		case "vcs.modified":
			dirty = s.Value == "true"
		}
	}
	if revision == "" {
		return "devel"
	}
	v := "devel-" + revision[:min(shown, len(revision))]
	if dirty {
		v += "+dirty"
	}

	return v
}
