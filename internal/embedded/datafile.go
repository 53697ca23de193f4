package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/headers"
	sqliteplugin "go.temporal.io/server/common/persistence/sql/sqlplugin/sqlite"
	sqliteschema "go.temporal.io/server/schema/sqlite"
	"google.golang.org/protobuf/types/known/durationpb"
)

const (
	dataName   = "temporal.db"
	recordName = "version.json"
	backupName = "backup"

	busyTimeout = 10 * time.Second
)

// sidecars are SQLite's files beside a data file, by suffix. The write-ahead log is part of the data.
var sidecars = []string{"", "-wal", "-shm"}

// starts counts the starts of this process, see storeConfig.
var starts atomic.Int64

// record is what is known about the data file without opening it.
type record struct {
	// ServerVersion is the version of the last Temporal server that served the file.
	ServerVersion string `json:"serverVersion"`
	// RetentionSeconds is what Options asked for at the last start.
	RetentionSeconds int64 `json:"retentionSeconds"`
	// Clean says that the last server was stopped in order and found no damage. Otherwise the file is checked in full.
	Clean bool `json:"clean"`
}

func (r record) retention() time.Duration { return time.Duration(r.RetentionSeconds) * time.Second }

// dataFile is Temporal's file with what belongs to it.
type dataFile struct {
	dir      string
	logger   *slog.Logger
	now      func() time.Time
	record   record
	store    *config.SQL
	setAside string
}

// openDataFile finds, checks and backs up the file in o.Dir, or makes a fresh one, and makes sure of the namespace in it.
func openDataFile(ctx context.Context, o Options) (*dataFile, error) {
	f := &dataFile{dir: o.Dir, logger: o.Logger, now: o.Now}
	f.store = storeConfig(f.path())
	f.record = f.readRecord()

	usable, err := f.useExisting(ctx)
	if err != nil {
		return nil, err
	}
	if !usable {
		if err := createDatabase(ctx, f.path()); err != nil {
			return nil, fmt.Errorf("making Temporal's file: %w", err)
		}
		f.record = record{ServerVersion: headers.ServerVersion, RetentionSeconds: int64(o.Retention / time.Second)}
	}
	f.record.Clean = false
	if err := f.writeRecord(); err != nil {
		return nil, err
	}
	return f, f.ensureNamespace(o)
}

func (f *dataFile) path() string { return filepath.Join(f.dir, dataName) }

// storeConfig is the server's access to the file. One connection: with more, writers of the same process lock each other
// out. The server's connection pool never closes a file and finds it again by its settings, so the last setting, a pragma
// that SQLite ignores, gives every start a connection of its own; a file that was set aside must not come back.
func storeConfig(path string) *config.SQL {
	return &config.SQL{
		PluginName:   sqliteplugin.PluginName,
		DatabaseName: (&url.URL{Path: filepath.ToSlash(path)}).EscapedPath(),
		MaxConns:     1,
		MaxIdleConns: 1,
		ConnectAttributes: map[string]string{
			"mode":         "rw",
			"journal_mode": "wal",
			"synchronous":  "1",
			"busy_timeout": strconv.FormatInt(busyTimeout.Milliseconds(), 10),
			"errand_start": strconv.FormatInt(starts.Add(1), 10),
		},
	}
}

// useExisting reports whether there is a file to go on with. One that cannot be used is set aside, one that another
// version of the server made is backed up.
func (f *dataFile) useExisting(ctx context.Context) (bool, error) {
	info, err := os.Stat(f.path())
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking for Temporal's file: %w", err)
	}
	sameVersion := f.record.ServerVersion == headers.ServerVersion
	problem, err := inspectDatabase(ctx, f.path(), !f.record.Clean || !sameVersion)
	if err != nil {
		return false, fmt.Errorf("checking Temporal's file: %w", err)
	}
	if problem != "" {
		return false, f.moveAside(problem)
	}
	if !sameVersion {
		return true, f.backUp()
	}
	return true, nil
}

// moveAside renames the file so that a fresh one can take its place and the old one can still be looked at.
func (f *dataFile) moveAside(problem string) error {
	target := f.path() + ".unusable-" + f.now().UTC().Format("20060102T150405.000Z")
	for _, suffix := range sidecars {
		err := os.Rename(f.path()+suffix, target+suffix)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("setting Temporal's unusable file aside: %w", err)
		}
	}
	f.setAside = target
	f.logger.Warn("Temporal's file could not be used. It was set aside and Temporal starts empty; its work is restored from the ledger.",
		"problem", problem, "setAside", target, "madeBy", f.record.ServerVersion, "server", headers.ServerVersion)
	return nil
}

// backUp copies the file once for each change of the server's version, replacing the backup of the change before.
func (f *dataFile) backUp() error {
	change := filepath.Join(f.dir, backupName, "from-"+nameOf(f.record.ServerVersion)+"-to-"+nameOf(headers.ServerVersion))
	if _, err := os.Stat(change); err == nil {
		return nil
	}
	if err := os.RemoveAll(filepath.Dir(change)); err != nil {
		return fmt.Errorf("removing the last backup of Temporal's file: %w", err)
	}
	partial := change + ".partial"
	if err := os.MkdirAll(partial, 0o700); err != nil {
		return fmt.Errorf("backing up Temporal's file: %w", err)
	}
	for _, suffix := range sidecars[:2] {
		err := copyFile(f.path()+suffix, filepath.Join(partial, dataName+suffix))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("backing up Temporal's file: %w", err)
		}
	}
	if err := os.Rename(partial, change); err != nil {
		return fmt.Errorf("backing up Temporal's file: %w", err)
	}
	f.logger.Info("Temporal's file was backed up before another version of the server opens it.",
		"backup", change, "madeBy", f.record.ServerVersion, "server", headers.ServerVersion)
	return nil
}

// nameOf is a version as part of a file's name; a file without a record has none.
func nameOf(version string) string {
	if version == "" {
		return "unknown"
	}
	return url.PathEscape(version)
}

func copyFile(from, to string) (err error) {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Sync(), target.Close())
}

// ensureNamespace creates the namespace where it is missing. Its id is random and stays with the file.
func (f *dataFile) ensureNamespace(o Options) error {
	attributes := make(map[string]enumspb.IndexedValueType, len(o.SearchAttributes))
	for _, name := range o.SearchAttributes {
		attributes[name] = enumspb.INDEXED_VALUE_TYPE_KEYWORD
	}
	namespace, err := sqliteschema.NewNamespaceConfig(clusterName, o.Namespace, false, attributes)
	if err != nil {
		return fmt.Errorf("describing the namespace: %w", err)
	}
	namespace.Detail.Config.Retention = durationpb.New(o.Retention)
	if err := sqliteschema.CreateNamespaces(f.store, namespace); err != nil {
		return fmt.Errorf("creating the namespace: %w", err)
	}
	return nil
}

// markReady records that this server serves the file.
func (f *dataFile) markReady(retention time.Duration) error {
	ready := f.record
	ready.ServerVersion = headers.ServerVersion
	ready.RetentionSeconds = int64(retention / time.Second)
	if ready == f.record {
		return nil
	}
	f.record = ready
	return f.writeRecord()
}

// markClosed records that the server was stopped in order, and whether the file was then good as far as it knew. Should
// the record fail, the next start checks the file for nothing.
func (f *dataFile) markClosed(good bool) {
	f.record.Clean = good
	if err := f.writeRecord(); err != nil {
		f.logger.Debug("The state of Temporal's file was not recorded.", "error", err)
	}
}

// readRecord reads a record; one that is missing or cannot be read says nothing, as if the file came from elsewhere.
func (f *dataFile) readRecord() record {
	var r record
	content, err := os.ReadFile(filepath.Join(f.dir, recordName))
	if err == nil {
		err = json.Unmarshal(content, &r)
	}
	if err != nil {
		return record{}
	}
	return r
}

func (f *dataFile) writeRecord() error {
	content, err := json.Marshal(f.record)
	if err != nil {
		return fmt.Errorf("encoding the record of Temporal's file: %w", err)
	}
	path := filepath.Join(f.dir, recordName)
	if err := os.WriteFile(path+".new", append(content, '\n'), 0o600); err != nil {
		return fmt.Errorf("recording the state of Temporal's file: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("recording the state of Temporal's file: %w", err)
	}
	return nil
}
