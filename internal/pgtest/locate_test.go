package pgtest_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/errandhq/errand/internal/pgtest"
)

// install puts programs into a new directory that answer like PostgreSQL's.
func install(t *testing.T, version string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\necho 'postgres (PostgreSQL) %s'\n", version)
	for _, name := range []string{"postgres", "initdb"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}

	return dir
}

func TestNewestInstallationWins(t *testing.T) {
	t.Parallel()
	fifteen, seventeen := install(t, "15.18 (Debian 15.18-0+deb12u1)"), install(t, "17beta1")
	alias := t.TempDir()
	if err := os.Symlink(filepath.Join(seventeen, "postgres"), filepath.Join(alias, "postgres")); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		dirs []string
		want pgtest.Installation
	}{
		{name: "one", dirs: []string{fifteen}, want: pgtest.Installation{BinDir: fifteen, Major: 15}},
		{name: "newest last", dirs: []string{t.TempDir(), fifteen, seventeen}, want: pgtest.Installation{BinDir: seventeen, Major: 17}},
		{name: "newest first", dirs: []string{seventeen, fifteen}, want: pgtest.Installation{BinDir: seventeen, Major: 17}},
		{name: "a lone link on the PATH", dirs: []string{fifteen, alias}, want: pgtest.Installation{BinDir: seventeen, Major: 17}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := pgtest.Newest(t.Context(), tt.dirs)
			if err != nil || got != tt.want {
				t.Errorf("Newest = %+v, %v, want %+v", got, err, tt.want)
			}
		})
	}
}

func TestMissingInstallationSaysHowToGetOne(t *testing.T) {
	t.Parallel()
	clientOnly := install(t, "16.1")
	if err := os.Remove(filepath.Join(clientOnly, "initdb")); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		dirs []string
		says []string
	}{
		{name: "nothing", says: []string{"apt-get install postgresql", "brew install postgresql@15"}},
		{name: "too old", dirs: []string{install(t, "14.9")}, says: []string{"apt-get install postgresql", "version 14 in "}},
		{name: "the client alone", dirs: []string{clientOnly}, says: []string{"apt-get install postgresql"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := pgtest.Newest(t.Context(), tt.dirs)
			if !errors.Is(err, pgtest.ErrNotInstalled) {
				t.Fatalf("error = %v, want ErrNotInstalled", err)
			}
			for _, want := range tt.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}
}
