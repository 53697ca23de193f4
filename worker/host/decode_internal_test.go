package host

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/errandhq/errand/automation"
)

// FuzzReadEvents sends anything as an event stream: it ends with an error, and every event that comes through
// has a kind and a bounded size.
func FuzzReadEvents(f *testing.F) {
	for _, seed := range []string{
		"event: ping\ndata: {\"kind\":\"ping\"}\n\n", "event: end\ndata: {\"kind\":\"x\",\"runId\":\"r\",\"stepId\":\"s\",\"execution\":1}\n\n",
		"event: end\ndata: {\ndata: }\n\n", ":comment\n\n\n", "data: {}\n\n", "event: end\ndata: null\n\n", "event:end\r\ndata:[]\r\n\r\n",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, stream string) {
		err := readEvents(strings.NewReader(stream), func(e automation.Event) {
			if e.Kind == "" || len(e.RunID)+len(e.StepID) > maxEventBytes {
				t.Errorf("%q brought the event %+v", stream, e)
			}
		})
		if err == nil {
			t.Errorf("%q ended without an error", stream)
		}
		if len(stream) < maxEventBytes && !errors.Is(err, io.EOF) {
			t.Errorf("%q ended with %v", stream, err)
		}
	})
}

// FuzzReadRecord reads anything as the record of a step: it names a step and a boot, or is unreadable.
func FuzzReadRecord(f *testing.F) {
	for _, seed := range []string{``, `{}`, `null`, `[]`, `{"runId":"r","stepId":"s","bootId":"b","execution":1}`, `{"runId":"r","stepId":"s","bootId":"b","process":{"pid":-1}}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		path := filepath.Join(t.TempDir(), "record")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := readRecord(path)
		if err == nil && (r.RunID == "" || r.StepID == "" || r.BootID == "") {
			t.Errorf("%q became %+v", content, r)
		}
	})
}
