//go:build !linux

package process

import (
	"context"
	"os"
	"syscall"
)

// growPipe leaves the size of a pipe to the system, which adapts it by itself.
func growPipe(*os.File) {}

// Cgroups would be where programs get control groups of their own, which only Linux has.
type Cgroups struct{}

// FindCgroups returns nil: this platform has none.
func FindCgroups() *Cgroups { return nil }

func (*Cgroups) create() *cgroup { return nil }

func (*Cgroups) started(bool) {}

type cgroup struct{}

func (*cgroup) receive(*syscall.SysProcAttr) {}

func (*cgroup) remove() {}

// AdoptOrphans does nothing: on this platform orphans always go to the first process of the system.
func AdoptOrphans(context.Context) error { return nil }

// ForbidInspection does nothing: this platform does not show a process's memory or environment to others
// without asking.
func ForbidInspection() error { return nil }
