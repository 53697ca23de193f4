package actions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/strictjson"
)

// NotifyUserID is the id of the action that tells the user of the machine something.
const NotifyUserID = "channels.notify_user"

// Limits of a notification, in characters.
const (
	maxTitle   = 200
	maxMessage = 4_000
)

// desktopPatience is how long a desktop may take to accept a notification. One that hangs (a locked-up session
// bus) must not hold the step until its timeout.
const desktopPatience = 10 * time.Second

// Desktop shows notifications to whoever sits at the machine.
type Desktop interface {
	// Notify shows a notification and returns when the desktop has taken it. The error says in a few words
	// why nobody will see it.
	Notify(ctx context.Context, title, message string) error
}

// desktopName is how the desktop is called among the channels of a result.
const desktopName = "desktop"

// notification is the input of the action. Channels chooses among those of the machine; absent means all, and an
// empty list means none.
type notification struct {
	Title    string   `json:"title" strict:"required"`
	Message  string   `json:"message" strict:"required"`
	Channels []string `json:"channels"`
}

// delivery is the result of the action. Channel is the first that took the notification. Where only the desktop
// was asked, Reason says why it did not show it, and Channels is absent.
type delivery struct {
	Delivered bool              `json:"delivered"`
	Channel   string            `json:"channel"`
	Reason    string            `json:"reason,omitempty"`
	Channels  []channelDelivery `json:"channels,omitempty"`
}

// channelDelivery is what became of a notification in one channel.
type channelDelivery struct {
	Name      string `json:"name"`
	Delivered bool   `json:"delivered"`
	Reason    string `json:"reason,omitempty"`
}

// notifier executes channels.notify_user.
type notifier struct {
	desktop  Desktop
	channels map[string]*Channel
	log      *slog.Logger
}

// NotifyUser returns the action channels.notify_user, which tells the user something on the desktop, where there is
// one, and through the channels of the machine, by name, that the step chooses.
//
// Where no channel is asked, the action always succeeds: without a desktop that takes the notification the text is
// recorded in the log, and the result says that nobody was shown it. Where channels are asked, it succeeds when the
// desktop or any channel took it, and the result says of each. When none did, it is transport_unavailable if no
// channel could be reached, so that trying again repeats nothing, else action_failed.
func NotifyUser(desktop Desktop, channels map[string]*Channel, log *slog.Logger) Action {
	u := &notifier{desktop: desktop, channels: channels, log: log}
	return Action{ID: NotifyUserID, Run: u.run}
}

func (u *notifier) run(ctx context.Context, step automation.ConcreteStep) (json.RawMessage, error) {
	n, err := decodeNotification(step.Input)
	if err != nil {
		return nil, err
	}
	names, err := u.choose(n)
	if err != nil {
		return nil, err
	}
	if len(names) > 0 {
		return u.tell(ctx, n, names)
	}
	result := delivery{Delivered: true, Channel: desktopName}
	if err := show(ctx, u.desktop, n); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		result = delivery{Channel: "log", Reason: err.Error()}
		u.log.InfoContext(ctx, "notification for the user of this machine", "title", n.Title, "message", n.Message,
			"run", step.RunID, "step", step.StepID, "notShownBecause", result.Reason)
	}
	return strictjson.Marshal(result)
}

// choose returns the names of the channels that a notification goes to.
func (u *notifier) choose(n notification) ([]string, error) {
	known := slices.Sorted(maps.Keys(u.channels))
	if n.Channels == nil {
		return known, nil
	}
	for _, name := range n.Channels {
		if _, ok := u.channels[name]; ok {
			continue
		}
		near := nearNames(name, known)
		switch {
		case len(near) > 0:
			return nil, failed("this machine has no channel %q; did you mean %s?", name, strings.Join(near, " or "))
		case len(known) == 0:
			return nil, failed("this machine has no channel %q, and no other: they are named in machine.yaml", name)
		}
		return nil, failed("this machine has no channel %q; it has %s", name, strings.Join(known, ", "))
	}
	return n.Channels, nil
}

// tell notifies the desktop and the named channels, all at once.
func (u *notifier) tell(ctx context.Context, n notification, names []string) (json.RawMessage, error) {
	errs := make([]error, len(names))
	var desktopErr error
	var sends sync.WaitGroup
	sends.Go(func() { desktopErr = show(ctx, u.desktop, n) })
	for i, name := range names {
		sends.Go(func() { errs[i] = u.channels[name].Send(ctx, n.Title, n.Message) })
	}
	sends.Wait()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	result := delivery{}
	var reasons []string
	add := func(name string, err error) {
		outcome := channelDelivery{Name: name, Delivered: err == nil}
		switch {
		case err != nil:
			outcome.Reason = reasonOf(err)
			reasons = append(reasons, name+": "+outcome.Reason)
		case !result.Delivered:
			result.Delivered, result.Channel = true, name
		}
		result.Channels = append(result.Channels, outcome)
	}
	add(desktopName, desktopErr)
	for i, name := range names {
		add(name, errs[i])
	}
	if result.Delivered {
		return strictjson.Marshal(result)
	}
	message := "nobody was notified: " + strings.Join(reasons, "; ")
	if slices.ContainsFunc(errs, func(err error) bool { return !isUnavailable(err) }) {
		return nil, failed("%s", message)
	}
	return nil, unavailable("%s", message)
}

func isUnavailable(err error) bool {
	stepErr, ok := errors.AsType[*automation.StepError](err)
	return ok && stepErr.Code == automation.StepErrTransportUnavailable
}

// reasonOf returns the text of an error without the code of a step error.
func reasonOf(err error) string {
	if stepErr, ok := errors.AsType[*automation.StepError](err); ok {
		return stepErr.Message
	}
	return err.Error()
}

func show(ctx context.Context, desktop Desktop, n notification) error {
	patient, cancel := context.WithTimeout(ctx, desktopPatience)
	defer cancel()
	err := desktop.Notify(patient, n.Title, n.Message)
	if err != nil && patient.Err() != nil {
		return fmt.Errorf("the desktop did not answer within %s", desktopPatience)
	}
	return err
}

func decodeNotification(input json.RawMessage) (notification, error) {
	var n notification
	violations := strictjson.Unmarshal(input, &n)
	if len(violations) == 0 {
		violations = append(checkText("title", n.Title, maxTitle), checkText("message", n.Message, maxMessage)...)
		violations = append(violations, checkChannels(n.Channels)...)
	}
	if len(violations) == 0 {
		return n, nil
	}
	return notification{}, invalidInput(NotifyUserID, violations)
}

func checkChannels(names []string) []strictjson.Violation {
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			return []strictjson.Violation{{Path: strictjson.PathElement("channels", i), Message: fmt.Sprintf("names %q again", name)}}
		}
	}
	return nil
}

func checkText(field, text string, most int) []strictjson.Violation {
	n := utf8.RuneCountInString(text)
	switch {
	case n == 0:
		return []strictjson.Violation{{Path: field, Message: "must not be empty"}}
	case n > most:
		return []strictjson.Violation{{Path: field, Message: fmt.Sprintf("has %d characters; at most %d are possible", n, most)}}
	}
	return nil
}
