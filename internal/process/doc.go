// Package process runs one child process and tells precisely how it ended.
//
// A process gets a session and a process group of its own, its standard input from memory, and two pipes
// whose output is kept as a head and a tail of bounded size. It ends by itself, by its timeout, or by
// [Process.Stop]: SIGTERM to its group, a grace period, SIGKILL. After every end, also a clean one, what is
// left of its session is counted and, unless the caller asked to keep it, ended. [Process.Wait] returns when
// the main process is gone, everything that it wrote was read and the sweep is over; a background child that
// holds the output open delays neither.
//
// The package promises constant memory at any volume of output, no descriptor of this process in the child,
// and an error of a closed set of kinds when the program could not be started. It knows nothing of
// automations: what runs, in which environment and what its end means is decided by the caller. Processes
// that leave the session on purpose (setsid) are out of its reach.
//
// Linux is complete. On macOS the group and session are ended the same way. On Windows a job object takes
// the place of the group, and there is no polite signal that every program understands.
package process
