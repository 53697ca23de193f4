package process

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

const (
	// DefaultGrace is how long a process that is asked to end may take before it is killed.
	DefaultGrace = 10 * time.Second
	// sweepGrace is how long what a process left running may take to end before it is killed. It delays the
	// end of a step that succeeded, so it is short.
	sweepGrace = time.Second
	// killPatience is how long to wait for killed processes to be gone. One that hangs in the kernel (a dead
	// network file system) may never go, and must not hold the result back for ever.
	killPatience = 10 * time.Second
	// killInterval separates repeated kills: what forks in a loop can slip through one round.
	killInterval = 50 * time.Millisecond
)

// Spec says what to run. Program, Dir and Env are required; Env is used exactly as it is.
type Spec struct {
	// Program is an absolute path, or a bare name that is looked up on the PATH of Env.
	Program string
	// Args are the arguments without the program's own name, passed literally.
	Args []string
	// Dir is the working directory, an absolute path.
	Dir string
	// Env is the whole environment as NAME=value; see [BaseEnvironment] and [WithVariables].
	Env []string
	// Stdin is what the process reads; empty means end of file at once.
	Stdin []byte
	// Dialogue leaves standard input and output to the caller: see [Process.Dialogue]. Stdin must be empty then,
	// and the result has no standard output.
	Dialogue bool
	// DieWithUs has the system kill the main process when this one dies, however it dies. Only Linux can.
	DieWithUs bool
	// Timeout is how long the main process may run, on a clock that stands still while the machine sleeps;
	// 0 means without limit.
	Timeout time.Duration
	// Grace is how long a stopped process may take to end before it is killed; 0 means [DefaultGrace].
	Grace time.Duration
	// MaxOutputBytes is how many bytes of each output stream are kept, at least 1.
	MaxOutputBytes int
	// Marker is an entry NAME=value of Env that no other program has. Every process that bears it belongs to
	// this one, wherever it went; empty means that there is none.
	Marker string
	// Cgroups is where the process gets a control group of its own; nil means that it gets none.
	Cgroups *Cgroups
	// KeepLeftovers spares what the process leaves running when it ends by itself. A stop ends everything.
	KeepLeftovers bool
}

// Info identifies a running process for as long as the machine is up, so that another process of ours can
// find it again with [KillLeftover].
type Info struct {
	PID  int `json:"pid"`
	PGID int `json:"pgid"`
	// StartTime tells the process from any other that had or will have its number. It is opaque and comparable.
	StartTime string `json:"startTime"`
	// Cgroup is the directory of the control group that holds the process and nothing else; empty without one.
	Cgroup string `json:"cgroup,omitempty"`
}

// StopReason says why a process was stopped from outside.
type StopReason string

// The reasons of a stop.
const (
	NotStopped      StopReason = ""
	StopCancelled   StopReason = "cancelled"
	StopTimedOut    StopReason = "timed_out"
	StopInterrupted StopReason = "interrupted"
)

// Kind says how a process ended.
type Kind string

// The ends of a process that was started.
const (
	// Exited: the process ended by itself with an exit code.
	Exited Kind = "exited"
	// Signalled: a signal that did not come from this package ended the process.
	Signalled Kind = "signalled"
	// Stopped: [Process.Stop] or the timeout ended it, however it took the signal; Result.Stopped has the reason.
	Stopped Kind = "stopped"
)

// Result tells how a process ended and what it wrote.
type Result struct {
	Kind    Kind
	Stopped StopReason // NotStopped unless Kind is Stopped
	// ExitCode is nil when a signal ended the process.
	ExitCode *int
	// Signal is the name of the signal that ended the process ("SIGKILL"); empty when it exited.
	Signal string
	Stdout Output
	Stderr Output
	// Duration is the running time of the main process.
	Duration time.Duration
	// Leftovers is how many processes were still running beside the main one when it ended by itself or,
	// after a stop, when the grace period was over.
	Leftovers int
	// Survivors is how many of them could not be ended, because they hang in the kernel.
	Survivors int
}

// Process is a started process and its supervision. Its methods are safe for concurrent use.
type Process struct {
	spec    Spec
	proc    *os.Process
	tree    *tree
	info    Info
	started time.Time
	stdin   *feed
	stdout  *stream // nil in a dialogue
	stderr  *stream
	answers *os.File // the standard output in a dialogue

	stopOnce   sync.Once
	stopReason StopReason    // written once, before stopSignal is closed
	stopSignal chan struct{} // closed by the first Stop

	done   chan struct{}
	result Result // written by supervise alone, before done is closed
}

// ending is what awaitExit saw: the state of a reaped process, nothing where it only looked.
type ending struct {
	state *os.ProcessState
	err   error
}

// Start starts a process and its supervision, which goes on whether or not anyone waits. When the program
// never started, the error is a [*StartError]; nothing is left behind then.
func Start(spec Spec) (*Process, error) {
	if spec.Grace <= 0 {
		spec.Grace = DefaultGrace
	}
	if err := checkDir(spec.Dir); err != nil {
		return nil, err
	}
	if err := checkLengths(spec.Args, spec.Env); err != nil {
		return nil, err
	}
	path, err := Find(spec.Program, spec.Env)
	if err != nil {
		return nil, err
	}
	p := &Process{spec: spec, stopSignal: make(chan struct{}), done: make(chan struct{})}
	if err := p.spawn(path); err != nil {
		return nil, err
	}
	go p.supervise()
	return p, nil
}

// spawn starts the program at path with its pipes; on failure every descriptor is closed again.
func (p *Process) spawn(path string) error {
	pipes, err := openPipes(len(p.spec.Stdin) > 0 || p.spec.Dialogue)
	if err != nil {
		return startErrorf(SpawnFailed, err, "the pipes for the program's input and output could not be made: %v", err)
	}
	p.started = time.Now()
	proc, group, err := startGrouped(path, p.spec, pipes.child())
	pipes.closeChild()
	if err != nil {
		pipes.closeParent()
		return explainStart(path, p.spec, err)
	}
	ownChildren.add(proc.Pid)
	p.proc = proc
	p.tree, p.info = openTree(proc, p.spec, group)
	if p.spec.Dialogue {
		p.stdin, p.answers = openFeed(pipes.stdin), pipes.stdout
	} else {
		p.stdin = startFeed(pipes.stdin, p.spec.Stdin)
		p.stdout = startStream(pipes.stdout, p.spec.MaxOutputBytes)
	}
	p.stderr = startStream(pipes.stderr, p.spec.MaxOutputBytes)
	p.spec.Stdin = nil
	return nil
}

// startGrouped starts the program in a control group of its own. When that does not work it is started
// without one: whatever the reason was, the second try gives the program's own error.
func startGrouped(path string, spec Spec, files []*os.File) (*os.Process, *cgroup, error) {
	if group := spec.Cgroups.create(); group != nil {
		proc, err := startProcess(path, spec, files, group)
		if err == nil {
			spec.Cgroups.started(true)
			return proc, group, nil
		}
		group.remove()
		proc, err = startProcess(path, spec, files, nil)
		if err == nil {
			spec.Cgroups.started(false)
		}
		return proc, nil, err
	}
	proc, err := startProcess(path, spec, files, nil)
	return proc, nil, err
}

// Info returns what identifies the process.
func (p *Process) Info() Info { return p.info }

// Dialogue returns the standard input of the process to write to and its standard output to read from; both
// are nil unless Spec.Dialogue was set. The caller closes both. After the process has ended a write fails, and
// what it wrote can still be read.
func (p *Process) Dialogue() (stdin io.WriteCloser, stdout io.ReadCloser) {
	if p.answers == nil {
		return nil, nil
	}
	return p.stdin.w, p.answers
}

// Stop asks the whole group to end, kills it after the grace period, and makes reason the result's. The first
// reason wins, and a stop after the main process has ended changes nothing. It returns at once.
func (p *Process) Stop(reason StopReason) {
	p.stopOnce.Do(func() {
		p.stopReason = reason
		close(p.stopSignal)
	})
}

// Done returns a channel that is closed when [Process.Wait] would no longer block.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait blocks until the main process has ended, its output was read and its leftovers were dealt with. It may
// be called any number of times.
func (p *Process) Wait() Result {
	<-p.done
	return p.result
}

// supervise sees the process to its end. The main process is reaped last where the platform allows it: until
// then its number, and so the group's, cannot be given to anyone else, and a signal cannot hit a stranger.
func (p *Process) supervise() {
	defer close(p.done)
	exited := make(chan ending, 1)
	go func() { exited <- awaitExit(p.proc) }()
	end, grace := p.untilExit(exited)
	p.result.Duration = time.Since(p.started)
	p.sweep(grace)
	p.stdin.stop()
	keepReading := p.spec.KeepLeftovers && p.result.Leftovers > 0
	if p.stdout != nil {
		p.result.Stdout = p.stdout.finish(keepReading)
	}
	p.result.Stderr = p.stderr.finish(keepReading)
	p.reap(end)
	p.tree.close()
}

// gracePeriod is the time that a stopped group has to end. It is over once its end was seen.
type gracePeriod struct {
	ends time.Time
	over bool
}

// untilExit returns when the main process has ended. If it was stopped before that, p.result.Stopped is set
// and the returned grace period says how long the others may take.
func (p *Process) untilExit(exited <-chan ending) (end ending, grace gracePeriod) {
	var timeout, kill <-chan time.Time
	if p.spec.Timeout > 0 {
		timer := time.NewTimer(p.spec.Timeout)
		defer timer.Stop()
		timeout = timer.C
	}
	stop := p.stopSignal
	for {
		select {
		case end = <-exited:
			return end, grace
		case <-timeout:
			timeout = nil
			p.Stop(StopTimedOut)
		case <-stop:
			stop = nil
			p.result.Stopped = p.stopReason
			p.tree.terminate()
			grace.ends = time.Now().Add(p.spec.Grace)
			kill = time.After(p.spec.Grace)
		case <-kill:
			if !grace.over {
				grace.over = true
				p.result.Leftovers = max(0, p.tree.count()-1)
			}
			p.tree.kill()
			kill = time.After(killInterval)
		}
	}
}

// sweep counts and ends what the main process left running. After a stop the rest of the group has what is
// left of the grace period: the main process may have ended at once while a child still cleans up.
func (p *Process) sweep(grace gracePeriod) {
	switch {
	case grace.over:
		p.result.Survivors = killUnlessGone(p.tree, time.Now())
	case p.result.Stopped != NotStopped:
		p.result.Leftovers = awaitGone(p.tree, grace.ends)
		p.result.Survivors = killUnlessGone(p.tree, grace.ends)
	default:
		p.result.Leftovers = p.tree.count()
		if p.result.Leftovers == 0 || p.spec.KeepLeftovers {
			return
		}
		p.tree.terminate()
		p.result.Survivors = killUnlessGone(p.tree, time.Now().Add(min(sweepGrace, p.spec.Grace)))
	}
}

// reap takes the exit status, which removes the main process from the process table.
func (p *Process) reap(end ending) {
	state, err := end.state, end.err
	if state == nil {
		state, err = p.proc.Wait()
	}
	ownChildren.remove(p.proc.Pid)
	if err != nil {
		// Something else in this program took the status. Unknown is not success.
		p.result.Kind, p.result.Signal = Signalled, "unknown"
	} else {
		p.result.ExitCode, p.result.Signal = exitOf(state)
		p.result.Kind = Exited
		if p.result.Signal != "" {
			p.result.Kind = Signalled
		}
	}
	if p.result.Stopped != NotStopped {
		p.result.Kind = Stopped
	}
}

// KillLeftover ends what is left of a program that an earlier process of ours started and did not live to see
// end: SIGTERM, grace, SIGKILL, until nothing is left. The program is found by known, which may be nil, and by
// marker, the NAME=value in its environment, which may be empty. A number that meanwhile belongs to another
// program, or one of an earlier boot, is left alone. Only Linux shows the environment of other processes well
// enough; elsewhere the marker finds nothing. It returns how many processes it found; the error tells of those
// that did not go.
func KillLeftover(known *Info, marker string, grace time.Duration) (n int, err error) {
	t, ok := findTree(known, marker)
	if !ok {
		return 0, nil
	}
	defer t.close()
	n = t.count()
	if n == 0 {
		return 0, nil
	}
	t.terminate()
	if left := killUnlessGone(t, time.Now().Add(grace)); left > 0 {
		return n, fmt.Errorf("ending what a dead worker left running (%s): %d processes did not go after SIGKILL", marker, left)
	}
	return n, nil
}

// killUnlessGone waits until deadline for all processes to end, kills the rest, and returns how many are left
// after killPatience.
func killUnlessGone(t *tree, deadline time.Time) int {
	left := awaitGone(t, deadline)
	for giveUp := time.Now().Add(killPatience); left > 0 && time.Now().Before(giveUp); {
		t.kill()
		left = awaitGone(t, time.Now().Add(killInterval))
	}
	return left
}

// restShare is how many times as long as a look at the processes took the next one is put off, so that a
// machine with thousands of processes spends no more than a tenth of a core on looking.
const restShare = 9

// awaitGone waits until deadline for all processes to end and returns how many are left. There is no event
// for the end of a process that is not our child, so it looks, ever less often.
func awaitGone(t *tree, deadline time.Time) int {
	for pause := time.Millisecond; ; pause = min(2*pause, killInterval) {
		looked := time.Now()
		left := t.count()
		rest := time.Until(deadline)
		if left == 0 || rest <= 0 {
			return left
		}
		time.Sleep(min(max(pause, restShare*time.Since(looked)), rest))
	}
}
