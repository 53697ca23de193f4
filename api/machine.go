package api

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/catalog"
	"github.com/errandhq/errand/internal/strictjson"
)

// A fleet behind one address may enrol at this pace; whoever guesses gets nowhere with codes of 80 bits.
const (
	enrolmentsPerSecond = 20
	enrolmentBurst      = 200
	// maxEnrolment is far above the largest request to be enrolled.
	maxEnrolment = 256 << 10
)

func (a *API) enroll(c *gin.Context) {
	address := catalog.PrincipalOf(c.Request.Context()).Origin.Address
	if wait := a.enrolments.Take(network(address), a.Now()); wait > 0 {
		a.Observer.CallLimited(automation.LimitEnrolments)
		a.refuse(c, automation.RateLimited(wait, "too many enrolments are tried from your address; wait a moment"))
		return
	}
	boundBody(c, maxEnrolment)
	defer a.holdStranger(c, network(address))()
	request, err := decodeBody[automation.EnrollRequest](c)
	if err != nil {
		a.refuse(c, err)
		return
	}
	machine, err := a.Machines.Enroll(c.Request.Context(), request)
	if err != nil {
		if automation.CodeOf(err) == automation.CodeUnauthorized {
			a.Observer.CredentialRefused(automation.CredentialCode)
		}
		a.refuse(c, err)
		return
	}
	by := catalog.Principal{
		OwnerID: machine.OwnerID, Actor: automation.Actor{Kind: automation.ActorMachine, ID: machine.ID},
		Origin: catalog.PrincipalOf(c.Request.Context()).Origin,
	}
	if err := a.Service.Note(c.Request.Context(), by, "enroll", machine.ID, "", nil); err != nil {
		a.refuse(c, err) // the code is used up for this key alone: the same request is answered later
		return
	}
	a.answer(c, http.StatusCreated, automation.EnrollAnswer{MachineID: machine.ID, Name: machine.Name})
}

// issueToken gives a machine an access token. The request has no content: its headers say it all.
func (a *API) issueToken(c *gin.Context) {
	var answer automation.TokenAnswer
	address := catalog.PrincipalOf(c.Request.Context()).Origin.Address
	err := a.gate.pass(address, automation.CredentialMachine, credentialOf(c.Request), func() (err error) {
		answer, err = a.Machines.IssueToken(c.Request.Context(), callOf(c.Request))
		return err
	})
	if err != nil {
		a.refuse(c, err)
		return
	}
	a.answer(c, http.StatusOK, answer)
}

func (a *API) hello(c *gin.Context) {
	request, err := decodeBody[automation.Hello](c)
	if err != nil {
		a.refuse(c, err)
		return
	}
	machine := machineOf(c)
	held, err := a.Ledger.Hello(detached(c), machine.ID, request)
	if err != nil {
		a.refuse(c, err)
		return
	}
	if held == nil {
		held = []automation.HeldAnswer{}
	}
	a.answer(c, http.StatusOK, automation.HelloAnswer{
		MachineID: machine.ID, Namespace: a.Namespace, Held: held,
		TaskQueue: automation.MachineQueue(a.InstallationID, machine.ID),
	})
}

// alive records that a machine is there. Pings are answered by this call because a write into an event stream
// succeeds long after its machine has been frozen or has lost its network.
func (a *API) alive(c *gin.Context) {
	if _, err := decodeBody[struct{}](c); err != nil {
		a.refuse(c, err)
		return
	}
	if err := a.Ledger.TouchMachine(detached(c), machineOf(c).ID, a.Now()); err != nil {
		a.refuse(c, err)
		return
	}
	a.answer(c, http.StatusOK, struct{}{})
}

func (a *API) begin(c *gin.Context) {
	request, err := decodeBody[automation.BeginRequest](c)
	if err != nil {
		a.refuse(c, err)
		return
	}
	answer, err := a.Ledger.Begin(detached(c), machineOf(c).ID, request)
	if err != nil {
		a.refuse(c, err)
		return
	}
	a.answer(c, http.StatusOK, answer)
}

func (a *API) finish(c *gin.Context) {
	request, err := decodeBody[automation.FinishRequest](c)
	if err != nil {
		a.refuse(c, err)
		return
	}
	answer, err := a.Ledger.Finish(detached(c), machineOf(c).ID, request)
	if err != nil {
		a.refuse(c, err)
		return
	}
	a.answer(c, http.StatusOK, answer)
}

// decodeBody decodes a request of the machine API, as strictly as any other document.
func decodeBody[T any](c *gin.Context) (T, error) {
	var request T
	body, err := readBody(c)
	if err != nil {
		return request, err
	}
	if violations := strictjson.Unmarshal(body, &request); len(violations) > 0 {
		return request, automation.Invalid(violations...)
	}
	return request, nil
}
