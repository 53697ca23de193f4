package actions

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
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

// notification is the input of the action.
type notification struct {
	Title   string `json:"title" strict:"required"`
	Message string `json:"message" strict:"required"`
}

// delivery is the result of the action. Reason says why the desktop did not show it.
type delivery struct {
	Delivered bool   `json:"delivered"`
	Channel   string `json:"channel"`
	Reason    string `json:"reason,omitempty"`
}

// NotifyUser returns the action channels.notify_user. Where there is a desktop the notification appears
// there. Where there is none, or it does not take the notification, the action still succeeds: the text is
// recorded in the log, and the result says that nobody was shown it.
func NotifyUser(desktop Desktop, log *slog.Logger) Action {
	return Action{ID: NotifyUserID, Run: func(ctx context.Context, step automation.ConcreteStep) (json.RawMessage, error) {
		n, err := decodeNotification(step.Input)
		if err != nil {
			return nil, err
		}
		result := delivery{Delivered: true, Channel: "desktop"}
		if err := show(ctx, desktop, n); err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			result = delivery{Channel: "log", Reason: err.Error()}
			log.InfoContext(ctx, "notification for the user of this machine", "title", n.Title, "message", n.Message,
				"run", step.RunID, "step", step.StepID, "notShownBecause", result.Reason)
		}
		return strictjson.Marshal(result)
	}}
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
	}
	if len(violations) == 0 {
		return n, nil
	}
	return notification{}, invalidInput(NotifyUserID, violations)
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
