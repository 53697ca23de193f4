package automation

// ProcessResult is the result of a command or script step: what its program wrote and how it ended. The
// members are those of the format and no others.
type ProcessResult struct {
	// ExitCode is nil when a signal ended the process; Signal is its name then, such as SIGKILL.
	ExitCode *int    `json:"exitCode"`
	Signal   *string `json:"signal"`
	// Stdout and Stderr are what was kept of the streams: bytes that are not UTF-8 shown as U+FFFD, NUL as
	// U+2400, and what was cut replaced by a line `…[N bytes omitted]…`.
	Stdout string `json:"stdout"`
	Stderr string `json:"stderr"`
	// StdoutBytes and StderrBytes count the bytes of the raw streams.
	StdoutBytes     int64 `json:"stdoutBytes"`
	StderrBytes     int64 `json:"stderrBytes"`
	StdoutTruncated bool  `json:"stdoutTruncated"`
	StderrTruncated bool  `json:"stderrTruncated"`
	DurationMs      int64 `json:"durationMs"`
	// Leftovers counts the processes that were still running when the main process had ended.
	Leftovers int `json:"leftovers"`
}
