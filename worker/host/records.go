package host

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/fileutil"
	"github.com/errandhq/errand/internal/process"
)

// record is what the disk knows of the latest execution of a step: an intent before the program starts, then
// the process, then the result, then the acknowledgement. It is written whole by rename and not synced: a
// power cut ends every program with the records that it loses, and the boot id tells.
type record struct {
	automation.StepRef
	Execution int64               `json:"execution"`
	Kind      automation.StepKind `json:"kind,omitempty"`
	Digest    string              `json:"digest,omitempty"` // of the concrete step
	BootID    string              `json:"bootId"`
	Process   *process.Info       `json:"process,omitempty"`
	Result    *recordedResult     `json:"result,omitempty"`
	// Tombstone is the highest execution that the ledger ended, or 0.
	Tombstone      int64      `json:"tombstone,omitempty"`
	AcknowledgedAt *time.Time `json:"acknowledgedAt,omitempty"`
}

type recordedResult struct {
	Outcome automation.Outcome    `json:"outcome"`
	Data    json.RawMessage       `json:"data,omitempty"`
	Err     *automation.StepError `json:"error,omitempty"`
}

// recordStore keeps one record per step in a directory. Its methods may be called by several goroutines, for
// one step by one at a time.
type recordStore struct {
	dir    string
	spares *spares
}

// spares are files that hold earlier contents of records and are to be written again. A record is written
// several times a step; making and removing a file each time is what that costs, because a file system like
// ext4 passes over the inodes of files that were removed in the last seconds one by one.
type spares struct {
	mu    sync.Mutex
	paths []string
}

func (s *spares) take() (path string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.paths) == 0 {
		return "", false
	}
	last := len(s.paths) - 1
	path, s.paths = s.paths[last], s.paths[:last]
	return path, true
}

func (s *spares) give(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paths = append(s.paths, path)
}

// Names of the files of a [recordStore]. Those that begin with a dot are no records: half written ones and
// spares, which the next start removes.
const (
	recordSuffix     = ".json"
	unreadableSuffix = ".unreadable"
	sparePattern     = ".spare-*"
)

func openRecords(dir string) (recordStore, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return recordStore{}, fmt.Errorf("making the directory of step records: %w", err)
	}
	return recordStore{dir: dir, spares: &spares{}}, nil
}

// path hides the key, which may hold characters that some file systems refuse.
func (s recordStore) path(ref automation.StepRef) string {
	sum := sha256.Sum256([]byte(ref.Key()))
	return filepath.Join(s.dir, hex.EncodeToString(sum[:16])+recordSuffix)
}

// load returns the record of a step, or nil when there is none. An unreadable one counts as none: the start
// of the worker has dealt with those of a dead worker.
func (s recordStore) load(ref automation.StepRef) *record {
	r, err := readRecord(s.path(ref))
	if err != nil || r.StepRef != ref {
		return nil
	}
	return &r
}

func readRecord(path string) (record, error) {
	var r record
	text, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, err
	}
	if r.RunID == "" || r.StepID == "" || r.BootID == "" {
		return r, errors.New("the record names no step or boot")
	}
	return r, nil
}

func (s recordStore) save(r record) error {
	text, err := encode(r)
	if err != nil {
		return fmt.Errorf("encoding the record of step %s: %w", r.Key(), err)
	}
	path := s.path(r.StepRef)
	if s.replace(path, text) {
		return nil
	}
	if err := fileutil.WriteFile(path, text); err != nil {
		return fmt.Errorf("writing the record of step %s: %w", r.Key(), err)
	}
	return nil
}

// replace writes a record that exists already into a spare file and swaps the two, so that none is removed. It
// reports whether it did; where it did not, the record is as it was.
func (s recordStore) replace(path string, text []byte) bool {
	if _, err := os.Lstat(path); err != nil {
		return false
	}
	spare, ok := s.spares.take()
	if !ok {
		file, err := os.CreateTemp(s.dir, sparePattern) // CreateTemp makes files 0600
		if err != nil {
			return false
		}
		spare = file.Name()
		_ = file.Close()
	}
	if overwrite(spare, text) != nil || exchange(spare, path) != nil {
		_ = os.Remove(spare) // at the latest the next start does
		return false
	}
	s.spares.give(spare)
	return true
}

// overwrite replaces the content of an existing file. It cuts the file after it has written and not before:
// ext4 sends a file that was emptied to the disk as soon as it is closed.
func overwrite(path string, content []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err == nil {
		err = file.Truncate(int64(len(content)))
	}
	return errors.Join(err, file.Close())
}

func (s recordStore) remove(ref automation.StepRef) error {
	if err := os.Remove(s.path(ref)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing the record of step %s: %w", ref.Key(), err)
	}
	return nil
}

// all returns every record, and the paths of those that cannot be read. Files that a crash left half written
// are removed: nobody was told of them.
func (s recordStore) all() (records []record, unreadable []string, err error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, nil, fmt.Errorf("listing the step records: %w", err)
	}
	for _, entry := range entries {
		path := filepath.Join(s.dir, entry.Name())
		switch {
		case strings.HasPrefix(entry.Name(), "."):
			if err := os.Remove(path); err != nil {
				return nil, nil, fmt.Errorf("removing a half-written step record: %w", err)
			}
		case strings.HasSuffix(entry.Name(), recordSuffix):
			r, err := readRecord(path)
			if err != nil || s.path(r.StepRef) != path {
				unreadable = append(unreadable, path)
				continue
			}
			records = append(records, r)
		}
	}
	return records, unreadable, nil
}

// setAside renames an unreadable record, so that it stays to be looked at and no longer stands in the way of
// a new one.
func (s recordStore) setAside(path string) error {
	if err := os.Rename(path, path+unreadableSuffix); err != nil {
		return fmt.Errorf("setting an unreadable step record aside: %w", err)
	}
	return nil
}

// sweep removes what was last written before the given time and is needed no more: records that were
// acknowledged, which is the last write of a record, and unreadable files. It returns how many.
func (s recordStore) sweep(before time.Time) (int, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return 0, fmt.Errorf("listing the step records: %w", err)
	}
	removed := 0
	for _, entry := range entries {
		path := filepath.Join(s.dir, entry.Name())
		info, err := entry.Info()
		if err != nil || !info.ModTime().Before(before) || !disposable(path) {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return removed, fmt.Errorf("removing an old step record: %w", err)
		}
		removed++
	}
	return removed, nil
}

func disposable(path string) bool {
	switch {
	case strings.HasSuffix(path, unreadableSuffix):
		return true
	case strings.HasSuffix(path, recordSuffix):
		r, err := readRecord(path)
		return err == nil && r.AcknowledgedAt != nil
	}
	return false
}

// digestOf identifies what a step was to execute without keeping it on disk.
func digestOf(step automation.ConcreteStep) string {
	text, err := encode(step)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
