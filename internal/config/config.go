// Package config holds the settings of the control plane: their names, defaults and rules. Everything comes
// from flags or environment variables of the same meaning; nothing is read from the working directory.
package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/alecthomas/kong"
)

// Config are the settings of errandd.
type Config struct {
	DataDir         string   `name:"data-dir" env:"ERRAND_DATA_DIR" help:"Directory of everything that is kept (default: the platform's place for application data)." placeholder:"DIR"`
	Listen          string   `env:"ERRAND_LISTEN" default:"127.0.0.1:7717" help:"Address to serve on."`
	PublicURL       string   `name:"public-url" env:"ERRAND_PUBLIC_URL" help:"Address under which others reach this server (default: from the listener)." placeholder:"URL"`
	AllowedHosts    []string `name:"allowed-hosts" env:"ERRAND_ALLOWED_HOSTS" help:"Further values of the Host header to serve." placeholder:"HOST,..."`
	BehindProxy     bool     `name:"behind-proxy" env:"ERRAND_BEHIND_PROXY" help:"A proxy in front ends TLS: a listener that is not loopback may be plain."`
	TLSCertFile     string   `name:"tls-cert-file" env:"ERRAND_TLS_CERT_FILE" help:"Certificate chain, PEM." placeholder:"FILE"`
	TLSKeyFile      string   `name:"tls-key-file" env:"ERRAND_TLS_KEY_FILE" help:"Private key, PEM." placeholder:"FILE"`
	DatabaseURL     string   `name:"database-url" env:"ERRAND_DATABASE_URL" help:"PostgreSQL to use instead of the embedded database." placeholder:"URL"`
	TemporalAddress string   `name:"temporal-address" env:"ERRAND_TEMPORAL_ADDRESS" help:"Temporal to use instead of the embedded one, host:port; namespace, TLS and API key come from the TEMPORAL_* variables of its SDK." placeholder:"ADDRESS"`
	MasterKeyFile   string   `name:"master-key-file" env:"ERRAND_MASTER_KEY_FILE" help:"Key that protects what is stored (default: master.key in the data directory)." placeholder:"FILE"`
	OIDCIssuer      string   `name:"oidc-issuer" env:"ERRAND_OIDC_ISSUER" help:"OpenID Connect issuer whose tokens are accepted, as in their iss." placeholder:"URL"`
	OIDCAudience    string   `name:"oidc-audience" env:"ERRAND_OIDC_AUDIENCE" help:"What must be in the aud of the issuer's tokens." placeholder:"AUDIENCE"`
	OIDCAdminClaim  string   `name:"oidc-admin-claim" env:"ERRAND_OIDC_ADMIN_CLAIM" help:"Claim that makes a person an administrator, such as groups=errand-admins (default: nobody is)." placeholder:"NAME=VALUE"`
	TrustedProxies  []string `name:"trusted-proxies" env:"ERRAND_TRUSTED_PROXIES" help:"Addresses or networks of proxies whose X-Forwarded-For is believed." placeholder:"CIDR,..."`
	RateLimit       int      `name:"rate-limit" env:"ERRAND_RATE_LIMIT" default:"100" help:"Requests a second that each key, person and machine may make; 0: without limit."`
	AuditDays       int      `name:"audit-days" env:"ERRAND_AUDIT_DAYS" default:"365" help:"Days for which the audit is kept; 0: for ever."`
	LocalWorker     bool     `name:"local-worker" env:"ERRAND_LOCAL_WORKER" default:"true" negatable:"" help:"Enrol this machine and keep its worker running."`
	LogFormat       string   `name:"log-format" env:"ERRAND_LOG_FORMAT" enum:"auto,text,json" default:"auto" help:"text, json, or auto: text on a terminal."`
	LogLevel        string   `name:"log-level" env:"ERRAND_LOG_LEVEL" enum:"debug,info,warn,error" default:"info" help:"debug, info, warn or error."`
	Rekey           bool     `help:"Replace the master key by a new one, encrypt the stored secrets again, and leave; errandd must be stopped."`
	DiscardSecrets  bool     `name:"discard-secrets" help:"With --rekey, when the master key is lost: forget the stored secrets instead."`
	Version         bool     `help:"Print the version and leave."`
}

// ErrHelp is returned when help was asked for and printed.
var ErrHelp = errors.New("help was printed")

// Load reads the settings from arguments and the environment, fills in defaults and checks them. A wrong
// setting is an error that names it.
func Load(args []string) (Config, error) {
	var c Config
	helped := false
	parser, err := kong.New(&c,
		kong.Name("errandd"),
		kong.Description("The control plane of Errand. With no settings it serves this machine alone: database, Temporal and a worker are started by it."),
		kong.Exit(func(int) { helped = true }),
	)
	if err != nil {
		return c, fmt.Errorf("describing the settings: %w", err)
	}
	_, err = parser.Parse(args)
	if helped {
		return c, ErrHelp
	}
	if err != nil {
		return c, fmt.Errorf("reading the settings: %w", err)
	}
	if c.Version {
		return c, nil
	}
	return c, c.complete()
}

// complete fills in what depends on other settings and checks all of them together.
func (c *Config) complete() error {
	if c.DataDir == "" {
		dir, err := DataDir(os.Getenv)
		if err != nil {
			return err
		}
		c.DataDir = dir
	}
	if !filepath.IsAbs(c.DataDir) {
		return fmt.Errorf("ERRAND_DATA_DIR must be an absolute path, not %q", c.DataDir)
	}
	if c.MasterKeyFile == "" {
		c.MasterKeyFile = filepath.Join(c.DataDir, "master.key")
	}
	if (c.TLSCertFile == "") != (c.TLSKeyFile == "") {
		return errors.New("ERRAND_TLS_CERT_FILE and ERRAND_TLS_KEY_FILE go together: set both, or neither")
	}
	if c.DiscardSecrets && !c.Rekey {
		return errors.New("--discard-secrets belongs to --rekey: give both, or neither")
	}
	return errors.Join(c.checkListener(), c.checkAccess())
}

// checkAccess checks the settings of who may do what and how often. Those of an issuer are checked by whoever
// checks its tokens.
func (c *Config) checkAccess() error {
	for _, proxy := range c.TrustedProxies {
		if _, _, err := net.ParseCIDR(proxy); err != nil && net.ParseIP(proxy) == nil {
			return fmt.Errorf("ERRAND_TRUSTED_PROXIES must list addresses or networks such as 10.0.0.0/8, not %q", proxy)
		}
	}
	switch {
	case c.OIDCIssuer == "" && (c.OIDCAudience != "" || c.OIDCAdminClaim != ""):
		return errors.New("ERRAND_OIDC_AUDIENCE and ERRAND_OIDC_ADMIN_CLAIM are of no use without ERRAND_OIDC_ISSUER: set it too")
	case c.RateLimit < 0:
		return errors.New("ERRAND_RATE_LIMIT must be 0 or more requests a second")
	case c.AuditDays < 0:
		return errors.New("ERRAND_AUDIT_DAYS must be 0 or more days")
	}
	return nil
}

// checkListener refuses to show tokens to a network.
func (c *Config) checkListener() error {
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return fmt.Errorf("ERRAND_LISTEN must be host:port, such as 127.0.0.1:7717: %w", err)
	}
	if !isLoopback(host) && c.TLSCertFile == "" && !c.BehindProxy {
		return fmt.Errorf("ERRAND_LISTEN=%s can be reached from other machines, without TLS: set ERRAND_TLS_CERT_FILE and "+
			"ERRAND_TLS_KEY_FILE, or ERRAND_BEHIND_PROXY=1 when a proxy in front does TLS", c.Listen)
	}
	if c.PublicURL == "" {
		return nil
	}
	public, err := url.Parse(c.PublicURL)
	if err != nil || public.Host == "" || public.Scheme != "http" && public.Scheme != "https" {
		return fmt.Errorf("ERRAND_PUBLIC_URL must be an address such as https://errand.example.com, not %q", c.PublicURL)
	}
	c.PublicURL = strings.TrimRight(c.PublicURL, "/")
	return nil
}

// Loopback reports whether only this machine reaches the listener.
func (c *Config) Loopback() bool {
	host, _, err := net.SplitHostPort(c.Listen)
	return err == nil && isLoopback(host)
}

func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// DataDir returns the directory of application data: ERRAND_DATA_DIR, else the platform's place.
func DataDir(getenv func(string) string) (string, error) {
	if dir := getenv("ERRAND_DATA_DIR"); dir != "" {
		return dir, nil
	}
	if dir := getenv("XDG_DATA_HOME"); dir != "" && filepath.IsAbs(dir) {
		return filepath.Join(dir, "errand"), nil
	}
	switch runtime.GOOS {
	case "darwin", "windows":
		dir, err := os.UserConfigDir()
		if err != nil {
			return "", fmt.Errorf("finding the place for application data; set ERRAND_DATA_DIR: %w", err)
		}
		return filepath.Join(dir, "errand"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("finding the home directory; set ERRAND_DATA_DIR: %w", err)
	}
	return filepath.Join(home, ".local", "share", "errand"), nil
}
