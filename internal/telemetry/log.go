// Package telemetry makes the program's logger. Logs are the story for operators: they hold ids, never
// inputs, outputs, tokens or keys. Whoever logs sees to that; what looks like a secret all the same, such as a
// password in an address that an error quotes, is hidden here.
package telemetry

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"golang.org/x/term"
)

// NewLogger returns a logger of a format (auto, text or json; auto is text on a terminal) and of a level
// (debug, info, warn or error) that writes to w.
func NewLogger(w io.Writer, format, level string) (*slog.Logger, error) {
	var threshold slog.Level
	if err := threshold.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("the log level must be debug, info, warn or error: %w", err)
	}
	options := &slog.HandlerOptions{Level: threshold}
	if format == "text" || format == "auto" && isTerminal(w) {
		return slog.New(redactor{slog.NewTextHandler(w, options)}), nil
	}
	return slog.New(redactor{slog.NewJSONHandler(w, options)}), nil
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
