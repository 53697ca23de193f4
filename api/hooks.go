package api

import (
	"context"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/automation/webhook"
)

// Hooks takes deliveries of webhooks.
type Hooks interface {
	// Permit refuses a source address that has sent too much that was not verified, with rate_limited.
	Permit(source string) error
	// Deliver takes a delivery of a source to the webhook of an id, and returns its run.
	Deliver(ctx context.Context, source, id string, request webhook.Request) (automation.Run, error)
}

// DeliveryAnswer tells the sender of a delivery which run it has.
type DeliveryAnswer struct {
	RunID string `json:"run_id"`
}

// deliver takes a delivery. Its sender has no credential but the signature, and its answer does not wait for
// anything but the admission.
func (a *API) deliver(c *gin.Context) {
	source := network(c.ClientIP())
	if err := a.Hooks.Permit(source); err != nil {
		a.refuse(c, err)
		return
	}
	headers := make(map[string][]string, len(c.Request.Header))
	for name, values := range c.Request.Header {
		headers[strings.ToLower(name)] = values
	}
	limit := webhook.MaxBody(headers)
	if c.Request.ContentLength > limit {
		a.refuse(c, &http.MaxBytesError{Limit: limit})
		return
	}
	boundBody(c, limit)
	defer a.holdStranger(c, source)()
	body, err := readBody(c)
	if err != nil {
		a.refuse(c, err)
		return
	}
	run, err := a.Hooks.Deliver(detached(c), source, c.Param("id"), webhook.Request{Headers: headers, Body: body})
	if err != nil {
		a.refuse(c, err)
		return
	}
	a.answer(c, http.StatusAccepted, DeliveryAnswer{RunID: run.ID})
}
