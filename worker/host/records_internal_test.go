package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/process"
)

// TestSaveRecordAgain writes the records of two steps by turns, longer and shorter ones. Each is read as it was
// last written, and the directory holds no file more than what a save needs.
func TestSaveRecordAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store, err := openRecords(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, digest := range []string{"short", strings.Repeat("long", 1000), "s", "mid", strings.Repeat("x", 100)} {
		for _, step := range []string{"one", "two"} {
			want := record{
				StepRef: automation.StepRef{RunID: "run", StepID: step}, Execution: 1, BootID: "boot",
				Digest: digest + step, Process: &process.Info{PID: 1},
			}
			if err := store.save(want); err != nil {
				t.Fatal(err)
			}
			if got := store.load(want.StepRef); got == nil || got.Digest != want.Digest || got.StepID != step {
				t.Errorf("saved %+v, loaded %+v", want, got)
			}
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) > 3 {
		t.Errorf("the directory holds %v, %v", files, err)
	}
	for _, file := range files {
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", file, info, err)
		}
	}
	records, unreadable, err := store.all()
	if err != nil || len(records) != 2 || len(unreadable) != 0 {
		t.Errorf("%d records, unreadable %v, %v", len(records), unreadable, err)
	}
	if files, err = filepath.Glob(filepath.Join(dir, "*")); err != nil || len(files) != 2 {
		t.Errorf("after a start the directory holds %v, %v", files, err)
	}
}
