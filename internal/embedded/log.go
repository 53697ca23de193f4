package embedded

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"

	"go.temporal.io/server/common/log"
	"go.temporal.io/server/common/log/tag"
)

// levelTrace is where Temporal's own debug lines go: below debug, which holds Temporal's info.
const levelTrace = slog.LevelDebug - 4

// harmless are beginnings of warnings and errors that say nothing is wrong here; they are logged as debug.
var harmless = []string{
	"HTTP API port has not been set.", // the port is left closed on purpose
	"Search attribute ",               // "… already exists.", at each start of a client that wants it
	"GetHistory page size is larger ", // the web interface asks for 1,000 events whenever it shows a run
}

// shardUnknown is the error of a queue that looks for work while its shard is still being taken over at a start.
const shardUnknown = "shard status unknown"

// damage is what SQLite says when it finds the file inconsistent.
const damage = "database disk image is malformed"

// serverLog is the server's logger. Fatal does not end the process: the product says on its own what it does without
// its engine.
type serverLog struct {
	logger   *slog.Logger
	tags     []tag.Tag // of every line; the server makes many loggers and writes few lines, so they are kept as they come
	fatal    func(message string, err error)
	stopping *atomic.Bool // while set, complaints about what is being torn down are debug
	damaged  *atomic.Bool // set when the file turned out to be damaged
}

var (
	_ log.Logger     = (*serverLog)(nil)
	_ log.WithLogger = (*serverLog)(nil)
)

func newServerLog(logger *slog.Logger, fatal func(string, error)) *serverLog {
	return &serverLog{
		logger:   logger.With("component", "temporal"),
		fatal:    fatal,
		stopping: new(atomic.Bool),
		damaged:  new(atomic.Bool),
	}
}

// With implements log.WithLogger.
func (l *serverLog) With(tags ...tag.Tag) log.Logger {
	with := *l
	with.tags = slices.Concat(l.tags, tags)
	return &with
}

// Debug implements log.Logger.
func (l *serverLog) Debug(message string, tags ...tag.Tag) { l.log(levelTrace, message, tags) }

// Info implements log.Logger.
func (l *serverLog) Info(message string, tags ...tag.Tag) { l.log(slog.LevelDebug, message, tags) }

// Warn implements log.Logger.
func (l *serverLog) Warn(message string, tags ...tag.Tag) { l.complain(slog.LevelWarn, message, tags) }

// Error implements log.Logger.
func (l *serverLog) Error(message string, tags ...tag.Tag) {
	l.complain(slog.LevelError, message, tags)
}

// DPanic implements log.Logger. It is an error: Temporal panics here in development builds only.
func (l *serverLog) DPanic(message string, tags ...tag.Tag) { l.log(slog.LevelError, message, tags) }

// Panic implements log.Logger.
func (l *serverLog) Panic(message string, tags ...tag.Tag) {
	l.log(slog.LevelError, message, tags)
	panic(message)
}

// Fatal implements log.Logger. It does not return.
func (l *serverLog) Fatal(message string, tags ...tag.Tag) {
	l.log(slog.LevelError, message, tags)
	l.fatal(message, errorIn(tags))
}

func (l *serverLog) complain(level slog.Level, message string, tags []tag.Tag) {
	var cause string
	if err := errorIn(tags); err != nil {
		cause = err.Error()
	}
	if strings.Contains(cause, damage) {
		l.damaged.Store(true)
	}
	begins := func(prefix string) bool { return strings.HasPrefix(message, prefix) }
	if l.stopping.Load() || cause == shardUnknown || slices.ContainsFunc(harmless, begins) {
		level = slog.LevelDebug
	}
	l.log(level, message, tags)
}

func (l *serverLog) log(level slog.Level, message string, tags []tag.Tag) {
	ctx := context.Background()
	if !l.logger.Enabled(ctx, level) {
		return
	}
	attributes := make([]slog.Attr, 0, len(l.tags)+len(tags))
	for _, t := range slices.Concat(l.tags, tags) {
		attributes = append(attributes, slog.Any(t.Key(), t.Value()))
	}
	l.logger.LogAttrs(ctx, level, message, attributes...)
}

// errorIn returns the error among the tags. Tag.Value has its text only.
func errorIn(tags []tag.Tag) error {
	for _, t := range tags {
		if zap, ok := t.(tag.ZapTag); ok {
			if err, ok := zap.Field().Interface.(error); ok {
				return err
			}
		}
	}
	return nil
}
