package identity

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// maxSecretFile is far above any file of this package; a larger one is something else.
const maxSecretFile = 16 << 10

// loadOrCreateSecret returns the content of a file that only its user may read. A missing one is made from
// create, whole or not at all, so that a crash leaves no half of a key. When several processes create it at
// once, all return the content that was placed first.
func loadOrCreateSecret(path string, create func() ([]byte, error)) ([]byte, error) {
	data, err := readSecret(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return data, err
	}
	data, err = create()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("creating the folder of %s: %w", path, err)
	}
	if err := placeSecret(path, data); err != nil {
		return nil, fmt.Errorf("creating %s: %w", path, err)
	}
	return readSecret(path)
}

// readSecret checks the file that it has opened, so that what was checked is what is read.
func readSecret(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("inspecting %s: %w", path, err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	if err := checkPrivate(path, info.Mode()); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxSecretFile+1))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	if len(data) > maxSecretFile {
		return nil, fmt.Errorf("%s has more than %d bytes and is not a key file", path, maxSecretFile)
	}
	return data, nil
}

// placeSecret writes a temporary file beside path and gives it that name unless another has it already.
func placeSecret(path string, data []byte) error {
	temporary, err := writeTemporary(filepath.Dir(path), data)
	if err != nil {
		return err
	}
	defer os.Remove(temporary)
	err = os.Link(temporary, path)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return nil
	}
	// A file system without hard links; only here two first starts at once could each place their own.
	return os.Rename(temporary, path)
}

func writeTemporary(dir string, data []byte) (name string, err error) {
	f, err := os.CreateTemp(dir, ".new-*") // with mode 0600
	if err != nil {
		return "", err
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	if _, err := f.Write(data); err != nil {
		return "", err
	}
	return f.Name(), f.Sync()
}
