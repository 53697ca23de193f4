package app

import "syscall"

// ownSession keeps a worker from receiving the signals of this process's console.
func ownSession() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}
