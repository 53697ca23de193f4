package actions

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/nicholas-fedor/shoutrrr/pkg/router"
	"github.com/nicholas-fedor/shoutrrr/pkg/types"

	"github.com/errandhq/errand/automation"
)

// channelPatience is how long a service may take to accept a notification.
const channelPatience = 10 * time.Second

// maxSends bounds the notifications that are on their way through one channel. The library cannot break off one
// that a service leaves hanging, so what was given up still counts until the connection ends.
const maxSends = 4

// Channel is a service beyond this machine that takes notifications: a chat, a push service, a mail server, a
// webhook. It is named by a URL of the library shoutrrr. The URL is a secret and appears in no error. A Channel is
// safe for concurrent use.
type Channel struct {
	address func() (string, error)
	slots   chan struct{}
}

// NewChannel returns the channel at the URL that address returns. It is asked at each use, so the URL may change.
// Its error becomes a reason that people read, and must not hold the URL.
func NewChannel(address func() (string, error)) *Channel {
	return &Channel{address: address, slots: make(chan struct{}, maxSends)}
}

var errBadChannelURL = errors.New("the url is not one that its service takes")

// CheckChannelURL reports whether notifications can be sent to a URL as far as that is known without a connection.
// The error does not hold the URL or any part of it.
func CheckChannelURL(address string) (err error) {
	defer func() {
		if recover() != nil { // a client that stumbles over a URL
			err = errBadChannelURL
		}
	}()
	u, err := parseChannelURL(address)
	if err != nil {
		return err
	}
	if schemeOf(u) == "matrix" {
		return nil // to open one is to log in
	}
	if _, err := openService(u); err != nil {
		return errBadChannelURL
	}
	return nil
}

// parseChannelURL parses a URL that begins with a known service.
func parseChannelURL(address string) (*url.URL, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, errBadChannelURL
	}
	if known := channelSchemes(); !slices.Contains(known, schemeOf(u)) {
		return nil, fmt.Errorf("the url must begin with a service: %s", strings.Join(known, ", "))
	}
	return u, nil
}

// channelSchemes returns the services that can be named, sorted.
func channelSchemes() []string {
	all := (&router.ServiceRouter{}).ListServices()
	// It would write to a log that does not exist, and report success.
	all = slices.DeleteFunc(all, func(name string) bool { return name == "logger" })
	slices.Sort(all)
	return all
}

// schemeOf returns the service that a URL names: `generic` for generic+https.
func schemeOf(u *url.URL) string {
	scheme, _, _ := strings.Cut(u.Scheme, "+")
	return scheme
}

// openService returns the library's client for a URL, which it may use to log in. The errors are the library's and
// may quote the URL.
func openService(u *url.URL) (types.Service, error) {
	scheme := schemeOf(u)
	service, err := (&router.ServiceRouter{}).NewService(scheme)
	if err != nil {
		return nil, fmt.Errorf("choosing the service of a channel: %w", err)
	}
	if scheme != u.Scheme {
		custom, ok := service.(types.CustomURLService)
		if !ok {
			return nil, errBadChannelURL
		}
		if u, err = custom.GetConfigURLFromCustom(u); err != nil {
			return nil, fmt.Errorf("reading the url of a channel: %w", err)
		}
	}
	if err := service.Initialize(u, nil); err != nil {
		return nil, fmt.Errorf("opening a channel: %w", err)
	}
	return service, nil
}

// Send delivers a notification, and returns when the service has taken it, at most after 10 s. The error is the
// context's, or an [*automation.StepError] whose message says why in a few words: transport_unavailable when the
// service was not reached or cannot take messages now, action_failed when it refused. One that came too late may
// be delivered all the same.
func (c *Channel) Send(ctx context.Context, title, message string) error {
	patient, cancel := context.WithTimeout(ctx, channelPatience)
	defer cancel()
	select {
	case c.slots <- struct{}{}:
	case <-patient.Done():
		return late(ctx)
	}
	done := make(chan error, 1)
	go func() {
		defer func() { <-c.slots }()
		done <- c.deliver(title, message)
	}()
	select {
	case err := <-done:
		return err
	case <-patient.Done():
		return late(ctx)
	}
}

// late is the error of a send whose time has run out, or whose context has ended.
func late(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return unavailable("the service did not answer within %s", channelPatience)
}

// unavailable is a transport_unavailable with a formatted sentence.
func unavailable(format string, args ...any) *automation.StepError {
	return &automation.StepError{Code: automation.StepErrTransportUnavailable, Message: fmt.Sprintf(format, args...)}
}

func (c *Channel) deliver(title, message string) (err error) {
	defer func() {
		// A client for somebody else's service must not end the worker. What it says may hold the URL.
		if recover() != nil {
			err = failed("the client of the service failed")
		}
	}()
	address, err := c.address()
	if err != nil {
		return failed("%v", err)
	}
	u, err := parseChannelURL(address)
	if err != nil {
		return failed("%v", err)
	}
	service, err := openService(u)
	if err != nil {
		return explain(err, errBadChannelURL.Error())
	}
	text, params := compose(u, title, message)
	if err := service.Send(text, &params); err != nil {
		return explain(err, "the service refused the message")
	}
	return nil
}

// titled are the services that show a title of their own.
var titled = []string{
	"bark", "discord", "gotify", "join", "lark", "ntfy", "opsgenie", "pushbullet", "pushover", "slack", "smtp",
}

// compose returns what a service gets: with the others, and with a webhook that takes plain text, the title is the
// first line of the text.
func compose(u *url.URL, title, message string) (string, types.Params) {
	// In a header of a mail or a request, a line end would begin another header.
	title = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, title)
	scheme := schemeOf(u)
	if slices.Contains(titled, scheme) || scheme == "generic" && u.Query().Has("template") {
		return message, types.Params{types.TitleKey: title}
	}
	return title + "\n" + message, types.Params{}
}

// explain says what the failure of a service means, without anything of the URL; otherwise is for one that is none
// of the known ones. Most of the library's services cut the chain of their errors, so only the text is left to tell.
func explain(err error, otherwise string) error {
	text := err.Error()
	for status := http.StatusBadRequest; status <= http.StatusNetworkAuthenticationRequired; status++ {
		name := http.StatusText(status)
		if name == "" || !strings.Contains(text, fmt.Sprintf("%d %s", status, name)) {
			continue
		}
		if status == http.StatusRequestTimeout || status == http.StatusTooManyRequests || status >= http.StatusInternalServerError {
			return unavailable("the service answered %d %s", status, name)
		}
		return failed("the service answered %d %s", status, name)
	}
	switch {
	case strings.Contains(text, "x509:"):
		return failed("the certificate of the service is not trusted")
	case unreachable(text):
		return unavailable("the service cannot be reached")
	}
	return failed("%s", otherwise)
}

// unreachable reports whether the text of an error tells of trouble on the way.
func unreachable(text string) bool {
	return slices.ContainsFunc([]string{
		"dial tcp", "proxyconnect", "connection refused", "no such host", "i/o timeout", "connection reset", "forcibly closed",
		"broken pipe", "handshake timeout", "Client.Timeout", "deadline exceeded", `": EOF`, `": unexpected EOF`,
	}, func(sign string) bool { return strings.Contains(text, sign) })
}
