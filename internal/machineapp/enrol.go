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
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/buildinfo"
	"github.com/errandhq/errand/internal/cli"
	"github.com/errandhq/errand/internal/identity"
	"github.com/errandhq/errand/internal/machinestate"
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
		return enrolled, errors.New("this machine is not enrolled: give --server and --code-file with a one-time code")
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

// enrol presents the code until the control plane answers, and keeps the answer.
func enrol(ctx context.Context, dir string, key *identity.DeviceKey, code string, o cli.Worker, logger *slog.Logger) (machinestate.Enrolled, error) {
	if o.Server == "" {
		return machinestate.Enrolled{}, errors.New("--server is needed to enrol: the address of the control plane")
	}
	name := o.Name
	if name == "" {
		name, _ = os.Hostname() // a machine without a name is named by the next line
	}
	if name == "" {
		name = "machine"
	}
	for {
		answer, err := requestEnrolment(ctx, key, code, name, o.Server)
		if refusal, ok := errors.AsType[*automation.Error](err); ok {
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
		logger.Warn("the control plane does not answer; enrolling is tried again", "server", o.Server, "error", err)
		select {
		case <-ctx.Done():
			return machinestate.Enrolled{}, fmt.Errorf("enrolling this machine: %w", ctx.Err())
		case <-time.After(enrolPause):
		}
	}
}

// requestEnrolment sends one request. A refusal is an [*automation.Error]; any other error may pass.
func requestEnrolment(ctx context.Context, key *identity.DeviceKey, code, name, server string) (automation.EnrollAnswer, error) {
	var answer automation.EnrollAnswer
	proof, err := identity.EnrolmentProof(key, code, time.Now())
	if err != nil {
		return answer, err
	}
	body, err := json.Marshal(automation.EnrollRequest{
		Code: code, PublicKey: key.Public(), Proof: proof, Name: name,
		Platform: runtime.GOOS + "/" + runtime.GOARCH, Version: buildinfo.Version(),
	})
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
		if err := json.Unmarshal(content, &answer); err != nil {
			return answer, fmt.Errorf("reading the answer: %w", err)
		}
		return answer, nil
	}
	var envelope struct {
		Error struct {
			Code    automation.Code `json:"code"`
			Message string          `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(content, &envelope) != nil || response.StatusCode >= http.StatusInternalServerError {
		return answer, fmt.Errorf("the control plane answered %s", response.Status)
	}
	return answer, automation.Errorf(envelope.Error.Code, "%s", envelope.Error.Message)
}
