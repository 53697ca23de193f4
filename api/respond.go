package api

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"

	"github.com/gin-gonic/gin"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/strictjson"
)

// ErrorEnvelope is the body of every answer that is not a success.
type ErrorEnvelope struct {
	Error ErrorBody `json:"error"`
}

// ErrorBody is a refusal: a code of the closed set and a sentence for a person.
type ErrorBody struct {
	Code      automation.Code        `json:"code"`
	Message   string                 `json:"message"`
	Details   []automation.Violation `json:"details,omitempty"`
	RequestID string                 `json:"requestId,omitempty"`
}

// answer writes a success.
func (a *API) answer(c *gin.Context, status int, body any) {
	document, err := strictjson.Marshal(body)
	if err != nil {
		a.refuse(c, err)
		return
	}
	if caller := c.GetString(keyCaller); caller != "" {
		if c.Request.Method == http.MethodGet && status < http.StatusBadRequest && !a.held.Take(caller, 0) {
			// Others of the same caller were ready first. Nothing was changed, so it can be asked for again.
			a.refuse(c, tooMuchHeld())
			return
		}
		a.held.Add(caller, int64(len(document)))
		defer a.held.Give(caller, int64(len(document)))
	}
	c.Data(status, "application/json", append(document, '\n'))
}

// refuse writes an error and ends the request. An error without a code of the closed set is internal: its
// text goes to the log, beside the id of the request.
func (a *API) refuse(c *gin.Context, err error) {
	if _, ok := errors.AsType[underWayError](err); ok {
		a.Observer.CallLimited(automation.LimitUnderWay)
	}
	body := a.envelope(c, err)
	var e *automation.Error
	if errors.As(err, &e) && e.RetryAfter > 0 {
		c.Header("Retry-After", strconv.Itoa(int(math.Ceil(e.RetryAfter.Seconds()))))
	}
	c.Abort()
	a.answer(c, body.Error.Code.Status(), body)
}

func (a *API) envelope(c *gin.Context, err error) ErrorEnvelope {
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		err = automation.Errorf(automation.CodePayloadTooLarge, "the body is larger than %d bytes", tooLarge.Limit)
	}
	var e *automation.Error
	if !errors.As(err, &e) || !e.Code.Known() || e.Code == automation.CodeInternal {
		if !errors.Is(err, context.Canceled) {
			a.Logger.ErrorContext(c.Request.Context(), "a request failed",
				"request_id", c.GetString(keyRequestID), "path", c.FullPath(), "error", err)
		}
		return ErrorEnvelope{ErrorBody{
			Code: automation.CodeInternal, Message: internalMessage(c), RequestID: c.GetString(keyRequestID),
		}}
	}
	if e.Cause != nil {
		a.Logger.WarnContext(c.Request.Context(), "a request was refused",
			"request_id", c.GetString(keyRequestID), "path", c.FullPath(), "error", err)
	}
	return ErrorEnvelope{ErrorBody{Code: e.Code, Message: e.Message, Details: e.Details}}
}

func internalMessage(c *gin.Context) string {
	return "something went wrong inside the control plane; its log says what, under request id " + c.GetString(keyRequestID)
}
