package catalog

import (
	"context"
	"net/http"
	"time"

	"github.com/errandhq/errand/automation"
)

// loseBatch is how many runs of a revoked machine are ended in one look.
const loseBatch = 100

// Enrolments makes one-time codes and ends access, beside the ledger.
type Enrolments interface {
	// NewCode returns a one-time code of the owner and when it expires; with a machine id it gives that machine
	// a new key. Errors: rate_limited, not_found.
	NewCode(ctx context.Context, ownerID, machineID string) (code string, expiresAt time.Time, err error)
	// Revoked ends at once what the machine has open at this server; other servers notice by themselves.
	Revoked(machineID string)
	// Lost asks that the workflows of runs that have lost their machine are told. It returns at once.
	Lost(runs []automation.Run)
}

var machineCommand = define(Command{
	Name:    "machine",
	Summary: "Show a machine",
	Scope:   automation.ScopeRead,
	Contract: `Returns the machine with what runs and waits on it, and the host of the worker that said hello last. A
machine is online when it was seen within 30 seconds.`,
	Example: `{"machine_id":"0193f5a0-0000-7000-8000-000000000000"}`,
	Effect:  EffectRead,
	Route:   Route{Method: http.MethodGet, Path: "/machines/{machine_id}", Status: http.StatusOK},
	Errors:  []automation.Code{automation.CodeNotFound},
}, decodeInto[MachineInput], machine)

var enrollCodeCommand = define(Command{
	Name:    "enroll-code",
	Summary: "Make a one-time code that enrols a machine",
	Scope:   automation.ScopePerson,
	Contract: `Returns a code with which one machine can be enrolled as yours, within 10 minutes and once. It is shown here
and nowhere else; only its hash is kept. On the machine that is to be enrolled give the command that the answer
names:
  errand machine enroll --server URL --code CODE
  errand worker
The machine makes its own key, which never leaves it. From then on it polls its own queue and nothing else, and
what runs on it runs as the user who started the worker.
With machine_id the code gives that machine a new key: it keeps its id, its queue, its name and the automations
that target it, and its old key is no longer good. Use it for a computer that was set up anew or whose key may
have been copied, and to take a revoked machine into service again.
A machine cannot make codes: ask as a person, or with a key of the scope admin.`,
	Example: `{}`,
	Effect:  EffectAdd,
	Route:   Route{Method: http.MethodPost, Path: "/machines/enrollment-codes", Status: http.StatusCreated},
	Errors:  []automation.Code{automation.CodeNotFound},
}, decodeInto[EnrollCodeInput], enrollCode)

var renameMachineCommand = define(Command{
	Name:    "rename-machine",
	Summary: "Change the name or the labels of a machine",
	Scope:   automation.ScopePerson,
	Contract: `Changes what people call a machine; its id, queue and key stay. labels replace all labels that it has. Names
need not be unique.`,
	Example: `{"machine_id":"0193f5a0-0000-7000-8000-000000000000","name":"build server"}`,
	Effect:  EffectChange,
	Route:   Route{Method: http.MethodPatch, Path: "/machines/{machine_id}", Status: http.StatusOK},
	Errors:  []automation.Code{automation.CodeNotFound},
}, decodeInto[RenameMachineInput], renameMachine)

var revokeMachineCommand = define(Command{
	Name:    "revoke-machine",
	Summary: "End a machine's access",
	Scope:   automation.ScopePerson,
	Contract: `From now on the machine's key opens nothing: its polls and streams end within a few seconds, and its worker,
when it is told, ends the programs that it runs. Nothing more is admitted for the machine. Its unfinished runs
end as failed: a step that had begun with machine_lost, marked unconfirmed because nobody knows what became of
it, and the steps after it skipped. Automations that target the machine are kept and answer machine_revoked.
It cannot be undone, but enroll-code with machine_id gives the same machine a new key. A repeat changes nothing.`,
	Example: `{"machine_id":"0193f5a0-0000-7000-8000-000000000000"}`,
	Effect:  EffectChange,
	Route:   Route{Method: http.MethodPost, Path: "/machines/{machine_id}/revoke", Status: http.StatusOK},
	Errors:  []automation.Code{automation.CodeNotFound},
}, decodeInto[MachineInput], revokeMachine)

// MachineInput names a machine.
type MachineInput struct {
	MachineID string `json:"machine_id" strict:"required" doc:"the id of the machine"`
}

func (in MachineInput) violations() []automation.Violation {
	var v violations
	v.id("machine_id", in.MachineID)
	return v
}

// EnrollCodeInput asks for a code.
type EnrollCodeInput struct {
	MachineID *string `json:"machine_id,omitempty" doc:"give this machine a new key instead of enrolling a new machine"`
}

func (in EnrollCodeInput) violations() []automation.Violation {
	var v violations
	v.filterID("machine_id", in.MachineID)
	return v
}

// EnrollCodeResult is a code, shown once.
type EnrollCodeResult struct {
	Code      string    `json:"code"`
	ExpiresAt time.Time `json:"expiresAt"`
	MachineID string    `json:"machineId,omitempty"`
	// Server is the address that the machine uses, and Command what to type there.
	Server  string `json:"server"`
	Command string `json:"command"`
}

// RenameMachineInput changes what people call a machine.
type RenameMachineInput struct {
	MachineID string             `json:"machine_id" strict:"required" doc:"the id of the machine"`
	Name      *string            `json:"name,omitempty" doc:"what people call it, 1 to 200 characters"`
	Labels    *map[string]string `json:"labels,omitempty" doc:"at most 50 labels, names and values of at most 200 bytes; they replace all that there are"`
}

func (in RenameMachineInput) violations() []automation.Violation {
	var v violations
	v.id("machine_id", in.MachineID)
	if in.Name == nil && in.Labels == nil {
		v.add("name", "is missing, and so are labels: give what is to change")
	}
	if in.Name != nil {
		v.problem("name", automation.MachineNameProblem(*in.Name))
	}
	v.problem("labels", automation.LabelsProblem(orEmpty(in.Labels)))
	return v
}

func (v *violations) problem(path, problem string) {
	if problem != "" {
		v.add(path, "%s", problem)
	}
}

func machine(ctx context.Context, s *Service, p Principal, in MachineInput) (MachineResult, error) {
	load, err := s.Ledger.OwnedMachine(ctx, p.OwnerID, in.MachineID)
	if err != nil {
		return MachineResult{}, err
	}
	return s.presentMachine(load), nil
}

func enrollCode(ctx context.Context, s *Service, p Principal, in EnrollCodeInput) (EnrollCodeResult, error) {
	id := orEmpty(in.MachineID)
	code, expiresAt, err := s.Enrolments.NewCode(ctx, p.OwnerID, id)
	if err != nil {
		return EnrollCodeResult{}, err
	}
	return EnrollCodeResult{
		Code: code, ExpiresAt: expiresAt.UTC().Truncate(time.Microsecond), MachineID: id, Server: s.PublicURL,
		Command: "errand machine enroll --server " + s.PublicURL + " --code " + code,
	}, nil
}

func renameMachine(ctx context.Context, s *Service, p Principal, in RenameMachineInput) (MachineResult, error) {
	change := automation.MachineChange{Name: in.Name, Labels: orEmpty(in.Labels)}
	load, err := s.Ledger.ChangeMachine(ctx, p.OwnerID, in.MachineID, change)
	if err != nil {
		return MachineResult{}, err
	}
	return s.presentMachine(load), nil
}

func revokeMachine(ctx context.Context, s *Service, p Principal, in MachineInput) (MachineResult, error) {
	if _, err := s.Ledger.RevokeMachine(ctx, p.OwnerID, in.MachineID); err != nil {
		return MachineResult{}, err
	}
	// The machine is out: what follows must not be left half-done because the caller left.
	ctx = context.WithoutCancel(ctx)
	s.Enrolments.Revoked(in.MachineID)
	if err := s.LoseRuns(ctx); err != nil {
		return MachineResult{}, err
	}
	return machine(ctx, s, p, in)
}

// LoseRuns ends the unfinished runs of revoked machines and tells their workflows. Every server does it now and
// then, for one that died half-way.
func (s *Service) LoseRuns(ctx context.Context) error {
	for {
		lost, err := s.Ledger.LoseRuns(ctx, loseBatch)
		if len(lost) > 0 {
			s.Enrolments.Lost(lost)
		}
		if err != nil || len(lost) == 0 {
			return err
		}
	}
}
