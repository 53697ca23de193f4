package config_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/errandhq/errand/internal/config"
)

func TestDefaults(t *testing.T) {
	t.Setenv("ERRAND_DATA_DIR", "/data")
	c, err := config.Load(nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.DataDir != "/data" || c.Listen != "127.0.0.1:7717" || c.MasterKeyFile != "/data/master.key" || !c.LocalWorker ||
		c.LogFormat != "auto" || c.LogLevel != "info" || c.DatabaseURL != "" || !c.Loopback() {
		t.Errorf("%+v", c)
	}
}

func TestSettings(t *testing.T) {
	tests := map[string]struct {
		environ map[string]string
		args    []string
		refused string // part of the error, or "" when it is accepted
	}{
		"another loopback port":     {map[string]string{"ERRAND_LISTEN": "[::1]:9000"}, nil, ""},
		"localhost":                 {map[string]string{"ERRAND_LISTEN": "localhost:0"}, nil, ""},
		"open to the network":       {map[string]string{"ERRAND_LISTEN": ":7717"}, nil, "ERRAND_LISTEN"},
		"open on an address":        {map[string]string{"ERRAND_LISTEN": "192.0.2.1:7717"}, nil, "ERRAND_TLS_CERT_FILE"},
		"open behind a proxy":       {map[string]string{"ERRAND_LISTEN": "0.0.0.0:7717", "ERRAND_BEHIND_PROXY": "1"}, nil, ""},
		"open with TLS":             {map[string]string{"ERRAND_LISTEN": "0.0.0.0:7717", "ERRAND_TLS_CERT_FILE": "c", "ERRAND_TLS_KEY_FILE": "k"}, nil, ""},
		"half of TLS":               {map[string]string{"ERRAND_TLS_CERT_FILE": "c"}, nil, "ERRAND_TLS_KEY_FILE"},
		"no port":                   {map[string]string{"ERRAND_LISTEN": "127.0.0.1"}, nil, "ERRAND_LISTEN"},
		"a relative data dir":       {map[string]string{"ERRAND_DATA_DIR": "data"}, nil, "ERRAND_DATA_DIR"},
		"a public URL":              {map[string]string{"ERRAND_PUBLIC_URL": "https://errand.example.com/"}, nil, ""},
		"a public URL that is none": {map[string]string{"ERRAND_PUBLIC_URL": "errand.example.com"}, nil, "ERRAND_PUBLIC_URL"},
		"proxies":                   {map[string]string{"ERRAND_TRUSTED_PROXIES": "10.0.0.0/8,192.0.2.1,::1"}, nil, ""},
		"a proxy by name":           {map[string]string{"ERRAND_TRUSTED_PROXIES": "10.0.0.0/8,proxy"}, nil, "ERRAND_TRUSTED_PROXIES"},
		"an audience alone":         {map[string]string{"ERRAND_OIDC_AUDIENCE": "errand"}, nil, "ERRAND_OIDC_ISSUER"},
		"a claim alone":             {map[string]string{"ERRAND_OIDC_ADMIN_CLAIM": "a=b"}, nil, "ERRAND_OIDC_ISSUER"},
		"no limit":                  {map[string]string{"ERRAND_RATE_LIMIT": "0", "ERRAND_AUDIT_DAYS": "0"}, nil, ""},
		"a negative limit":          {nil, []string{"--rate-limit=-1"}, "ERRAND_RATE_LIMIT"},
		"a negative time":           {nil, []string{"--audit-days=-1"}, "ERRAND_AUDIT_DAYS"},
		"a level that is none":      {map[string]string{"ERRAND_LOG_LEVEL": "loud"}, nil, "log-level"},
		"a flag that is none":       {nil, []string{"--colour"}, "colour"},
		"a flag over a variable":    {map[string]string{"ERRAND_LOG_LEVEL": "loud"}, []string{"--log-level", "debug"}, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv("ERRAND_DATA_DIR", "/data")
			for key, value := range test.environ {
				t.Setenv(key, value)
			}
			_, err := config.Load(test.args)
			if test.refused == "" && err != nil {
				t.Error(err)
			}
			if test.refused != "" && (err == nil || !strings.Contains(err.Error(), test.refused)) {
				t.Errorf("%v, want an error that names %s", err, test.refused)
			}
		})
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	if _, err := config.Load([]string{"--help"}); !errors.Is(err, config.ErrHelp) {
		t.Errorf("%v", err)
	}
}

func TestDataDir(t *testing.T) {
	t.Setenv("HOME", "/home/me")
	environ := map[string]string{}
	getenv := func(name string) string { return environ[name] }
	expect := func(want string) {
		t.Helper()
		if got, err := config.DataDir(getenv); err != nil || filepath.ToSlash(got) != want {
			t.Errorf("%s, %v; want %s", got, err, want)
		}
	}
	expect("/home/me/.local/share/errand")
	environ["XDG_DATA_HOME"] = "relative/is/ignored"
	expect("/home/me/.local/share/errand")
	environ["XDG_DATA_HOME"] = "/xdg"
	expect("/xdg/errand")
	environ["ERRAND_DATA_DIR"] = "/mine"
	expect("/mine")
}
