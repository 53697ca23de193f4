// Package hooks takes deliveries of webhooks: it verifies them, limits them, and admits their runs. A delivery that
// is not verified learns nothing: that the webhook is unknown, that it is disabled and that the signature is wrong
// are one answer, and cost the same work. Only its log says which it was.
//
// How a delivery is signed and what input it becomes is decided by package webhook, whether a run is admitted and
// what is a repeat by the ledger; the HTTP side is left to the API.
package hooks

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/automation/webhook"
	"github.com/errandhq/errand/internal/ratelimit"
)

// Limits of deliveries. That of a source counts only what was not verified: whoever has the secret is never held up
// by its own deliveries.
const (
	// refusedPerSecond and refusedBurst bound the deliveries of one source address that are not verified.
	refusedPerSecond = 1
	refusedBurst     = 20
	// verifiedPerSecond and verifiedBurst bound the verified deliveries of one webhook.
	verifiedPerSecond = 50
	verifiedBurst     = 1_000
)

// Ledger is what taking deliveries needs of the ledger.
type Ledger interface {
	WebhookTarget(ctx context.Context, id string) (automation.WebhookTarget, error)
	Admit(ctx context.Context, a automation.Admission) (automation.Run, error)
}

// Options are what a [Receiver] is made of.
type Options struct {
	Ledger Ledger
	Vault  automation.SecretVault
	// Admitted asks for the start of a run's workflow. It returns at once.
	Admitted func(runID string)
	Now      func() time.Time
	// Answered is told how each delivery was answered: with "" when it has a run, else with the code of the refusal.
	// It must not block. Nil means that nobody counts.
	Answered func(refusal automation.Code)
	Logger   *slog.Logger
}

// Receiver takes deliveries. It is safe for concurrent use.
type Receiver struct {
	Options
	sources  *ratelimit.Buckets
	webhooks *ratelimit.Buckets
	// nobody stands for every webhook that there is not.
	nobody automation.WebhookTarget
}

// New returns a receiver.
func New(o Options) (*Receiver, error) {
	if o.Answered == nil {
		o.Answered = func(automation.Code) {}
	}
	r := &Receiver{
		Options:  o,
		sources:  ratelimit.New(refusedPerSecond, refusedBurst),
		webhooks: ratelimit.New(verifiedPerSecond, verifiedBurst),
		nobody:   automation.WebhookTarget{WebhookDefinition: automation.WebhookDefinition{Scheme: webhook.GitHub}},
	}
	for range webhook.MaxSecrets {
		sealed, err := o.Vault.Seal("", automation.WebhookSecret(rand.Text()+rand.Text()))
		if err != nil {
			return nil, fmt.Errorf("preparing the refusal of deliveries: %w", err)
		}
		r.nobody.Sealed = append(r.nobody.Sealed, sealed)
	}
	return r, nil
}

// Permit refuses a source that has sent too much that was not verified, with rate_limited. It is asked before the
// body of a delivery is read.
func (r *Receiver) Permit(source string) error {
	if wait := r.sources.Wait(source, r.Now()); wait > 0 {
		r.Answered(automation.CodeRateLimited)
		return automation.RateLimited(wait, "too many deliveries from this address were refused; try again later")
	}
	return nil
}

// Deliver takes a delivery of a source to the webhook of an id, and returns its run; that of the first one for a
// repeat. It returns after the commit of the admission and waits for nothing else. Errors: unauthorized for
// everything that is not verified, rate_limited, payload_too_large, store_unavailable, and those of an admission.
func (r *Receiver) Deliver(ctx context.Context, source, id string, request webhook.Request) (automation.Run, error) {
	run, err := r.deliver(ctx, source, id, request)
	r.Answered(automation.CodeOf(err))
	return run, err
}

func (r *Receiver) deliver(ctx context.Context, source, id string, request webhook.Request) (automation.Run, error) {
	target, delivery, reason, err := r.verify(ctx, id, request)
	if err != nil {
		return automation.Run{}, err
	}
	if reason != nil {
		r.sources.Take(source, r.Now())
		r.Logger.InfoContext(ctx, "a delivery was refused", "webhook", shown(id), "source", source, "reason", reason)
		return automation.Run{}, refusal()
	}
	if wait := r.webhooks.Take(target.ID, r.Now()); wait > 0 {
		return automation.Run{}, automation.RateLimited(wait, "too many deliveries to this webhook; try again later")
	}
	input, err := webhook.Input(target.Spec(), delivery, request)
	if tooLarge, ok := errors.AsType[*webhook.TooLargeError](err); ok {
		return automation.Run{}, automation.Errorf(automation.CodePayloadTooLarge, "%s", tooLarge.Reason)
	}
	run, err := r.Ledger.Admit(ctx, automation.WebhookDelivery{
		OwnerID: target.OwnerID, AutomationID: target.AutomationID, WebhookID: target.ID, Delivery: delivery, Input: input,
	}.Admission())
	switch automation.CodeOf(err) { //nolint:exhaustive // every other code is answered as it is
	case "":
		r.Admitted(run.ID)
		return run, nil
	case automation.CodeUnauthorized, automation.CodeNotFound: // it was removed while this was on its way
		return automation.Run{}, refusal()
	}
	return automation.Run{}, err
}

// verify returns the webhook and the delivery, or the reason why there is none. Every reason costs the same: one
// look into the ledger, two secrets opened, and the work of [webhook.Verify].
func (r *Receiver) verify(
	ctx context.Context, id string, request webhook.Request,
) (target automation.WebhookTarget, delivery webhook.Delivery, reason, err error) {
	target, err = r.Ledger.WebhookTarget(ctx, id)
	known := true
	switch automation.CodeOf(err) {
	case "":
	case automation.CodeNotFound:
		known, target = false, r.nobody
	default:
		return target, delivery, nil, err
	}
	keys, err := r.keys(target)
	if err != nil {
		return target, delivery, nil, err
	}
	delivery, reason = webhook.Verify(target.Spec(), keys, request, r.Now())
	switch {
	case !known:
		reason = errors.New("there is no webhook of this id")
	case reason == nil && !target.Enabled:
		reason = errors.New("the webhook is disabled")
	}
	return target, delivery, reason, nil
}

// keys opens the secrets of a webhook, always as many as there can be. A webhook whose secrets were lost with their
// master key has none. A secret that does not open is a mistake in the operation of the control plane.
func (r *Receiver) keys(target automation.WebhookTarget) ([][]byte, error) {
	var keys [][]byte
	for i := range webhook.MaxSecrets {
		if i >= len(target.Sealed) { // opened for its time alone
			if _, err := r.Vault.Open("", r.nobody.Sealed[i]); err != nil {
				return nil, fmt.Errorf("opening the secret of no webhook: %w", err)
			}
			continue
		}
		secret, err := r.Vault.Open(target.ID, target.Sealed[i])
		if err != nil {
			return nil, fmt.Errorf("opening a secret of webhook %s: %w", target.ID, err)
		}
		key, err := target.Scheme.Key(string(secret))
		if err != nil {
			return nil, fmt.Errorf("reading a secret of webhook %s: %w", target.ID, err)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// refusal is the one answer to everything that is not verified.
func refusal() error {
	return automation.Errorf(automation.CodeUnauthorized,
		"there is no such webhook, it is disabled, or the delivery is not signed as it must be")
}

// shown cuts an id of a stranger for the log.
func shown(id string) string {
	const most = 64
	return id[:min(len(id), most)]
}
