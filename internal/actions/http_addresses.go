package actions

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"syscall"
	"time"
)

// policyError tells that the machine's policy forbids a request.
type policyError struct{ reason string }

func (e *policyError) Error() string { return e.reason }

var (
	// metadataAddresses are where cloud machines find their own secrets, beside the link-local ones.
	metadataAddresses = []netip.Addr{netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("100.100.100.200")}
	// sharedAddresses are those of carriers and overlay networks.
	sharedAddresses = netip.MustParsePrefix("100.64.0.0/10")
	// translated holds an IPv4 address in its last bytes.
	translated = netip.MustParsePrefix("64:ff9b::/96")
)

// dialPatience is how long a connection may take to be made.
const dialPatience = 30 * time.Second

// proxy returns the proxy for a request and remembers where it is.
func (r *requester) proxy(request *http.Request) (*url.URL, error) {
	if r.policy.Proxy == nil {
		return nil, nil //nolint:nilnil // as http.Transport wants it
	}
	u, err := r.policy.Proxy(request)
	if err == nil && u != nil {
		r.proxies.Store(net.JoinHostPort(u.Hostname(), portOf(u)), true)
	}
	return u, err
}

// dial connects to a host, if the policy allows its address, or to a proxy wherever that is.
func (r *requester) dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: dialPatience}
	if _, isProxy := r.proxies.Load(address); !isProxy {
		dialer.ControlContext = r.checkDial
	}
	return dialer.DialContext(ctx, network, address)
}

// checkDial refuses a connection by the address that it really goes to, after names were resolved: a name
// cannot stand for one address when it is checked and for another when it is used.
func (r *requester) checkDial(_ context.Context, _, address string, _ syscall.RawConn) error {
	target, err := netip.ParseAddrPort(address)
	if err != nil {
		return &policyError{fmt.Sprintf("%s is no network address", address)}
	}
	return checkAddress(target.Addr(), r.policy.RefusePrivate)
}

// checkAddress returns a [*policyError] for an address that requests may not go to.
func checkAddress(addr netip.Addr, refusePrivate bool) error {
	addr = addr.WithZone("").Unmap()
	if translated.Contains(addr) {
		bytes := addr.As16()
		addr = netip.AddrFrom4([4]byte(bytes[12:]))
	}
	switch {
	case addr.IsLinkLocalUnicast() || slices.Contains(metadataAddresses, addr):
		return &policyError{fmt.Sprintf("%s is a link-local or metadata address, where machines in clouds keep secrets", addr)}
	case addr.IsUnspecified() || addr.IsMulticast():
		return &policyError{fmt.Sprintf("%s is no address of a single host", addr)}
	case refusePrivate && (addr.IsPrivate() || addr.IsLoopback() || sharedAddresses.Contains(addr)):
		return &policyError{fmt.Sprintf("%s is a private address, which machine.yaml refuses", addr)}
	}
	return nil
}
