package process

import (
	"errors"
	"os"
	"sync"
	"time"
)

const (
	readBufferBytes = 256 << 10
	// maxPipeBytes is the most that an output pipe can hold. Whatever the main process wrote is among the
	// first maxPipeBytes that are unread when it ends.
	maxPipeBytes = 1 << 20
	// abandonAfter is how long to wait for the end of output where reading cannot be interrupted.
	abandonAfter = time.Second
)

// pipes are the two ends of a child's three standard streams.
type pipes struct {
	stdin          *os.File // nil when there is nothing to feed
	stdout, stderr *os.File

	childStdin, childStdout, childStderr *os.File
}

func openPipes(withStdin bool) (_ *pipes, err error) {
	p := &pipes{}
	defer func() {
		if err != nil {
			p.closeChild()
			p.closeParent()
		}
	}()
	if withStdin {
		p.childStdin, p.stdin, err = os.Pipe()
	} else {
		p.childStdin, err = os.Open(os.DevNull)
	}
	if err != nil {
		return nil, err
	}
	if p.stdout, p.childStdout, err = os.Pipe(); err != nil {
		return nil, err
	}
	if p.stderr, p.childStderr, err = os.Pipe(); err != nil {
		return nil, err
	}
	growPipe(p.stdout)
	growPipe(p.stderr)
	return p, nil
}

func (p *pipes) child() []*os.File { return []*os.File{p.childStdin, p.childStdout, p.childStderr} }

func (p *pipes) closeChild() { closeAll(p.child()...) }

func (p *pipes) closeParent() { closeAll(p.stdin, p.stdout, p.stderr) }

func closeAll(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// feed writes a process's standard input beside everything else, so that a program that writes before it has
// read cannot deadlock with us.
type feed struct {
	w    *os.File
	done chan struct{}
}

// startFeed writes data to w and closes it. A program that does not want its input ends the feed early, and
// that is the program's own affair.
func startFeed(w *os.File, data []byte) *feed {
	f := &feed{w: w, done: make(chan struct{})}
	if w == nil {
		close(f.done)
		return f
	}
	go func() {
		defer close(f.done)
		defer w.Close()
		_, _ = w.Write(data)
	}()
	return f
}

// openFeed leaves it to somebody else to write to w and to close it.
func openFeed(w *os.File) *feed {
	f := &feed{w: w, done: make(chan struct{})}
	close(f.done)
	return f
}

// stop ends a feed that nobody reads any more.
func (f *feed) stop() {
	if f.w != nil {
		f.w.Close()
	}
	<-f.done
}

// readBuffers spares every program two large buffers that must be cleared first.
var readBuffers = sync.Pool{New: func() any { return new([readBufferBytes]byte) }}

// stream reads one output of a process into a bounded capture.
type stream struct {
	r       *os.File
	capture *Capture
	done    chan struct{}
}

func startStream(r *os.File, limit int) *stream {
	s := &stream{r: r, capture: NewCapture(limit), done: make(chan struct{})}
	go s.read()
	return s
}

// read reads until every writer has closed the pipe, or until finish interrupts it: then what the pipe holds
// at that moment is read, and no more.
func (s *stream) read() {
	defer close(s.done)
	buf := readBuffers.Get().(*[readBufferBytes]byte)
	defer readBuffers.Put(buf)
	s.readInto(buf[:])
}

func (s *stream) readInto(buf []byte) {
	for {
		n, err := s.r.Read(buf)
		_, _ = s.capture.Write(buf[:n])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			s.drain(buf)
			return
		}
		if err != nil {
			return
		}
	}
}

// drain reads what is in the pipe without waiting for more. The bound is for a background process that keeps
// writing: it must not keep a step open whose main process has ended.
func (s *stream) drain(buf []byte) {
	if s.r.SetReadDeadline(time.Time{}) != nil {
		return
	}
	for total := 0; total < maxPipeBytes; {
		n := readAvailable(s.r, buf)
		if n <= 0 {
			return
		}
		_, _ = s.capture.Write(buf[:n])
		total += n
	}
}

// finish stops reading, after what was already written, and returns what was kept. With keepReading, writers
// that live on are read into nothing until they end: to close the pipe would kill them at their next line.
func (s *stream) finish(keepReading bool) Output {
	if err := s.r.SetReadDeadline(time.Unix(1, 0)); err == nil {
		<-s.done
	} else {
		select {
		case <-s.done:
		case <-time.After(abandonAfter):
			return s.capture.Output()
		}
	}
	if keepReading {
		go s.discard()
	} else {
		s.r.Close()
	}
	return s.capture.Output()
}

func (s *stream) discard() {
	defer s.r.Close()
	buf := make([]byte, 4<<10)
	for {
		if _, err := s.r.Read(buf); err != nil {
			return
		}
	}
}
