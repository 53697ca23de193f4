package host

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"

	"github.com/errandhq/errand/automation"
)

// ErrNoControlPlane says that something answered that is no control plane, such as a proxy or another server.
var ErrNoControlPlane = errors.New("the answer did not come from a control plane")

// Reason says for a person why the control plane could not be reached, or what it refused, and what to do.
func Reason(err error) string {
	if refusal, ok := errors.AsType[*RefusalError](err); ok {
		return reasonOfRefusal(refusal)
	}
	if reason := reasonOfTLS(err); reason != "" {
		return reason
	}
	var dns *net.DNSError
	var network net.Error
	switch {
	case errors.As(err, &dns):
		return fmt.Sprintf("the name %q cannot be resolved: check the address of the control plane and this machine's network", dns.Name)
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens at the control plane's address: it is stopped, or the address is wrong"
	case errors.Is(err, ErrNoControlPlane):
		return "what answers at the control plane's address is not a control plane: check the address, and the proxy in front of it"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, errSilent), errors.As(err, &network) && network.Timeout():
		return "the control plane does not answer in time: check this machine's network"
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		return "this machine has no route to the control plane: check its network"
	}
	return "the connection to the control plane broke: " + err.Error()
}

func reasonOfRefusal(refusal *RefusalError) string {
	switch refusal.Code { //nolint:exhaustive // the other codes speak for themselves
	case automation.CodeMachineRevoked:
		return "this machine was revoked: enrol it again to use it"
	case automation.CodeUnauthorized:
		return "the control plane does not accept this machine's credential: " + refusal.Message
	}
	return "the control plane refuses this machine: " + refusal.Message
}

// reasonOfTLS returns "" for an error that has nothing to do with TLS.
func reasonOfTLS(err error) string {
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	var alert tls.AlertError
	switch {
	case errors.As(err, &authority):
		return "TLS: the control plane's certificate is signed by nobody whom this machine trusts: install that authority, or name its file in SSL_CERT_FILE"
	case errors.As(err, &name):
		return "TLS: the control plane's certificate is for another name than its address: " + name.Error()
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "TLS: the control plane's certificate has expired or is not valid yet: renew it, or set this machine's clock"
	case errors.As(err, &invalid):
		return "TLS: the control plane's certificate is not valid: " + invalid.Error()
	case errors.As(err, &record), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return "TLS: the address begins with https and the server there speaks plain HTTP: use http, or give the server a certificate"
	case errors.As(err, &alert):
		return "TLS: the control plane ended the handshake: " + alert.Error()
	}
	return ""
}

// isRevoked reports whether the control plane has said that the machine was revoked.
func isRevoked(err error) bool {
	refusal, ok := errors.AsType[*RefusalError](err)
	return ok && refusal.Code == automation.CodeMachineRevoked
}
