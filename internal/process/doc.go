// Package process runs one child process and everything that comes from it, and tells precisely how it ended.
//
// A process gets a session and a process group of its own, a control group where this process may make some,
// its standard input from memory, and two pipes whose output is kept as a head and a tail of bounded size. It
// ends by itself, by its timeout, or by [Process.Stop]: SIGTERM to the whole tree, a grace period, SIGKILL.
// After every end, also a clean one, what is left of the tree is counted and, unless the caller asked to keep
// it, ended, until nothing is left. [Process.Wait] returns when the main process is gone, everything that it
// wrote was read and the sweep is over; a background child that holds the output open delays neither.
//
// The tree is what is in the control group or the session, what bears the process's marker in its environment,
// and the descendants of all these. Without a control group one thing escapes: a process that leaves the
// session and clears its environment, or forbids to read it, and whose parents were gone before anybody looked.
//
// Beside that the package holds what a long-lived parent of processes needs: [AdoptOrphans] leaves no zombies,
// [ForbidInspection] hides its environment from its children, [KillLeftover] ends what an earlier parent left,
// and [LoginPath] finds the PATH that the user of a service has.
//
// The package promises constant memory at any volume of output, no descriptor of this process in the child,
// and an error of a closed set of kinds when the program could not be started. It knows nothing of
// automations: what runs, in which environment and what its end means is decided by the caller.
//
// Linux is complete. On macOS the group is ended the same way; what leaves it is not found. On Windows a job
// object takes the place of the group, and there is no polite signal that every program understands.
package process
