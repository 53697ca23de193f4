package machinestate_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/errandhq/errand/internal/machinestate"
)

func TestEnrolment(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, found, err := machinestate.Load(dir); found || err != nil {
		t.Fatalf("an empty directory: %v, %v", found, err)
	}
	want := machinestate.Enrolled{MachineID: "m", ServerURL: "http://127.0.0.1:7717"}
	if err := machinestate.Save(dir, want); err != nil {
		t.Fatal(err)
	}
	if got, found, err := machinestate.Load(dir); got != want || !found || err != nil {
		t.Errorf("%+v, %v, %v", got, found, err)
	}
	for _, damaged := range []string{"", "{", "{}", `{"machineId":"m"}`} {
		if err := os.WriteFile(filepath.Join(dir, "machine.json"), []byte(damaged), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := machinestate.Load(dir); err == nil || !strings.Contains(err.Error(), "enrol this machine again") {
			t.Errorf("%q: %v, want what to do", damaged, err)
		}
	}
}
