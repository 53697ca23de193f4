package fileutil_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/errandhq/errand/internal/fileutil"
)

func TestWriteFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := os.WriteFile(path, []byte("a longer earlier content"), 0o644); err != nil { // that is the point
		t.Fatal(err)
	}
	if err := fileutil.WriteFile(path, []byte("new")); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil || string(content) != "new" {
		t.Errorf("%q, %v", content, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if err := fileutil.WriteFile(filepath.Join(dir, "missing", "file"), nil); err == nil {
		t.Error("a directory that is missing must be an error")
	}
	if err := os.Mkdir(filepath.Join(dir, "taken"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := fileutil.WriteFile(filepath.Join(dir, "taken"), nil); err == nil {
		t.Error("a directory in the place of the file must be an error")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
		t.Errorf("temporary files are left: %v, %v", left, err)
	}
}
