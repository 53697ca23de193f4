package process

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// MaxArgumentBytes is the longest single argument, or NAME=value of the environment, that a program can be
// given: 128 KiB less the terminating NUL, which is Linux's limit and applied everywhere.
const MaxArgumentBytes = 131_071

// Find returns the absolute path of the program that name means: an absolute path stands for itself, a bare
// name is looked up on the PATH of environ, in order, and anything else is refused. Entries of PATH that are
// not absolute are passed over, so that what runs never depends on a directory. The error is a [*StartError].
func Find(name string, environ []string) (string, error) {
	switch {
	case name == "":
		return "", startErrorf(CommandNotFound, nil, "the command is empty")
	case strings.ContainsRune(name, 0):
		return "", startErrorf(CommandNotFound, nil, "the command %q contains a NUL byte", name)
	case filepath.IsAbs(name):
		return findAbsolute(name)
	case strings.ContainsAny(name, pathSeparators):
		return "", startErrorf(CommandNotFound, nil,
			"%q is a relative path: use an absolute path, or a bare name that is looked up on PATH", name)
	}
	return findOnPath(name, environ)
}

func findAbsolute(path string) (string, error) {
	found, err := executableFile(path)
	switch {
	case err == nil:
		return found, nil
	case isMissing(err):
		return "", startErrorf(CommandNotFound, err, "there is no program %s", path)
	}
	return "", startErrorf(CommandNotExecutable, err, "%s cannot be executed: %s", path, plainCause(err))
}

func findOnPath(name string, environ []string) (string, error) {
	searched, ok := variable(environ, "PATH")
	if !ok || searched == "" {
		return "", startErrorf(CommandNotFound, nil, "there is no program %s: PATH is not set, so no directory was searched", name)
	}
	var refused *StartError
	for _, dir := range filepath.SplitList(searched) {
		if !filepath.IsAbs(dir) {
			continue
		}
		path := filepath.Join(dir, name)
		found, err := executableFile(path)
		if err == nil {
			return found, nil
		}
		if refused == nil && !isMissing(err) && !errors.Is(err, errIsDirectory) && isFile(path) {
			refused = startErrorf(CommandNotExecutable, err, "%s cannot be executed: %s (PATH %s)", path, plainCause(err), searched)
		}
	}
	if refused != nil {
		return "", refused
	}
	return "", startErrorf(CommandNotFound, nil, "there is no program %s on the PATH that was searched: %s", name, searched)
}

var errIsDirectory = errors.New("it is a directory")

// isMissing reports whether err says that there is no such file, also because a part of its path is a file.
func isMissing(err error) bool { return errors.Is(err, fs.ErrNotExist) || isNotDirectory(err) }

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// plainCause returns the innermost text of err, without operation and path, which the sentence names already.
func plainCause(err error) string {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		err = pathErr.Err
	}
	return err.Error()
}

// checkDir returns a [*StartError] unless dir is a directory that this user may enter.
func checkDir(dir string) error {
	if !filepath.IsAbs(dir) {
		return startErrorf(CwdMissing, nil, "the working directory %q is not an absolute path", dir)
	}
	info, err := os.Stat(dir)
	switch {
	case err != nil && isMissing(err):
		return startErrorf(CwdMissing, err, "the working directory %s does not exist", dir)
	case err != nil:
		return startErrorf(CwdMissing, err, "the working directory %s cannot be reached: %s", dir, plainCause(err))
	case !info.IsDir():
		return startErrorf(CwdMissing, nil, "the working directory %s is not a directory", dir)
	}
	if err := mayExecute(dir); err != nil {
		return startErrorf(CwdMissing, err, "the working directory %s may not be entered: %s", dir, plainCause(err))
	}
	return nil
}

// checkLengths refuses strings that the system could not pass, before it answers with a bare "too long", and
// strings with a NUL, which would end there.
func checkLengths(args, environ []string) error {
	for _, arg := range args {
		if len(arg) > MaxArgumentBytes {
			return startErrorf(ArgumentTooLong, nil, "an argument has %d bytes; one may have at most %d: pass it by stdin or a file",
				len(arg), MaxArgumentBytes)
		}
		if strings.ContainsRune(arg, 0) {
			return startErrorf(SpawnFailed, nil, "the argument %.100q contains a NUL byte, which no program can be given", arg)
		}
	}
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if len(entry) > MaxArgumentBytes {
			return startErrorf(ArgumentTooLong, nil, "the variable %s has %d bytes with its name; one variable may have at most %d",
				name, len(entry), MaxArgumentBytes)
		}
		if strings.ContainsRune(entry, 0) {
			return startErrorf(SpawnFailed, nil, "the variable %q contains a NUL byte, which no program can be given", name)
		}
	}
	return nil
}

// explainMissing is for a program that exists although the system said that a file is missing: what is
// missing is the program that should execute it.
func explainMissing(path string, cause error) *StartError {
	interpreter, isScript := interpreterOf(path)
	if !isScript {
		return startErrorf(InterpreterNotFound, cause, "%s cannot be started: the loader that it was linked for is not on this machine", path)
	}
	return badInterpreter(path, interpreter, cause)
}

// explainFormat is for a file that the system does not recognize as a program.
func explainFormat(path string, cause error) *StartError {
	if interpreter, isScript := interpreterOf(path); isScript {
		return badInterpreter(path, interpreter, cause)
	}
	return startErrorf(CommandNotExecutable, cause,
		"%s is neither a program of this platform nor a script with a #! line", path)
}

// explainDenied is for a program that this user may execute although the system refused.
func explainDenied(path string, cause error) *StartError {
	if interpreter, isScript := interpreterOf(path); isScript {
		return badInterpreter(path, interpreter, cause)
	}
	return startErrorf(CommandNotExecutable, cause, "%s cannot be executed: %s", path, plainCause(cause))
}

func badInterpreter(path, interpreter string, cause error) *StartError {
	switch {
	case interpreter == "":
		return startErrorf(InterpreterNotFound, cause, "the #! line of %s names no interpreter", path)
	case strings.HasSuffix(interpreter, "\r"):
		return startErrorf(InterpreterNotFound, cause,
			"the interpreter %q of the #! line of %s cannot be used: the line ends in a carriage return (Windows line ends)", interpreter, path)
	}
	return startErrorf(InterpreterNotFound, cause, "the interpreter %q of the #! line of %s cannot be used: %s",
		interpreter, path, plainCause(cause))
}

// interpreterOf returns the interpreter that the first line of a script names, and whether path has a `#!` line.
func interpreterOf(path string) (string, bool) {
	f, err := os.Open(path)
	if err != nil {
		return "", false
	}
	defer f.Close()
	line := make([]byte, 256) // Linux reads no further either
	n, err := io.ReadFull(f, line)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return "", false
	}
	rest, isScript := bytes.CutPrefix(line[:n], []byte("#!"))
	if !isScript {
		return "", false
	}
	if end := bytes.IndexByte(rest, '\n'); end >= 0 {
		rest = rest[:end]
	}
	rest = bytes.TrimLeft(rest, " \t")
	if end := bytes.IndexAny(rest, " \t"); end >= 0 {
		rest = rest[:end]
	}
	return string(rest), true
}
