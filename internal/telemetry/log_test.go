package telemetry_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/errandhq/errand/internal/telemetry"
)

func TestNewLogger(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"json", "auto", "text"} {
		var out bytes.Buffer
		logger, err := telemetry.NewLogger(&out, format, "warn")
		if err != nil {
			t.Fatal(err)
		}
		logger.Info("quiet")
		logger.Warn("loud", "run", "r1")
		line := out.String()
		if strings.Contains(line, "quiet") || !strings.Contains(line, "loud") || strings.Count(line, "\n") != 1 {
			t.Errorf("%s: %q", format, line)
		}
		if isJSON := json.Valid(out.Bytes()); isJSON != (format != "text") {
			t.Errorf("%s, and no terminal: JSON is %v", format, isJSON)
		}
	}
	if _, err := telemetry.NewLogger(&bytes.Buffer{}, "json", "loud"); err == nil {
		t.Error("a level that is none must be an error")
	}
}
