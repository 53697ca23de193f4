package identity_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/errandhq/errand/internal/identity"
)

func TestLoadOrCreateKeyKeepsOneKey(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state", "worker")
	first := mustKey(t, dir)
	second := mustKey(t, dir)
	if first.Thumbprint() != second.Thumbprint() || !bytes.Equal(first.Public(), second.Public()) {
		t.Fatalf("a second load gave another key: %s, then %s", first, second)
	}
	if other := mustKey(t, t.TempDir()); other.Thumbprint() == first.Thumbprint() {
		t.Fatal("two directories have one key")
	}
	var public map[string]string
	if err := json.Unmarshal(first.Public(), &public); err != nil {
		t.Fatal(err)
	}
	if public["kty"] != "OKP" || public["crv"] != "Ed25519" || public["d"] != "" || len(public) != 3 {
		t.Fatalf("public key has members %v", public)
	}
	if runtime.GOOS == "windows" {
		return
	}
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, identity.DeviceKeyFile): 0o600} {
		if got := mode(t, path); got != want {
			t.Errorf("%s has mode %#o, want %#o", filepath.Base(path), got, want)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".new-*")); len(left) > 0 {
		t.Errorf("temporary files were left: %v", left)
	}
}

func TestLoadOrCreateKeyAtOnceGivesOneKey(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const starts = 16
	prints := make([]string, starts)
	var group sync.WaitGroup
	for i := range starts {
		group.Go(func() {
			key, err := identity.LoadOrCreateKey(dir)
			if err != nil {
				t.Error(err)
				return
			}
			prints[i] = key.Thumbprint()
		})
	}
	group.Wait()
	for _, print := range prints {
		if print != prints[0] {
			t.Fatalf("concurrent first starts have different keys: %v", prints)
		}
	}
}

func TestSecretFilesOpenToOthersAreRefused(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("mode bits say nothing on Windows")
	}
	loaders := map[string]func(path string) error{
		"device key": func(path string) error { _, err := identity.LoadOrCreateKey(filepath.Dir(path)); return err },
		"master key": func(path string) error { _, err := identity.LoadOrCreateMasterKey(path); return err },
	}
	for name, load := range loaders {
		for _, perm := range []os.FileMode{0o604, 0o640, 0o610, 0o602, 0o666} {
			t.Run(fmt.Sprintf("%s %#o", name, perm), func(t *testing.T) {
				t.Parallel()
				path := filepath.Join(t.TempDir(), identity.DeviceKeyFile)
				if err := load(path); err != nil {
					t.Fatal(err)
				}
				if err := os.Chmod(path, perm); err != nil {
					t.Fatal(err)
				}
				wantErrorWith(t, load(path), "chmod 600")
				if err := os.Chmod(path, 0o400); err != nil {
					t.Fatal(err)
				}
				if err := load(path); err != nil {
					t.Errorf("mode 0400 was refused: %v", err)
				}
			})
		}
	}
}

func TestLoadOrCreateKeyRefusesOtherContent(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ content, want string }{
		"empty":     {"", "not a JSON Web Key"},
		"text":      {"hello", "not a JSON Web Key"},
		"public":    {`{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}`, "no private key"},
		"symmetric": {`{"kty":"oct","k":"AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr8"}`, "no private key"},
		"too large": {strings.Repeat(" ", 1<<20), "not a key file"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path := filepath.Join(dir, identity.DeviceKeyFile)
			if err := os.WriteFile(path, []byte(test.content), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := identity.LoadOrCreateKey(dir)
			wantErrorWith(t, err, test.want)
			after, readErr := os.ReadFile(path)
			if readErr != nil || string(after) != test.content {
				t.Errorf("the refused file was changed (%v)", readErr)
			}
		})
	}
	t.Run("directory", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, identity.DeviceKeyFile), 0o700); err != nil {
			t.Fatal(err)
		}
		_, err := identity.LoadOrCreateKey(dir)
		wantErrorWith(t, err, "not a regular file")
	})
}

func TestDeviceKeyPrintsWithoutItsSecret(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	key := mustKey(t, dir)
	data, err := os.ReadFile(filepath.Join(dir, identity.DeviceKeyFile))
	if err != nil {
		t.Fatal(err)
	}
	var private struct{ D string }
	if err := json.Unmarshal(data, &private); err != nil || private.D == "" {
		t.Fatalf("the key file has no private part: %v", err)
	}
	raw, err := base64.RawURLEncoding.DecodeString(private.D)
	if err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		printed := fmt.Sprintf(verb, key)
		if strings.Contains(printed, private.D) || strings.Contains(printed, fmt.Sprint(raw)[1:20]) || !strings.Contains(printed, key.Thumbprint()) {
			t.Errorf("%s prints %s", verb, printed)
		}
	}
}

func TestMasterKey(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "data", "master.key")
	first, err := identity.LoadOrCreateMasterKey(path)
	if err != nil {
		t.Fatal(err)
	}
	second, err := identity.LoadOrCreateMasterKey(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(first) != identity.KeySize || !bytes.Equal(first, second) || bytes.Equal(first, make([]byte, identity.KeySize)) {
		t.Fatalf("master key has %d bytes, equal after reload: %v", len(first), bytes.Equal(first, second))
	}
	if runtime.GOOS != "windows" && mode(t, path) != 0o600 {
		t.Errorf("master key has mode %#o", mode(t, path))
	}
	if err := os.WriteFile(path, first[:31], 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = identity.LoadOrCreateMasterKey(path)
	wantErrorWith(t, err, "31 bytes instead of 32")
}

func TestDeriveKey(t *testing.T) {
	t.Parallel()
	master, other := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)
	tokens := identity.DeriveKey(master, "task-tokens")
	if len(tokens) != identity.KeySize || !bytes.Equal(tokens, identity.DeriveKey(master, "task-tokens")) {
		t.Fatal("a derived key is not stable")
	}
	for name, key := range map[string][]byte{
		"other purpose":  identity.DeriveKey(master, "webhook-secrets"),
		"other master":   identity.DeriveKey(other, "task-tokens"),
		"the master key": master,
	} {
		if bytes.Equal(tokens, key) {
			t.Errorf("the derived key equals that of %s", name)
		}
	}
	// Task tokens and stored secrets depend on this value: a change would lose them.
	const pinned = "dHyF4pqHsgEZd7_WTXD3KRkpvxthKW8xzI25VVh41Hk"
	if got := base64.RawURLEncoding.EncodeToString(tokens); got != pinned {
		t.Errorf("the derivation has changed: %s", got)
	}
	defer func() {
		if recover() == nil {
			t.Error("an empty purpose was accepted")
		}
	}()
	identity.DeriveKey(master, "")
}

func TestRuntimeToken(t *testing.T) {
	t.Parallel()
	token, hash, err := identity.NewRuntimeToken()
	if err != nil {
		t.Fatal(err)
	}
	secret, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(token, "errand_rt_"))
	if err != nil || len(secret) < 32 {
		t.Fatalf("token has %d random bytes (%v)", len(secret), err)
	}
	if !hash.Matches(token) || !identity.HashToken(token).Matches(token) {
		t.Error("a token does not match its hash")
	}
	another, _, err := identity.NewRuntimeToken()
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []string{"", token[:len(token)-1], token + "A", strings.ToUpper(token), another} {
		if hash.Matches(wrong) {
			t.Errorf("%q matches", wrong)
		}
	}
}

func mustKey(t *testing.T, dir string) *identity.DeviceKey {
	t.Helper()
	key, err := identity.LoadOrCreateKey(dir)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func mode(t *testing.T, path string) os.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().Perm()
}

func wantErrorWith(t *testing.T, err error, part string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), part) {
		t.Fatalf("error %v, want one with %q", err, part)
	}
}
