//go:build unix

package app

import "syscall"

// ownSession keeps a worker from receiving the signals of this process's terminal.
func ownSession() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
