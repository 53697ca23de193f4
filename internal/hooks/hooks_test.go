package hooks_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/automation/webhook"
	"github.com/errandhq/errand/internal/hooks"
	"github.com/errandhq/errand/internal/sealing"
)

const secret = "a secret of more than 24 bytes"

// ledger knows one webhook and counts what it is asked.
type ledger struct {
	target  automation.WebhookTarget
	refuses error
	mu      sync.Mutex
	looks   int
	admits  []automation.Admission
}

func (l *ledger) WebhookTarget(_ context.Context, id string) (automation.WebhookTarget, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looks++
	if id != l.target.ID {
		return automation.WebhookTarget{}, automation.Errorf(automation.CodeNotFound, "no")
	}
	return l.target, nil
}

func (l *ledger) Admit(_ context.Context, a automation.Admission) (automation.Run, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.admits = append(l.admits, a)
	return automation.Run{ID: "run"}, l.refuses
}

// vault counts how many secrets it opens.
type vault struct {
	*sealing.Vault
	opened int
}

func (v *vault) Open(id string, s automation.SealedSecret) (automation.WebhookSecret, error) {
	v.opened++
	return v.Vault.Open(id, s)
}

type world struct {
	*hooks.Receiver
	ledger  *ledger
	vault   *vault
	now     time.Time
	started []string
	answers map[automation.Code]int
	log     bytes.Buffer
}

func newWorld(t *testing.T) *world {
	t.Helper()
	inner, err := sealing.New("key", make([]byte, sealing.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{now: time.Unix(1_800_000_000, 0), vault: &vault{Vault: inner}, answers: map[automation.Code]int{}}
	sealed, err := inner.Seal("hook", secret)
	if err != nil {
		t.Fatal(err)
	}
	w.ledger = &ledger{target: automation.WebhookTarget{
		WebhookDefinition: automation.WebhookDefinition{ID: "hook", Scheme: webhook.GitHub, Enabled: true},
		OwnerID:           "owner", AutomationID: "automation", Sealed: []automation.SealedSecret{sealed},
	}}
	w.Receiver, err = hooks.New(hooks.Options{
		Ledger: w.ledger, Vault: w.vault, Now: func() time.Time { return w.now },
		Admitted: func(id string) { w.started = append(w.started, id) },
		Answered: func(refusal automation.Code) { w.answers[refusal]++ },
		Logger:   slog.New(slog.NewTextHandler(&w.log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) deliver(source, id, secret, body string) (automation.Run, error) {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(body))
	return w.Deliver(context.Background(), source, id, webhook.Request{Body: []byte(body), Headers: map[string][]string{
		"x-hub-signature-256": {"sha256=" + hex.EncodeToString(mac.Sum(nil))}, "x-github-delivery": {"d"},
	}})
}

func wantCode(t *testing.T, what string, err error, want automation.Code) {
	t.Helper()
	if got := automation.CodeOf(err); got != want {
		t.Errorf("%s: %q (%v), want %q", what, got, err, want)
	}
}

func TestDeliver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run, err := w.deliver("s", "hook", secret, "{}")
	if err != nil || run.ID != "run" || len(w.started) != 1 {
		t.Fatalf("a delivery gave %v, %v; started %v", run.ID, err, w.started)
	}
	got := w.ledger.admits[0]
	if got.OwnerID != "owner" || got.AutomationID != "automation" || got.Trigger.ID != "hook" || got.Trigger.DeliveryID != "d" || len(got.DeliveryKeys) != 2 {
		t.Errorf("the admission is %+v", got)
	}
	for refused, want := range map[automation.Code]automation.Code{
		automation.CodeUnauthorized: automation.CodeUnauthorized, automation.CodeNotFound: automation.CodeUnauthorized,
		automation.CodeMachineRevoked: automation.CodeMachineRevoked, automation.CodeStoreUnavailable: automation.CodeStoreUnavailable,
	} {
		w.ledger.refuses = automation.Errorf(refused, "refused")
		_, err := w.deliver("s", "hook", secret, "{}")
		wantCode(t, "the ledger says "+string(refused), err, want)
	}
	if len(w.started) != 1 {
		t.Errorf("refused runs were started: %v", w.started)
	}
	want := map[automation.Code]int{
		"": 1, automation.CodeUnauthorized: 2, automation.CodeMachineRevoked: 1, automation.CodeStoreUnavailable: 1,
	}
	if !maps.Equal(w.answers, want) {
		t.Errorf("the answers were told as %v, want %v", w.answers, want)
	}
}

// TestRefusalsCostTheSame: one look into the ledger and two secrets opened, whatever the reason is.
func TestRefusalsCostTheSame(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(w *world) (id, secret string){
		"badly signed": func(*world) (string, string) { return "hook", "another secret of 24 bytes" },
		"unknown":      func(*world) (string, string) { return "other", secret },
		"disabled":     func(w *world) (string, string) { w.ledger.target.Enabled = false; return "hook", secret },
		"no secrets":   func(w *world) (string, string) { w.ledger.target.Sealed = nil; return "hook", secret },
		"two secrets": func(w *world) (string, string) {
			w.ledger.target.Sealed = append(w.ledger.target.Sealed, w.ledger.target.Sealed[0])
			return "hook", "another secret of 24 bytes"
		},
	} {
		w := newWorld(t)
		id, secret := prepare(w)
		_, err := w.deliver("s", id, secret, "{}")
		var refusal *automation.Error
		if !errors.As(err, &refusal) || refusal.Code != automation.CodeUnauthorized || refusal.Cause != nil {
			t.Errorf("%s: %v", name, err)
		}
		if w.ledger.looks != 1 || w.vault.opened != webhook.MaxSecrets || len(w.ledger.admits) != 0 {
			t.Errorf("%s: %d looks, %d secrets opened, %d admissions", name, w.ledger.looks, w.vault.opened, len(w.ledger.admits))
		}
		if !bytes.Contains(w.log.Bytes(), []byte("a delivery was refused")) || bytes.Contains(w.log.Bytes(), []byte(secret)) {
			t.Errorf("%s: the log says %s", name, w.log.String())
		}
	}
}

func TestForeignSecretIsAMistakeOfTheServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.ledger.target.Sealed[0].KeyID = "another"
	_, err := w.deliver("s", "hook", secret, "{}")
	if !errors.Is(err, sealing.ErrOtherKey) {
		t.Errorf("a secret under another master key: %v", err)
	}
}

func TestSourcesAreLimited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 100 {
		if _, err := w.deliver("good", "hook", secret, fmt.Sprint(i)); err != nil || w.Permit("good") != nil {
			t.Fatalf("verified deliveries are held up after %d: %v, %v", i, err, w.Permit("good"))
		}
	}
	refused := 0
	for w.Permit("bad") == nil {
		_, err := w.deliver("bad", "hook", "another secret of 24 bytes", "{}")
		wantCode(t, "a bad delivery", err, automation.CodeUnauthorized)
		if refused++; refused > 1000 {
			t.Fatal("a source of bad deliveries is never refused")
		}
	}
	err := w.Permit("bad")
	wantCode(t, "after them", err, automation.CodeRateLimited)
	if n := w.answers[automation.CodeRateLimited]; n != 2 { // the end of the loop, and the call after it
		t.Errorf("%d deliveries were told as limited, want 2", n)
	}
	if e, ok := errors.AsType[*automation.Error](err); !ok || e.RetryAfter <= 0 || e.RetryAfter > time.Second {
		t.Errorf("the refusal is %v", err)
	}
	if err := w.Permit("good"); err != nil {
		t.Errorf("another source: %v", err)
	}
	w.now = w.now.Add(time.Second)
	if err := w.Permit("bad"); err != nil {
		t.Errorf("a second later: %v", err)
	}
}

// TestInventedSourcesAreLimited: whoever has very many addresses neither fills the memory nor gets round the limit.
func TestInventedSourcesAreLimited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	permitted := 0
	for i := range 12_000 {
		source := fmt.Sprint("source ", i)
		if w.Permit(source) == nil {
			permitted++
			_, _ = w.deliver(source, "other", secret, "")
		}
	}
	if permitted < 10_000 || permitted > 10_100 {
		t.Errorf("%d invented sources were permitted", permitted)
	}
	w.now = w.now.Add(time.Hour) // every bucket is full again, and makes room
	_, err := w.deliver("new", "other", secret, "")
	wantCode(t, "a bad delivery of a new source", err, automation.CodeUnauthorized)
	if err := w.Permit("newer"); err != nil {
		t.Errorf("after an hour: %v", err)
	}
}

func TestWebhooksAreLimited(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	taken := 0
	for ; taken < 5000; taken++ {
		if _, err := w.deliver("s", "hook", secret, fmt.Sprint(taken)); err != nil {
			wantCode(t, "too many deliveries", err, automation.CodeRateLimited)
			if e, ok := errors.AsType[*automation.Error](err); !ok || e.RetryAfter <= 0 {
				t.Errorf("the refusal is %v", err)
			}
			break
		}
	}
	if taken != 1000 || len(w.ledger.admits) != taken {
		t.Errorf("%d deliveries were taken at once and %d admitted", taken, len(w.ledger.admits))
	}
	if err := w.Permit("s"); err != nil {
		t.Errorf("the source is held up: %v", err)
	}
	_, err := w.deliver("s", "hook", "another secret of 24 bytes", "")
	wantCode(t, "a bad delivery meanwhile", err, automation.CodeUnauthorized)
	w.now = w.now.Add(time.Second)
	if _, err := w.deliver("s", "hook", secret, "later"); err != nil {
		t.Errorf("a second later: %v", err)
	}
}
