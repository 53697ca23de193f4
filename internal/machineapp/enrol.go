package machineapp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/buildinfo"
	"github.com/errandhq/errand/internal/cli"
	"github.com/errandhq/errand/internal/identity"
	"github.com/errandhq/errand/internal/lockfile"
	"github.com/errandhq/errand/internal/machinestate"
	"github.com/errandhq/errand/worker/host"
)

const (
	enrolTimeout = 30 * time.Second
	// maxEnrolAnswer bounds what is read of the answer to an enrolment.
	maxEnrolAnswer = 64 << 10
	// enrolPause is how long to wait before a control plane that does not answer is asked again.
	enrolPause = time.Second
)

// enrolment returns which machine this is. A code that is there is used, also by a machine that was enrolled
// before: whoever left it wants a new enrolment.
func enrolment(ctx context.Context, dir string, key *identity.DeviceKey, o cli.Worker, logger *slog.Logger) (machinestate.Enrolled, error) {
	enrolled, found, err := machinestate.Load(dir)
	if err != nil {
		return enrolled, err
	}
	code, err := readCode(o.CodeFile)
	if err != nil {
		return enrolled, err
	}
	switch {
	case code != "":
		return enrol(ctx, dir, key, code, o, logger)
	case !found:
		return enrolled, errors.New("this machine is not enrolled: make a code with enroll-code, and give errand machine enroll --server URL --code CODE")
	case o.Server != "" && o.Server != enrolled.ServerURL:
		// The same control plane under another address: its machine is the same.
		enrolled.ServerURL = o.Server
		return enrolled, machinestate.Save(dir, enrolled)
	}
	return enrolled, nil
}

func readCode(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("reading the enrolment code: %w", err)
	}
	return strings.TrimSpace(string(content)), nil
}

// enrol presents the code of a file until the control plane answers, and keeps the answer.
func enrol(ctx context.Context, dir string, key *identity.DeviceKey, code string, o cli.Worker, logger *slog.Logger) (machinestate.Enrolled, error) {
	if o.Server == "" {
		return machinestate.Enrolled{}, errors.New("--server is needed to enrol: the address of the control plane")
	}
	said := heard{}
	for {
		answer, err := requestEnrolment(ctx, key, enrolmentOf(code, o.Name, nil), o.Server)
		if refusal, ok := errors.AsType[*automation.Error](err); ok && !mayPass(refusal.Code) {
			return machinestate.Enrolled{}, fmt.Errorf("enrolling this machine: %s (%s)", refusal.Message, refusal.Code)
		}
		if err == nil {
			enrolled := machinestate.Enrolled{MachineID: answer.MachineID, ServerURL: o.Server}
			if err := machinestate.Save(dir, enrolled); err != nil {
				return enrolled, err
			}
			logger.Info("this machine is enrolled", "machine", answer.MachineID, "name", answer.Name)
			return enrolled, os.Remove(o.CodeFile)
		}
		if reason := host.Reason(err); said.isNew(reason) {
			logger.Warn("this machine cannot be enrolled yet; it is tried again", "server", o.Server, "reason", reason, "error", err)
		}
		select {
		case <-ctx.Done():
			return machinestate.Enrolled{}, fmt.Errorf("enrolling this machine: %w", ctx.Err())
		case <-time.After(enrolPause):
		}
	}
}

// mayPass reports whether a refusal is about the moment and not about the code.
func mayPass(code automation.Code) bool {
	return code == automation.CodeRateLimited || code == automation.CodeStoreUnavailable || code == automation.CodeEngineUnavailable
}

// heard remembers what was said last, so that a reason is said once.
type heard struct{ reason string }

func (h *heard) isNew(reason string) bool {
	was := h.reason
	h.reason = reason
	return reason != was
}

// enrollMachine is the command machine enroll: it presents a code once, with a new key where this machine is
// enrolled already, and keeps the answer.
func enrollMachine(ctx context.Context, dataDir string, o cli.MachineEnroll) (cli.EnrolledMachine, error) {
	var none cli.EnrolledMachine
	server, err := serverAddress(o.Server)
	if err != nil {
		return none, err
	}
	dir := machinestate.Dir(dataDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return none, fmt.Errorf("making the machine's state directory: %w", err)
	}
	if pid, held, err := lockfile.Probe(machinestate.LockPath(dir)); err != nil {
		return none, err
	} else if held {
		return none, fmt.Errorf("this machine's worker (pid %d) is running: stop it first, or set ERRAND_DATA_DIR to another "+
			"directory to enrol beside it", pid)
	}
	_, again, err := machinestate.Load(dir)
	if err != nil {
		return none, err
	}
	load := identity.LoadOrCreateKey
	if again {
		load = identity.LoadOrCreateNextKey
	}
	key, err := load(dir)
	if err != nil {
		return none, err
	}
	answer, err := requestEnrolment(ctx, key, enrolmentOf(o.Code, o.Name, o.Label), server)
	if err != nil {
		if _, refused := errors.AsType[*automation.Error](err); refused {
			return none, err
		}
		return none, errors.New(host.Reason(err))
	}
	// Before the key: what a crash in between leaves is put right by the same command.
	if err := machinestate.Save(dir, machinestate.Enrolled{MachineID: answer.MachineID, ServerURL: server}); err != nil {
		return none, err
	}
	if again {
		if err := identity.AdoptNextKey(dir); err != nil {
			return none, err
		}
	}
	return cli.EnrolledMachine{MachineID: answer.MachineID, Name: answer.Name, Server: server, Next: "errand worker"}, nil
}

// serverAddress checks the address of a control plane and returns it without a slash at its end.
func serverAddress(address string) (string, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.User != nil || (u.Scheme != "http" && u.Scheme != "https") {
		return "", automation.Errorf(automation.CodeValidationFailed,
			"--server %q is not the address of a control plane, such as https://errand.example.com", address)
	}
	return strings.TrimRight(address, "/"), nil
}

// enrolmentOf is the request of this machine, without key and proof. A machine without a name gets that of its host.
func enrolmentOf(code, name string, labels map[string]string) automation.EnrollRequest {
	if name == "" {
		name, _ = os.Hostname() // one without a name is named by the next line
	}
	if name == "" {
		name = "machine"
	}
	return automation.EnrollRequest{
		Code: code, Name: name, Labels: labels, Platform: runtime.GOOS + "/" + runtime.GOARCH, Version: buildinfo.Version(),
	}
}

// requestEnrolment sends one request. A refusal is an [*automation.Error]; any other error may pass.
func requestEnrolment(ctx context.Context, key *identity.DeviceKey, enrolment automation.EnrollRequest, server string) (automation.EnrollAnswer, error) {
	var answer automation.EnrollAnswer
	proof, err := identity.EnrolmentProof(key, enrolment.Code, time.Now())
	if err != nil {
		return answer, err
	}
	enrolment.PublicKey, enrolment.Proof = key.Public(), proof
	body, err := json.Marshal(enrolment)
	if err != nil {
		return answer, fmt.Errorf("encoding the enrolment: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, enrolTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimRight(server, "/")+"/v1/machine/enroll", bytes.NewReader(body))
	if err != nil {
		return answer, automation.Errorf(automation.CodeValidationFailed, "--server %q is not an address", server)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return answer, fmt.Errorf("sending the enrolment: %w", err)
	}
	defer response.Body.Close() // it is read below
	content, err := io.ReadAll(io.LimitReader(response.Body, maxEnrolAnswer))
	if err != nil {
		return answer, fmt.Errorf("reading the answer: %w", err)
	}
	if response.StatusCode == http.StatusCreated {
		if err := json.Unmarshal(content, &answer); err != nil || answer.MachineID == "" {
			return answer, host.ErrNoControlPlane
		}
		return answer, nil
	}
	return answer, enrolmentRefusal(response, content)
}

// enrolmentRefusal reads what a control plane says instead of enrolling. Trouble of its own may pass.
func enrolmentRefusal(response *http.Response, content []byte) error {
	var envelope struct {
		Error struct {
			Code    automation.Code        `json:"code"`
			Message string                 `json:"message"`
			Details []automation.Violation `json:"details"`
		} `json:"error"`
	}
	switch {
	case json.Unmarshal(content, &envelope) != nil || envelope.Error.Code == "":
		return fmt.Errorf("%w (status %s)", host.ErrNoControlPlane, response.Status)
	case response.StatusCode >= http.StatusInternalServerError:
		return fmt.Errorf("the control plane cannot enrol now: %s", envelope.Error.Message)
	}
	return &automation.Error{Code: envelope.Error.Code, Message: envelope.Error.Message, Details: envelope.Error.Details}
}
