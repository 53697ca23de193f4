package actions_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/actions"
)

// secret stands in every URL of the tests and must come out nowhere.
const secret = "t0ken"

// inbox is a web server that keeps what it was sent.
type inbox struct {
	server *httptest.Server
	mu     sync.Mutex
	got    []string // "title header|body"
}

// openInbox starts an inbox that answers with a status.
func openInbox(t *testing.T, status int) *inbox {
	t.Helper()
	box := &inbox{}
	box.server = serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		box.mu.Lock()
		defer box.mu.Unlock()
		box.got = append(box.got, r.Header.Get("Title")+"|"+string(body))
		w.WriteHeader(status)
		if _, err := io.WriteString(w, "{}"); err != nil {
			t.Error(err)
		}
	})
	return box
}

func (b *inbox) received() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.got
}

// webhook is the URL of the inbox for the generic service.
func (b *inbox) webhook() string { return "generic+" + b.server.URL + "/" + secret }

// closedWebhook is the URL of a server that is gone.
func closedWebhook(t *testing.T) string {
	t.Helper()
	box := openInbox(t, http.StatusOK)
	box.server.Close()
	return box.webhook()
}

func channel(address string) *actions.Channel {
	return actions.NewChannel(func() (string, error) { return address, nil })
}

func absent(context.Context, string, string) error { return errors.New("there is no desktop") }

// notify runs the action with channels at URLs by name.
func notify(t *testing.T, desktop desktopFunc, urls map[string]string, input string) (string, error) {
	t.Helper()
	channels := map[string]*actions.Channel{}
	for name, address := range urls {
		channels[name] = channel(address)
	}
	r := registry(t, actions.NotifyUser(desktop, channels, slog.New(slog.DiscardHandler)))
	got, err := r.Run(t.Context(), notifyStep(input))
	return string(got), err
}

func TestChannelsGetWhatTheyShow(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, want string
		address    func(box *inbox) string
	}{
		{"plain text", "|A b\nCall Mom", func(box *inbox) string { return box.webhook() }},
		{"JSON", `|{"message":"Call Mom","title":"A b"}`, func(box *inbox) string { return box.webhook() + "?template=json" }},
		{"a title in a header", "A b|Call Mom", func(box *inbox) string {
			return "ntfy://" + box.server.Listener.Addr().String() + "/" + secret + "?scheme=http"
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			box := openInbox(t, http.StatusOK)
			if err := channel(tt.address(box)).Send(t.Context(), "A\nb", "Call Mom"); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{tt.want}, box.received()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestNotifyUserTellsOfEachChannel(t *testing.T) {
	t.Parallel()
	ok, missing, busy, gone := openInbox(t, 200).webhook(), openInbox(t, 404).webhook(), openInbox(t, 503).webhook(), closedWebhook(t)
	const (
		failed, unavailable = automation.StepErrActionFailed, automation.StepErrTransportUnavailable
		noDesktop           = `{"name":"desktop","delivered":false,"reason":"there is no desktop"}`
		isMissing           = `{"name":"b","delivered":false,"reason":"the service answered 404 Not Found"}`
		isGone              = `{"name":"b","delivered":false,"reason":"the service cannot be reached"}`
		isOK                = `{"name":"a","delivered":true}`
	)
	tests := []struct {
		name    string
		desktop desktopFunc
		urls    map[string]string
		code    automation.StepCode
		want    string
	}{
		{"all", shown, map[string]string{"a": ok}, "", `{"delivered":true,"channel":"desktop","channels":[{"name":"desktop","delivered":true},` + isOK + `]}`},
		{"no desktop", absent, map[string]string{"a": ok}, "", `{"delivered":true,"channel":"a","channels":[` + noDesktop + `,` + isOK + `]}`},
		{"one refused", absent, map[string]string{"a": ok, "b": missing}, "", `{"delivered":true,"channel":"a","channels":[` + noDesktop + `,` + isOK + `,` + isMissing + `]}`},
		{"one gone", absent, map[string]string{"a": ok, "b": gone}, "", `{"delivered":true,"channel":"a","channels":[` + noDesktop + `,` + isOK + `,` + isGone + `]}`},
		{"only the desktop", shown, map[string]string{"b": gone}, "", `{"delivered":true,"channel":"desktop","channels":[{"name":"desktop","delivered":true},` + isGone + `]}`},
		{"all gone", absent, map[string]string{"a": busy, "b": gone}, unavailable, "nobody was notified: desktop: there is no desktop; a: the service answered 503 Service Unavailable; b: the service cannot be reached"},
		{"one gone, one refused", absent, map[string]string{"a": gone, "b": missing}, failed, "b: the service answered 404 Not Found"},
		{"a bad url", absent, map[string]string{"a": "telegram://" + secret}, failed, "a: the url is not one that its service takes"},
		{"no service", absent, map[string]string{"a": "https://x/" + secret}, failed, "a: the url must begin with a service"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := notify(t, tt.desktop, tt.urls, `{"title":"Reminder","message":"Call Mom"}`)
			if err != nil {
				got = err.Error()
			}
			if stepCode(err) != tt.code || err == nil && got != tt.want || !strings.Contains(got, tt.want) {
				t.Errorf("%s, want code %q and %s", got, tt.code, tt.want)
			}
			if strings.Contains(got, secret) || strings.Contains(got, "127.0.0.1") {
				t.Errorf("%s holds what is secret", got)
			}
		})
	}
}

func TestNotifyUserChoosesChannels(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, channels string
		phone, mail    int
		says           string
	}{
		{"both", `["mail","phone"]`, 1, 1, `{"name":"mail","delivered":true},{"name":"phone","delivered":true}`},
		{"one", `["phone"]`, 1, 0, `[{"name":"desktop","delivered":true},{"name":"phone","delivered":true}]`},
		{"none", `[]`, 0, 0, `{"delivered":true,"channel":"desktop"}`},
		{"a slip", `["phone","mial"]`, 0, 0, `action_failed: this machine has no channel "mial"; did you mean mail?`},
		{"another", `["carrier-pigeon"]`, 0, 0, `it has mail, phone`},
		{"one twice", `["phone","phone"]`, 0, 0, `channels[1] names "phone" again`},
		{"null", `null`, 0, 0, `channels`},
		{"a name alone", `"phone"`, 0, 0, `channels`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			phone, mail := openInbox(t, 200), openInbox(t, 200)
			got, err := notify(t, shown, map[string]string{"phone": phone.webhook(), "mail": mail.webhook()},
				`{"title":"a","message":"b","channels":`+tt.channels+`}`)
			if err != nil {
				got = string(stepCode(err)) + ": " + err.Error()
			}
			if !strings.Contains(got, tt.says) {
				t.Errorf("%s, want %s", got, tt.says)
			}
			if p, m := len(phone.received()), len(mail.received()); p != tt.phone || m != tt.mail {
				t.Errorf("phone got %d, mail %d, want %d and %d", p, m, tt.phone, tt.mail)
			}
		})
	}
	if _, err := notify(t, shown, nil, `{"title":"a","message":"b","channels":["x"]}`); stepCode(err) != automation.StepErrActionFailed ||
		!strings.Contains(err.Error(), "machine.yaml") {
		t.Errorf("without channels: %v", err)
	}
}

func TestChannelReadsItsURLAtEachUse(t *testing.T) {
	t.Parallel()
	box := openInbox(t, http.StatusOK)
	address, err := "", errors.New("the file is not there")
	c := actions.NewChannel(func() (string, error) { return address, err })
	if sendErr := c.Send(t.Context(), "a", "b"); stepCode(sendErr) != automation.StepErrActionFailed || !strings.Contains(sendErr.Error(), "not there") {
		t.Errorf("error %v", sendErr)
	}
	address, err = box.webhook(), nil
	if err := c.Send(t.Context(), "a", "b"); err != nil || len(box.received()) != 1 {
		t.Errorf("%v, received %q", err, box.received())
	}
}

func TestChannelThatHangsIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		var entered atomic.Int32
		c := actions.NewChannel(func() (string, error) {
			entered.Add(1)
			<-hang
			return "", errors.New("over")
		})
		r := registry(t, actions.NotifyUser(desktopFunc(absent), map[string]*actions.Channel{"a": c}, slog.New(slog.DiscardHandler)))
		for range 6 {
			started := time.Now()
			_, err := r.Run(t.Context(), notifyStep(`{"title":"a","message":"b"}`))
			if stepCode(err) != automation.StepErrTransportUnavailable || !strings.Contains(err.Error(), "within 10s") {
				t.Errorf("error %v", err)
			}
			if waited := time.Since(started); waited != 10*time.Second {
				t.Errorf("waited %s", waited)
			}
		}
		if n := entered.Load(); n != 4 {
			t.Errorf("%d sends hang, want 4", n)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := r.Run(ctx, notifyStep(`{"title":"a","message":"b"}`)); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: error %v", err)
		}
		close(hang)
		synctest.Wait()
		if err := c.Send(t.Context(), "a", "b"); stepCode(err) != automation.StepErrActionFailed {
			t.Errorf("when the others have ended: %v", err)
		}
	})
}

func TestCheckChannelURL(t *testing.T) {
	t.Parallel()
	tests := []struct{ address, says string }{
		{"generic+https://example.com/" + secret, ""},
		{"generic://example.com/" + secret + "?template=json", ""},
		{"ntfy://:" + secret + "@ntfy.sh/topic", ""},
		{"smtp://me:" + secret + "@mail.example.com:587/?from=a@example.com&to=b@example.com", ""},
		{"matrix://me:" + secret + "@no-such-host.invalid/", ""}, // would log in
		{"https://example.com/" + secret, "begin with a service"},
		{secret + "://x", "begin with a service"},
		{"logger://" + secret, "begin with a service"},
		{"telegram://" + secret, "not one"},
		{"slack+https://" + secret, "not one"},
		{"ntfy://x/%zz" + secret, "not one"},
		{"ntfy://x/y?" + secret + "=1", "not one"},
		{"", "begin with a service"},
	}
	for _, tt := range tests {
		err := actions.CheckChannelURL(tt.address)
		switch {
		case (err == nil) != (tt.says == ""):
			t.Errorf("%s: %v", tt.address, err)
		case err != nil && (!strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), secret)):
			t.Errorf("%s: %v, want one that says %q and not what is secret", tt.address, err, tt.says)
		}
	}
}

func TestResultWithoutChannelsIsThatOfTheDesktop(t *testing.T) {
	t.Parallel()
	got, err := notify(t, absent, nil, `{"title":"a","message":"b"}`)
	if err != nil || !json.Valid([]byte(got)) || got != `{"delivered":false,"channel":"log","reason":"there is no desktop"}` {
		t.Errorf("%s, %v", got, err)
	}
}
