package embedded

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"time"

	"go.temporal.io/server/common/rpc/encryption"
)

// certificates hold the TLS side of one start: a server certificate for the listeners and a client certificate for who
// may call them, both signed by an authority whose key is forgotten at once. They never leave the process's memory, so
// their validity has no bounds: a machine whose clock is set years forward after the start must keep its engine.
type certificates struct {
	server *tls.Config
	client *tls.Config
}

var _ encryption.TLSConfigProvider = (*certificates)(nil)

func newCertificates() (*certificates, error) {
	authority, err := newCertificate(certificateTemplate("Errand embedded Temporal", func(t *x509.Certificate) {
		t.IsCA = true
		t.BasicConstraintsValid = true
		t.KeyUsage = x509.KeyUsageCertSign
	}), nil)
	if err != nil {
		return nil, err
	}
	server, err := newCertificate(certificateTemplate("server", func(t *x509.Certificate) {
		t.IPAddresses = []net.IP{net.ParseIP(loopback)}
		t.KeyUsage = x509.KeyUsageDigitalSignature
		t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}), authority)
	if err != nil {
		return nil, err
	}
	client, err := newCertificate(certificateTemplate("client", func(t *x509.Certificate) {
		t.KeyUsage = x509.KeyUsageDigitalSignature
		t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	}), authority)
	if err != nil {
		return nil, err
	}
	trusted := x509.NewCertPool()
	trusted.AddCert(authority.Leaf)
	return &certificates{
		server: &tls.Config{
			MinVersion:   tls.VersionTLS13,
			Certificates: []tls.Certificate{*server},
			ClientAuth:   tls.RequireAndVerifyClientCert,
			ClientCAs:    trusted,
		},
		client: &tls.Config{
			MinVersion:   tls.VersionTLS13,
			Certificates: []tls.Certificate{*client},
			RootCAs:      trusted,
			ServerName:   loopback,
		},
	}, nil
}

func certificateTemplate(name string, set func(*x509.Certificate)) *x509.Certificate {
	t := &x509.Certificate{
		Subject:   pkix.Name{CommonName: name},
		NotBefore: time.Unix(0, 0),
		NotAfter:  time.Date(9999, time.December, 31, 23, 59, 59, 0, time.UTC),
	}
	set(t)
	return t
}

// newCertificate makes a key and a certificate for it, signed by the issuer or, without one, by itself.
func newCertificate(template *x509.Certificate, issuer *tls.Certificate) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return nil, err
	}
	parent, signer := template, any(key)
	if issuer != nil {
		parent, signer = issuer.Leaf, issuer.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}

// GetInternodeServerConfig implements encryption.TLSConfigProvider.
func (c *certificates) GetInternodeServerConfig() (*tls.Config, error) { return c.server.Clone(), nil }

// GetInternodeClientConfig implements encryption.TLSConfigProvider.
func (c *certificates) GetInternodeClientConfig() (*tls.Config, error) { return c.client.Clone(), nil }

// GetFrontendServerConfig implements encryption.TLSConfigProvider.
func (c *certificates) GetFrontendServerConfig() (*tls.Config, error) { return c.server.Clone(), nil }

// GetFrontendClientConfig implements encryption.TLSConfigProvider.
func (c *certificates) GetFrontendClientConfig() (*tls.Config, error) { return c.client.Clone(), nil }

// GetRemoteClusterClientConfig implements encryption.TLSConfigProvider. The only cluster is this one.
func (c *certificates) GetRemoteClusterClientConfig(string) (*tls.Config, error) {
	return c.client.Clone(), nil
}

// GetExpiringCerts implements encryption.TLSConfigProvider. None expires.
func (c *certificates) GetExpiringCerts(time.Duration) (expiring, expired encryption.CertExpirationMap, err error) {
	return nil, nil, nil
}
