package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// validity is how long the certificates of a directory are good for.
const validity = 10 * 365 * 24 * time.Hour

// clientFiles are what a client needs, PEM.
type clientFiles struct {
	Authority   string `json:"authority"`
	Certificate string `json:"certificate"`
	Key         string `json:"key"`
}

// certificateFiles are all files of the directory.
type certificateFiles struct {
	clientFiles
	serverCertificate, serverKey string
}

// ensureCertificates returns the files in dir, which it makes when there are none. The authority's key is forgotten.
func ensureCertificates(dir string) (certificateFiles, error) {
	files := certificateFiles{
		clientFiles: clientFiles{
			Authority: filepath.Join(dir, "ca.pem"), Certificate: filepath.Join(dir, "client.pem"), Key: filepath.Join(dir, "client.key"),
		},
		serverCertificate: filepath.Join(dir, "server.pem"), serverKey: filepath.Join(dir, "server.key"),
	}
	_, err := os.Stat(dir)
	if err == nil {
		return files, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return files, fmt.Errorf("looking for the certificates: %w", err)
	}
	// They get their place when all of them are written.
	fresh := dir + ".new"
	if err := errors.Join(os.RemoveAll(fresh), os.MkdirAll(fresh, 0o700)); err != nil {
		return files, fmt.Errorf("making the directory of the certificates: %w", err)
	}
	if err := makeCertificates(fresh); err != nil {
		return files, fmt.Errorf("making certificates: %w", err)
	}
	if err := os.Rename(fresh, dir); err != nil {
		return files, fmt.Errorf("putting the certificates in place: %w", err)
	}
	return files, nil
}

func makeCertificates(dir string) error {
	authority, err := issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: "Temporal for tests"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil)
	if err != nil {
		return err
	}
	server, err := issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: "server"}, DNSNames: []string{"localhost", "temporal"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		KeyUsage:    x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, authority)
	if err != nil {
		return err
	}
	client, err := issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: "client"}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, authority)
	if err != nil {
		return err
	}
	return errors.Join(
		writePEM(filepath.Join(dir, "ca.pem"), "CERTIFICATE", authority.certificate.Raw),
		server.write(dir, "server"), client.write(dir, "client"),
	)
}

// issued is a certificate with its key.
type issued struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// issue makes a key and a certificate for it, signed by the issuer or, without one, by itself.
func issue(template *x509.Certificate, issuer *issued) (*issued, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return nil, err
	}
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = template.NotBefore.Add(validity)
	parent, signer := template, key
	if issuer != nil {
		parent, signer = issuer.certificate, issuer.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	return &issued{certificate, key}, err
}

func (i *issued) write(dir, name string) error {
	key, err := x509.MarshalPKCS8PrivateKey(i.key)
	if err != nil {
		return err
	}
	return errors.Join(
		writePEM(filepath.Join(dir, name+".pem"), "CERTIFICATE", i.certificate.Raw),
		writePEM(filepath.Join(dir, name+".key"), "PRIVATE KEY", key),
	)
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// serverConfig lets in who has a certificate of the directory's authority.
func (f certificateFiles) serverConfig() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(f.serverCertificate, f.serverKey)
	if err != nil {
		return nil, fmt.Errorf("reading the server's certificate: %w", err)
	}
	content, err := os.ReadFile(f.Authority)
	if err != nil {
		return nil, fmt.Errorf("reading the authority's certificate: %w", err)
	}
	trusted := x509.NewCertPool()
	if !trusted.AppendCertsFromPEM(content) {
		return nil, fmt.Errorf("%s holds no certificate", f.Authority)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: trusted, NextProtos: []string{"h2"},
	}, nil
}
