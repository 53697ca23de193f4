//go:build unix

package acceptance_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver of the database that is searched
	"github.com/rogpeppe/go-internal/testscript"
)

// secretFiles are where the credentials of an installation belong, each readable by its user alone.
var secretFiles = []string{"server.json", "worker.json", "device.key", "master.key"}

// secretsOf returns the credentials of an installation, each in the forms in which it may be written.
func secretsOf(ts *testscript.TestScript, dataDir string) map[string][][]byte {
	read := func(elements ...string) []byte {
		path := filepath.Join(append([]string{dataDir}, elements...)...)
		info, err := os.Stat(path)
		ts.Check(err)
		if info.Mode().Perm() != 0o600 {
			ts.Fatalf("%s has the mode %s", path, info.Mode())
		}
		content, err := os.ReadFile(path)
		ts.Check(err)
		return content
	}
	var control, local struct{ Token string }
	ts.Check(json.Unmarshal(read("server.json"), &control))
	ts.Check(json.Unmarshal(read("worker.json"), &local))
	var device struct{ D string }
	ts.Check(json.Unmarshal(read("machine", "device.key"), &device))
	private, err := base64.RawURLEncoding.DecodeString(device.D)
	ts.Check(err)
	secrets := map[string][][]byte{
		"the token of server.json": {[]byte(control.Token)},
		"the token of worker.json": {[]byte(local.Token)},
		"the device key":           forms(private),
		"the master key":           forms(read("master.key")),
	}
	for name, forms := range secrets {
		for _, form := range forms {
			if len(form) < 32 {
				ts.Fatalf("%s is only %d bytes", name, len(form))
			}
		}
	}
	return secrets
}

func forms(secret []byte) [][]byte {
	return [][]byte{
		secret,
		[]byte(hex.EncodeToString(secret)),
		[]byte(base64.RawStdEncoding.EncodeToString(secret)),
		[]byte(base64.RawURLEncoding.EncodeToString(secret)),
	}
}

// dumpDatabase writes what the database holds, bytes in hexadecimal digits.
func dumpDatabase(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) == 1, "dump-database FILE")
	db, err := sql.Open("pgx", server(ts).Options.DatabaseURL)
	ts.Check(err)
	defer db.Close()
	ctx := context.Background()
	rows := func(query string) (texts []string) {
		found, err := db.QueryContext(ctx, query)
		ts.Check(err)
		defer found.Close()
		for found.Next() {
			var text string
			ts.Check(found.Scan(&text))
			texts = append(texts, text)
		}
		ts.Check(found.Err())
		return texts
	}
	var dump strings.Builder
	for _, table := range rows(`SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = current_schema()`) {
		fmt.Fprintf(&dump, "%s\n%s\n", table, strings.Join(rows(`SELECT t::text FROM `+table+` t`), "\n"))
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(dump.String()), 0o600))
}

// secretFree searches files for every form in which a credential of the installation may have been written, and for
// texts that a script names.
func secretFree(ts *testscript.TestScript, neg bool, args []string) {
	secrets := map[string][][]byte{}
	for len(args) > 0 && strings.HasPrefix(args[0], "--secret=") {
		text := strings.TrimPrefix(args[0], "--secret=")
		usage(ts, len(text) >= 8, "a secret to search for has 8 characters or more")
		secrets["the secret "+text[:4]+"…"+text[len(text)-3:]] = forms([]byte(text))
		args = args[1:]
	}
	usage(ts, len(args) > 0, "[!] secret-free [--secret=TEXT]... FILE...")
	maps.Copy(secrets, secretsOf(ts, server(ts).DataDir()))
	searched := 0
	var leaks []string
	for _, root := range args {
		ts.Check(filepath.WalkDir(ts.MkAbs(root), func(path string, entry os.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() || slices.Contains(secretFiles, entry.Name()) {
				return err
			}
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			searched++
			for name, forms := range secrets {
				if slices.ContainsFunc(forms, func(form []byte) bool { return bytes.Contains(content, form) }) {
					leaks = append(leaks, path+" holds "+name)
				}
			}
			return nil
		}))
	}
	ts.Logf("searched %d files for %d credentials: %v", searched, len(secrets), leaks)
	if searched < len(args) || neg != (len(leaks) > 0) {
		ts.Fatalf("credentials found: %d", len(leaks))
	}
}
