package actions_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/actions"
)

// desktopFunc is a desktop made of a function.
type desktopFunc func(ctx context.Context, title, message string) error

func (f desktopFunc) Notify(ctx context.Context, title, message string) error {
	return f(ctx, title, message)
}

func shown(context.Context, string, string) error { return nil }

func notifyStep(input string) automation.ConcreteStep {
	return automation.ConcreteStep{
		RunID: "run-1", StepID: "tell", Kind: automation.KindAction,
		ActionID: "channels.notify_user", Input: json.RawMessage(input),
	}
}

func registry(t *testing.T, list ...actions.Action) *actions.Registry {
	t.Helper()
	r, err := actions.NewRegistry(list...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// stepCode returns the code of a step error, or "" for another error.
func stepCode(err error) automation.StepCode {
	if stepErr, ok := errors.AsType[*automation.StepError](err); ok {
		return stepErr.Code
	}
	return ""
}

func TestNotifyUserOnADesktop(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	var title, message string
	desktop := desktopFunc(func(_ context.Context, t, m string) error {
		title, message = t, m
		return nil
	})
	r := registry(t, actions.NotifyUser(desktop, nil, slog.New(slog.NewTextHandler(&log, nil))))
	got, err := r.Run(t.Context(), notifyStep(`{"title":"Reminder","message":"Call Mom"}`))
	if err != nil || string(got) != `{"delivered":true,"channel":"desktop"}` {
		t.Errorf("result %s, %v", got, err)
	}
	if title != "Reminder" || message != "Call Mom" || log.Len() > 0 {
		t.Errorf("shown %q %q, log %q", title, message, log.String())
	}
}

func TestNotifyUserWithoutADesktopIsRecordedInTheLog(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	desktop := desktopFunc(func(context.Context, string, string) error { return errors.New("there is no <desktop>") })
	r := registry(t, actions.NotifyUser(desktop, nil, slog.New(slog.NewJSONHandler(&log, nil))))
	got, err := r.Run(t.Context(), notifyStep(`{"title":"Reminder","message":"Call Mom"}`))
	if want := `{"delivered":false,"channel":"log","reason":"there is no <desktop>"}`; err != nil || string(got) != want {
		t.Errorf("result %s, %v, want %s", got, err, want)
	}
	var record map[string]any
	if err := json.Unmarshal(log.Bytes(), &record); err != nil {
		t.Fatalf("log %q: %v", log.String(), err)
	}
	for key, want := range map[string]string{"title": "Reminder", "message": "Call Mom", "run": "run-1", "step": "tell", "level": "INFO"} {
		if record[key] != want {
			t.Errorf("log record has %s %v, want %q", key, record[key], want)
		}
	}
}

func TestNotifyUserRefusesBadInput(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, input, says string }{
		{"no input", ``, "channels.notify_user"},
		{"not an object", `[1]`, "object"},
		{"an unknown member", `{"title":"a","message":"b","sound":"loud"}`, "sound"},
		{"another case", `{"Title":"a","message":"b"}`, "Title"},
		{"no title", `{"message":"b"}`, "title"},
		{"no message", `{"title":"a"}`, "message"},
		{"title of another type", `{"title":1,"message":"b"}`, "title"},
		{"title null", `{"title":null,"message":"b"}`, "title"},
		{"an empty title", `{"title":"","message":"b"}`, "title"},
		{"an empty message", `{"title":"a","message":""}`, "message"},
		{"a duplicate member", `{"title":"a","title":"b","message":"c"}`, "title"},
		{"a long title", `{"title":"` + strings.Repeat("é", 201) + `","message":"b"}`, "title has 201 characters"},
		{"a long message", `{"title":"a","message":"` + strings.Repeat("é", 4001) + `"}`, "message has 4001 characters"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			desktop := desktopFunc(func(context.Context, string, string) error {
				t.Error("the notification was shown")
				return nil
			})
			r := registry(t, actions.NotifyUser(desktop, nil, slog.New(slog.DiscardHandler)))
			_, err := r.Run(t.Context(), notifyStep(tt.input))
			if stepCode(err) != automation.StepErrActionFailed || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error %v, want action_failed that says %q", err, tt.says)
			}
		})
	}
}

func TestNotifyUserTakesTheLongestTexts(t *testing.T) {
	t.Parallel()
	r := registry(t, actions.NotifyUser(desktopFunc(shown), nil, slog.New(slog.DiscardHandler)))
	input := `{"title":"` + strings.Repeat("é", 200) + `","message":"` + strings.Repeat("é", 4000) + `"}`
	if _, err := r.Run(t.Context(), notifyStep(input)); err != nil {
		t.Error(err)
	}
}

func TestNotifyUserDoesNotWaitForADesktopThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hangs := desktopFunc(func(ctx context.Context, _, _ string) error {
			<-ctx.Done()
			return ctx.Err()
		})
		r := registry(t, actions.NotifyUser(hangs, nil, slog.New(slog.DiscardHandler)))
		started := time.Now()
		got, err := r.Run(t.Context(), notifyStep(`{"title":"a","message":"b"}`))
		if err != nil || !strings.Contains(string(got), `"delivered":false`) || !strings.Contains(string(got), "10s") {
			t.Errorf("result %s, %v", got, err)
		}
		if waited := time.Since(started); waited != 10*time.Second {
			t.Errorf("waited %s", waited)
		}

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := r.Run(ctx, notifyStep(`{"title":"a","message":"b"}`)); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: error %v", err)
		}
	})
}

func TestUnknownActionNamesNearOnes(t *testing.T) {
	t.Parallel()
	ids := []string{"channels.notify_user", "files.copy", "files.move", "mail.send"}
	list := make([]actions.Action, len(ids))
	for i, id := range ids {
		list[i] = actions.Action{ID: id}
	}
	r := registry(t, list...)
	tests := []struct{ id, says string }{
		{"channels.notify_usr", "did you mean channels.notify_user?"},
		{"channels.notify", "did you mean channels.notify_user?"},
		{"files.mov", "did you mean files.move or files.copy?"},
		{"letters.send", "did you mean mail.send?"},
		{"weather.report", "it has channels.notify_user, files.copy, files.move, mail.send"},
		{strings.Repeat("x.", 5000), "it has channels.notify_user"},
	}
	for _, tt := range tests {
		_, err := r.Run(t.Context(), automation.ConcreteStep{ActionID: tt.id})
		if stepCode(err) != automation.StepErrActionNotFound || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%.40s: error %v, want action_not_found that says %q", tt.id, err, tt.says)
		}
	}
	_, err := registry(t).Run(t.Context(), automation.ConcreteStep{ActionID: "a.b"})
	if stepCode(err) != automation.StepErrActionNotFound {
		t.Errorf("empty registry: error %v", err)
	}
}

func TestRegistryKeepsCodesOfErrors(t *testing.T) {
	t.Parallel()
	failing := func(err error) actions.Action {
		return actions.Action{ID: "a.b", Run: func(context.Context, automation.ConcreteStep) (json.RawMessage, error) { return nil, err }}
	}
	step := automation.ConcreteStep{ActionID: "a.b"}
	_, err := registry(t, failing(errors.New("disk full"))).Run(t.Context(), step)
	if stepCode(err) != automation.StepErrActionFailed || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("plain error became %v", err)
	}
	for _, code := range []automation.StepCode{
		automation.StepErrActionFailed, automation.StepErrActionUnauthorized, automation.StepErrTransportUnavailable,
	} {
		_, err := registry(t, failing(&automation.StepError{Code: code, Message: "m"})).Run(t.Context(), step)
		if stepCode(err) != code {
			t.Errorf("error %v, want code %s", err, code)
		}
	}
}

func TestRegistryRefusesTwoActionsOfOneID(t *testing.T) {
	t.Parallel()
	if _, err := actions.NewRegistry(actions.Action{ID: "a.b"}, actions.Action{ID: "a.b"}); err == nil || !strings.Contains(err.Error(), "a.b") {
		t.Errorf("error %v", err)
	}
	r := registry(t, actions.Action{ID: "b.b"}, actions.Action{ID: "a.b"})
	if diff := cmp.Diff([]string{"a.b", "b.b"}, r.IDs()); diff != "" {
		t.Errorf("IDs (-want +got):\n%s", diff)
	}
}

// source is a source of actions made of its ids.
type source struct {
	name string
	ids  []string
	err  error
}

func (s source) Name() string { return s.name }

func (s source) IDs(context.Context) ([]string, error) { return s.ids, s.err }

func (s source) Run(_ context.Context, step automation.ConcreteStep) (json.RawMessage, error) {
	if s.err != nil {
		return nil, s.err
	}
	for _, id := range s.ids {
		if id == step.ActionID {
			return json.RawMessage(`"` + id + `"`), nil
		}
	}
	return nil, &automation.StepError{Code: automation.StepErrActionNotFound, Message: "not here"}
}

func TestRegistryAsksItsSources(t *testing.T) {
	t.Parallel()
	r, err := registry(t, actions.Action{ID: "mail.send"}).AddSources(
		source{name: "files", ids: []string{"files.copy", "files.sub.move"}},
		source{name: "away", err: &automation.StepError{Code: automation.StepErrTransportUnavailable, Message: "no route"}},
		source{name: "odd", err: errors.New("odd")},
	)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		id   string
		code automation.StepCode
		says string
	}{
		{"files.copy", "", "files.copy"},
		{"files.sub.move", "", "files.sub.move"},
		{"files.cpoy", automation.StepErrActionNotFound, "did you mean files.copy"},
		{"away.copy", automation.StepErrTransportUnavailable, "no route"},
		{"odd.copy", automation.StepErrActionFailed, "odd"},
		{"weather.report", automation.StepErrActionNotFound, "it has mail.send, away.*, files.*, odd.*"},
	}
	for _, tt := range tests {
		got, err := r.Run(t.Context(), automation.ConcreteStep{ActionID: tt.id})
		text := string(got)
		if err != nil {
			text = err.Error()
		}
		if stepCode(err) != tt.code || !strings.Contains(text, tt.says) {
			t.Errorf("%s: %s, %v, want code %q and %q", tt.id, got, err, tt.code, tt.says)
		}
	}
	if _, err := r.AddSources(source{name: "files"}); err == nil {
		t.Error("two sources of one name are taken")
	}
	if _, err := r.AddSources(source{name: "mail"}); err == nil {
		t.Error("a source is taken that hides an action")
	}
}
